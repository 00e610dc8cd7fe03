package netnstest

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// WantText compares what a tool of the host prints of a namespace with testdata/NAME.txt, which rewrite writes anew.
func WantText(t testing.TB, name, got string, rewrite bool) {
	t.Helper()
	file := filepath.Join("testdata", name+".txt")
	if rewrite {
		if err := os.WriteFile(file, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(want), got); diff != "" {
		t.Errorf("text of the namespace (-%s +here):\n%s", file, diff)
	}
}
