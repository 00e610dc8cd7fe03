package agent

import (
	"os"
	"path/filepath"

	"github.com/tortie-net/tortie/internal/app/hostfile"
)

// writeState writes a file of the state directory. A file that holds the text already is not touched.
func writeState(dir, name, text string) error {
	path := filepath.Join(dir, name)
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return err
	}
	_, err := hostfile.Replace(path, []byte(text), 0o644)
	return err
}
