package nodeaddr

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
)

// detect finds the address by the method.
func (f *finder) detect() (Choice, error) {
	switch m := f.r.Method; m.kind {
	case "", internalIP:
		return f.byKubernetes()
	case canReach:
		return f.bySource()
	default:
		return f.byLooking()
	}
}

// byKubernetes chooses the first InternalIP that a link has. The link may be of any kind: a bridge, as on many hosts of
// virtual machines, or a veth, if the node is a container.
func (f *finder) byKubernetes() (Choice, error) {
	source := "InternalIP of node " + f.r.Node
	var own []netip.Addr
	for _, a := range f.r.Internal {
		if f.r.Family.has(a) {
			own = append(own, a)
		}
	}
	if len(own) == 0 {
		return f.nothing(), fmt.Errorf(
			"node %s has no %s InternalIP in status.addresses: start its kubelet with --node-ip, or set the environment variable %s or %s%s",
			f.r.Node, f.r.Family, f.r.Family.setting(), f.r.Family.method(), f.orNone())
	}
	for _, a := range own {
		if i := f.at(a); i >= 0 {
			return f.choose(i, source), nil
		}
	}
	return f.nothing(), fmt.Errorf("node address %s (%s) %s: set the environment variable %s to the right one%s",
		texts(own), source, f.missing(own...), f.r.Family.setting(), f.orNone())
}

// orNone returns the remedy if the family is not wanted.
func (f *finder) orNone() string {
	if f.r.Family == IPv6 {
		return ", or IP6=none if it is not to use IPv6"
	}
	return ", or IP=none if it has IPv6 only"
}

func texts(addrs []netip.Addr) string {
	out := make([]string, len(addrs))
	for i, a := range addrs {
		out[i] = a.String()
	}
	return strings.Join(out, ", ")
}

// bySource chooses the source address of packets to a host.
func (f *finder) bySource() (Choice, error) {
	host := f.r.Method.host
	a, err := f.r.Source(host)
	if err != nil {
		return f.nothing(), fmt.Errorf("%s=%s: %w", f.r.Family.method(), f.r.Method, err)
	}
	i := f.at(a)
	if i < 0 {
		return f.nothing(), fmt.Errorf("%s=%s: packets to it leave from %s, which is on no link of this host", f.r.Family.method(), f.r.Method, a)
	}
	return f.choose(i, "packets to "+host+" leave from it"), nil
}

// byLooking chooses an address that the method accepts.
func (f *finder) byLooking() (Choice, error) {
	var good []int
	for i := range f.found {
		c := &f.found[i]
		if c.Why = f.against(c); c.Why == "" {
			good = append(good, i)
		}
	}
	if len(good) == 0 {
		return f.nothing(), fmt.Errorf("%s=%s finds no address: %s", f.r.Family.method(), f.r.Method, f.reasons())
	}
	pick := good[0]
	if i := f.at(f.r.Stored.Addr()); slices.Contains(good, i) {
		pick = i
	}
	for _, i := range good {
		f.found[i].Why = "would do as well"
	}
	return f.choose(pick, f.r.Method.String(), f.ambiguity(good, pick)...), nil
}

// ambiguity returns a note if several addresses were suitable.
func (f *finder) ambiguity(good []int, pick int) []Note {
	if len(good) < 2 {
		return nil
	}
	others := make([]string, 0, len(good))
	for _, i := range good {
		if i != pick {
			others = append(others, fmt.Sprintf("%s on %s", f.found[i].Addr.Addr(), f.found[i].Link))
		}
	}
	return []Note{{EventAmbiguous,
		fmt.Sprintf("%s=%s fits %d addresses: %s on %s is used, and %s would do as well: set %s to a method that fits one", f.r.Family.method(),
			f.r.Method, len(good), f.found[pick].Addr.Addr(), f.found[pick].Link, strings.Join(others, ", "), f.r.Family.method())}}
}

// reasons returns the candidates with the reasons against them, for errors.
func (f *finder) reasons() string {
	const most = 10
	var out []string
	for _, c := range f.candidates() {
		if c.Addr.Addr().IsLoopback() {
			continue
		}
		if len(out) == most {
			out = append(out, "and more")
			break
		}
		out = append(out, fmt.Sprintf("%s on %s (%s)", c.Addr, c.Link, c.Why))
	}
	if len(out) == 0 {
		return "the host has no " + f.r.Family.String() + " address"
	}
	return strings.Join(out, ", ")
}

// against returns why the method does not accept a candidate; empty if it does.
func (f *finder) against(c *candidate) string {
	switch {
	case c.bad != "":
		return c.bad
	case c.addr.Tentative:
		return "not usable yet, or a duplicate"
	case c.addr.Passing:
		return "a temporary or deprecated address"
	}
	if why := f.againstLink(c); why != "" {
		return why
	}
	if c.link.Down {
		return "the link is down"
	}
	if f.virtual(c) {
		return "a single address beside the link's own: a virtual one, which moves"
	}
	return ""
}

// againstLink applies the method's own rule.
func (f *finder) againstLink(c *candidate) string {
	m := f.r.Method
	found, whole := match(m.patterns, c.Link)
	switch {
	case m.kind == inCIDR:
		// The operator has chosen the addresses: the link may be any.
		if !slices.ContainsFunc(m.cidrs, func(p netip.Prefix) bool { return p.Contains(c.Addr.Addr()) }) {
			return "outside of the ranges"
		}
		return ""
	case m.kind == interfaces && !found:
		return "its link is not named"
	case m.kind == interfaces && whole:
		return ""
	case m.kind == skipInterface && found:
		return "its link is to be skipped"
	}
	return excluded(c.link)
}

// excluded returns why other nodes do not reach this one by a link, unless the operator names it; empty if they may. It
// goes by the kind and not by the name, which is arbitrary.
func excluded(l Link) string {
	switch {
	case l.Loopback:
		return "on loopback"
	case l.Master == "bond" || l.Master == "team" || l.Master == "bridge":
		return "its link is part of a " + l.Master
	}
	switch l.Kind {
	case "bridge":
		return "on a bridge"
	case "veth", "netkit":
		return "on a " + l.Kind + ", the end of a container's link"
	case "dummy", "ifb", "nlmon":
		return "on a link that leads nowhere (" + l.Kind + ")"
	case "ipip", "sit", "ip6tnl", "gre", "gretap", "ip6gre", "ip6gretap", "erspan", "ip6erspan", "vti", "vti6", "xfrm",
		"vxlan", "geneve", "bareudp", "wireguard", "tun", "ppp", "amt":
		return "on a tunnel (" + l.Kind + ")"
	case "ipvlan", "ipvtap", "macvlan", "macvtap":
		return "on a link above another (" + l.Kind + ")"
	}
	return ""
}

// virtual reports whether c is a single address on a link that has others with a subnet: keepalived and kube-vip add
// such addresses.
func (f *finder) virtual(c *candidate) bool {
	return c.Addr.IsSingleIP() && c.Addr.Addr().Is4() && slices.ContainsFunc(f.found, func(o candidate) bool {
		return o.Link == c.Link && o.bad == "" && !o.Addr.IsSingleIP()
	})
}
