package policyview

import (
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"text/tabwriter"

	"github.com/tortie-net/tortie/internal/policy"
)

// Listing is the answer of `node policy`: the pods of this node with the policies that select them.
type Listing struct {
	Node string `json:"node"`
	// Kernel is "" if the kernel has the table of policies, else the reason why no policy is in force.
	Kernel   string `json:"kernel,omitempty"`
	Policies int    `json:"policies"` // in the cluster
	// Problems are the invalid parts of policies.
	Problems []string `json:"problems,omitempty"`
	// SameLink are pods that are closed because they share a link; they are not in Pods.
	SameLink []string    `json:"sameLink,omitempty"`
	Pods     []ListedPod `json:"pods"`
	// HostEndpoints are the host endpoints of this node.
	HostEndpoints []ListedHost `json:"hostEndpoints,omitempty"`
}

// ListedHost is the state of a host endpoint for one kind of packets at an interface.
type ListedHost struct {
	HostEndpoint string `json:"hostEndpoint"`
	Interface    string `json:"interface"` // * for all without one of their own
	Packets      string `json:"packets"`
	Side
}

// hostPacket is a kind of packets with policies of its own.
type hostPacket struct {
	text string
	policy.Stage
	policy.Direction
}

// hostPackets are in the order of the list, the reverse of the kernel's order.
var hostPackets = []hostPacket{
	{"received", policy.Terminal, policy.Ingress}, {"sent", policy.Terminal, policy.Egress},
	{"forwarded in", policy.Forwarded, policy.Ingress}, {"forwarded out", policy.Forwarded, policy.Egress},
	{"before DNAT", policy.Untranslated, policy.Ingress}, {"untracked in", policy.Untracked, policy.Ingress},
	{"untracked out", policy.Untracked, policy.Egress},
}

// ListedPod is a pod with a network of its own that has not finished.
type ListedPod struct {
	Pod       string   `json:"pod"`
	UID       string   `json:"uid"`
	Link      string   `json:"link"`
	Addresses []string `json:"addresses"`
	Ingress   Side     `json:"ingress"`
	Egress    Side     `json:"egress"`
}

// Side is a direction of a pod.
type Side struct {
	// Policies that select the pod, in the order of evaluation; without any everything is allowed.
	Policies []string `json:"policies"`
	// Program is the digest of the compiled policies; empty allows everything.
	Program string `json:"program,omitempty"`
	// Kernel is "" if the kernel enforces this program, else the difference.
	Kernel string `json:"kernel,omitempty"`
}

// standing is the state of the kernel's rules for a link, as netpol.Comparison reports it.
type standing interface {
	Link(link string, d policy.Direction) string
	Host(link string, stage policy.Stage, d policy.Direction) string
}

// list describes the pods of this node.
func list(node string, k *known, c *policy.Compiled, kernel standing) *Listing {
	l := &Listing{Node: node, Policies: len(k.Policies), Problems: slices.Clone(k.problems), SameLink: k.sameLink, Pods: []ListedPod{}}
	for _, id := range c.TooLarge {
		l.Problems = append(l.Problems, fmt.Sprintf("%s: %s", id, policy.TooLargeText))
	}
	for link, key := range k.Local {
		pod, selecting := k.Pods[key], k.selecting(key)
		side := func(d policy.Direction) Side {
			return Side{Policies: selecting[d], Program: c.Endpoints[link].Programs[d], Kernel: kernel.Link(link, d)}
		}
		p := ListedPod{Pod: key.String(), UID: pod.UID, Link: link, Addresses: []string{}, Ingress: side(policy.Ingress),
			Egress: side(policy.Egress)}
		for _, a := range pod.Addresses {
			p.Addresses = append(p.Addresses, a.String())
		}
		l.Pods = append(l.Pods, p)
	}
	l.HostEndpoints = hosts(k.State, c, kernel)
	slices.SortFunc(l.Pods, func(a, b ListedPod) int { return strings.Compare(a.Pod, b.Pod) })
	return l
}

// hosts describes the host endpoints of this node. Stages without policies allow everything and are left out, except
// for what the node itself receives and sends.
func hosts(state policy.State, c *policy.Compiled, kernel standing) (all []ListedHost) {
	selecting := policy.Select(state).OfHosts()
	for _, link := range slices.Sorted(maps.Keys(c.Hosts)) {
		for _, p := range hostPackets {
			side := Side{Policies: []string{}, Program: c.Hosts[link].Programs[p.Stage][p.Direction],
				Kernel: kernel.Host(link, p.Stage, p.Direction)}
			for _, id := range selecting[link][p.Stage][p.Direction] {
				side.Policies = append(side.Policies, id.String())
			}
			if len(side.Policies) > 0 || p.Stage == policy.Terminal {
				all = append(all, ListedHost{c.Hosts[link].Name, link, p.text, side})
			}
		}
	}
	return all
}

// only keeps the named pods.
func (l *Listing) only(keys []policy.PodKey) error {
	all := l.Pods
	l.Pods, l.HostEndpoints = nil, nil
	for _, key := range keys {
		at := slices.IndexFunc(all, func(p ListedPod) bool { return p.Pod == key.String() })
		if at < 0 {
			return fmt.Errorf("%s is no pod of node %s with a network of its own that runs: kubectl -n %s get pod %s -o wide says where it is", key,
				l.Node, key.Namespace, key.Name)
		}
		l.Pods = append(l.Pods, all[at])
	}
	return nil
}

// WriteText writes the listing as text.
func (l *Listing) WriteText(w io.Writer) error {
	var b strings.Builder
	fmt.Fprintf(&b, "Node %s: %s, %s in the cluster", l.Node, count(len(l.Pods), "pod", "pods"), count(l.Policies, "policy", "policies"))
	if l.Kernel != "" {
		fmt.Fprintf(&b, "\nNo policy is in force: %s", l.Kernel)
	}
	b.WriteString("\n")
	if len(l.Pods) > 0 {
		rows := [][]string{{"POD", "ADDRESS", "DIRECTION", "POLICIES", "KERNEL"}}
		for i := range l.Pods {
			rows = append(rows, l.Pods[i].rows()...)
		}
		b.WriteString("\n" + tabulate(rows))
	}
	if len(l.HostEndpoints) > 0 {
		b.WriteString("\n" + tabulate(l.hostRows()))
	}
	if len(l.SameLink) > 0 {
		b.WriteString("\nClosed:\n  " + strings.Join(l.SameLink, "\n  ") + "\n")
	}
	if len(l.Problems) > 0 {
		b.WriteString("\nInvalid policies:\n  " + strings.Join(l.Problems, "\n  ") + "\n")
	}
	_, err := io.WriteString(w, b.String())
	return err
}

// hostRows returns the rows of host endpoints.
func (l *Listing) hostRows() [][]string {
	rows := [][]string{{"HOST ENDPOINT", "INTERFACE", "PACKETS", "POLICIES", "KERNEL"}}
	before := ListedHost{}
	for _, h := range l.HostEndpoints {
		name, link := h.HostEndpoint, h.Interface
		if before.Interface == link {
			name, link = "", ""
		}
		none := "none: denied but for failsafe ports"
		if h.Program == "" {
			none = "none: allowed"
		}
		rows = append(rows, h.Side.rows([]string{name, link, h.Packets}, none)...)
		before = h
	}
	return rows
}

// rows returns the rows of a direction: one, and one for each further policy. The first begins with cells. none is the
// text for no policy.
func (s *Side) rows(cells []string, none string) (rows [][]string) {
	policies, kernel := s.Policies, s.Kernel
	if len(policies) == 0 {
		policies = []string{none}
	}
	if kernel == "" {
		kernel = "in force"
	}
	for _, name := range policies {
		rows = append(rows, append(slices.Clone(cells), name, kernel))
		cells, kernel = make([]string, len(cells)), ""
	}
	return rows
}

// rows returns the rows of a pod.
func (p *ListedPod) rows() (rows [][]string) {
	pod, addresses := p.Pod, strings.Join(p.Addresses, " ")
	if addresses == "" {
		addresses = "none yet"
	}
	rows = p.Ingress.rows([]string{pod, addresses, "ingress"}, "none: allowed")
	return append(rows, p.Egress.rows([]string{"", "", "egress"}, "none: allowed")...)
}

// tabulate aligns columns.
func tabulate(rows [][]string) string {
	var b, out strings.Builder
	table := tabwriter.NewWriter(&b, 0, 0, 2, ' ', 0)
	for _, row := range rows {
		fmt.Fprintln(table, strings.Join(row, "\t"))
	}
	_ = table.Flush() // into memory
	for line := range strings.Lines(b.String()) {
		out.WriteString(strings.TrimRight(line, " \n") + "\n")
	}
	return out.String()
}

func count(n int, one, many string) string {
	if n == 1 {
		return "1 " + one
	}
	return fmt.Sprintf("%d %s", n, many)
}
