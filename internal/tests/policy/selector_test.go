package policy

import (
	"testing"

	"github.com/tortie-net/tortie/internal/api/selector"
	"github.com/tortie-net/tortie/internal/testkit/policytest"
)

// A selector is one for both, the product and the reference, and then selects the same.
func TestSelector(t *testing.T) {
	valid, g := 0, policytest.NewGenerator(*seed)
	for range 20_000 {
		text, labels := g.Selector()
		want, ok := policytest.EvalSelector(text, labels)
		s, err := selector.Parse(text)
		if ok != (err == nil) {
			t.Fatalf("%q: the error is %v, the reference says %v", text, err, ok)
		}
		if !ok {
			continue
		}
		valid++
		if got := s.Matches(labels); got != want {
			t.Fatalf("%q of %v: %v", text, labels, got)
		}
	}
	if valid < 10_000 || valid > 19_000 {
		t.Errorf("%d of the selectors are valid, too few or too many to learn from", valid)
	}
}
