package node

import (
	"fmt"
	"net/netip"
	"strings"

	"github.com/tortie-net/tortie/internal/api"
	"github.com/tortie-net/tortie/internal/netlinkx"
)

// NodeAddress is the address that other nodes reach this one by, and the interface that has it.
type NodeAddress struct {
	// Addr has the prefix length of the subnet.
	Addr netip.Prefix
	// Source says in words where the address comes from.
	Source string
	// Link is the interface's name, LinkMTU its MTU.
	Link    string
	LinkMTU int
}

// chooseAddress picks the node's address: the configured one, else the first IPv4 InternalIP that Kubernetes knows of the
// node. It has to be on one of the host's interfaces, which tells the subnet and the MTU.
func chooseAddress(configured netip.Prefix, n *api.Node, links []netlinkx.Link, addrs []netlinkx.Addr) (NodeAddress, error) {
	want := configured.Addr()
	source := "environment variable IP"
	if !configured.IsValid() {
		var err error
		if want, err = internalIP(n); err != nil {
			return NodeAddress{}, err
		}
		source = "InternalIP of node " + n.Name
	}
	for _, a := range addrs {
		if a.Prefix.Addr() != want {
			continue
		}
		for _, l := range links {
			if l.Index == a.Link {
				return NodeAddress{Addr: subnet(configured, a.Prefix), Source: source, Link: l.Name, LinkMTU: l.MTU}, nil
			}
		}
	}
	return NodeAddress{}, fmt.Errorf("node address %s (%s) is on no interface of this host, which has %s: set the environment variable IP to the right one",
		want, source, list(addrs))
}

// subnet prefers the configured prefix length, unless only an address was configured.
func subnet(configured, onLink netip.Prefix) netip.Prefix {
	if configured.IsValid() && !configured.IsSingleIP() {
		return configured
	}
	return onLink
}

func internalIP(n *api.Node) (netip.Addr, error) {
	for _, a := range n.Status.Addresses {
		if a.Type != "InternalIP" {
			continue
		}
		if addr, err := netip.ParseAddr(a.Address); err == nil && addr.Is4() {
			return addr, nil
		}
	}
	return netip.Addr{}, fmt.Errorf("node %s has no IPv4 InternalIP in status.addresses: start its kubelet with --node-ip, or set the environment variable IP", n.Name)
}

func list(addrs []netlinkx.Addr) string {
	texts := make([]string, 0, len(addrs))
	for _, a := range addrs {
		texts = append(texts, a.Prefix.String())
	}
	return strings.Join(texts, ", ")
}
