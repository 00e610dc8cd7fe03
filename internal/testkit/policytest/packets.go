package policytest

import "net/netip"

// ports are the numbers of generated policies and pods, and their neighbours.
var ports = []uint16{0, 1, 2, 52, 53, 54, 79, 80, 80, 81, 81, 82, 442, 443, 444, 8079, 8080, 8080, 8081, 65534, 65535}

// Packets generates packets with at least one end at a pod: between pods, nodes, and addresses just inside and outside
// of CIDRs.
func (g Generator) Packets(c *Cluster, n int) (all []Packet) {
	pods, others := c.podAddresses(), c.otherAddresses()
	if len(pods) == 0 {
		return nil
	}
	for len(all) < n {
		own, peer := pick(g, pods...), pick(g, pods...)
		if g.chance(50) {
			peer = pick(g, others...)
		}
		if own.Is4() != peer.Is4() || own == peer {
			continue
		}
		p := g.payload(own.Is4())
		p.From, p.To = own, peer
		if g.chance(50) {
			p.From, p.To = peer, own
		}
		if p.Protocol == Other && p.To.Less(p.From) {
			p.Protocol++ // without ports it would be an answer in the connection of the other direction
		}
		all = append(all, p)
	}
	return all
}

func (g Generator) payload(v4 bool) Packet {
	switch k := g.IntN(20); {
	case k < 10:
		return Packet{Protocol: TCP, Port: pick(g, ports...)}
	case k < 15:
		return Packet{Protocol: UDP, Port: pick(g, ports...)}
	case k < 17:
		return Packet{Protocol: SCTP, Port: pick(g, ports...)}
	case k < 18:
		return Packet{Protocol: Other}
	case v4:
		return Packet{Protocol: ICMP}
	}
	return Packet{Protocol: ICMPv6}
}

// podAddresses returns the addresses of unfinished pods with a network of their own.
func (c *Cluster) podAddresses() (all []netip.Addr) {
	for i := range c.Pods {
		for _, a := range Addresses(&c.Pods[i]) {
			if c.PodAt(a) == &c.Pods[i] {
				all = append(all, a)
			}
		}
	}
	return all
}

// otherAddresses returns the addresses of nodes, of pods that may not exist, and at the edges of generated policies'
// CIDRs.
func (c *Cluster) otherAddresses() (all []netip.Addr) {
	for i := range MaxPods {
		v4, v6 := PodAddress(i)
		all = append(all, v4, v6)
	}
	for _, n := range c.Nodes {
		for _, a := range n.Status.Addresses[1:] {
			all = append(all, netip.MustParseAddr(a.Address))
		}
	}
	for _, text := range cidrs {
		p, _ := parseCIDR(text)
		first, last := p.Addr(), lastOf(p)
		for _, a := range []netip.Addr{first.Prev(), first, last, last.Next()} {
			if a.IsValid() && !a.Is4In6() { // mapped addresses are not on the wire
				all = append(all, a)
			}
		}
	}
	return all
}

func lastOf(p netip.Prefix) netip.Addr {
	b := p.Addr().AsSlice()
	for i := p.Bits(); i < len(b)*8; i++ {
		b[i/8] |= 0x80 >> (i % 8)
	}
	a, _ := netip.AddrFromSlice(b)
	return a
}
