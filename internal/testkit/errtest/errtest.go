// Package errtest ends tests on errors, and compares errors by the data in them, so that their sentences can change.
package errtest

import (
	"regexp"
	"strings"
	"testing"
)

// Must fails the test at once if err is not nil.
func Must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// Names reports whether err is an error with each of the texts, which are separated by spaces: fields, values and
// identifiers, in any order. A text is found only as a whole: 0 is not in 10.0.0.0, spec.cidr[0] or -0.
func Names(err error, words string) bool {
	return err != nil && Has(err.Error(), words)
}

// Has is Names for the text of a log or an Event.
func Has(text, words string) bool {
	for _, word := range strings.Fields(words) {
		whole := regexp.MustCompile(`(^|[^\w./\[-]|[^\w]\[)` + regexp.QuoteMeta(word) + `($|[^\w/-])`)
		if !whole.MatchString(text) {
			return false
		}
	}
	return true
}
