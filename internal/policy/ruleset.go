package policy

import "net/netip"

// Ruleset is what the kernel of this node must enforce. It must not be changed.
type Ruleset struct {
	// Closed: a pod's link that is not in Endpoints passes nothing. False only while the cluster has no policy at all.
	Closed    bool
	Endpoints map[string]Endpoint // by the name of the link on the host
	// Programs by their keys, which are digests of the content: equal programs have equal keys, here and after a restart.
	Programs map[string]Program
	// Nets are address ranges by digest of the content: both families, ascending, disjoint, not adjacent.
	Nets map[string][]Range
	// Members are the sets of each address, with ascending ids; it has only addresses of pods.
	Members map[netip.Addr][]SetID
	// Hosts are the host endpoints of this node by the name of their link. AllInterfaces is the host endpoint of all links
	// that are no pod's and have none of their own.
	Hosts     map[string]Host
	HostRules HostRules // for Hosts; DropFromPods is for pods
	Handling  *Handling // nil: not known, so it stays unchanged
}

// Handling is how the kernel treats packets, whatever the policies.
type Handling struct {
	// Reject: denied packets are rejected with a reply to their sender.
	Reject bool
	// Invalid: policies judge packets that connection tracking finds invalid: they neither belong to a connection nor open
	// one.
	Invalid bool
	// Logs bounds what each Log rule logs; zero: internal/kernel/netpol uses its default.
	Logs LogRate
}

// LogRate is Packets per Seconds, with Burst packets at once.
type LogRate struct{ Packets, Seconds, Burst uint32 }

// Host is a host endpoint of this node. The empty key of a program allows everything.
type Host struct {
	Name     string
	Programs [Stages][2]string // by Stage and Direction
}

// Endpoint is a local pod. The empty key of a program allows everything.
type Endpoint struct {
	UID      string
	Programs [2]string // by Direction
}

// SetID is the number of a set of pods' addresses, never 0: a part of the digest of its definition, so it survives a
// restart.
type SetID uint32

// Program finds the verdict for the first packet of a connection: protocol and destination port give a List, and in it
// the peer's address gives the verdict. The peer is the source for Ingress and the destination for Egress.
type Program struct {
	// Ports are by protocol: ascending and disjoint.
	Ports map[uint8][]PortRange
	// Protocols has the lists for ports that Ports lacks.
	Protocols map[uint8]List
	// Rest is for protocols that neither has.
	Rest List
	// Logs are evaluated too, whatever the verdict.
	Logs []Logging
	// Sequence, if not empty, decides instead of Ports, Protocols and Rest.
	Sequence []Segment
}

// Segment is a rule that reads both ends of a connection of a host endpoint, which may have any address: the first that
// matches decides. In a Deny, an end that may be any of several pods, but is certain for none, matches if one of them
// does, else only if all do; where such a Pass does not match some, a Deny follows.
type Segment struct {
	// Own allows the host endpoint's end that matches; nil: any.
	Own *List
	// When allows the packets that match the other conditions.
	When Program // has no Logs and no Sequence
	// Then is the action. Pass goes on with segment Next, Log with the following segment.
	Then    Action
	Verdict Verdict // of Allow and Deny
	Log     LogRule
	Next    int
}

// Logging is a Log rule with the packets that reach and match it: those that When allows.
type Logging struct {
	LogRule
	When Program // has no Logs
}

// LogRule names a Log rule by its index among the policy's rules of its direction.
type LogRule struct {
	Policy ID
	Rule   int
}

// PortRange is an inclusive range of ports with one List. An ICMP or ICMPv6 message is the port type<<8 | code.
type PortRange struct {
	First, Last uint16
	List        List
}

// List decides by the peer's address: the first step that has it, otherwise Else. For source ports in Sources, their
// lists decide instead.
type List struct {
	Steps   []Step
	Else    Verdict
	Sources []PortRange // ascending and disjoint; their lists have none
}

// Step matches addresses of a set of pods, or of Nets.
type Step struct {
	Set     SetID  // 0: Nets counts
	Nets    string // a key of Ruleset.Nets
	Verdict Verdict
}

// Verdict allows or denies a packet.
type Verdict struct {
	Allow bool
	// Final is set for what a rule allows at an early stage: the host endpoint's other policies do not judge it when it
	// comes in, nor when a program of the node sends it.
	Final bool
	// NoTrack is set for what is allowed and not tracked; Final is then set, too.
	NoTrack bool
	// By is the policy that denied the packet; of several that isolate the pod, the first. Not set for Allow.
	By ID
}

// Range is an inclusive range of addresses of one family.
type Range struct{ First, Last netip.Addr }
