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

// sweepFiles removes the temporary files of killed agents and plugins. A plugin that is writing at that moment loses
// its file.
func (a *Agent) sweepFiles() {
	run, state := a.Config.RunDir, a.Config.StateDir
	for _, file := range []string{filepath.Join(run, factsFile), filepath.Join(state, nodenameFile), filepath.Join(state, endsFile)} {
		if err := hostfile.Sweep(filepath.Dir(file)); err != nil {
			a.Log.Warn("temporary files of a killed process stay", "err", err)
		}
	}
}
