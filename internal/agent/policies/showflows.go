package policies

import (
	"github.com/tortie-net/tortie/internal/policy"
)

// tried has the effect of staged policies. It is for Flows alone.
type tried struct {
	pending  *policy.Selection // nil: there are none
	stagedBy map[policy.ID]policy.ID
}

// try finds what staged policies would do.
func (w *Worker) try() tried {
	if w.Flows == nil || len(w.model.Staged) == 0 {
		return tried{}
	}
	state, by := policy.WithStaged(w.model.State, w.model.Staged)
	return tried{policy.Select(state), by}
}

// keepHosts: staged policies change nothing for host endpoints that have what they had before.
func (t tried) keepHosts(h *policy.HostPolicies) {
	if t.pending != nil {
		t.pending.KeepHosts(h)
	}
}

// and adds the pods that staged policies name.
func (t tried) and(i policy.Interest) policy.Interest {
	if t.pending == nil {
		return i
	}
	return i.And(t.pending.Interest())
}

// named adds all pods of the cluster if flows are recorded: the other end of a connection has a name even if no policy
// is about it.
func (w *Worker) named(i policy.Interest) policy.Interest {
	i.All = i.All || w.Flows != nil
	return i
}

// showFlows tells Flows what is in force.
func (w *Worker) showFlows() {
	if c := &w.compiled; w.Flows != nil && w.shown != c.selection {
		w.Flows.InForce(c.selection, w.model.Pods, c.pending, c.stagedBy)
		w.shown = c.selection
	}
}

// showPods tells Flows of changed pods.
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

// hideFlows tells Flows that another engine enforces.
func (w *Worker) hideFlows() {
	if w.Flows != nil {
		w.Flows.NotInForce()
		w.shown = nil
	}
}
