package plots

import (
	"bytes"
	"encoding/xml"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/tortie-net/tortie/internal/testkit/errtest"
)

// The pictures of the repository's figures are whole, twice the same, and have nothing behind them and no black words.
func TestFiles(t *testing.T) {
	pictures, err := Files("../..")
	errtest.Must(t, err)
	again, err := Files("../..")
	errtest.Must(t, err)
	if len(pictures) != 5 {
		t.Errorf("%d pictures", len(pictures))
	}
	for name, text := range pictures {
		if !bytes.Equal(text, again[name]) {
			t.Errorf("%s is another one the second time", name)
		}
		decoder := xml.NewDecoder(bytes.NewReader(text))
		for {
			if _, err := decoder.Token(); errors.Is(err, io.EOF) {
				break
			} else if err != nil {
				t.Fatalf("%s: %v", name, err)
			}
		}
		for _, colour := range []string{"#FFFFFF", "#000000"} {
			if strings.Contains(string(text), colour) {
				t.Errorf("%s has the colour %s, which one of the backgrounds hides", name, colour)
			}
		}
	}
}

// A figure that is missing, or no number, is an error that names it.
func TestMissingFigure(t *testing.T) {
	text, err := os.ReadFile("../../" + timesFile)
	errtest.Must(t, err)
	ratios, err := os.ReadFile("../../" + ratiosFile)
	errtest.Must(t, err)
	for _, c := range []struct{ from, to, want string }{
		{"add,calico,", "add,another,", `no figure "ADD" of "calico"`},
		{"add,calico,,ADD,ms,", "add,calico,,ADD,ms,quick", `figure "ADD" of "calico"`},
	} {
		root := t.TempDir()
		changed := strings.ReplaceAll(string(text), c.from, c.to)
		for name, content := range map[string]string{timesFile: changed, ratiosFile: string(ratios)} {
			errtest.Must(t, os.MkdirAll(filepath.Dir(filepath.Join(root, name)), 0o755))
			errtest.Must(t, os.WriteFile(filepath.Join(root, name), []byte(content), 0o644))
		}
		if _, err := Files(root); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%q for %q: %v, want %s", c.to, c.from, err, c.want)
		}
	}
}
