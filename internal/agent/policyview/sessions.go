package policyview

import (
	"cmp"
	"fmt"
	"io"
	"net/netip"
	"slices"

	"github.com/tortie-net/tortie/internal/agent/policies"
	"github.com/tortie-net/tortie/internal/kernel/netlinkx"
	"github.com/tortie-net/tortie/internal/policy"
)

// Session is a group of open connections from one address to a port of another.
type Session struct {
	Count    int    `json:"count"`
	From     string `json:"from"`
	To       string `json:"to"`
	Protocol string `json:"protocol"`
	Port     uint16 `json:"port"`
	// Use is the service of the port, if it is SSH, BGP or the API server.
	Use string `json:"use,omitempty"`
	// By is the policy that will deny it, with the direction of the pod, or the interface of this node.
	By string `json:"by"`
	// Ends: the agent ends the connection, unless it keeps connections. False: it stays open, and only new ones are
	// denied.
	Ends bool `json:"ends"`
}

// openFlows holds the connections that this node's kernel tracks.
type openFlows struct {
	flows  []netlinkx.Flow
	own    map[netip.Addr]bool
	linkTo func(netip.Addr) string // the name of the link by which an address is reached
	api    []netip.AddrPort        // of the API server
}

// readFlows reads the connections and addresses of the kernel, which must stay open.
func readFlows(kernel *netlinkx.Conn) (*openFlows, error) {
	links, err := kernel.Links()
	if err != nil {
		return nil, err
	}
	names := map[int]string{}
	for _, l := range links {
		names[l.Index] = l.Name
	}
	addrs, err := kernel.Addrs(0, netlinkx.FamilyAll)
	if err != nil {
		return nil, err
	}
	o := &openFlows{own: map[netip.Addr]bool{}, linkTo: func(a netip.Addr) string {
		index, _ := kernel.LinkTo(a) // no link: the host endpoint of all interfaces counts
		return names[index]
	}}
	for _, a := range addrs {
		o.own[a.Prefix.Addr()] = true
	}
	err = kernel.Flows(func(f netlinkx.TrackedFlow) {
		if !f.Closed {
			o.flows = append(o.flows, f.Flow)
		}
	})
	return o, err
}

// sessions returns the open connections that the change newly denies.
func (x *comparison) sessions(open *openFlows, e ends) []Session {
	pods := map[netip.Addr]*policy.Pod{}
	for _, p := range x.pods {
		for _, a := range p.Addresses {
			pods[a] = p
		}
	}
	counts := map[Session]int{}
	for i := range open.flows {
		s, denied := open.denied(x.after, &open.flows[i], e, pods)
		if _, before := open.denied(x.before, &open.flows[i], e, pods); denied && !before {
			counts[s]++
		}
	}
	all := make([]Session, 0, len(counts))
	for s, n := range counts {
		s.Count = n
		all = append(all, s)
	}
	slices.SortFunc(all, func(a, b Session) int {
		return cmp.Or(cmp.Compare(b.Use, a.Use), cmp.Compare(a.From, b.From), cmp.Compare(a.To, b.To), cmp.Compare(a.Protocol, b.Protocol),
			cmp.Compare(a.Port, b.Port))
	})
	return all
}

// denied judges an open connection as a new one, by pods' policies first.
func (o *openFlows) denied(c *policy.Compiled, f *netlinkx.Flow, e ends, pods map[netip.Addr]*policy.Pod) (s Session, denied bool) {
	if f.Expected {
		return s, false // it has no policy of its own
	}
	packet := policy.Packet{Protocol: f.Protocol, Port: f.Port, SourcePort: f.SourcePort}
	s = Session{From: nameOf(f.Client, pods), To: nameOf(f.Server, pods), Protocol: protocolName(f.Protocol), Port: f.Port, Use: o.use(f)}
	if by, denied := deniedByPods(c, f, o.own, pods, packet); denied {
		s.By, s.Ends = by, true
		return s, true
	}
	if c.HostRules.DropFromPods && e.pods[f.Client] && e.own[f.Server] {
		s.By = "FelixConfiguration's defaultEndpointToHostAction"
		return s, true
	}
	here := func(a netip.Addr) bool { return e.own[a] || e.pods[a] }
	far := f.Server
	if here(far) {
		far = f.Client
	}
	if len(c.Hosts) == 0 || here(far) || !here(f.Client) && !here(f.Server) {
		return s, false // it passes no host endpoint
	}
	link := o.linkTo(far)
	at, by, denied := e.deniedAt(c, link, f.Client, f.Server, packet)
	s.By = fmt.Sprintf("%s at %s, %s", at.text, link, by)
	return s, denied
}

func deniedByPods(c *policy.Compiled, f *netlinkx.Flow, own map[netip.Addr]bool, pods map[netip.Addr]*policy.Pod,
	packet policy.Packet) (by string, denied bool) {
	if p := pods[f.Client]; p != nil {
		if v := c.Decide(policies.LinkOf(p.PodKey), policy.Egress, f.Server, packet); !v.Allow {
			return "egress " + v.By.String(), true
		}
	}
	if p := pods[f.Server]; p != nil && !own[f.Client] {
		if v := c.Decide(policies.LinkOf(p.PodKey), policy.Ingress, f.Client, packet); !v.Allow {
			return "ingress " + v.By.String(), true
		}
	}
	return "", false
}

func nameOf(a netip.Addr, pods map[netip.Addr]*policy.Pod) string {
	if p := pods[a]; p != nil {
		return p.String()
	}
	return a.String()
}

// use names the service of a well-known port.
func (o *openFlows) use(f *netlinkx.Flow) string {
	switch {
	case f.Protocol != tcp:
		return ""
	case f.Port == 22:
		return "SSH"
	case f.Port == 179:
		return "BGP"
	case f.Port == 6443 || slices.Contains(o.api, netip.AddrPortFrom(f.Server, f.Port)):
		return "API server"
	}
	return ""
}

// writeSessions is a part of WriteText.
func (d *Difference) writeSessions(w io.Writer) {
	if d.Unseen != "" {
		fmt.Fprintf(w, "\nOpen connections of this node are not judged: %s\n", d.Unseen)
	}
	if len(d.Sessions) == 0 {
		return
	}
	rows := [][]string{{"OPEN", "FROM", "TO", "", "WILL", "DENIED BY"}}
	note := ""
	for _, s := range d.Sessions {
		will := "end"
		if !s.Ends {
			will, note = "go on, but no new one", "IPIP, VXLAN and WireGuard between nodes pass host endpoints all the same.\n"
		}
		rows = append(rows, []string{fmt.Sprint(s.Count), s.From, fmt.Sprintf("%s:%d/%s", s.To, s.Port, s.Protocol), s.Use, will, s.By})
	}
	fmt.Fprintf(w, "\n%s%s", tabulate(rows), note)
}
