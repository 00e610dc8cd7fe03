package peering

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"

	"github.com/tortie-net/tortie/internal/api"
	"github.com/tortie-net/tortie/internal/bgp"
)

// State is what a decision hands on to the next one: the forms in which BGPPeers could last be used. The zero State has none.
type State struct {
	forms map[string]*form
}

// Decide decides on this node's sessions, after an earlier decision's state.
func Decide(in Input, last State) (Decision, State) {
	d := decider{in: &in, taken: map[netip.Addr]found{}}
	next := State{forms: make(map[string]*form, len(in.Peers))}
	out := Decision{Sources: map[netip.Addr]Source{}, ClusterID: in.Self.ClusterID}
	for i := range in.Peers {
		f, problems := current(&in.Peers[i], &in, last)
		out.Problems = append(out.Problems, problems...)
		if f != nil {
			next.forms[f.name] = f
			d.forms = append(d.forms, f)
		}
	}
	sortForms(d.forms)
	for _, f := range d.forms {
		if f.holds(&in.Self) {
			d.own = append(d.own, f)
		}
	}
	if a := d.automatic(); a != nil && a.Role == Reflector {
		out.ClusterID = a.ClusterID
	}
	out.take(&d)
	return out, next
}

// current returns the form in which a BGPPeer is in force, nil if it never could be used, and what is wrong with it.
func current(p *api.BGPPeer, in *Input, last State) (*form, []error) {
	resolved, fatal, notes := resolve(p, in)
	f := &resolved
	consequence := "there is no session until then"
	if len(fatal) > 0 {
		if f = last.forms[p.Name]; f != nil {
			consequence = "what it was before stays in force"
		}
	}
	var problems []error
	for _, err := range fatal {
		problems = append(problems, inPeer(p.Name, fmt.Errorf("%w: %s", err, consequence)))
	}
	for _, err := range notes {
		problems = append(problems, inPeer(p.Name, err))
	}
	return f, problems
}

func inPeer(name string, err error) error {
	return &Problem{Kind: (*api.BGPPeer)(nil).ResourceType(), Name: name, Err: err}
}

// take fills in the sessions.
func (out *Decision) take(d *decider) {
	isNode := map[netip.Addr]bool{}
	for _, a := range d.in.Self.addrs() {
		isNode[a] = true
	}
	for i := range d.in.Others {
		other := &d.in.Others[i]
		for _, addr := range other.addrs() {
			if isNode[addr] || checkUnicast(addr) != nil {
				continue
			}
			isNode[addr] = true
			if self := d.in.Self.in(addr); self.IsValid() {
				out.add(d, d.meets(end{&d.in.Self, self}, end{other, addr}))
			}
		}
	}
	for _, s := range d.strangers(func(a netip.Addr) bool { return isNode[a] }) {
		out.add(d, []found{s})
	}
	slices.SortFunc(out.Peers, func(a, b bgp.Peer) int { return a.Addr.Compare(b.Addr) })
	slices.SortFunc(out.Static, func(a, b Static) int { return a.Peer.Compare(b.Peer) })
	out.Problems = append(out.Problems, d.says.problems()...)
}

// add takes the first of the sessions that there might be with one peer, if there is none yet, and says which others it excludes.
func (out *Decision) add(d *decider, sessions []found) {
	for _, s := range sessions {
		if chosen, taken := d.taken[s.peer.Addr]; taken {
			d.excluded(s, chosen)
			continue
		}
		d.taken[s.peer.Addr] = s
		out.Peers = append(out.Peers, s.peer)
		out.Sources[s.peer.Addr] = s.source
		if s.form != nil && !s.source.Reverse && s.form.via.IsValid() && s.form.via.Is4() == s.peer.Addr.Is4() && s.form.via != s.peer.Addr {
			out.Static = append(out.Static, Static{Peer: s.peer.Addr, Via: s.form.via})
		}
	}
}

// excluded says that a session is not to be had because of another with the same peer, unless it is the same.
func (d *decider) excluded(s, chosen found) {
	switch {
	case s.peer == chosen.peer && s.form.via == chosen.form.via:
	case s.peer.Port != chosen.peer.Port:
		d.says.about(s.form.name, fmt.Sprintf("BGPPeer %s gives the same peer with port %d, and counts: there is one session with an address: remove one of them",
			chosen.form.name, chosen.peer.Port), s.peer.Addr)
	default:
		d.says.about(s.form.name, fmt.Sprintf("BGPPeer %s gives the same peer with other settings, and counts: remove one of them", chosen.form.name), s.peer.Addr)
	}
}

// remarks are what there is to say about BGPPeers that are in force. What is said of many peers is said once.
type remarks struct {
	all   []*remark
	known map[[2]string]*remark
}

type remark struct {
	form, text string
	first      netip.Addr
	more       int
}

// about says something about a form and one of its peers.
func (r *remarks) about(form, text string, peer netip.Addr) {
	k := [2]string{form, text}
	if known := r.known[k]; known != nil {
		known.more++
		return
	}
	if r.known == nil {
		r.known = map[[2]string]*remark{}
	}
	r.known[k] = &remark{form: form, text: text, first: peer}
	r.all = append(r.all, r.known[k])
}

func (r *remarks) problems() []error {
	slices.SortStableFunc(r.all, func(a, b *remark) int { return cmp.Compare(a.form, b.form) })
	var out []error
	for _, m := range r.all {
		about := m.first.String()
		if m.more > 0 {
			about = fmt.Sprintf("%s and %d others", about, m.more)
		}
		out = append(out, inPeer(m.form, fmt.Errorf("peer %s: %s", about, m.text)))
	}
	return out
}
