package netpol

import (
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"github.com/tortie-net/tortie/internal/kernel/nft"
	"github.com/tortie-net/tortie/internal/policy"
)

// TableName is the name of the table; its family is inet.
const TableName = "tortie-policy"

const (
	egressChain   = "egress"
	ingressChain  = "ingress"
	toHostChain   = "to-host"
	closedSet     = "closed"
	neighboursSet = "neighbours"
)

// The base chains precede other programs' filters: what those drop is dropped as well. An accept ends one base chain
// only, so a packet from one pod of the node to another passes two without a mark.
const (
	egressPriority  = nft.PriorityFilter - 5
	ingressPriority = nft.PriorityFilter - 4
	toHostPriority  = nft.PriorityFilter - 5
)

// linkSets map the names of pods' links to programs, by direction.
var linkSets = [2]nft.Set{
	policy.Ingress: {Name: "to", Key: []nft.Type{nft.LinkName}, Value: nft.VerdictType},
	policy.Egress:  {Name: "from", Key: []nft.Type{nft.LinkName}, Value: nft.VerdictType},
}

// closed holds the families that are closed for links without an element: both, or none.
var closed = nft.Set{Name: closedSet, Key: []nft.Type{nft.NFProtoType}}

var closedElements = []nft.Element{{First: nft.ByteKey(unix.NFPROTO_IPV4)}, {First: nft.ByteKey(unix.NFPROTO_IPV6)}}

// neighbours are the ICMPv6 types that a pod may always send to its node, without which it has no gateway: multicast
// listener, router solicitation and neighbour messages.
var neighbours = nft.Set{Name: neighboursSet, Key: []nft.Type{nft.ICMPv6Type}, Elements: []nft.Element{
	{First: "\x82"}, {First: "\x83"}, {First: "\x84"}, {First: "\x85"}, {First: "\x87"}, {First: "\x88"},
}}

// endedTime is longer than a UDP sender waits for an answer from a silent peer: QUIC waits 30 s.
const endedTime = time.Minute

// ended holds, by family, the answers to UDP connections passed to End: source, destination and their ports. UDP
// packets do not show which end began, so the next answer would begin a connection that may be allowed, with the denied
// packets as its answers.
var ended = [2]nft.Set{endedSet("ended4", nft.IPv4), endedSet("ended6", nft.IPv6)}

func endedSet(name string, f nft.Family) nft.Set {
	return nft.Set{Name: name, Key: []nft.Type{f.Addr, f.Addr, nft.Port, nft.Port}, Timeout: endedTime}
}

// dropEnded returns rules for packets that begin a connection.
func dropEnded() (rules []nft.Rule) {
	for i, f := range families {
		rules = append(rules, nft.NewRule("", nft.L4Proto.Is(nft.ByteKey(unix.IPPROTO_UDP)), f.Is(),
			nft.In(ended[i].Name, f.Src, f.Dest, nft.SrcPort, nft.DestPort), nft.Do(nft.Drop)))
	}
	return rules
}

// Comments of rules that drop without a policy.
const (
	unknownLink  = "unknown link"
	invalidState = "invalid state"
)

// baseChains returns the chains where packets enter. They are the same for every Ruleset.
func baseChains(linkPrefix string) []nft.Chain {
	known := nft.NewRule("", (nft.Established | nft.Related).In(), nft.Do(nft.Accept))
	dispatch := func(d policy.Direction, link nft.Field) []nft.Rule {
		return []nft.Rule{
			nft.NewRule("", nft.Map(linkSets[d].Name, link)),
			nft.NewRule(unknownLink, link.HasPrefix(linkPrefix), nft.In(closedSet, nft.NFProto), nft.Count(), nft.Do(nft.Drop)),
		}
	}
	toHost := []nft.Rule{
		known,
		nft.NewRule("", nft.InLink.HasNotPrefix(linkPrefix), nft.Do(nft.Accept)),
		nft.NewRule("", nft.L4Proto.Is(nft.ByteKey(unix.IPPROTO_ICMPV6)), nft.In(neighboursSet, nft.ICMPType), nft.Do(nft.Accept)),
	}
	base := func(name string, hook nft.HookNumber, priority int32, rules ...nft.Rule) nft.Chain {
		return nft.Chain{Name: name, Hook: &nft.Hook{Type: nft.Filter, Number: hook, Priority: priority}, Rules: rules}
	}
	return []nft.Chain{
		base(egressChain, nft.Forward, egressPriority, slices.Concat([]nft.Rule{known}, dropEnded(), dispatch(policy.Egress, nft.InLink))...),
		base(ingressChain, nft.Forward, ingressPriority, append([]nft.Rule{known}, dispatch(policy.Ingress, nft.OutLink)...)...),
		base(toHostChain, nft.Input, toHostPriority, append(toHost, dispatch(policy.Egress, nft.InLink)...)...),
	}
}

// shutChains returns chains before the others that drop all but known connections at links of pods. No Ruleset has
// them.
func shutChains(linkPrefix string) []nft.Chain {
	known := nft.NewRule("", (nft.Established | nft.Related).In(), nft.Do(nft.Accept))
	from := nft.NewRule("", nft.InLink.HasPrefix(linkPrefix), nft.Do(nft.Drop))
	to := nft.NewRule("", nft.OutLink.HasPrefix(linkPrefix), nft.Do(nft.Drop))
	return []nft.Chain{
		{Name: "shut-forward", Hook: &nft.Hook{Type: nft.Filter, Number: nft.Forward, Priority: egressPriority - 1},
			Rules: []nft.Rule{known, from, to}},
		{Name: "shut-to-host", Hook: &nft.Hook{Type: nft.Filter, Number: nft.Input, Priority: toHostPriority - 1},
			Rules: []nft.Rule{known, from}},
	}
}

// baseSets returns the sets that the base chains use.
func baseSets() []nft.Set {
	return []nft.Set{linkSets[policy.Ingress], linkSets[policy.Egress], closed, neighbours, ended[0], ended[1]}
}
