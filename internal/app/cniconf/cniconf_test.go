package cniconf

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/tortie-net/tortie/internal/testkit/errtest"
)

func TestRead(t *testing.T) {
	dir := t.TempDir()
	for name, text := range map[string]string{
		"10-calico.conflist": `{"plugins": [{"type": "calico"}, {"type": "portmap"}]}`,
		"05-bridge.conf":     `{"type": "bridge"}`,
		"07-odd.json":        `{`,
		"calico-kubeconfig":  `{`,
	} {
		errtest.Must(t, os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644))
	}
	errtest.Must(t, os.Mkdir(filepath.Join(dir, "01-directory.conf"), 0o755))
	files, err := Read(dir)
	if err != nil || len(files) != 3 || files[0].Name != "05-bridge.conf" || files[1].Err == nil ||
		strings.Join(files[2].Types, " ") != "calico portmap" {
		t.Errorf("%+v, %v", files, err)
	}
	if _, err := Read(filepath.Join(dir, "none")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("a directory that is not there: %v", err)
	}
}

// FuzzTypes: whatever is in a configuration, there is no panic.
func FuzzTypes(f *testing.F) {
	f.Add([]byte(`{"type":"a","plugins":[{"type":"b"}]}`))
	f.Fuzz(func(_ *testing.T, text []byte) { _, _ = types(text) })
}
