package vm

import (
	"crypto/sha256"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
)

// The lists of a machine are as old as its last update. The archive keeps only the newest version of a package.
func TestKernelIsNewerThanTheLists(t *testing.T) {
	archive, cache := t.TempDir(), t.TempDir()
	const meta, image = kernelMeta + runtime.GOARCH, "linux-image-6.1.0-9-cloud"
	publish := func(version string) {
		t.Helper()
		write(t, filepath.Join(archive, "Packages"), pack(t, archive, meta, version, image)+pack(t, archive, image, version, ""))
	}
	a, err := ownApt(cache, "deb [trusted=yes] file:"+archive+" ./")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(a.close)
	fetch := func(name string) string {
		t.Helper()
		if err := a.fetchKernel(t.Context(), cache, name, t.Output()); err != nil {
			t.Fatal(err)
		}
		data, err := os.ReadFile(filepath.Join(cache, name+image, "version"))
		if err != nil {
			t.Fatal(err)
		}
		return string(data)
	}

	publish("1")
	if got := fetch("without-lists-"); got != "1" {
		t.Errorf("without lists: version %s, want 1", got)
	}
	publish("2")
	if got := fetch("old-lists-"); got != "2" {
		t.Errorf("with the lists of version 1: version %s, want 2", got)
	}
}

// pack makes a package, in place of its other versions, and returns its entry of the archive's list.
func pack(t *testing.T, archive, name, version, depends string) string {
	t.Helper()
	root := t.TempDir()
	if err := os.Mkdir(filepath.Join(root, "DEBIAN"), 0o755); err != nil {
		t.Fatal(err)
	}
	control := fmt.Sprintf("Package: %s\nVersion: %s\nArchitecture: all\nMaintainer: Test <test@example.net>\nDescription: test\n",
		name, version)
	if depends != "" {
		control += "Depends: " + depends + "\n"
	}
	write(t, filepath.Join(root, "DEBIAN", "control"), control)
	write(t, filepath.Join(root, "version"), version)
	old, err := filepath.Glob(filepath.Join(archive, name+"_*.deb"))
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range old {
		if err := os.Remove(file); err != nil {
			t.Fatal(err)
		}
	}
	deb := filepath.Join(archive, name+"_"+version+"_all.deb")
	if out, err := exec.CommandContext(t.Context(), "dpkg-deb", "--root-owner-group", "--build", root, deb).CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	data, err := os.ReadFile(deb)
	if err != nil {
		t.Fatal(err)
	}
	return strings.TrimSuffix(control, "\n") +
		fmt.Sprintf("\nFilename: ./%s\nSize: %d\nSHA256: %x\n\n", filepath.Base(deb), len(data), sha256.Sum256(data))
}

func write(t *testing.T, file, text string) {
	t.Helper()
	if err := os.WriteFile(file, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
}
