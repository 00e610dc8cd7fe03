package preflight

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/tortie-net/tortie/lab/internal/deps"
)

// Every missing requirement is one line; detection on incomplete machines is tested in cmd/lab.
func TestLacking(t *testing.T) {
	n := Needs{What: "it", Root: "does much", Memory: 100, Space: []Space{{Dir: "/a", MB: 10, Elsewhere: "use b"}}}
	good := Facts{Memory: Memory{MB: 100, Of: "x"}, Rooms: []Room{{MB: 10}}, Apt: true}
	if err := n.lacking(good); err != nil {
		t.Errorf("with just enough: %v", err)
	}
	for what, c := range map[string]struct {
		change func(*Facts)
		lines  int
	}{
		"another user is told of nothing else": {func(f *Facts) { f.UID, f.Memory.MB = 1, 1 }, 1},
		"memory":                               {func(f *Facts) { f.Memory.MB = 99 }, 1},
		"space":                                {func(f *Facts) { f.Rooms = []Room{{MB: 9}} }, 1},
		"read-only":                            {func(f *Facts) { f.Rooms = []Room{{MB: 99, ReadOnly: unix.EROFS}} }, 1},
		"all":                                  {func(f *Facts) { f.Memory.MB, f.Rooms, f.Missing = 9, []Room{{MB: 9}}, deps.VM }, 3},
	} {
		f := good
		c.change(&f)
		if err := n.lacking(f); err == nil || len(strings.Split(err.Error(), "\n")) != c.lines {
			t.Errorf("%s: %v, want %d lines", what, err, c.lines)
		}
	}
}

// A version 2 cgroup and its parents as files: the machine of the test may have version 1.
func TestCgroupsAbove(t *testing.T) {
	mount := t.TempDir()
	put := func(dir, name, text string) {
		t.Helper()
		if err := os.MkdirAll(filepath.Join(mount, dir), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(mount, dir, name), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	put("a/b", "memory.max", "max\n")
	put("a", "memory.max", "1000\n")
	put("a", "memory.current", "900\n")
	put("a", "memory.stat", "anon 500\ninactive_file 300\nactive_file 100\n")
	all := above(mount, ownPath("4:memory:/other\n0::/a/b\n", true), true)
	if len(all) != 3 {
		t.Fatalf("%v, want the cgroup, the one above it and the root", all)
	}
	for i, want := range []struct {
		free    uint64
		limited bool
	}{{0, false}, {500, true}, {0, false}} {
		if free, limited := all[i].free(); free != want.free || limited != want.limited {
			t.Errorf("%s: %d, %v, want %v", all[i].dir, free, limited, want)
		}
	}
	if only := above(mount, "/docker/outside", true); len(only) != 1 || only[0].dir != mount {
		t.Errorf("of a path that is not here: %v", only)
	}
	if path := ownPath("5:cpu,memory:/mine\n0::/x\n", false); path != "/mine" {
		t.Errorf("own cgroup of version 1: %s", path)
	}
}
