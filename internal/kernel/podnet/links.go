package podnet

import (
	"context"
	"log/slog"
	"net/netip"
	"slices"

	"github.com/tortie-net/tortie/internal/kernel/netlinkx"
)

// Link is the node's end of a container's link.
type Link struct {
	Name string
	// Handle and IfName come from the alias; they are empty for a link that Calico made.
	Handle, IfName string
	// Addresses are the addresses that the node reaches through the link.
	Addresses []netip.Addr

	index int
}

// Links lists the links of containers in the calling process' namespace, the node's: pairs with an alias made by Alias,
// and pairs with an end in another namespace to which a route leads, which may be another program's.
func Links() ([]Link, error) {
	host, err := netlinkx.Open()
	if err != nil {
		return nil, err
	}
	defer host.Close()
	all, err := host.Links()
	if err != nil {
		return nil, err
	}
	behind, err := addrsByLink(host, 0)
	if err != nil {
		return nil, err
	}
	var links []Link
	for _, l := range all {
		handle, ifName, named := ParseAlias(l.Alias)
		if !isPair(l) || !named && (l.Peer == netlinkx.PeerHere || len(behind[l.Index]) == 0) {
			continue
		}
		links = append(links, Link{Name: l.Name, Handle: handle, IfName: ifName, Addresses: behind[l.Index], index: l.Index})
	}
	return links, nil
}

// addrsByLink returns the addresses to which routes lead, by link, for one link or for all (0). Routes that the kernel
// makes itself, also from a pod's router advertisements, do not lead to a pod.
func addrsByLink(host *netlinkx.Conn, only int) (map[int][]netip.Addr, error) {
	routes, err := host.Routes(netlinkx.RouteFilter{Dev: only})
	if err != nil {
		return nil, err
	}
	behind, kernels := map[int][]netip.Addr{}, []netlinkx.Protocol{netlinkx.ProtocolKernel, netlinkx.ProtocolRA}
	for _, r := range routes {
		a, leads := r.Dst.Addr(), r.Dst.IsSingleIP() && r.Dev != 0 && !r.Via.IsValid() && !slices.Contains(kernels, r.Protocol)
		if leads && !slices.Contains(behind[r.Dev], a) {
			behind[r.Dev] = append(behind[r.Dev], a)
		}
	}
	return behind, nil
}

// Holds reports whether the link of that name belongs to the container with the handle: its alias names the handle, and
// a route leads to it. A pod with CAP_NET_ADMIN can make a link with the alias, but no route. ifName is the container's
// interface.
func Holds(name, handle string) (ifName string, holds bool, err error) {
	host, err := netlinkx.Open()
	if err != nil {
		return "", false, err
	}
	defer host.Close()
	link, err := host.LinkByName(name)
	of, ifName, _ := ParseAlias(link.Alias)
	if netlinkx.IsNotExist(err) || err == nil && of != handle {
		return "", false, nil
	}
	if err != nil {
		return "", false, err
	}
	behind, err := addrsByLink(host, link.Index)
	return ifName, len(behind) > 0, err
}

// Process returns the ID of a process in the container's namespace, or 0.
func (l Link) Process() (pid int, err error) {
	err = l.onNode(func(host *netlinkx.Conn, now netlinkx.Link) error {
		pid, err = host.PeerProcess(now)
		return err
	})
	return pid, err
}

// Remove removes the link, and the conntrack entries of its addresses. A link that is gone, or has another name or
// alias than when it was listed, is left alone.
func (l Link) Remove(ctx context.Context, log *slog.Logger) error {
	_, err := bounded(ctx, "link "+l.Name, func(node *netlinkx.Namespace) (addrs []netip.Addr, err error) {
		err = node.Do(func() error {
			return l.onNode(func(host *netlinkx.Conn, now netlinkx.Link) error {
				addrs, err = removeHostEnd(host, now, (&Config{Log: log}).warn)
				return err
			})
		})
		return addrs, err
	})
	return err
}

// onNode calls f with the link as it is now, unless it is gone or another one.
func (l Link) onNode(f func(*netlinkx.Conn, netlinkx.Link) error) error {
	host, err := netlinkx.Open()
	if err != nil {
		return err
	}
	defer host.Close()
	now, err := host.LinkByIndex(l.index)
	if netlinkx.IsNotExist(err) {
		return nil
	}
	if err != nil {
		return err
	}
	handle, ifName, _ := ParseAlias(now.Alias)
	if now.Name != l.Name || handle != l.Handle || ifName != l.IfName {
		return nil
	}
	return f(host, now)
}
