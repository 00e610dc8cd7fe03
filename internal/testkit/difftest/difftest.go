// Package difftest compares values and texts in tests.
package difftest

import (
	"net/netip"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
)

// Netip compares addresses and prefixes.
var Netip = cmpopts.EquateComparable(netip.Addr{}, netip.Prefix{})

// Want fails the test with the difference if got is not want, and lets it go on; what describes the values. Addresses and
// prefixes are compared by Netip.
func Want(t testing.TB, what string, want, got any, opts ...cmp.Option) {
	t.Helper()
	if diff := cmp.Diff(want, got, append(opts, Netip)...); diff != "" {
		t.Errorf("%s (-want +got):\n%s", what, diff)
	}
}

// Contains fails the test for each of the parts that text lacks, and lets it go on.
func Contains(t testing.TB, text string, parts ...string) {
	t.Helper()
	for _, part := range parts {
		if !strings.Contains(text, part) {
			t.Errorf("%q is missing in:\n%s", part, text)
		}
	}
}
