// Package messages reads the catalogue of the reports of programs, the chart and the API server's policies. Lists of
// docs/troubleshooting.md and docs/install.md are made from it. Its test compares the names of Events, alerts and
// policies with the code; sentences may differ.
package messages

import (
	"fmt"
	"os"
	"path/filepath"

	"sigs.k8s.io/yaml"
)

// File is the catalogue, below the root of the repository.
const File = "internal/messages.yaml"

// Entry is a message, or several with one cause, and its explanation for operators. In the texts "..." stands for
// inserted values; Help, the cause and the remedy, is Markdown.
type Entry struct {
	Message string   `json:"message"`
	Also    []string `json:"also"`
	Help    string   `json:"help"`
}

// Texts returns all messages of the entry.
func (e *Entry) Texts() []string { return append([]string{e.Message}, e.Also...) }

// Load reads the catalogue: the entries by the name of their list.
func Load(root string) (map[string][]Entry, error) {
	text, err := os.ReadFile(filepath.Join(root, File))
	if err != nil {
		return nil, fmt.Errorf("read the catalogue of messages: %w", err)
	}
	var all map[string][]Entry
	if err := yaml.UnmarshalStrict(text, &all); err != nil {
		return nil, fmt.Errorf("%s: %w", File, err)
	}
	return all, nil
}
