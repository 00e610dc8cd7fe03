package agent

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/tortie-net/tortie/internal/testkit/errtest"
)

func TestWriteState(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "calico")
	path := filepath.Join(dir, "mtu")
	for _, text := range []string{"1480", "1400"} {
		errtest.Must(t, writeState(dir, "mtu", text))
		got, err := os.ReadFile(path)
		if err != nil || string(got) != text {
			t.Fatalf("file holds %q, %v; want %q", got, err, text)
		}
	}
	before, err := os.Stat(path)
	errtest.Must(t, err)
	errtest.Must(t, writeState(dir, "mtu", "1400"))
	after, err := os.Stat(path)
	if err != nil || !os.SameFile(before, after) {
		t.Errorf("an unchanged file was written again (%v)", err)
	}
	if files, _ := os.ReadDir(dir); len(files) != 1 {
		t.Errorf("temporary files are left: %v", files)
	}
}
