package gc

import (
	"encoding/binary"
	"hash/fnv"
	"slices"
	"time"

	"github.com/tortie-net/tortie/internal/api"
	"github.com/tortie-net/tortie/internal/ipam/audit"
	"github.com/tortie-net/tortie/internal/ipam/inventory"
)

// Rules are the grace periods.
type Rules struct {
	// Grace is for what belongs to existing nodes. 0: candidates are counted and never freed, as in Calico.
	Grace time.Duration
	// NodeGrace is for what belongs to nodes that are gone.
	NodeGrace time.Duration
}

// State is what earlier views have shown: since when each candidate has been one. It is a value: a pass returns a new
// one.
type State struct {
	taken time.Time
	seen  map[thing]sighting
}

// thing names a candidate, or by an empty fix a node that is gone.
type thing struct {
	fix  audit.Fix
	name string
}

// sighting is since when a candidate has been one, in an unchanged form. With another form it starts again.
type sighting struct {
	form  uint64
	since time.Time
	times int // in how many views
}

// Decision has the objects to free now, and the number that waits.
type Decision struct {
	// Due are the candidates whose grace period is over, in the order in which they are freed.
	Due []audit.Candidate
	// Candidates is the number of unused addresses in their grace period, by node; Waiting is the number of all other
	// candidates.
	Candidates map[string]int
	Waiting    int
	// Again is when the next of them may be due; zero if nothing waits.
	Again time.Time
}

// due returns the candidates with one fix.
func (d *Decision) due(fix audit.Fix) []audit.Candidate {
	var all []audit.Candidate
	for _, c := range d.Due {
		if c.Fix == fix {
			all = append(all, c)
		}
	}
	return all
}

// Pass judges a view. A candidate is due when two views have shown it, unchanged, and the second was taken at least the
// grace period after the first. Only the views' times count, not when Pass is called: while a cache is not updated
// nothing becomes due. A view that is older than the one before is ignored. So is a view of a datastore that is not
// ready, or without a time: it may be incomplete.
func Pass(st State, view *inventory.View, rules Rules) (State, Decision) {
	if !view.Ready || view.Taken.IsZero() || view.Taken.Before(st.taken) {
		return st, Decision{}
	}
	p := &pass{
		before: st, view: view, rules: rules, index: inventory.NewIndex(view.Nodes, view.Pods), gone: map[string]bool{},
		next: State{taken: view.Taken, seen: map[thing]sighting{}}, out: Decision{Candidates: map[string]int{}},
	}
	p.seeNodes()
	p.out.Due = slices.DeleteFunc(audit.Candidates(view, p.index), func(c audit.Candidate) bool {
		due := p.due(&c)
		switch {
		case due:
		case c.Holder != nil:
			p.out.Candidates[c.Holder.Addresses[0].Node] += len(c.Holder.Addresses)
		default:
			p.out.Waiting++
		}
		return !due
	})
	return p.next, p.out
}

// pass is one Pass.
type pass struct {
	before, next State
	view         *inventory.View
	rules        Rules
	index        *inventory.Index
	gone         map[string]bool // of nodes without a Node: whether they have been gone long enough
	out          Decision
}

// see records a candidate, and reports whether it has been one for the grace period, in two views.
func (p *pass) see(what thing, form uint64, grace time.Duration) (due bool) {
	s := p.before.seen[what]
	if s.times == 0 || s.form != form {
		s = sighting{form: form, since: p.view.Taken}
	}
	s.times++
	p.next.seen[what] = s
	at := s.since.Add(grace)
	if s.times > 1 && !p.view.Taken.Before(at) {
		return true
	}
	if p.out.Again.IsZero() || at.Before(p.out.Again) {
		p.out.Again = at
	}
	return false
}

// due records a candidate, and reports whether its grace period is over. Objects of a gone node have that node's grace
// period.
func (p *pass) due(c *audit.Candidate) bool {
	what, form, node := identity(c)
	if long, gone := p.gone[node]; gone {
		// Two views have shown that the node is gone. Addresses must have been seen unused twice as well.
		return (p.see(what, form, 0) || c.Holder == nil) && long
	}
	return p.rules.Grace > 0 && p.see(what, form, p.rules.Grace)
}

// identity returns the name of a candidate, a hash of its state, and the node that determines its grace period.
func identity(c *audit.Candidate) (what thing, form uint64, node string) {
	var m *api.Meta
	switch {
	case c.Holder != nil:
		name := c.Holder.Handle
		if name == "" {
			name = "address " + c.Holder.Addresses[0].Address.String()
		}
		for _, a := range c.Holder.Addresses {
			form += formOf(a)
		}
		if c.Holder.Orphaned {
			node = c.Holder.Addresses[0].Node
		}
		return thing{c.Fix, name}, form, node
	case c.Handle != nil:
		m = &c.Handle.Meta
	case c.Block != nil:
		m = &c.Block.Meta
		node, _ = c.Block.Owner()
	default:
		m, node = &c.Claim.Meta, c.Claim.Spec.Node
	}
	h := fnv.New64a()
	h.Write([]byte(m.UID + "\x00" + m.ResourceVersion))
	return thing{c.Fix, m.Name}, h.Sum64(), node
}

// formOf returns a hash of an assignment, which differs when the address was released and assigned again, by the
// sequence number.
func formOf(a audit.Held) uint64 {
	h := fnv.New64a()
	text := a.Address.As16()
	h.Write(text[:])
	h.Write(binary.BigEndian.AppendUint64(nil, a.Sequence))
	h.Write([]byte(a.Namespace + "\x00" + a.Pod + "\x00" + a.Node))
	return h.Sum64()
}

// seeNodes records which of the nodes that own or hold something are gone.
func (p *pass) seeNodes() {
	for i := range p.view.Affinities {
		if a := &p.view.Affinities[i]; a.Spec.Type != api.AffinityVirtual {
			p.seeNode(a.Spec.Node)
		}
	}
	for i := range p.view.Blocks {
		b := &p.view.Blocks[i]
		if node, ok := b.Owner(); ok {
			p.seeNode(node)
		}
		for j := range b.Allocations {
			p.seeNode(b.Allocations[j].Node)
		}
	}
}

func (p *pass) seeNode(name string) {
	if _, done := p.gone[name]; done || name == "" || p.index.Node(name) != nil {
		return
	}
	p.gone[name] = p.see(thing{name: name}, 0, p.rules.NodeGrace)
}
