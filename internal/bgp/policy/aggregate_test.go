package policy

import (
	"net/netip"
	"testing"
)

// An aggregate hides the blocks in it whether it is live or not; single addresses are blocks only where the pool's
// blocks have that size.
func TestAggregates(t *testing.T) {
	all := Aggregates{
		{Prefix: netip.MustParsePrefix("10.0.0.0/16"), Live: true}, {Prefix: netip.MustParsePrefix("10.1.0.0/24")},
		{Prefix: netip.MustParsePrefix("fd00::/64"), Live: true, Singles: true},
	}
	for _, c := range []struct {
		prefix    string
		aggregate bool
		hidden    bool
	}{
		{"10.0.3.0/26", false, true},
		{"10.0.3.7/32", false, false},
		{"10.0.0.0/16", true, false},
		{"10.0.0.0/16", false, false}, // learned: another node announces it
		{"10.0.0.0/15", false, false},
		{"10.2.0.0/26", false, false},
		{"10.1.0.0/26", false, true},
		{"10.1.0.0/24", true, true},
		{"10.2.0.0/16", true, true},
		{"fd00::40/122", false, true},
		{"fd00::7/128", false, true},
	} {
		if got := all.Hide(netip.MustParsePrefix(c.prefix), c.aggregate); got != c.hidden {
			t.Errorf("%s, aggregate %t: hidden %t", c.prefix, c.aggregate, got)
		}
	}
	if p := netip.MustParsePrefix("10.0.0.0/16"); Aggregates(nil).Hide(p, false) || !Aggregates(nil).Hide(p, true) {
		t.Error("a peer without aggregates is not told what others are")
	}
}
