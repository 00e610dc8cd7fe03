package duties

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/tortie-net/tortie/internal/api"
	"github.com/tortie-net/tortie/internal/datastore"
	"github.com/tortie-net/tortie/internal/datastore/kubernetes"
)

// Announce writes annotations on this node's Node, if it does not have them already. An empty value removes one.
func Announce(ctx context.Context, store *kubernetes.Store, have map[string]string, node string, want map[string]string) error {
	patch := kubernetes.Patch{Metadata: kubernetes.PatchMeta{Annotations: map[string]*string{}}}
	for key, value := range want {
		switch {
		case have[key] == value:
		case value == "":
			patch.Metadata.Annotations[key] = nil
		default:
			patch.Metadata.Annotations[key] = &value
		}
	}
	if len(patch.Metadata.Annotations) == 0 {
		return nil
	}
	return store.PatchStatus(ctx, &api.Node{Meta: api.Meta{Name: node}}, patch, false)
}

const (
	// downAfter is how long a node must have failed to serve pods before its condition shows it: a restart, a lost API
	// server or a link that goes down and up are over by then.
	downAfter = 5 * time.Minute
	// sayAgain is the least time between two writes of the condition: two programs that disagree must not write all the
	// time.
	sayAgain = 10 * time.Second
)

// The reasons are Calico's: its tools look for them.
const (
	reasonUp   = "CalicoIsUp"
	reasonDown = "CalicoIsDown"
)

// Availability keeps the Node's condition NetworkUnavailable up to date: while it is True, new pods are kept off the
// node.
//
// It becomes False when the node serves pods. It becomes True only when the node has failed to serve pods for
// downAfter, while its agent runs and sees the reason. The end of an agent is no reason: routes stay, and on a cluster
// of one node pods that the network itself needs could then start nowhere (rancher/rke2#10494). So a restart never
// changes it, and a condition that was False stays so for the first minutes of an agent that does not succeed at once.
//
// Other programs write the condition too: Calico's agent when it ends, and clouds' route controllers. A wrong value is
// corrected.
type Availability struct {
	store *kubernetes.Store
	node  string
	now   func() time.Time

	failing time.Time // start of the failure; zero: not failing
	wrote   time.Time // last write of the condition
}

// NewAvailability returns the keeper of a node's condition.
func NewAvailability(store *kubernetes.Store, node string, now func() time.Time) *Availability {
	return &Availability{store: store, node: node, now: now}
}

// Sync corrects the condition. seen are the Node's conditions; broken is why pods cannot be served, nil if they can.
func (a *Availability) Sync(ctx context.Context, seen []api.NodeCondition, broken error) error {
	now := a.now()
	switch {
	case errors.Is(broken, datastore.ErrUnavailable): // the write would fail too, and the node may serve well
		return nil
	case broken == nil:
		a.failing = time.Time{}
	case a.failing.IsZero():
		a.failing = now
	}
	want, ok := a.judge(now, broken)
	if !ok || says(seen, want.Status) || now.Sub(a.wrote) < sayAgain {
		return nil
	}
	patch := kubernetes.Patch{Status: map[string]any{"conditions": []api.NodeCondition{want}}}
	if err := a.store.PatchStatus(ctx, &api.Node{Meta: api.Meta{Name: a.node}}, patch, false); err != nil {
		if errors.Is(err, datastore.ErrNotFound) {
			return nil // a Node that is gone has no conditions
		}
		return fmt.Errorf("set the condition %s of Node %s to %s: %w", api.NetworkUnavailable, a.node, want.Status, err)
	}
	a.wrote = now
	return nil
}

// judge returns the correct condition; false if it must not be written yet.
func (a *Availability) judge(now time.Time, broken error) (api.NodeCondition, bool) {
	stamp := now.UTC().Format(time.RFC3339)
	c := api.NodeCondition{
		Type: api.NetworkUnavailable, Status: "False", Reason: reasonUp, Message: "Tortie is running on this node",
		LastHeartbeatTime: stamp, LastTransitionTime: stamp,
	}
	if broken == nil {
		return c, true
	}
	c.Status, c.Reason = "True", reasonDown
	c.Message = fmt.Sprintf("Tortie cannot serve pods since %s: %s", a.failing.UTC().Format(time.RFC3339), firstLine(broken.Error()))
	return c, now.Sub(a.failing) >= downAfter
}

func says(conditions []api.NodeCondition, status string) bool {
	return slices.ContainsFunc(conditions, func(c api.NodeCondition) bool { return c.Type == api.NetworkUnavailable && c.Status == status })
}

// firstLine returns the first line of a text, shortened for a condition.
func firstLine(text string) string {
	line, _, _ := strings.Cut(text, "\n")
	return line[:min(len(line), 300)]
}
