package lab

import (
	"context"
	"fmt"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/tortie-net/tortie/lab/internal/cluster"
	"github.com/tortie-net/tortie/lab/internal/kubeapi"
	"github.com/tortie-net/tortie/lab/internal/netns"
)

// List returns the names of running labs, and of labs with a killed supervisor.
func List() ([]string, error) { return cluster.List() }

// Stop stops a lab by name, also one of another process, and removes the remains of a killed one.
func Stop(ctx context.Context, name string) error { return cluster.Stop(ctx, name) }

// Describe returns the state of a lab and its nodes as text.
func Describe(ctx context.Context, name string) (string, error) {
	state, err := cluster.ReadState(name)
	if err != nil {
		return "", err
	}
	alive, err := cluster.Alive(name)
	if err != nil {
		return "", err
	}
	var b strings.Builder
	fmt.Fprintf(&b, "lab %s: %s, %d nodes, since %s\n", name, condition(state, alive), len(state.Nodes), state.Started.Format(time.DateTime))
	if !alive || !state.Ready {
		return b.String(), nil
	}
	client, err := kubeapi.New(state.Kubeconfig, netns.Dialer(cluster.ControlPlane(name)))
	if err != nil {
		return "", err
	}
	nodes, err := client.Nodes(ctx)
	if err != nil {
		return b.String(), fmt.Errorf("ask the API server of lab %q: %w", name, err)
	}
	pids := map[string]int{}
	for _, n := range state.Nodes {
		pids[n.Name] = n.PID
	}
	w := tabwriter.NewWriter(&b, 0, 0, 2, ' ', 0)
	for _, n := range nodes {
		ready, message := n.Ready()
		if ready {
			message = ""
		}
		fmt.Fprintf(w, "  %s\t%s\tready=%v\tpid %d\t%s\t%s\t%s\n", n.Name, n.Addresses, ready, pids[n.Name], n.Kubelet, n.Runtime, message)
	}
	err = w.Flush() // into b, so before it is read
	return b.String(), err
}

func condition(s cluster.State, alive bool) string {
	switch {
	case !alive:
		return "its supervisor was killed (lab down removes what is left)"
	case s.Failure != "":
		return "broken: " + s.Failure
	case !s.Ready:
		return "starting"
	}
	return "running"
}
