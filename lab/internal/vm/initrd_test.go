package vm

import (
	"bytes"
	"compress/gzip"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// busybox' cpio, an independent implementation of the format, reads the archive.
func TestArchiveIsReadByCpio(t *testing.T) {
	src := t.TempDir()
	if err := os.MkdirAll(filepath.Join(src, "sub"), 0o755); err != nil {
		t.Fatal(err)
	}
	files := map[string]string{"empty": "", "odd": "abc", "sub/four": "1234"}
	for name, text := range files {
		if err := os.WriteFile(filepath.Join(src, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	var buf bytes.Buffer
	a, err := newArchive(&buf)
	if err != nil {
		t.Fatal(err)
	}
	a.file("/init", 0o755, []byte("#!"))
	a.link("/bin/sh", "/init")
	a.mkdir("work/dir")
	if err := a.tree(src, "/deep/er/data"); err != nil {
		t.Fatal(err)
	}
	if err := a.close(); err != nil {
		t.Fatal(err)
	}
	gz, err := gzip.NewReader(&buf)
	if err != nil {
		t.Fatal(err)
	}
	plain, err := io.ReadAll(gz)
	if err != nil {
		t.Fatal(err)
	}
	dst := t.TempDir()
	cpio := exec.Command("busybox", "cpio", "-id")
	cpio.Dir, cpio.Stdin = dst, bytes.NewReader(plain)
	if out, err := cpio.CombinedOutput(); err != nil {
		t.Fatalf("cpio: %v: %s", err, out)
	}
	for name, want := range files {
		got, err := os.ReadFile(filepath.Join(dst, "deep/er/data", name))
		if err != nil || string(got) != want {
			t.Errorf("%s: %q, %v; want %q", name, got, err, want)
		}
	}
	if st, err := os.Stat(filepath.Join(dst, "init")); err != nil || st.Mode().Perm() != 0o755 {
		t.Errorf("init: %v, %v", st, err)
	}
	if target, err := os.Readlink(filepath.Join(dst, "bin/sh")); err != nil || target != "/init" {
		t.Errorf("bin/sh is a link to %q, %v", target, err)
	}
	if st, err := os.Stat(filepath.Join(dst, "work/dir")); err != nil || !st.IsDir() {
		t.Errorf("work/dir: %v", err)
	}
}

func TestDependencies(t *testing.T) {
	for info, want := range map[string][]string{
		"license=GPL\x00depends=ip_tunnel,tunnel4\x00retpoline=Y\x00": {"ip_tunnel", "tunnel4"},
		"depends=\x00name=ip_tunnel\x00":                              nil,
		"name=builtin\x00":                                            nil,
	} {
		if diff := cmp.Diff(want, dependencies([]byte(info))); diff != "" {
			t.Errorf("%q (-want +got):\n%s", info, diff)
		}
	}
}

func TestModuleName(t *testing.T) {
	for file, want := range map[string]string{"a/nft-compat.ko": "nft_compat", "ipip.ko.xz": "ipip", "modules.dep": ""} {
		if got, ok := moduleName(file); ok != (want != "") || ok && got != want {
			t.Errorf("%s: %q, %v; want %q", file, got, ok, want)
		}
	}
}

func TestLineEnds(t *testing.T) {
	var out strings.Builder
	l := &lineEnds{w: &out}
	for _, part := range []string{"one\r", "\ntwo\r\n", "50%\r100%\r\r\n"} {
		if n, err := l.Write([]byte(part)); err != nil || n != len(part) {
			t.Fatalf("write %q: %d, %v", part, n, err)
		}
	}
	if want := "one\ntwo\n50%\r100%\r\n"; out.String() != want {
		t.Errorf("got %q, want %q", out.String(), want)
	}
}
