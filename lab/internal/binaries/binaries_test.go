package binaries

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
)

// module creates a module with the lab's name and one small program, for fast builds.
func module(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	write(t, dir, "go.mod",
		"module "+ModulePath+"\n\ngo 1.26\n\nrequire k8s.io/kubernetes v1.36.3\n\nreplace k8s.io/kubernetes => ./kubernetes\n")
	write(t, dir, "kubernetes/go.mod", "module k8s.io/kubernetes\n") // only its version is used
	write(t, dir, "go.sum", "")
	write(t, dir, "cmd/pause/main.go", "package main\n\nfunc main() { println(\"one\") }\n")
	return dir
}

func write(t *testing.T, dir, name, text string) {
	t.Helper()
	path := filepath.Join(dir, name)
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
}

var pause = Target{Name: "pause", Package: "./cmd/pause", Sources: []string{"cmd/pause"}}

func TestKeyFollowsWhatAProgramIsBuiltFrom(t *testing.T) {
	key := func(dir string) string {
		t.Helper()
		k, err := (&Cache{Module: dir}).Key(pause)
		if err != nil {
			t.Fatal(err)
		}
		return k
	}
	dir := module(t)
	first := key(dir)
	if other := key(module(t)); other != first {
		t.Errorf("the same sources in another directory: %s and %s", first, other)
	}
	write(t, dir, "cmd/other/main.go", "package main\n")
	write(t, dir, "cmd/pause/main_test.go", "package main\n")
	if k := key(dir); k != first {
		t.Error("files that are not built into it change the key")
	}
	for _, change := range []struct{ name, text string }{
		{"cmd/pause/main.go", "package main\n\nfunc main() { println(\"two\") }\n"},
		{"cmd/pause/more.go", "package main\n"},
		{"go.sum", "x v1 h1:=\n"},
		{"go.mod", "module " + ModulePath + "\nrequire k8s.io/kubernetes v1.36.4\n"},
	} {
		before := key(dir)
		write(t, dir, change.name, change.text)
		if key(dir) == before {
			t.Errorf("a change of %s does not change the key", change.name)
		}
	}
}

func TestModuleOfItsOwn(t *testing.T) {
	dir := module(t)
	write(t, dir, "own/go.mod", "module example.net/own\n\ngo 1.26\n\ntool (\n\texample.net/own/cmd/one\n\texample.net/own/cmd/two\n)\n")
	write(t, dir, "own/go.sum", "")
	write(t, dir, "own/cmd/one/main.go", "package main\n\nfunc main() {}\n")
	write(t, dir, "own/cmd/two/main.go", "//go:build wanted\n\npackage main\n\nfunc main() {}\n")
	c := &Cache{Dir: t.TempDir(), Module: dir, Log: new(bytes.Buffer)}
	own := Target{Name: "one", Package: "tool", Module: "own", Tags: []string{"wanted"}}
	first, err := c.Key(own)
	if err != nil {
		t.Fatal(err)
	}
	write(t, dir, "go.sum", "x v1 h1:=\n")
	if k, err := c.Key(own); err != nil || k != first {
		t.Errorf("the lab's go.sum changes the key: %v", err)
	}
	if err := c.build(t.Context(), []program{{own, filepath.Join(c.Dir, "one-"+first, "one")}}); err != nil {
		t.Fatal(err)
	}
	built, err := filepath.Glob(filepath.Join(c.Dir, "one-"+first, "*"))
	if err != nil || len(built) != 2 {
		t.Errorf("built %q, %v: want all tools of the module", built, err)
	}
	write(t, dir, "own/go.sum", "x v1 h1:=\n")
	if k, err := c.Key(own); err != nil || k == first {
		t.Errorf("its own go.sum does not change the key: %v", err)
	}
}

func TestBuildOnceForAll(t *testing.T) {
	dir := module(t)
	var log bytes.Buffer
	var mu sync.Mutex
	cacheDir := t.TempDir()
	paths := make([]string, 4)
	var wg sync.WaitGroup
	for i := range paths {
		wg.Go(func() {
			var own bytes.Buffer
			c := &Cache{Dir: cacheDir, Module: dir, Log: &own}
			path, err := c.Path(t.Context(), "pause")
			if err != nil {
				t.Error(err)
			}
			paths[i] = path
			mu.Lock()
			defer mu.Unlock()
			log.Write(own.Bytes())
		})
	}
	wg.Wait()
	if n := strings.Count(log.String(), "built ("); n != 1 {
		t.Errorf("four that wanted one program at once built it %d times:\n%s", n, log.String())
	}
	for _, p := range paths {
		if p != paths[0] {
			t.Errorf("two paths for one program: %s, %s", p, paths[0])
		}
	}
	out, err := exec.Command(paths[0]).CombinedOutput()
	if err != nil || string(out) != "one\n" {
		t.Errorf("the program printed %q, %v", out, err)
	}
	if left, _ := filepath.Glob(filepath.Join(cacheDir, "building-*")); len(left) > 0 {
		t.Errorf("left in the cache: %q", left)
	}
}

func TestBuildErrorShowsTheCompilers(t *testing.T) {
	dir := module(t)
	write(t, dir, "cmd/pause/main.go", "package main\n\nfunc main() { undefinedName() }\n")
	c := &Cache{Dir: t.TempDir(), Module: dir, Log: new(bytes.Buffer)}
	_, err := c.Path(t.Context(), "pause")
	if err == nil || !strings.Contains(err.Error(), "undefined: undefinedName") {
		t.Errorf("got %v", err)
	}
	if left, _ := filepath.Glob(filepath.Join(c.Dir, "pause-*")); len(left) > 0 {
		t.Errorf("a failed build is in the cache: %q", left)
	}
}

func TestPruneKeepsTheNewest(t *testing.T) {
	dir := module(t)
	c := &Cache{Dir: t.TempDir(), Module: dir, Log: new(bytes.Buffer)}
	for _, text := range []string{"1", "2", "3", "4", "5"} {
		write(t, dir, "cmd/pause/main.go", "package main\n\nfunc main() { println("+text+") }\n")
		if _, err := c.Path(t.Context(), "pause"); err != nil {
			t.Fatal(err)
		}
	}
	left, err := filepath.Glob(filepath.Join(c.Dir, "pause-*"))
	if err != nil || len(left) != kept {
		t.Fatalf("%d builds are kept, want %d (%v)", len(left), kept, err)
	}
	current, err := c.Path(t.Context(), "pause")
	if err != nil {
		t.Fatal(err)
	}
	if out, err := exec.Command(current).CombinedOutput(); err != nil || string(out) != "5\n" {
		t.Errorf("the current program printed %q, %v", out, err)
	}
}

func TestFindModule(t *testing.T) {
	root := t.TempDir()
	write(t, root, "lab/go.mod", "module "+ModulePath+"\n")
	write(t, root, "go.mod", "module github.com/tortie-net/tortie\n")
	write(t, root, "internal/x/x.go", "package x\n")
	for _, start := range []string{"lab", ".", "internal/x"} {
		got, err := FindModule("/nowhere", filepath.Join(root, start))
		if err != nil || got != filepath.Join(root, "lab") {
			t.Errorf("from %s: %q, %v", start, got, err)
		}
	}
	if got, err := FindModule("."); err != nil || filepath.Base(got) != "lab" || !filepath.IsAbs(got) {
		t.Errorf("from this package's own directory: %q, %v", got, err)
	}
	if got, err := FindModule(t.TempDir()); err == nil {
		t.Errorf("outside of any clone: %q", got)
	}
}
