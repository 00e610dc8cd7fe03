package policy

import "net/netip"

// Ruleset is what the kernel of this node has to enforce. It must not be changed.
type Ruleset struct {
	// Closed: a link of a pod that is not in Endpoints passes nothing. False only while the cluster has no policy at all.
	Closed    bool
	Endpoints map[string]Endpoint // by the name of the link on the host
	// Programs by their keys, which are digests of the content: equal programs have equal keys, here and after a restart.
	Programs map[string]Program
	// Nets are address ranges by digest of the content: both families, ascending, disjoint, not adjacent.
	Nets map[string][]Range
	// Members are the sets that each address is in: only addresses of pods, in no particular order of addresses; ids
	// ascending.
	Members map[netip.Addr][]SetID
	// Hosts are the host endpoints of this node by the name of their link. That of AllInterfaces has all that are no pod's
	// and have none of their own.
	Hosts     map[string]Host
	HostRules HostRules // for Hosts, but for DropFromPods
	Handling  *Handling // nil: not known, so that it stays as it is
}

// Handling is how the kernel treats packets, whatever policies say.
type Handling struct {
	// Reject: who sends what policies deny is told so.
	Reject bool
	// Invalid: packets that connection tracking takes for no part of a connection, and for none that opens one, are judged
	// by policies.
	Invalid bool
	// Logs bounds what each Log rule logs; zero: the kernel's part has a bound of its own.
	Logs LogRate
}

// LogRate is so many packets in so many seconds, and how many of them at once.
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

// SetID is the number of a set of pods' addresses, never 0: a part of the digest of its definition, so that it survives
// a restart.
type SetID uint32

// Program finds the verdict for the first packet of a connection: by protocol and destination port a List, and in it by
// the peer's address, which is the source for Ingress and the destination for Egress, the verdict.
type Program struct {
	// Ports are by protocol: ascending and disjoint.
	Ports map[uint8][]PortRange
	// Protocols is for ports that Ports does not have.
	Protocols map[uint8]List
	// Rest is for the protocols that neither has.
	Rest List
	// Logs are asked, too, whatever the verdict.
	Logs []Logging
	// Sequence, if not empty, decides instead of all others.
	Sequence []Segment
}

// Segment is a rule that reads both ends of a connection of a host endpoint, which may have any address: the first that
// matches decides. An end that is certain to be none of several matches as one of them in a Deny, else as all; where a
// Pass so does not match some, a Deny follows.
type Segment struct {
	// Own allows the end of the host endpoint that matches; nil: any.
	Own *List
	// When allows what matches besides.
	When Program // has no Logs and no Sequence
	// Then says what becomes of it. Pass goes on with segment Next, Log with the next one.
	Then    Action
	Verdict Verdict // of Allow and Deny
	Log     LogRule
	Next    int
}

// Logging says which packets a Log rule is reached by and matches: those that When allows.
type Logging struct {
	LogRule
	When Program // has no Logs
}

// LogRule names a rule of action Log, by its index among those of its direction.
type LogRule struct {
	Policy ID
	Rule   int
}

// PortRange is a range of ports, both inclusive, with the same List. Those of ICMP and ICMPv6 are type<<8 | code.
type PortRange struct {
	First, Last uint16
	List        List
}

// List decides by the peer's address: the first step that has it, else Else. For the ports of the source that Sources
// have, their lists decide instead.
type List struct {
	Steps   []Step
	Else    Verdict
	Sources []PortRange // ascending and disjoint; their lists have none
}

// Step matches addresses: of a set of pods, or of Nets.
type Step struct {
	Set     SetID  // 0: Nets counts
	Nets    string // a key of Ruleset.Nets
	Verdict Verdict
}

// Verdict lets a packet pass or drops it.
type Verdict struct {
	Allow bool
	// Final is set for what a rule allows at a stage before others: the host endpoint's other policies do not judge it as
	// it comes in, nor as a program of the node sends it.
	Final bool
	// NoTrack is set for what is allowed and not tracked; it is Final, too.
	NoTrack bool
	// By is the policy that denied it; of several that isolate the pod the first. Not set for Allow.
	By ID
}

// Range is a range of addresses of one family, both inclusive.
type Range struct{ First, Last netip.Addr }
