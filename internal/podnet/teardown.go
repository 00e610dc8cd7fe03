package podnet

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/tortie-net/tortie/internal/netlinkx"
)

// TeardownTimeout bounds Teardown. Taking down one link keeps the kernel busy for tens of milliseconds under its one lock
// for network configuration, so a node that loses all its pods makes each wait for all the others.
const TeardownTimeout = 20 * time.Second

// Teardown removes the pod's interface, and with it the node's end and the routes. It succeeds when there is nothing to
// remove: no namespace (an empty path, nothing at the path, or a file there that is no namespace) or no interface. In the
// first case a node's end called hostVeth whose other end's namespace is gone is removed too, ahead of the kernel, so that
// the pod's address leads nowhere once Teardown has returned; a link of that name whose other end lives belongs to a newer
// sandbox of the pod. An empty hostVeth skips this.
func Teardown(ctx context.Context, netnsPath, ifName, hostVeth string) error {
	node, err := netlinkx.CurrentNamespace()
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, TeardownTimeout)
	defer cancel()
	done := make(chan error, 1)
	// A thread that waits for the kernel's lock can't be called back; what it does stays right after the deadline.
	go func() {
		defer node.Close()
		done <- teardown(node, netnsPath, ifName, hostVeth)
	}()
	select {
	case err := <-done:
		return err
	case <-ctx.Done():
		return fmt.Errorf("remove interface %s of %s: the kernel is busy: %w", ifName, netnsPath, ctx.Err())
	}
}

func teardown(node *netlinkx.Namespace, netnsPath, ifName, hostVeth string) error {
	if netnsPath == "" {
		return reapHostEnd(node, hostVeth)
	}
	ns, err := netlinkx.OpenNamespace(netnsPath)
	if netlinkx.IsNotExist(err) || errors.Is(err, netlinkx.ErrNotNamespace) {
		return reapHostEnd(node, hostVeth)
	}
	if err != nil {
		return err
	}
	defer ns.Close()
	pod, err := netlinkx.OpenAt(ns)
	if err != nil {
		return err
	}
	defer pod.Close()
	link, err := pod.LinkByName(ifName)
	if err == nil {
		err = pod.DeleteLink(link.Index)
	}
	if err != nil && !netlinkx.IsNotExist(err) {
		return fmt.Errorf("in namespace %s: %w", netnsPath, err)
	}
	return nil
}

func reapHostEnd(node *netlinkx.Namespace, hostVeth string) error {
	if hostVeth == "" {
		return nil
	}
	host, err := netlinkx.OpenAt(node)
	if err != nil {
		return err
	}
	defer host.Close()
	link, err := host.LinkByName(hostVeth)
	if netlinkx.IsNotExist(err) {
		return nil
	}
	if err != nil {
		return err
	}
	alive, err := host.PeerAlive(link)
	if err != nil || alive || link.Kind != "veth" {
		return err
	}
	if err := host.DeleteLink(link.Index); err != nil && !netlinkx.IsNotExist(err) {
		return err
	}
	return nil
}
