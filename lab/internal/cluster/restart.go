package cluster

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"path/filepath"
	"slices"
	"time"

	"github.com/tortie-net/tortie/lab/internal/kubeapi"
	"github.com/tortie-net/tortie/lab/internal/netns"
	"github.com/tortie-net/tortie/lab/internal/wire"
)

// restartTimeout is the limit until the kubelet of a restarted node is healthy.
const restartTimeout = 3 * time.Minute

// ControlSocket returns the supervisor's socket for restarts of nodes.
func ControlSocket(name string) string { return filepath.Join(stateDir(name), "control.sock") }

// Node returns a node by name, with its directory.
func (s State) Node(name string) (n Node, dir string, err error) {
	i := s.index(name)
	if i < 0 {
		return Node{}, "", fmt.Errorf("lab %q has no node %q", s.Name, name)
	}
	return s.Nodes[i], filepath.Join(s.Dir, name), nil
}

func (s State) index(name string) int {
	return slices.IndexFunc(s.Nodes, func(n Node) bool { return n.Name == name })
}

// Restart kills all processes of a node at once, as a power failure does, and starts it again. As in a reboot,
// namespaces, links, routes, rules, cgroups and /run are lost, and its disk is kept. It returns when the kubelet is
// healthy; pods restart later.
func (c *Cluster) Restart(ctx context.Context, name string) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	n, dir, err := c.state.Node(name)
	if err != nil {
		return err
	}
	limit := c.state.scaled(restartTimeout)
	ctx, cancel := context.WithTimeoutCause(ctx, limit, fmt.Errorf("node %s was not up within %s", name, limit))
	defer cancel()
	if err := c.restart(ctx, n); err != nil {
		err = withLogs(err, name, dir)
		c.state.Failure = err.Error()
		return errors.Join(err, c.state.write())
	}
	return nil
}

func (c *Cluster) restart(ctx context.Context, n Node) error {
	if err := c.cutPower(ctx, n); err != nil {
		return fmt.Errorf("end node %s: %w", n.Name, err)
	}
	if err := c.makeHardware(n); err != nil {
		return fmt.Errorf("start node %s: %w", n.Name, err)
	}
	if err := c.startNode(&c.state.Nodes[c.state.index(n.Name)]); err != nil {
		return err
	}
	if err := c.state.write(); err != nil {
		return err
	}
	return kubeapi.Poll(ctx, 50*time.Millisecond, kubeletWorks(nsPath(c.state.Name, n.Name)))
}

// cutPower kills the node's processes and removes their namespaces and cgroups.
func (c *Cluster) cutPower(ctx context.Context, n Node) error {
	p := c.running[n.Name]
	c.nodes.Remove(p) // its exit is expected
	if err := p.Kill(ctx); err != nil {
		return err
	}
	if err := c.layout.Empty(ctx, c.state.Name, n.Name); err != nil {
		return err
	}
	if err := wire.Detach(ControlPlane(c.state.Name), n.Name); err != nil {
		return err
	}
	return netns.Delete(nsPath(c.state.Name, n.Name))
}

// kubeletWorks requests the kubelet's health endpoint.
func kubeletWorks(ns string) func(context.Context) error {
	client := &http.Client{Timeout: 5 * time.Second, Transport: &http.Transport{DialContext: netns.Dialer(ns), DisableKeepAlives: true}}
	return func(ctx context.Context) error {
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://127.0.0.1:10248/healthz", nil)
		if err != nil {
			return err
		}
		resp, err := client.Do(req)
		if err != nil {
			return fmt.Errorf("the kubelet does not respond: %w", err)
		}
		defer resp.Body.Close()
		if resp.StatusCode != http.StatusOK {
			return fmt.Errorf("the kubelet's health: %s", resp.Status)
		}
		return nil
	}
}
