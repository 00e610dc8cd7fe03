package agent

import (
	"os"
	"path/filepath"
	"testing"
)

func TestWriteState(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "calico")
	path := filepath.Join(dir, "mtu")
	for _, text := range []string{"1480", "1400"} {
		if err := writeState(dir, "mtu", text); err != nil {
			t.Fatal(err)
		}
		got, err := os.ReadFile(path)
		if err != nil || string(got) != text {
			t.Fatalf("file holds %q, %v; want %q", got, err, text)
		}
	}
	before, err := os.Stat(path)
	if err != nil {
		t.Fatal(err)
	}
	if err := writeState(dir, "mtu", "1400"); err != nil {
		t.Fatal(err)
	}
	after, err := os.Stat(path)
	if err != nil || !os.SameFile(before, after) {
		t.Errorf("an unchanged file was written again (%v)", err)
	}
	if files, _ := os.ReadDir(dir); len(files) != 1 {
		t.Errorf("temporary files are left: %v", files)
	}
}
