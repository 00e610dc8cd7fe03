package main

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/tortie-net/tortie/internal/testkit/errtest"
)

// git runs git in a directory, without the settings of this machine.
func git(t *testing.T, dir string, args ...string) string {
	t.Helper()
	cmd := exec.Command("git", args...)
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), "GIT_CONFIG_GLOBAL=/dev/null", "GIT_AUTHOR_NAME=a", "GIT_AUTHOR_EMAIL=a@example.net",
		"GIT_COMMITTER_NAME=a", "GIT_COMMITTER_EMAIL=a@example.net",
		"GIT_AUTHOR_DATE=2026-11-29T12:00:00+02:00", "GIT_COMMITTER_DATE=2026-11-29T12:00:00+02:00")
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("git %q: %v: %s", args, err, out)
	}
	return strings.TrimSpace(string(out))
}

func write(t *testing.T, dir, name, text string) {
	t.Helper()
	path := filepath.Join(dir, name)
	errtest.Must(t, errors.Join(os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, []byte(text), 0o644)))
}

// refused fails the test unless a release of the version fails, with all of these words in the error.
func refused(t *testing.T, dir, version string, words ...string) {
	t.Helper()
	err := run(options{root: dir, version: version})
	for _, word := range words {
		if err == nil || !strings.Contains(err.Error(), word) {
			t.Errorf("%q: %v, want %q in the error", version, err, word)
		}
	}
	if _, err := os.Stat(filepath.Join(dir, "dist")); err == nil {
		t.Errorf("%q: a refused release has made files", version)
	}
}

func TestRefused(t *testing.T) {
	dir := t.TempDir()
	refused(t, dir, "v0.1.0", "reading the state of the checkout", "not a git repository")
	git(t, dir, "init", "-q")
	write(t, dir, "a", "1")
	git(t, dir, "add", ".")
	git(t, dir, "commit", "-q", "-m", "one")
	refused(t, dir, "", `VERSION is ""`, "make release VERSION=v0.1.0")
	refused(t, dir, "0.1.0", `VERSION is "0.1.0"`)
	refused(t, dir, "v0.1", `VERSION is "v0.1"`)
	refused(t, dir, "v0.1.0", "VERSION is v0.1.0, and there is no such tag", "git tag -a v0.1.0")

	git(t, dir, "tag", "-a", "v0.1.0", "-m", "v0.1.0")
	refused(t, dir, "v0.2.0", "VERSION is v0.2.0, and HEAD has the tag v0.1.0")
	c, err := look(dir, "v0.1.0")
	errtest.Must(t, err)
	errtest.Must(t, c.check("v0.1.0"))
	if want := time.Date(2026, 11, 29, 10, 0, 0, 0, time.UTC); !c.created.Equal(want) {
		t.Errorf("time %v, want that of the commit, %v", c.created, want)
	}
	write(t, dir, "new", "")
	refused(t, dir, "v0.1.0", "no commit has", "?? new")
	errtest.Must(t, os.Remove(filepath.Join(dir, "new")))
	write(t, dir, "a", "2")
	refused(t, dir, "v0.1.0", "no commit has", "M a")

	tagged := git(t, dir, "rev-parse", "HEAD")
	git(t, dir, "commit", "-q", "-a", "-m", "two")
	refused(t, dir, "v0.1.0", "VERSION is v0.1.0, whose tag is at commit "+tagged, "git checkout v0.1.0")
}

func tgz(t *testing.T, at time.Time) []byte {
	t.Helper()
	var out bytes.Buffer
	packed := gzip.NewWriter(&out)
	packed.Comment = "Helm"
	packed.ModTime = at
	w := tar.NewWriter(packed)
	errtest.Must(t, w.WriteHeader(&tar.Header{Name: "tortie/Chart.yaml", Mode: 0o644, Size: 1, ModTime: at}))
	_, err := w.Write([]byte("x"))
	errtest.Must(t, errors.Join(err, w.Close(), packed.Close()))
	return out.Bytes()
}

func TestAtTime(t *testing.T) {
	at := time.Unix(1e9, 0).UTC()
	one, err := atTime(tgz(t, time.Unix(1, 0)), at)
	errtest.Must(t, err)
	two, err := atTime(tgz(t, time.Unix(2, 0)), at)
	errtest.Must(t, err)
	if !bytes.Equal(one, two) {
		t.Error("the times of Helm's package remain")
	}
	from, err := gzip.NewReader(bytes.NewReader(one))
	errtest.Must(t, err)
	entries := tar.NewReader(from)
	header, err := entries.Next()
	errtest.Must(t, err)
	text, err := io.ReadAll(entries)
	if err != nil || header.Name != "tortie/Chart.yaml" || !header.ModTime.Equal(at) || string(text) != "x" || from.Comment != "Helm" {
		t.Errorf("%+v, %q, %v", header, text, err)
	}
}
