package flows

import (
	"fmt"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/tortie-net/tortie/internal/kernel/netlinkx"
	"github.com/tortie-net/tortie/internal/policy"
)

// Types of an End, named as in Calico.
const (
	TypePod     = "wep" // a pod
	TypeHost    = "hep" // this node
	TypeSet     = "ns"  // an address in a network set
	TypeNetwork = "net" // another address: public or private
)

// Names of ends that are no object.
const (
	public  = "pub"
	private = "pvt"
	other   = "other" // more than fit: see table
)

// End is an aggregated end of a connection: pods of the same owner are one End.
type End struct{ Type, Namespace, Name string }

// String returns "shop/web-*", or a name without a namespace.
func (e End) String() string {
	if e.Namespace == "" {
		return e.Name
	}
	return e.Namespace + "/" + e.Name
}

// Hit is the rule that decides on a connection; without a Policy no rule does.
type Hit struct {
	Tier   string
	Policy policy.ID
	Rule   int // -1: the end of the tier
	Allow  bool
}

// Action returns "allow" or "deny".
func Action(allow bool) string {
	if allow {
		return "allow"
	}
	return "deny"
}

// texts returns "tier|policy|action|rule", or no text without a policy.
func (h Hit) texts() []string {
	if h.Policy == (policy.ID{}) {
		return []string{}
	}
	return []string{fmt.Sprintf("%s|%s|%s|%d", h.Tier, h.Policy, Action(h.Allow), h.Rule)}
}

// Key has the common properties of the connections of a Record.
type Key struct {
	// Direction is Egress if the source's policies are reported, Ingress if the destination's.
	policy.Direction
	Allow        bool
	Source, Dest End
	Protocol     uint8
	Port         uint16
	Enforced     Hit
	// Pending is the deciding rule with all staged policies in force. It is set, with Staged, if the rule or the verdict
	// changes.
	Pending Hit
	Staged  bool
}

// Counts are the connections of an interval. Each sampled denied packet counts as a connection.
type Counts struct {
	Flows, Started, Completed uint64
	// Out counts packets from the source, In packets to it.
	Out, In netlinkx.Count
}

// Record has the counts of a Key in an interval: a line of the file. Field names are as in Calico's flow logs.
type Record struct {
	Start     int64      `json:"start_time"` // seconds
	End       int64      `json:"end_time"`
	Host      string     `json:"host"`
	Reporter  string     `json:"reporter"` // src or dst
	Action    string     `json:"action"`   // allow or deny
	Source    RecordEnd  `json:"source"`
	Dest      RecordEnd  `json:"dest"`
	Protocol  string     `json:"proto"`
	Port      uint16     `json:"dest_port,omitempty"`
	Policies  RecordHits `json:"policies"`
	Flows     uint64     `json:"num_flows"`
	Started   uint64     `json:"num_flows_started"`
	Completed uint64     `json:"num_flows_completed"`
	OutPkts   uint64     `json:"packets_out"`
	OutBytes  uint64     `json:"bytes_out"`
	InPkts    uint64     `json:"packets_in"`
	InBytes   uint64     `json:"bytes_in"`
}

// RecordEnd is an End in a Record.
type RecordEnd struct {
	Type      string `json:"type"`
	Namespace string `json:"namespace,omitempty"`
	Name      string `json:"name_aggr"`
}

// RecordHits are the deciding rules: each is "tier|policy|action|rule", where rule -1 is the end of the tier.
type RecordHits struct {
	Enforced []string `json:"enforced"`
	// Action is the verdict with staged policies in force, Pending the deciding rules then.
	Action  string   `json:"pending_action,omitempty"`
	Pending []string `json:"pending,omitempty"`
}

var protocolNames = map[uint8]string{
	unix.IPPROTO_ICMP: "icmp", unix.IPPROTO_TCP: "tcp", unix.IPPROTO_UDP: "udp", unix.IPPROTO_ICMPV6: "icmp6", unix.IPPROTO_SCTP: "sctp",
	unix.IPPROTO_UDPLITE: "udplite",
}

func protocolName(number uint8) string {
	if name := protocolNames[number]; name != "" {
		return name
	}
	return fmt.Sprint(number)
}

// stored is the ring's form of a Record: it shares the strings of pods and policies.
type stored struct {
	start, end int64
	Key
	Counts
}

// size estimates the memory that it takes.
func (s *stored) size() int {
	const fixed = 500
	size := fixed
	for _, e := range []End{s.Source, s.Dest} {
		size += len(e.Namespace) + len(e.Name)
	}
	for _, h := range []Hit{s.Enforced, s.Pending} {
		size += len(h.Tier) + len(h.Policy.Kind) + len(h.Policy.Namespace) + len(h.Policy.Name)
	}
	return size
}

func (s *stored) record(host string) Record {
	r := Record{
		Start: s.start, End: s.end, Host: host, Reporter: reporter(s.Direction), Action: Action(s.Allow),
		Protocol: protocolName(s.Protocol), Port: s.Port,
		Source: RecordEnd(s.Source), Dest: RecordEnd(s.Dest), Policies: RecordHits{Enforced: s.Enforced.texts()},
		Flows: s.Flows, Started: s.Started, Completed: s.Completed,
		OutPkts: s.Out.Packets, OutBytes: s.Out.Bytes, InPkts: s.In.Packets, InBytes: s.In.Bytes,
	}
	if s.Staged {
		r.Policies.Action, r.Policies.Pending = Action(s.Pending.Allow), s.Pending.texts()
	}
	return r
}

func reporter(d policy.Direction) string {
	if d == policy.Egress {
		return "src"
	}
	return "dst"
}

// String returns the text of the End.
func (e RecordEnd) String() string { return End(e).String() }

// decider formats deciding rules for people: "default|NetworkPolicy shop/web|allow|0" becomes "NetworkPolicy
// shop/web[0], tier default".
func decider(hits []string) string {
	var all []string
	for _, hit := range hits {
		parts := strings.Split(hit, "|")
		if len(parts) != 4 {
			all = append(all, hit)
			continue
		}
		text := parts[1]
		if parts[3] != "-1" {
			text += "[" + parts[3] + "]"
		}
		if parts[0] != "" {
			text += ", tier " + parts[0]
		}
		all = append(all, text)
	}
	if len(all) == 0 {
		return "no policy"
	}
	return strings.Join(all, "; ")
}
