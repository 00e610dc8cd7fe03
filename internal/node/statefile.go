package node

import (
	"os"
	"path/filepath"

	"github.com/tortie-net/tortie/internal/hostfile"
)

// writeState writes a file that the plugins read. A file that holds the text already is not touched.
func writeState(dir, name, text string) error {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	_, err := hostfile.Replace(filepath.Join(dir, name), []byte(text), 0o644)
	return err
}
