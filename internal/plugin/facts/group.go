package facts

import (
	"path/filepath"
	"strings"

	"github.com/tortie-net/tortie/internal/api/groups"
	"github.com/tortie-net/tortie/internal/app/hostfile"
)

// ReadGroup returns the group in a GroupFile; empty if there is none.
func ReadGroup(path string) groups.Group {
	text, err := hostfile.ReadFile(path)
	if err != nil {
		return ""
	}
	in, _ := groups.Parse(strings.TrimSpace(string(text)))
	return in
}

// WriteGroup writes a group to a GroupFile.
func WriteGroup(path string, in groups.Group) error {
	if err := hostfile.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return err
	}
	_, err := hostfile.Replace(path, []byte(in+"\n"), 0o644)
	return err
}
