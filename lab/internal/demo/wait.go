package demo

import (
	"context"
	"fmt"
	"time"

	"github.com/tortie-net/tortie/lab/internal/kubeapi"
)

// pollInterval is the interval of requests to the API server while the demo waits.
const pollInterval = 100 * time.Millisecond

// waitNodes returns when all nodes are Ready and have a network.
func (d *Demo) waitNodes(ctx context.Context) error {
	return kubeapi.Poll(ctx, pollInterval, func(ctx context.Context) error {
		nodes, err := d.api.Nodes(ctx)
		if err != nil {
			return err
		}
		for _, n := range nodes {
			if ready, message := n.Ready(); !ready {
				return fmt.Errorf("node %s is not Ready: %s", n.Name, message)
			}
			if c, ok := n.Condition("NetworkUnavailable"); !ok || c.Status != "False" {
				return fmt.Errorf("node %s has no network yet: condition NetworkUnavailable %q", n.Name, c.Status)
			}
		}
		return nil
	})
}

// waitPods returns when pods of the namespace default are Ready.
func (d *Demo) waitPods(ctx context.Context, names ...string) error {
	for _, name := range names {
		err := kubeapi.Poll(ctx, pollInterval, func(ctx context.Context) error { return d.api.PodReady(ctx, "default", name) })
		if err != nil {
			return err
		}
	}
	return nil
}
