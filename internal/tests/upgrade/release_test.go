package upgrade

import (
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/tortie-net/tortie/internal/testkit/labtest"
)

// beforeReleases stands for the last release as long as no tag names one.
const beforeReleases = "fc3ded1f74f5d47e669346baf1dd9d116aa92883"

// lastRelease returns the tag of the last release before these sources, and the directory of its sources.
func lastRelease(t *testing.T) (name, dir string) {
	t.Helper()
	name, err := run(labtest.Root(), "git", "describe", "--tags", "--abbrev=0", "--match=v[0-9]*", "--exclude=*-*", "HEAD^")
	if err != nil { // no tag, or a clone without HEAD^, which then has no beforeReleases either
		name = beforeReleases
	}
	if out, err := run(labtest.Root(), "git", "cat-file", "-e", name+"^{commit}"); err != nil {
		t.Fatalf("this clone lacks the last release, %s: %v: %s (git fetch --unshallow --tags)", name, err, out)
	}
	dir = t.TempDir()
	archive := filepath.Join(t.TempDir(), "sources.tar")
	for _, command := range [][]string{
		{"git", "archive", "--format=tar", "-o", archive, name},
		{"tar", "-x", "-f", archive, "-C", dir},
	} {
		if out, err := run(labtest.Root(), command...); err != nil {
			t.Fatalf("%q: %v: %s", command, err, out)
		}
	}
	return name, dir
}

// run runs a program in a directory and returns its trimmed output.
func run(dir string, command ...string) (string, error) {
	cmd := exec.Command(command[0], command[1:]...)
	cmd.Dir = dir
	out, err := cmd.CombinedOutput()
	return strings.TrimSpace(string(out)), err
}
