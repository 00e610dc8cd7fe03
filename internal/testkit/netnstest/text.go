package netnstest

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/tortie-net/tortie/internal/testkit/errtest"
)

// WantText compares the output of a tool in a namespace with testdata/NAME.txt; rewrite updates the file instead.
func WantText(t testing.TB, name, got string, rewrite bool) {
	t.Helper()
	file := filepath.Join("testdata", name+".txt")
	if rewrite {
		errtest.Must(t, os.WriteFile(file, []byte(got), 0o644))
	}
	want, err := os.ReadFile(file)
	errtest.Must(t, err)
	if diff := cmp.Diff(string(want), got); diff != "" {
		t.Errorf("text of the namespace (-%s +here):\n%s", file, diff)
	}
}
