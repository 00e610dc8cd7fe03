package lab

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"strconv"
	"time"

	"github.com/tortie-net/tortie/lab/internal/cluster"
	"github.com/tortie-net/tortie/lab/internal/kubeapi"
	"github.com/tortie-net/tortie/lab/internal/node"
	"github.com/tortie-net/tortie/lab/internal/supervisor"
)

// containerdTimeout is the limit for containerd's exit and restart.
const containerdTimeout = 3 * time.Minute

// RestartNode kills all processes of a node at once, as a power failure does, and starts it again: its disk is kept,
// its network, cgroups and /run are new. It returns when the kubelet is healthy; pods restart later.
func (l *Lab) RestartNode(ctx context.Context, node string) error {
	if err := supervisor.RestartNode(ctx, l.state.Name, node); err != nil {
		return fmt.Errorf("restart node %s: %w", node, err)
	}
	return nil
}

// RestartContainerd ends a node's containerd by SIGTERM and returns when the next one, which the node starts by itself,
// responds. Containers keep running.
func (l *Lab) RestartContainerd(ctx context.Context, name string) error {
	state, err := cluster.ReadState(l.state.Name)
	if err != nil {
		return err
	}
	n, dir, err := state.Node(name)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, containerdTimeout)
	defer cancel()
	if err := l.restartContainerd(ctx, n, dir); err != nil {
		return fmt.Errorf("restart containerd of node %s: %w", name, err)
	}
	return nil
}

func (l *Lab) restartContainerd(ctx context.Context, n cluster.Node, dir string) error {
	before, err := node.ContainerdPID(dir)
	if err != nil {
		return err
	}
	if _, err := l.Exec(ctx, n.Name, "kill", strconv.Itoa(before)); err != nil {
		return err
	}
	return kubeapi.Poll(ctx, 20*time.Millisecond, func(ctx context.Context) error {
		after, err := node.ContainerdPID(dir)
		if err != nil {
			return err
		}
		if after == before {
			return errors.New("it does not exit")
		}
		return node.Answers(ctx, filepath.Join("/proc", strconv.Itoa(n.PID), "root", node.ContainerdSocket))
	})
}
