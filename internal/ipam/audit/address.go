package audit

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"

	"github.com/tortie-net/tortie/internal/ipam/inventory"
)

// found returns a finding about an address.
func found(a Held, k Kind, fix Fix, format string, args ...any) Finding {
	return Finding{
		Kind: k, Object: blockName(a.Block), Address: a.Address, Handle: a.Handle, Node: a.Node, Pod: podOf(a.Allocation),
		Detail: fmt.Sprintf(format, args...), Fix: fix, Sequence: a.Sequence, Revision: a.Block.ResourceVersion,
	}
}

// podOf returns NAMESPACE/NAME of the pod that the address was assigned to; empty if there is none.
func podOf(a *inventory.Allocation) string {
	if a.Pod == "" {
		return ""
	}
	return a.Namespace + "/" + a.Pod
}

func podName(p *inventory.Pod) string { return p.Namespace + "/" + p.Name }

// checkAllocations reports the addresses that are not in use, by the controllers' judgement, and those that the
// controllers leave to people.
func (c *cluster) checkAllocations() {
	for _, h := range Holders(c.View, c.index) {
		for _, a := range h.Addresses {
			c.checkAllocation(h, a)
		}
	}
}

func (c *cluster) checkAllocation(h *Holder, a Held) {
	verdict, why := c.index.Judge(a.Allocation)
	switch {
	case a.Class == inventory.LoadBalancer:
		if verdict.Unused() {
			c.add(found(a, AddressNoService, ByHand, "%s", why).advised(
				"the controller loadbalancer releases it: look at whether kube-controllers runs it"))
		}
	case a.Handle == "" && h.Unused:
		c.add(found(a, AddressNoHandle, Free, "it has no handle, and %s", why))
	case a.Handle == "":
		c.checkWithoutHandle(a)
	case h.Unused:
		c.add(found(a, deadKind(a, verdict, c.index), Free, "%s", why))
	case verdict.Unused():
		c.add(found(a, deadKind(a, verdict, c.index), ByHand, "%s", why).advised("another address of its handle is in use: it goes with that"))
	case a.Class == inventory.Tunnel:
		c.checkTunnelUse(a)
	case a.Class == inventory.Unknown && !c.used(a.Address):
		c.add(found(a, AddressUnknown, ByHand, "its attributes do not tell what it is for").advised(
			"if you know that it is not in use: kube-controllers ipam release " + a.Address.String()))
	}
}

// deadKind returns why an address is not in use.
func deadKind(a Held, verdict inventory.Verdict, index *inventory.Index) Kind {
	p := index.Pod(inventory.PodKey{Namespace: a.Namespace, Name: a.Pod})
	switch {
	case a.Class == inventory.Tunnel:
		return TunnelUnused
	case a.Class == inventory.OfContainer:
		return AddressDeadNode
	case p == nil || p.Finished:
		return AddressNoPod
	case p.Node != "" && p.Node != a.Node:
		return AddressOtherNode
	case verdict == inventory.Orphaned:
		return AddressDeadNode
	}
	return AddressOtherPod
}

// checkWithoutHandle is for an address that can't be released: not by its container, as it has no handle, nor by a
// controller, as its owner is unknown.
func (c *cluster) checkWithoutHandle(a Held) {
	if c.used(a.Address) {
		c.add(found(a, AddressNoHandle, ByHand, "it is used, and has no handle: its pod cannot release it").advised(
			"start the pod anew, then free the address"))
		return
	}
	c.add(found(a, AddressNoHandle, FreeAddress, "it has no handle: nothing that ends releases it"))
}

// checkTunnelUse compares a tunnel's address with its Node's annotation.
func (c *cluster) checkTunnelUse(a Held) {
	n := c.index.Node(a.Node)
	if n == nil || n.Tunnels[a.Type] == a.Address {
		return
	}
	says := "none"
	if n.Tunnels[a.Type].IsValid() {
		says = n.Tunnels[a.Type].String()
	}
	c.add(found(a, TunnelUnused, ByHand, "it is the %s of %s, whose Node says %s", a.Type, a.Node, says).advised(
		"the agent of the node puts that right when it starts; look at whether it runs"))
}

// checkUsers reports the addresses that pods and tunnels use without holding them in IPAM, or that two pods have.
func (c *cluster) checkUsers() {
	for _, a := range slices.SortedFunc(maps.Keys(c.users), netip.Addr.Compare) {
		if !c.pooled(single(a)) {
			continue // of another network, in which addresses may repeat
		}
		// A pod that is being deleted may have released its address, although its status still has it.
		users := slices.DeleteFunc(slices.Clone(c.users[a]), func(p *inventory.Pod) bool { return p.DeletionTimestamp != "" })
		for i, p := range users {
			for _, other := range users[i+1:] {
				c.add(podFinding(p, PodTwice, a, "pod %s has the same address", podName(other)))
			}
			c.checkPodAddress(p, a)
		}
	}
	c.checkOutsidePools()
	for i := range c.Nodes {
		n := &c.Nodes[i]
		for _, kind := range slices.Sorted(maps.Keys(n.Tunnels)) {
			c.checkTunnelAddress(n, kind, n.Tunnels[kind])
		}
	}
}

func podFinding(p *inventory.Pod, k Kind, a netip.Addr, format string, args ...any) Finding {
	return Finding{Kind: k, Object: "Pod/" + podName(p), Address: a, Node: p.Node, Pod: podName(p), Detail: fmt.Sprintf(format, args...),
		Advice: "start it anew: it gets an address of its own"}
}

// checkOutsidePools reports the pods without any address that is in a pool or allocated.
func (c *cluster) checkOutsidePools() {
	for i := range c.Pods {
		p := &c.Pods[i]
		known := func(a netip.Addr) bool { return c.pooled(single(a)) || len(c.heldAt[a]) > 0 }
		if len(p.Addresses) == 0 || p.HostNetwork || p.Finished || slices.ContainsFunc(p.Addresses, known) {
			continue
		}
		c.add(podFinding(p, PodOutsidePools, p.Addresses[0], "its address is of no IPPool").advised(
			"if its pool was removed, the pod may be cut off: start it anew"))
	}
}

func (c *cluster) checkPodAddress(p *inventory.Pod, a netip.Addr) {
	holders := c.heldAt[a]
	switch {
	case slices.ContainsFunc(holders, func(h Held) bool { return mayBeOf(h, p) }), len(holders) == 0 && c.unsure(a):
		// Held by the pod, or unknown since the block is damaged, which is a finding of its own.
	case len(holders) > 0:
		c.add(podFinding(p, PodNotHolder, a, "IPAM has given its address to another: %s", holders[0]))
	default:
		c.add(podFinding(p, PodUnallocated, a, "IPAM takes its address for free, and will give it to another pod"))
	}
}

// mayBeOf reports whether the holder of an address is the pod, or does not name its pod.
func mayBeOf(h Held, p *inventory.Pod) bool {
	switch h.Class {
	case inventory.OfContainer, inventory.Unknown, inventory.VM:
		return h.Pod == "" || h.Pod == p.Name && h.Namespace == p.Namespace
	}
	return h.Pod == p.Name && h.Namespace == p.Namespace
}

func (c *cluster) checkTunnelAddress(n *inventory.Node, kind string, a netip.Addr) {
	add := func(k Kind, format string, args ...any) {
		c.add(Finding{Kind: k, Object: "Node/" + n.Name, Address: a, Node: n.Name, Detail: fmt.Sprintf(format, args...),
			Advice: "start the agent of the node anew: it takes an address of its own"})
	}
	holders := c.heldAt[a]
	mine := slices.ContainsFunc(holders, func(h Held) bool { return h.Type == kind && h.Node == n.Name })
	switch {
	case mine, len(holders) == 0 && (!c.pooled(single(a)) || c.unsure(a)):
		// A tunnel's address may be set by hand, of no pool.
	case len(holders) > 0:
		add(TunnelNotHolder, "IPAM has given its %s to another: %s", kind, holders[0])
	default:
		add(TunnelUnallocated, "IPAM takes its %s for free, and will give it to a pod", kind)
	}
}
