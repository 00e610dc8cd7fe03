package policies

import (
	"github.com/tortie-net/tortie/internal/policy"
)

// tried holds the effect of staged policies. Only Flows uses it.
type tried struct {
	pending  *policy.Selection // nil: no staged policies
	stagedBy map[policy.ID]policy.ID
}

// try computes the effect of staged policies.
func (w *Worker) try() tried {
	if w.Flows == nil || len(w.model.Staged) == 0 {
		return tried{}
	}
	state, by := policy.WithStaged(w.model.State, w.model.Staged)
	return tried{policy.Select(state), by}
}

// keepHosts sets the host endpoints' former policies: staged policies do not change them.
func (t tried) keepHosts(h *policy.HostPolicies) {
	if t.pending != nil {
		t.pending.KeepHosts(h)
	}
}

// and adds the interest of staged policies.
func (t tried) and(i policy.Interest) policy.Interest {
	if t.pending == nil {
		return i
	}
	return i.And(t.pending.Interest())
}

// named adds all pods of the cluster if flows are recorded: the other end of a connection is named even if no policy
// selects it.
func (w *Worker) named(i policy.Interest) policy.Interest {
	i.All = i.All || w.Flows != nil
	return i
}

// showFlows passes what is in force to Flows.
func (w *Worker) showFlows() {
	if c := &w.compiled; w.Flows != nil && w.shown != c.selection {
		w.Flows.InForce(c.selection, w.model.Pods, c.pending, c.stagedBy)
		w.shown = c.selection
	}
}

// showPods passes changed pods to Flows.
func (w *Worker) showPods(keys []policy.PodKey) {
	if w.Flows == nil {
		return
	}
	changed := make(map[policy.PodKey]*policy.Pod, len(keys))
	for _, key := range keys {
		changed[key] = w.model.Pods[key]
	}
	w.Flows.Replace(changed)
}

// hideFlows informs Flows that another engine enforces.
func (w *Worker) hideFlows() {
	if w.Flows != nil {
		w.Flows.NotInForce()
		w.shown = nil
	}
}
