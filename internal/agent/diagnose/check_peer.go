package diagnose

import (
	"fmt"
	"strings"

	"github.com/tortie-net/tortie/internal/bgp/peering"
)

func (p Peer) name() string {
	if p.Node == "" {
		return p.Addr.String()
	}
	return fmt.Sprintf("%s (%s)", p.Addr, p.Node)
}

const noSession = "without a BGP session this node learns no changes from it: routes known so far stay"

// peer makes findings from the probes of one peer.
func (o *Observations) peer(p Peer) []Finding {
	if peering.Learns(p.Addr) {
		seen, remedy, _ := strings.Cut(p.LastError, ": ")
		return []Finding{{Check: "peer-bgp", About: p.name(), Level: Problem, Seen: seen, Why: noSession, Do: remedy}}
	}
	if !p.Probed {
		return []Finding{
			{Check: "peer", About: p.name(), Level: Unknown, Seen: "there was no time to probe it", Do: "name it: node diagnose " + p.Addr.String()},
		}
	}
	var findings []Finding
	for _, f := range []Finding{o.bgpPort(p), o.protocol4(p), o.vxlan(p), o.pathMTU(p)} {
		if f.Check != "" {
			f.About = p.name()
			findings = append(findings, f)
		}
	}
	return findings
}

// from returns this node's address as the peer sees it.
func (o *Observations) from() string {
	address, _, _ := strings.Cut(o.report().Address, "/")
	if address == "" {
		return "this node"
	}
	return address
}

func (o *Observations) bgpPort(p Peer) Finding {
	f := Finding{Check: "peer-bgp", Level: Problem, Why: noSession}
	where := fmt.Sprintf("TCP port %d from %s", p.Port, o.from())
	switch p.TCP.Outcome {
	case notAProbe:
		return Finding{Check: "peer-bgp", Level: OK, Seen: "the session is established"}
	case Answered:
		if p.Session == "" {
			return Finding{Check: "peer-bgp", Level: OK, Seen: where + ": open"}
		}
		f.Level, f.Seen = Warning, where+": open, but the session is "+p.Session
		f.Do = "look at the peer's log: it may not know this node, or have another AS number or password"
		if p.LastError != "" {
			f.Seen += ": " + p.LastError
		}
	case Refused:
		f.Seen = where + ": refused"
		f.Do = fmt.Sprintf("see that a BGP speaker runs on the peer and listens there, and that its firewall does not reject port %d", p.Port)
	case Silent:
		f.Seen = where + ": no answer: filtered"
		f.Do = fmt.Sprintf(
			"allow TCP port %d between the nodes in firewalls and security groups; a peer that wants a password is silent too", p.Port)
		switch {
		case p.Echo.Outcome != Answered:
			f.Do = "see that the machine is up and the address is its own: it does not answer a ping either; else firewalls and " +
				"security groups drop this"
		case p.Password && o.WrongPasswords > 0:
			f.Seen += ", and segments with a wrong password have come meanwhile"
			f.Do = "give both ends the same password: compare the Secret that the BGPConfiguration or BGPPeer names with the " +
				"peer's own configuration"
		case p.TCPAO && o.WrongAO > 0:
			f.Seen += ", and segments without a right TCP-AO key have come meanwhile"
			f.Do = "give both ends the same keys: compare the Secret that the BGPPeer names with the peer's own configuration"
		case p.TTLHops > 0:
			f.Do += fmt.Sprintf("; so is one that is more than %d hops away, which the BGPPeer's ttlSecurity rules out", p.TTLHops)
		}
	case NoWay:
		f.Seen = where + ": no route: " + p.TCP.Detail
		f.Do = "see that the machine is up, and that this host has a route to it (ip route get " + p.Addr.String() + ")"
	case NotAllowed:
		f.Seen = where + ": this host does not let it out: " + p.TCP.Detail
		f.Do = fmt.Sprintf("allow TCP port %d to other nodes in this host's firewall (nft list ruleset)", p.Port)
	default:
		f.Level, f.Seen = Unknown, where+": could not be tried: "+p.TCP.Detail
	}
	return f
}

func (o *Observations) protocol4(p Peer) Finding {
	f := Finding{Check: "peer-ipip", Level: Problem, Why: "pods' packets to that node travel in IP protocol 4 (IPIP): they do not arrive"}
	const where = "an echo inside of IPIP"
	const allow = "allow IP protocol 4 between the nodes in firewalls and security groups, which often know TCP, UDP and ICMP alone"
	switch p.IPIP.Outcome {
	case notAProbe:
		return Finding{}
	case Answered:
		f = Finding{Check: "peer-ipip", Level: OK, Seen: where + " was answered"}
		if p.IPIP.Detail != "" {
			f.Seen += "; " + p.IPIP.Detail
		}
	case NoProtocol:
		f.Seen = where + ": the peer answers that it does not know protocol 4"
		f.Do = "load module ipip there (modprobe ipip), and see that its agent runs"
	case Refused, NoWay:
		f.Seen, f.Do = where+" is rejected: "+p.IPIP.Detail, allow
		if p.Echo.Outcome != Answered {
			f.Seen, f.Do = where+" does not arrive: "+p.IPIP.Detail, "see that the machine is up, and that this host has a route to it"
		}
	case Silent:
		f.Seen, f.Do = where+" was not answered, a ping of the node was: protocol 4 is dropped", allow+
			"; or the peer's agent does not run, or does not know this node"
		if p.Echo.Outcome != Answered && p.Session != established {
			f.Level, f.Seen, f.Do = Unknown, where+" was not answered, nor a ping of the node", "see that the machine is up"
		} else if p.Echo.Outcome != Answered {
			f.Seen = where + " was not answered, though the BGP session is up: protocol 4 is dropped"
		}
	case NotAllowed:
		f.Seen, f.Do = where+": this host does not let it out: "+p.IPIP.Detail,
			"allow IP protocol 4 to other nodes in this host's firewall (nft list ruleset)"
	default:
		f.Level, f.Seen, f.Do = Unknown, where+" could not be tried: "+p.IPIP.Detail, "run it as root, or with the capability NET_RAW"
	}
	return f
}

// vxlan checks the tunnel to a peer.
func (o *Observations) vxlan(p Peer) Finding {
	f := Finding{Check: "peer-vxlan", Level: Problem, Why: "pods' packets to that node travel in VXLAN: they do not arrive"}
	t, _ := tunnelOf(o.report(), kindVXLAN, p.Addr.Is4())
	where := fmt.Sprintf("an echo to its end of the tunnel, %s", p.VTEP)
	allow := fmt.Sprintf("allow UDP port %d between the nodes in firewalls and security groups", t.Port)
	switch p.VXLAN.Outcome {
	case notAProbe:
		return Finding{}
	case Answered:
		return Finding{Check: f.Check, Level: OK, Seen: where + ", was answered"}
	case Silent:
		f.Seen, f.Do = where+", was not answered, a ping of the node was: VXLAN is dropped", allow+
			"; or the peer's agent does not run, or does not know this node"
		switch {
		case p.UDP.Outcome == Refused:
			f.Seen = fmt.Sprintf("%s, was not answered, and UDP port %d there is closed", where, t.Port)
			f.Do = fmt.Sprintf("see that the peer's agent runs and has made device %s, with the same port (FelixConfiguration, vxlanPort)", t.Device)
		case p.Echo.Outcome != Answered && p.Session != established:
			f.Level, f.Seen, f.Do = Unknown, where+", was not answered, nor a ping of the node", "see that the machine is up"
		case p.Echo.Outcome != Answered:
			f.Seen = where + ", was not answered, nor a ping of the node: not VXLAN alone gets lost"
			f.Do = "see that the address is one machine's (duplicate-address), and that a firewall does not drop pings; if it does, " + allow
		}
	case NoWay:
		f.Seen, f.Do = where+", found no way: "+p.VXLAN.Detail, fmt.Sprintf(
			"see what this host has for it (ip route get %s; ip neigh show dev %s): the agent repairs both at each pass", p.VTEP, t.Device)
	case NotAllowed:
		f.Seen, f.Do = where+", is not let out by this host: "+p.VXLAN.Detail, allow+", in this host's firewall too (nft list ruleset)"
	default:
		f.Level, f.Seen, f.Do = Unknown, where+", could not be tried: "+p.VXLAN.Detail, "run it as root, or with the capability NET_RAW"
	}
	return f
}

func (o *Observations) pathMTU(p Peer) Finding {
	f := Finding{Check: "peer-mtu", Level: OK}
	switch {
	case p.WantSize == 0:
		return Finding{}
	case p.Echo.Outcome != Answered:
		f.Level, f.Seen = Unknown, "the peer answers no ping, by which packets' sizes are tried"
		if p.Echo.Detail != "" {
			f.Seen += ": " + p.Echo.Detail
		}
		f.Do = "allow ICMP echo between the nodes to have this checked"
	case p.GotSize >= p.WantSize:
		f.Seen = fmt.Sprintf("packets of %d bytes arrive whole", p.WantSize)
	default:
		f.Level = Problem
		f.Seen = fmt.Sprintf("packets of %d bytes do not arrive; of those that were tried, the largest that did has %d", p.WantSize, p.GotSize)
		f.Why = "pods send packets that, with the tunnel's header, have this size: connections open and then hang, unless a router sends an " +
			"ICMP error to the sender"
		f.Do = fmt.Sprintf("give the network between the nodes an MTU of %d, or the nodes' links, or the tunnel (FelixConfiguration's ipipMTU "+
			"or vxlanMTU, the chart's mtu), what fits: %d and %d", p.WantSize, p.GotSize, p.GotSize-p.Overhead)
		if p.Overhead == 0 {
			f.Why = "pods send packets of this size: connections open and then hang, unless a router sends an ICMP error to the sender"
			f.Do = fmt.Sprintf("give the network between the nodes an MTU of %d, or the nodes' links what fits: %d", p.WantSize, p.GotSize)
		}
	}
	return f
}
