package gc

import (
	"net/netip"
	"slices"
	"time"

	"github.com/tortie-net/tortie/internal/api"
	"github.com/tortie-net/tortie/internal/api/names"
	"github.com/tortie-net/tortie/internal/ipam/inventory"
)

// Rules are how long something must have been seen unused before it goes.
type Rules struct {
	// Grace is for what an existing node may still come back to. 0: it is watched and never freed, as in Calico.
	Grace time.Duration
	// NodeGrace is for what belongs to a node that is gone.
	NodeGrace time.Duration
}

// DefaultRules are Calico's, and for a node that is gone as long as a Node takes to be deleted and registered again by hand.
var DefaultRules = Rules{Grace: 15 * time.Minute, NodeGrace: 10 * time.Second}

// State is what earlier views have shown: since when each thing has been unused, in the form in which it still is. It is a value: a
// pass returns a new one.
type State struct {
	taken      time.Time
	nodes      map[string]sighting
	holders    map[string]sighting // by handle, or by address if there is none
	handles    map[string]sighting
	blocks     map[string]sighting
	affinities map[string]sighting
}

// sighting is since when something has been unused, in a certain form. What changed its form is seen for the first time.
type sighting struct {
	form  uint64
	since time.Time
	times int // in how many views
}

// Holder is who holds addresses that nobody uses. They are freed together or not at all.
type Holder struct {
	Handle string // empty: the address has none
	// Addresses are in Blocks, one for each.
	Addresses []inventory.Allocation
	Blocks    []netip.Prefix
	// Orphaned: the node of all addresses is gone.
	Orphaned bool
	Why      string
}

// Decision is what must go, and what is about to.
type Decision struct {
	Holders []Holder
	// Handles hold nothing.
	Handles []inventory.Handle
	// Blocks are empty, and surplus or of nodes that are gone.
	Blocks []inventory.Block
	// Affinities claim nothing, or are of nodes that are gone; those to Confirm were left half-way by a crash, and their block is in use.
	Affinities, Confirm []api.BlockAffinity
	// Candidates are how many addresses are unused and still in their grace, by node; Waiting are all other things in theirs.
	Candidates map[string]int
	Waiting    int
	// Again is when the next of them may be due; zero if nothing waits.
	Again time.Time
}

// Empty reports that there is nothing to do.
func (d *Decision) Empty() bool {
	return len(d.Holders)+len(d.Handles)+len(d.Blocks)+len(d.Affinities)+len(d.Confirm) == 0
}

// Pass looks at a view and decides. A thing is due when two views have shown it unused and unchanged, and the last of them was taken
// the grace after the first. It goes by the times at which views were taken, not by when it is called: while a cache stands still
// nothing grows old. A view that is older than the one before says nothing, and neither does one of a datastore that is not ready.
func Pass(st State, view *inventory.View, rules Rules) (State, Decision) {
	if !view.Ready || view.Taken.Before(st.taken) {
		return st, Decision{}
	}
	p := newPass(st, view, rules)
	p.judgeNodes()
	p.judgeHolders()
	p.judgeHandles()
	p.judgeBlocks()
	p.judgeAffinities()
	return p.next, p.out
}

// pass is one Pass.
type pass struct {
	before, next State
	view         *inventory.View
	rules        Rules
	index        *inventory.Index
	blocks       map[netip.Prefix]*inventory.Block
	claims       map[claimKey]bool // those that stand
	gone         map[string]bool   // nodes that have been gone long enough
	out          Decision
}

// claimKey says who claims what.
type claimKey struct {
	node string
	cidr netip.Prefix
}

func newPass(st State, view *inventory.View, rules Rules) *pass {
	p := &pass{
		before: st, view: view, rules: rules,
		index:  inventory.NewIndex(view.Nodes, view.Pods),
		blocks: make(map[netip.Prefix]*inventory.Block, len(view.Blocks)),
		claims: make(map[claimKey]bool, len(view.Affinities)),
		gone:   map[string]bool{},
		out:    Decision{Candidates: map[string]int{}},
		next: State{
			taken: view.Taken, nodes: map[string]sighting{}, holders: map[string]sighting{}, handles: map[string]sighting{},
			blocks: map[string]sighting{}, affinities: map[string]sighting{},
		},
	}
	for i := range view.Blocks {
		b := &view.Blocks[i]
		p.blocks[b.CIDR] = b
	}
	for i := range view.Affinities {
		if a := &view.Affinities[i]; isHost(a) {
			if cidr, err := netip.ParsePrefix(a.Spec.CIDR); err == nil {
				p.claims[claimKey{a.Spec.Node, cidr}] = a.Confirmed()
			}
		}
	}
	return p
}

func isHost(a *api.BlockAffinity) bool { return a.Spec.Type == "" || a.Spec.Type == api.AffinityHost }

// see notes that something is unused in a form, and reports whether that has been so for long enough, in two views.
func (p *pass) see(before, next map[string]sighting, key string, form uint64, grace time.Duration) (due bool) {
	s := before[key]
	if s.times == 0 || s.form != form {
		s = sighting{form: form, since: p.view.Taken}
	}
	s.times++
	next[key] = s
	at := s.since.Add(grace)
	if s.times > 1 && !p.view.Taken.Before(at) {
		return true
	}
	if p.out.Again.IsZero() || at.Before(p.out.Again) {
		p.out.Again = at
	}
	return false
}

// sees is see for what is not an address, by the grace of a node that may exist.
func (p *pass) sees(before, next map[string]sighting, key string, form uint64, node string) bool {
	due := false
	switch {
	case node != "" && p.index.Node(node) == nil:
		// The node has been seen twice, which is what two observations are for.
		p.see(before, next, key, form, 0)
		due = p.gone[node]
	case p.rules.Grace > 0:
		due = p.see(before, next, key, form, p.rules.Grace)
	}
	if !due {
		p.out.Waiting++
	}
	return due
}

// judgeNodes finds out which of the nodes that own or hold something are gone.
func (p *pass) judgeNodes() {
	for i := range p.view.Affinities {
		if a := &p.view.Affinities[i]; isHost(a) {
			p.judgeNode(a.Spec.Node)
		}
	}
	for i := range p.view.Blocks {
		b := &p.view.Blocks[i]
		if node, ok := b.Owner(); ok {
			p.judgeNode(node)
		}
		for j := range b.Allocations {
			p.judgeNode(b.Allocations[j].Node)
		}
	}
}

func (p *pass) judgeNode(name string) {
	if _, done := p.next.nodes[name]; done || name == "" || p.index.Node(name) != nil {
		return
	}
	p.gone[name] = p.see(p.before.nodes, p.next.nodes, name, 0, p.rules.NodeGrace)
}

// held is what one holder holds, as far as the blocks tell.
type held struct {
	Holder
	form   uint64
	unused bool // all of it
}

// judgeHolders finds the addresses that nobody uses.
func (p *pass) judgeHolders() {
	holders := map[string]*held{}
	for i := range p.view.Blocks {
		for j := range p.view.Blocks[i].Allocations {
			p.judgeAddress(holders, p.view.Blocks[i].CIDR, &p.view.Blocks[i].Allocations[j])
		}
	}
	for key, h := range holders {
		if !h.unused {
			continue
		}
		grace := p.rules.Grace
		if h.Orphaned {
			grace = 0 // the node's own is waited for
		}
		due := (grace > 0 || h.Orphaned) && p.see(p.before.holders, p.next.holders, key, h.form, grace)
		if h.Orphaned {
			due = due && p.gone[h.Addresses[0].Node]
		}
		if due {
			p.out.Holders = append(p.out.Holders, h.Holder)
		} else {
			p.out.Candidates[h.Addresses[0].Node] += len(h.Addresses)
		}
	}
	slices.SortFunc(p.out.Holders, func(a, b Holder) int {
		return a.Addresses[0].Address.Compare(b.Addresses[0].Address)
	})
}

// judgeAddress adds an address to what its holder holds. A holder of whom one address is used keeps all.
func (p *pass) judgeAddress(holders map[string]*held, block netip.Prefix, a *inventory.Allocation) {
	if a.Cooling() || a.Class == inventory.Windows {
		return
	}
	verdict, why := p.index.Judge(a)
	key := a.Handle
	if key == "" {
		key = "address " + a.Address.String()
	}
	h := holders[key]
	if h == nil {
		h = &held{Holder: Holder{Handle: a.Handle, Orphaned: true, Why: why}, unused: true}
		holders[key] = h
	}
	h.unused = h.unused && (verdict == inventory.Dead || verdict == inventory.Orphaned)
	// Addresses of one handle are of one container, on one node; of what else there may be the longer grace is right.
	h.Orphaned = h.Orphaned && verdict == inventory.Orphaned && (len(h.Addresses) == 0 || a.Node == h.Addresses[0].Node)
	if !h.unused {
		h.Addresses, h.Blocks = nil, nil
		return
	}
	h.Addresses, h.Blocks = append(h.Addresses, *a), append(h.Blocks, block)
	h.form = mix(h.form, a)
}

// judgeHandles finds the handles that hold nothing as far as blocks can be read. Of one that says it holds something in a damaged block, or
// while nobody knows where that is, the sweep finds out that it is to stay.
func (p *pass) judgeHandles() {
	holding := map[string]bool{}
	for i := range p.view.Blocks {
		for j := range p.view.Blocks[i].Allocations {
			if a := &p.view.Blocks[i].Allocations[j]; !a.Cooling() {
				holding[inventory.HandleName(a.Handle)] = true
			}
		}
	}
	for i := range p.view.Handles {
		h := &p.view.Handles[i]
		if holding[h.Name] || p.ofTunnel(h) {
			continue
		}
		if p.sees(p.before.handles, p.next.handles, h.Name, form(h.UID, h.ResourceVersion), "") {
			p.out.Handles = append(p.out.Handles, *h)
		}
	}
}

// ofTunnel reports whether a handle is that of a tunnel of a node that exists: its agent uses the same handle again at any time, so
// that it is never certain that nobody is about to. One that has the name of it alone keeps the agent from making its own: it says that it
// is another node's, or its ID has capitals. Of a handle whose ID was not read the sweep finds that out.
func (p *pass) ofTunnel(h *inventory.Handle) bool {
	return ofTunnel(p.index, h) && !h.Named
}

func ofTunnel(index *inventory.Index, h *inventory.Handle) bool {
	node, ok := names.TunnelNode(h.Name)
	return ok && index.Node(node) != nil && (h.Node == "" || h.Node == node) && (h.Named || h.ID == h.Name)
}
