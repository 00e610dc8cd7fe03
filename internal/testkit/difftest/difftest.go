// Package difftest compares values and texts in tests.
package difftest

import (
	"flag"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
)

// Netip compares addresses and prefixes.
var Netip = cmpopts.EquateComparable(netip.Addr{}, netip.Prefix{})

// Want reports the difference if got is not want, without ending the test; what describes the values. Addresses and
// prefixes are compared by Netip.
func Want(t testing.TB, what string, want, got any, opts ...cmp.Option) {
	t.Helper()
	if diff := cmp.Diff(want, got, append(opts, Netip)...); diff != "" {
		t.Errorf("%s (-want +got):\n%s", what, diff)
	}
}

var update = flag.Bool("update", false, "write the golden files in testdata anew, with what the tests get now")

// Golden reports the differing lines if got is not the content of the file testdata/name, without ending the test. With
// -update it writes the file first.
func Golden(t testing.TB, name, got string) {
	t.Helper()
	file := filepath.Join("testdata", name)
	if *update {
		if err := os.WriteFile(file, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(file)
	if err != nil {
		t.Fatalf("%v (-update writes it)", err)
	}
	if diff := cmp.Diff(strings.Split(string(want), "\n"), strings.Split(got, "\n")); diff != "" {
		t.Errorf("%s (-want +got; -update writes it anew):\n%s", file, diff)
	}
}

// Contains reports each of the parts that text lacks, without ending the test.
func Contains(t testing.TB, text string, parts ...string) {
	t.Helper()
	for _, part := range parts {
		if !strings.Contains(text, part) {
			t.Errorf("%q is missing in:\n%s", part, text)
		}
	}
}
