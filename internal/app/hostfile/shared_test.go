package hostfile

import (
	"bytes"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/tortie-net/tortie/internal/testkit/errtest"
)

// TestLinks plants links that lead out of a shared directory, in place of the file and of each directory on its path.
// Nothing outside is made, changed or removed.
func TestLinks(t *testing.T) {
	const kept = "kept"
	at := time.Now()
	writers := map[string]func(path string) error{
		"Touch": func(path string) error { return Touch(path, at) },
		"Replace": func(path string) error {
			if err := MkdirAll(filepath.Dir(path), 0o755); err != nil {
				return err
			}
			_, err := Replace(path, []byte("new"), 0o600)
			return err
		},
		"OpenFile": func(path string) error {
			f, err := OpenFile(path, os.O_CREATE|os.O_RDWR|os.O_TRUNC, 0o600)
			if err == nil {
				err = f.Close()
			}
			return err
		},
		"MkdirAll": func(path string) error { return MkdirAll(path+"/more", 0o755) },
		"Unlink":   Unlink,
		"Remove":   func(path string) error { _, err := Remove(path); return err },
		"Rename":   func(path string) error { return Rename(path, "other") },
		"Sweep":    func(path string) error { return Sweep(filepath.Dir(path)) },
	}
	for _, place := range []string{"file", "dir", "outer", "dangling"} {
		for name, write := range writers {
			for _, form := range []string{"absolute", "relative"} {
				t.Run(place+"/"+name+"/"+form, func(t *testing.T) {
					base := t.TempDir()
					share, outside := filepath.Join(base, "share"), filepath.Join(base, "outside")
					shared = append(shared, share)
					defer func() { shared = shared[:len(shared)-1] }()
					victim := filepath.Join(outside, "dir", "file")
					errtest.Must(t, os.MkdirAll(filepath.Dir(victim), 0o755))
					errtest.Must(t, os.WriteFile(victim, []byte(kept), 0o644))
					errtest.Must(t, os.WriteFile(filepath.Join(outside, "dir", ".tortie-1.tmp"), []byte(kept), 0o644))
					errtest.Must(t, os.Chtimes(victim, at.Add(-time.Hour), at.Add(-time.Hour)))
					before := listing(t, outside)
					path := filepath.Join(share, "outer", "dir", "file")
					link := map[string]string{"file": path, "dangling": path, "dir": filepath.Dir(path), "outer": filepath.Join(share, "outer")}[place]
					to := map[string]string{"file": victim, "dangling": filepath.Join(outside, "new"),
						"dir": filepath.Dir(victim), "outer": outside}[place]
					errtest.Must(t, os.MkdirAll(filepath.Dir(link), 0o755))
					if form == "relative" {
						var err error
						to, err = filepath.Rel(filepath.Dir(link), to)
						errtest.Must(t, err)
					}
					errtest.Must(t, os.Symlink(to, link))
					err := write(path)
					if now := listing(t, outside); now != before {
						t.Errorf("outside is now\n%s\nbefore:\n%s", now, before)
					}
					if err == nil && place != "file" && place != "dangling" && name != "MkdirAll" {
						t.Errorf("%s through a link is no error", name)
					}
				})
			}
		}
	}
}

// listing returns the files below a directory, with content and times.
func listing(t *testing.T, dir string) string {
	t.Helper()
	var b strings.Builder
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		info, err := d.Info()
		if err != nil {
			return err
		}
		b.WriteString(path + " " + info.Mode().String())
		if !d.IsDir() {
			text, err := os.ReadFile(path)
			if err != nil {
				return err
			}
			b.WriteString(" " + info.ModTime().String() + " " + string(text))
		}
		b.WriteString("\n")
		return nil
	})
	errtest.Must(t, err)
	return b.String()
}

// TestOddFiles reads files that are not ours: a pipe does not block it, and an endless file does not fill the memory.
func TestOddFiles(t *testing.T) {
	dir := t.TempDir()
	shared = append(shared, dir)
	defer func() { shared = shared[:len(shared)-1] }()
	pipe, huge, outside := filepath.Join(dir, "pipe"), filepath.Join(dir, "huge"), filepath.Join(dir, "outside")
	err := errors.Join(syscall.Mkfifo(pipe, 0o600), os.WriteFile(huge, nil, 0o600), os.Truncate(huge, maxRead+1),
		os.Symlink("/dev/zero", outside))
	errtest.Must(t, err)
	for _, path := range []string{pipe, huge, outside, dir, filepath.Join(dir, "absent")} {
		if b, err := ReadFile(path); err == nil || !strings.Contains(err.Error(), path) {
			t.Errorf("%s: %d bytes, %v", path, len(b), err)
		}
	}
	if err := Touch(pipe, time.Now()); err == nil {
		t.Error("a pipe nobody reads can be touched")
	}
	plain := filepath.Join(dir, "plain")
	text := strings.Repeat("text", 1000)
	errtest.Must(t, os.WriteFile(plain, []byte(text), 0o600))
	if b, err := ReadFile(plain); err != nil || string(b) != text {
		t.Errorf("%d bytes, %v", len(b), err)
	}
	if _, err := ReadFile(filepath.Join(dir, "absent")); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("absent: %v", err)
	}
}

// TestSame compares files of many parts: a program that differs in its last byte is another one.
func TestSame(t *testing.T) {
	dir := t.TempDir()
	path, link := filepath.Join(dir, "program"), filepath.Join(dir, "link")
	content := bytes.Repeat([]byte("0123456789"), 100_000)
	if written, err := Replace(path, content, 0o755); err != nil || !written {
		t.Fatalf("written: %v, %v", written, err)
	}
	if written, err := Replace(path, content, 0o755); err != nil || written {
		t.Errorf("again: written: %v, %v", written, err)
	}
	errtest.Must(t, os.Symlink(path, link))
	changed := bytes.Clone(content)
	changed[len(changed)-1]++
	for what, same := range map[string]bool{
		"the file":           Same(path, content, 0o755),
		"its last byte":      !Same(path, changed, 0o755),
		"less":               !Same(path, content[1:], 0o755),
		"another mode":       !Same(path, content, 0o700),
		"a symbolic link":    !Same(link, content, 0o755),
		"a directory":        !Same(dir, content, 0o755),
		"a file that is not": !Same(filepath.Join(dir, "absent"), content, 0o755),
	} {
		if !same {
			t.Errorf("%s: Same is wrong", what)
		}
	}
}
