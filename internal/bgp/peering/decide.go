package peering

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"

	"github.com/tortie-net/tortie/internal/api"
	"github.com/tortie-net/tortie/internal/bgp"
	"github.com/tortie-net/tortie/internal/bgp/policy"
)

// State carries over to the next decision the forms in which BGPPeers were last usable, and the last usable
// communities. The zero State has none.
type State struct {
	forms map[string]*form
	past  map[string]Past // BGPPeers without a form yet
	tags  []policy.Tag
	later bool // not the zero State, nor from Recall
}

// Decide decides on this node's sessions; last is the State of the decision before.
func Decide(in Input, last State) (Decision, State) {
	d := decider{in: &in, taken: map[netip.Addr]found{}}
	out := Decision{
		Sources: map[netip.Addr]Source{}, ClusterID: in.Self.ClusterID,
		Import: map[netip.Addr]*policy.Rules{}, Export: map[netip.Addr]*policy.Rules{}, Aggregations: map[netip.Addr]Aggregation{},
	}
	out.tag(&in, last)
	out.resolve(&d, last)
	out.take(&d)
	return out, d.next(last, out.Tags)
}

// next returns the state after a decision.
func (d *decider) next(last State, tags []policy.Tag) State {
	s := State{forms: make(map[string]*form, len(d.forms)), past: map[string]Past{}, tags: tags, later: true}
	for _, f := range d.forms {
		s.forms[f.name] = f
	}
	for _, p := range d.in.Peers {
		if past, ok := last.past[p.Name]; ok && s.forms[p.Name] == nil {
			s.past[p.Name] = past
		}
	}
	return s
}

// resolve sets the forms in which BGPPeers are in force, and those that give this node sessions.
func (out *Decision) resolve(d *decider, last State) {
	known, problems := filters(d.in.Filters)
	out.Problems = append(out.Problems, problems...)
	peers := slices.Clone(d.in.Peers)
	slices.SortFunc(peers, func(a, b api.BGPPeer) int { return cmp.Compare(a.Name, b.Name) })
	for i := range peers {
		f, problems := current(&peers[i], d.in, known, last)
		out.Problems = append(out.Problems, problems...)
		if f != nil {
			d.forms = append(d.forms, f)
		}
	}
	sortForms(d.forms)
	for _, f := range d.forms {
		if f.holds(&d.in.Self) {
			d.own = append(d.own, f)
		}
	}
}

// current returns the form in which a BGPPeer is in force, nil if it was never usable, and its problems.
func current(p *api.BGPPeer, in *Input, known map[string]filter, last State) (*form, []error) {
	r := resolve(p, in, known)
	f := &r.form
	consequence := "there is no session until then"
	if len(r.fatal) > 0 || r.pending {
		if f = cmp.Or(last.forms[p.Name], last.recalled(p.Name, in)); f != nil {
			consequence = "what it was before stays in force"
		}
	}
	var problems []error
	for _, err := range r.fatal {
		problems = append(problems, inPeer(p.Name, fmt.Errorf("%w: %s", err, consequence)))
	}
	for _, err := range r.notes {
		problems = append(problems, inPeer(p.Name, err))
	}
	return f, problems
}

// tag sets the communities to add. If one is faulty, the earlier ones stay.
func (out *Decision) tag(in *Input, last State) {
	found, problems := tags(in)
	out.Tags = found
	if len(problems) == 0 {
		return
	}
	consequence := "it is left out"
	if last.later {
		out.Tags, consequence = last.tags, "the communities of before stay in force"
	}
	for _, p := range problems {
		p.Err = fmt.Errorf("%w: %s", p.Err, consequence)
		out.Problems = append(out.Problems, p)
	}
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
	for _, s := range d.externalPeers(func(a netip.Addr) bool { return isNode[a] }) {
		out.add(d, []found{s})
	}
	slices.SortFunc(out.Peers, func(a, b bgp.Peer) int { return a.Addr.Compare(b.Addr) })
	slices.SortFunc(out.Static, func(a, b Static) int { return a.Peer.Compare(b.Peer) })
	out.Problems = append(out.Problems, d.says.problems()...)
}

// add takes the first of the possible sessions with one peer if there is none yet, and adds remarks on those that it
// excludes.
func (out *Decision) add(d *decider, sessions []found) {
	for _, s := range sessions {
		if chosen, taken := d.taken[s.peer.Addr]; taken {
			d.excluded(s, chosen)
			continue
		}
		d.taken[s.peer.Addr] = s
		out.Peers = append(out.Peers, s.peer)
		out.Sources[s.peer.Addr] = s.source
		out.filter(s)
		out.aggregate(d, s)
		if s.form != nil && !s.source.Reverse && s.form.via.IsValid() && s.form.via.Is4() == s.peer.Addr.Is4() && s.form.via != s.peer.Addr {
			out.Static = append(out.Static, Static{Peer: s.peer.Addr, Via: s.form.via})
		}
	}
}

// filter sets the import and export rules of a session's peer.
func (out *Decision) filter(s found) {
	if s.form == nil {
		return
	}
	imports, exports := s.form.rules.in(s.peer.Addr)
	if imports != nil {
		out.Import[s.peer.Addr] = imports
	}
	if exports != nil {
		out.Export[s.peer.Addr] = exports
	}
}

// aggregate sets the prefixes that a session's peer receives in place of blocks. Nodes need the blocks: a packet for
// one goes from node to node.
func (out *Decision) aggregate(d *decider, s found) {
	switch {
	case s.form == nil || s.form.aggregation == "" || s.source.Reverse:
	case s.source.Node != "":
		d.says.about(s.form.name,
			fmt.Sprintf("annotation %s has no effect on nodes, which need the blocks", api.AnnotationAggregate), s.peer.Addr)
	default:
		out.Aggregations[s.peer.Addr] = s.form.aggregation
	}
}

// same reports whether two sessions with one peer have the same settings.
func (s found) same(other found) bool {
	imports, exports := s.form.rules.in(s.peer.Addr)
	otherImports, otherExports := other.form.rules.in(other.peer.Addr)
	return s.peer == other.peer && s.form.via == other.form.via && s.form.aggregation == other.form.aggregation &&
		imports.Equal(otherImports) && exports.Equal(otherExports)
}

// excluded adds a remark that another session with the same peer takes precedence, unless both are the same.
func (d *decider) excluded(s, chosen found) {
	switch {
	case s.same(chosen):
	case s.peer.Port != chosen.peer.Port:
		d.says.about(s.form.name,
			fmt.Sprintf("BGPPeer %s gives the same peer with port %d, and counts: there is one session with an address: remove one of them",
				chosen.form.name, chosen.peer.Port), s.peer.Addr)
	default:
		d.says.about(s.form.name,
			fmt.Sprintf("BGPPeer %s gives the same peer with other settings, and counts: remove one of them", chosen.form.name), s.peer.Addr)
	}
}

// remarks are notes on BGPPeers that are in force. Equal notes on several peers are merged.
type remarks struct {
	all   []*remark
	known map[[2]string]*remark
}

type remark struct {
	form, text string
	first      netip.Addr
	more       int
}

// about adds a remark on a form and one of its peers.
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
