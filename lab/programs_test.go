package lab

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/tortie-net/tortie/lab/internal/binaries"
)

// TestProgramsInsideAVM tests the cache inside a virtual machine: it has the programs that were resolved before the
// boot, and nothing is built. With all of DefaultPrograms everything works; without any one of them the error names it
// and the remedy.
func TestProgramsInsideAVM(t *testing.T) {
	ctx := testContext(t)
	host, err := binaries.Open(t.Output())
	if err != nil {
		t.Fatal(err)
	}
	paths, err := host.Paths(ctx, DefaultPrograms...)
	if err != nil {
		t.Fatal(err)
	}
	base := t.TempDir()
	t.Setenv("XDG_CACHE_HOME", base)
	t.Setenv(binaries.InVM, "1")
	cache := filepath.Join(base, "tortie")
	if err := os.Mkdir(cache, 0o755); err != nil {
		t.Fatal(err)
	}
	link := func(path string) string { return filepath.Join(cache, filepath.Base(filepath.Dir(path))) }
	for _, path := range paths {
		if err := os.Symlink(filepath.Dir(path), link(path)); err != nil {
			t.Fatal(err)
		}
	}
	name := labNames(t, 1)[0]
	for i, path := range paths {
		if err := os.Remove(link(path)); err != nil {
			t.Fatal(err)
		}
		_, err := Start(ctx, Config{Name: name, Nodes: []string{"node1"}, Log: t.Output()})
		if err == nil || !strings.Contains(err.Error(), "bin/lab build "+DefaultPrograms[i]+"`") {
			t.Errorf("without %s: %v", DefaultPrograms[i], err)
		}
		if err := os.Symlink(filepath.Dir(path), link(path)); err != nil {
			t.Fatal(err)
		}
	}
	l, err := Start(ctx, Config{Name: name, Nodes: []string{"node1"}, Log: t.Output()})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := l.tool(ctx, nil, "kubectl", "get", "nodes"); err != nil {
		t.Error(err)
	}
	if _, err := l.tool(ctx, nil, "helm", "list"); err != nil {
		t.Error(err)
	}
	if err := l.Stop(ctx); err != nil {
		t.Error(err)
	}
	after, err := os.ReadDir(cache)
	if err != nil || len(after) != len(paths) {
		t.Errorf("the cache holds %v afterwards, %v: want the %d programs", after, err, len(paths))
	}
}
