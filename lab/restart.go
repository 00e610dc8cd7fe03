package lab

import (
	"context"
	"errors"
	"fmt"
	"net"
	"path/filepath"
	"strconv"
	"time"

	"github.com/tortie-net/tortie/lab/internal/cluster"
	"github.com/tortie-net/tortie/lab/internal/kubeapi"
	"github.com/tortie-net/tortie/lab/internal/node"
	"github.com/tortie-net/tortie/lab/internal/supervisor"
)

// containerdTimeout bounds what containerd needs to end and to come back.
const containerdTimeout = time.Minute

// RestartNode ends all processes of a node at once, as a power cut does, and starts it again: its disk stays, and its network,
// its cgroups and /run are new. It returns when the kubelet works; pods come back later.
func (l *Lab) RestartNode(ctx context.Context, node string) error {
	if err := supervisor.RestartNode(ctx, l.state.Name, node); err != nil {
		return fmt.Errorf("restart node %s: %w", node, err)
	}
	return nil
}

// RestartContainerd ends a node's containerd by SIGTERM and returns when the next one, which the node starts by itself, answers.
// Containers live on meanwhile.
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
			return errors.New("it does not end")
		}
		return answers(ctx, filepath.Join("/proc", strconv.Itoa(n.PID), "root", node.ContainerdSocket))
	})
}

// answers says whether somebody listens at a socket. What an ended process has left there refuses.
func answers(ctx context.Context, socket string) error {
	var d net.Dialer
	c, err := d.DialContext(ctx, "unix", socket)
	if err != nil {
		return err
	}
	return c.Close()
}
