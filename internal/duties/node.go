package duties

import (
	"context"
	"time"

	"github.com/tortie-net/tortie/internal/api"
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

// DeclareAvailable clears the condition that keeps pods off the node, unless it is clear already.
func DeclareAvailable(ctx context.Context, store *kubernetes.Store, node string, now time.Time) error {
	n := &api.Node{Meta: api.Meta{Name: node}}
	if err := store.Get(ctx, n); err != nil {
		return err
	}
	for _, c := range n.Status.Conditions {
		if c.Type == api.NetworkUnavailable && c.Status == "False" {
			return nil
		}
	}
	stamp := now.UTC().Format(time.RFC3339)
	patch := kubernetes.Patch{Status: map[string]any{"conditions": []api.NodeCondition{{
		Type:   api.NetworkUnavailable,
		Status: "False",
		// The reason is Calico's: its tools look for it.
		Reason:             "CalicoIsUp",
		Message:            "Tortie is running on this node",
		LastHeartbeatTime:  stamp,
		LastTransitionTime: stamp,
	}}}}
	return store.PatchStatus(ctx, n, patch, false)
}
