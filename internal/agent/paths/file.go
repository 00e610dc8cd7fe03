package paths

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"

	"github.com/tortie-net/tortie/internal/app/hostfile"
)

// answer is a line of Worker.File: a node that has answered a probe, by a way.
type answer struct {
	Node   string `json:"node"`
	Family int    `json:"family"` // 0: IPv4, 1: IPv6
	Kind   Kind   `json:"kind"`
}

// recall takes nodes that an earlier agent had answers of for such that have answered. A file that cannot be read is none.
func (w *Worker) recall() {
	if w.File == "" {
		return
	}
	var all []answer
	text, err := os.ReadFile(w.File)
	if err == nil {
		err = json.Unmarshal(text, &all)
	}
	if err != nil {
		if !errors.Is(err, fs.ErrNotExist) {
			w.Log.Warn("cannot read which nodes have answered probes, beginning anew", "path", w.File, "err", err)
		}
		return
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.states = make(map[path]*state, len(all))
	for _, a := range all {
		w.states[path{a.Node, a.Family}] = &state{kind: a.Kind, answered: true}
	}
}

// save writes the nodes that have answered, if they are others than those that were written last.
func (w *Worker) save() {
	if w.File == "" {
		return
	}
	all := []answer{}
	w.mu.Lock()
	for p, s := range w.states {
		if s.answered {
			all = append(all, answer{p.node, p.family, s.kind})
		}
	}
	w.mu.Unlock()
	slices.SortFunc(all, func(a, b answer) int { return cmp.Or(cmp.Compare(a.Node, b.Node), cmp.Compare(a.Family, b.Family)) })
	text, err := json.Marshal(all)
	if err == nil && bytes.Equal(text, w.kept) {
		return
	}
	if err == nil {
		err = os.MkdirAll(filepath.Dir(w.File), 0o755)
	}
	if err == nil {
		_, err = hostfile.Replace(w.File, text, 0o600)
	}
	if err != nil {
		w.Log.Warn("cannot keep which nodes have answered probes for the next agent", "err", fmt.Errorf("write %s: %w", w.File, err))
	}
	w.kept = text // tried once
}
