package podnet

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"slices"
	"time"

	"github.com/tortie-net/tortie/internal/kernel/netlinkx"
)

// TeardownTimeout bounds Teardown. Taking down one link holds the kernel's one lock for network configuration for tens
// of milliseconds, so on a node that loses all its pods each waits for all the others.
const TeardownTimeout = 20 * time.Second

// Teardown removes the interface of c, and with it the node's end, the routes and all conntrack entries of the pod. It
// uses the fields Netns, IfName, HostVeth, Alias and Log of c. It returns the addresses that the pod had, as far as the
// kernel still had them.
//
// It succeeds when there is nothing to remove: no namespace (an empty path, nothing at the path, or a file there that
// is no namespace) or no interface. In those cases it also removes the link HostVeth if its alias is c.Alias, or if its
// other end's namespace is gone: it does not wait for the kernel, so that the pod's address leads nowhere once Teardown
// has returned. Another link of that name belongs to a newer sandbox of the pod. An empty HostVeth skips this.
//
// Teardown refuses the node's own namespace. If the other end has another container's alias, the interface stays: the
// path leads to a newer sandbox.
func Teardown(ctx context.Context, c Config) ([]netip.Addr, error) {
	if c.Log == nil {
		c.Log = slog.New(slog.DiscardHandler)
	}
	return bounded(ctx, fmt.Sprintf("interface %s of %s", c.IfName, c.Netns),
		func(node *netlinkx.Namespace) ([]netip.Addr, error) { return teardown(node, c) })
}

// bounded calls remove with the node's namespace, and returns at the deadline. remove cannot be interrupted while it
// waits for the kernel's lock; it finishes later, which is harmless.
func bounded(ctx context.Context, what string, remove func(node *netlinkx.Namespace) ([]netip.Addr, error)) ([]netip.Addr, error) {
	node, err := netlinkx.CurrentNamespace()
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, TeardownTimeout)
	defer cancel()
	type outcome struct {
		addrs []netip.Addr
		err   error
	}
	done := make(chan outcome, 1)
	go func() {
		defer node.Close()
		addrs, err := remove(node)
		done <- outcome{addrs, err}
	}()
	select {
	case o := <-done:
		return o.addrs, o.err
	case <-ctx.Done():
		return nil, fmt.Errorf("remove %s: the kernel is busy: %w", what, ctx.Err())
	}
}

func teardown(node *netlinkx.Namespace, c Config) ([]netip.Addr, error) {
	host, err := netlinkx.OpenAt(node)
	if err != nil {
		return nil, err
	}
	defer host.Close()
	if c.Netns == "" {
		return reapHostEnd(host, c)
	}
	ns, err := netlinkx.OpenNamespace(c.Netns)
	if netlinkx.IsNotExist(err) || errors.Is(err, netlinkx.ErrNotNamespace) {
		return reapHostEnd(host, c)
	}
	if err != nil {
		return nil, err
	}
	defer ns.Close()
	if err := notTheNodes(ns, node, c.Netns); err != nil {
		return nil, err
	}
	pod, err := netlinkx.OpenAt(ns)
	if err != nil {
		return nil, err
	}
	defer pod.Close()
	link, err := pod.LinkByName(c.IfName)
	if netlinkx.IsNotExist(err) {
		return reapHostEnd(host, c)
	}
	if err == nil {
		return c.remove(host, pod, link)
	}
	return nil, fmt.Errorf("in namespace %s: %w", c.Netns, err)
}

// remove deletes the pod's end, and with it the other. Taking a link down waits 20 ms for other processors (RCU);
// meanwhile the conntrack entries are deleted. To prevent new ones, the addresses and their routes are removed first.
func (c *Config) remove(host, pod *netlinkx.Conn, link netlinkx.Link) ([]netip.Addr, error) {
	other, found, err := otherEnd(host, link)
	if err != nil {
		return nil, err
	}
	if found && c.isAnothers(other) {
		c.Log.Warn("the network namespace belongs to another container now: keeping its interface", "netns", c.Netns, "link", describe(other))
		return nil, nil
	}
	have, err := pod.Addrs(link.Index, netlinkx.FamilyAll)
	if err != nil {
		return nil, fmt.Errorf("in namespace %s: %w", c.Netns, err)
	}
	var addrs []netip.Addr
	for _, a := range have {
		if a.Prefix.Addr().IsLinkLocalUnicast() {
			continue
		}
		addrs = append(addrs, a.Prefix.Addr())
		err := pod.DeleteAddr(link.Index, a.Prefix)
		if found {
			err = errors.Join(err, host.DeleteRoute(hostRoute(a.Prefix.Addr(), other.Index)))
		}
		if err != nil {
			c.Log.Debug("an address or its route was gone", "err", err) // or is removed with the link
		}
	}
	forgotten := forgetMeanwhile(host, addrs)
	if err := pod.DeleteLink(link.Index); err != nil && !netlinkx.IsNotExist(err) {
		return addrs, errors.Join(fmt.Errorf("in namespace %s: %w", c.Netns, err), forgotten())
	}
	c.warn(forgotten())
	return addrs, nil
}

// otherEnd returns the node's end of a pod's link.
func otherEnd(host *netlinkx.Conn, link netlinkx.Link) (other netlinkx.Link, found bool, err error) {
	if link.PeerIndex == 0 {
		return other, false, nil
	}
	other, err = host.LinkByIndex(link.PeerIndex)
	if netlinkx.IsNotExist(err) {
		return other, false, nil
	}
	return other, err == nil && isPair(other) && other.PeerIndex == link.Index, err
}

// isAnothers reports whether a link has another container's alias.
func (c *Config) isAnothers(l netlinkx.Link) bool {
	_, _, ok := ParseAlias(l.Alias)
	return ok && c.Alias != "" && l.Alias != c.Alias
}

// forgetMeanwhile starts to delete the addresses' conntrack entries, and returns a function that waits for the result.
func forgetMeanwhile(host *netlinkx.Conn, addrs []netip.Addr) func() error {
	done := make(chan error, 1)
	go func() {
		_, err := host.DeleteFlows(addrs)
		done <- err
	}()
	return func() error { return <-done }
}

// warn logs that conntrack entries stay, which does not fail the removal.
func (c *Config) warn(err error) {
	if err != nil {
		c.Log.Warn("connections of the pod may be remembered until they time out", "err", err)
	}
}

// reapHostEnd removes the node's end if the pod's can't be reached.
func reapHostEnd(host *netlinkx.Conn, c Config) ([]netip.Addr, error) {
	if c.HostVeth == "" {
		return nil, nil
	}
	link, err := host.LinkByName(c.HostVeth)
	if netlinkx.IsNotExist(err) {
		return nil, nil
	}
	if err != nil || !isPair(link) {
		return nil, err
	}
	if c.Alias == "" || link.Alias != c.Alias {
		alive, err := host.PeerAlive(link)
		if err != nil || alive {
			return nil, err
		}
	}
	return removeHostEnd(host, link, c.warn)
}

// removeHostEnd removes a link from the node's side, its routes first. It returns the routes' addresses.
func removeHostEnd(host *netlinkx.Conn, link netlinkx.Link, warn func(error)) ([]netip.Addr, error) {
	behind, err := addrsByLink(host, link.Index)
	if err != nil {
		return nil, err
	}
	addrs := behind[link.Index]
	for _, a := range addrs {
		if err := host.DeleteRoute(hostRoute(a, link.Index)); err != nil && !netlinkx.IsNotExist(err) {
			return nil, err
		}
	}
	forgotten := forgetMeanwhile(host, addrs)
	if err := host.DeleteLink(link.Index); err != nil && !netlinkx.IsNotExist(err) {
		return addrs, errors.Join(err, forgotten())
	}
	warn(forgotten())
	return addrs, nil
}

// Forget deletes the conntrack entries of addresses of removed pods. It skips addresses to which the node has a host
// route: a newer pod has them.
func Forget(addrs []netip.Addr) error {
	host, err := netlinkx.Open()
	if err != nil {
		return err
	}
	defer host.Close()
	routes, err := host.Routes(netlinkx.RouteFilter{})
	if err != nil {
		return err
	}
	addrs = slices.DeleteFunc(slices.Clone(addrs), func(a netip.Addr) bool {
		return slices.ContainsFunc(routes, func(r netlinkx.Route) bool { return r.Dst == hostPrefix(a) && r.Dev != 0 })
	})
	_, err = host.DeleteFlows(addrs)
	return err
}
