package paths

import (
	"cmp"
	"encoding/json"
	"slices"
)

// answer is a node that has answered a probe, by a kind of path.
type answer struct {
	Node   string `json:"node"`
	Family int    `json:"family"` // 0: IPv4, 1: IPv6
	Kind   Kind   `json:"kind"`
}

// Recall restores which nodes had answered an earlier agent, from the text given to its Keep. Call it before Run.
func (w *Worker) Recall(text []byte) error {
	var all []answer
	if err := json.Unmarshal(text, &all); err != nil {
		return err
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.states = make(map[path]*state, len(all))
	for _, a := range all {
		w.states[path{a.Node, a.Family}] = &state{kind: a.Kind, answered: true}
	}
	return nil
}

// save calls Keep with the nodes that have answered, if they changed.
func (w *Worker) save() {
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
	if err == nil && string(text) == w.kept {
		return
	}
	if err == nil {
		err = w.Keep(string(text))
	}
	if err != nil {
		w.Log.Warn("cannot keep which nodes have answered probes for the next agent", "err", err)
	}
	w.kept = string(text) // one try is enough
}
