package reflectors

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"
)

// How long a node waits before it acts on a change. Other nodes' reactions show within a second, so that in each
// pause but the first another node may act first.
const (
	// electAfter is how long a node must be among the first before it reflects: nodes that start together come one after
	// another.
	electAfter = 5 * time.Second
	// downAfter is how long a session with a reflector must be down before it is missed: an agent that restarts is back by
	// then.
	downAfter = 15 * time.Second
	// stagger is how much longer each next successor waits.
	stagger = 5 * time.Second
	// deadAfter is how long a reflector is missed although its Node is ready: its agent does not come back.
	deadAfter = 5 * time.Minute
	// freshFor is how long an answer about a Node is good.
	freshFor = 30 * time.Second
	// spreadAfter is how long a node in a zone without a reflector waits while another zone has two.
	spreadAfter = time.Minute
	// surplusAfter is how long a reflector waits before it steps down, and each next one longer than the one before.
	surplusAfter = 30 * time.Second
	// meshAfter is how long too few nodes must take part before there is a mesh again; reflectors stay for lowAfter.
	meshAfter = 30 * time.Second
	lowAfter  = 90 * time.Second
	// coverAfter is how long reflectors must have told all they know before they stand in for the mesh, and then a path
	// must have been among it for dropAfter, and up to dropSpread more, the same at both ends.
	coverAfter = 10 * time.Second
	dropAfter  = 5 * time.Second
	dropSpread = 10 * time.Second
)

// enough is how many reflectors must stand before a session of the mesh is given up for them, if there are to be that
// many.
const enough = 2

// State is carried from one decision of a node to the next. The zero State is that of an agent that has just started.
type State struct {
	begun bool
	word  Word      // the role that this node announces, or is about to
	since time.Time // since when it has its role
	roll  *Roll     // of the last decision
	// sessions with reflectors: how they are, and since when.
	sessions map[string]observed
	// posture is the change that this node is waiting to make, with its reason; waiting since.
	posture string
	waiting time.Time
	low     time.Time // since when too few nodes take part
	covered time.Time // since when reflectors could stand in for the mesh
	mesh    bool      // there are sessions with all
	// kept are the nodes with which there still are sessions that reflectors are to stand in for, and since when that is
	// safe.
	kept map[string]time.Time
}

type observed struct {
	Session
	since time.Time // since when it is established, or is not
}

// decision is one, while it is made.
type decision struct {
	*State
	Settings
	View
	now  time.Time
	self int // place in the roll; -1: none
	plan Plan
}

// Decide says what the node of a view is to be now. It changes the state.
func (s *State) Decide(settings Settings, v View, now time.Time) Plan {
	d := decision{State: s, Settings: settings, View: v, now: now, self: -1}
	if i, ok := v.Roll.index[v.Self]; ok {
		d.self = i
	}
	before := s.word
	if !s.begun && d.self >= 0 {
		s.word = v.Roll.nodes[d.self].Says
	}
	d.observe()
	switch {
	case v.Refusal != "":
		s.word = Nothing
		d.plan.Why = v.Refusal
	case d.on():
		d.choose()
	default:
		d.rest()
	}
	if !s.begun || before.reflects() != s.word.reflects() || (before == Nothing) != (s.word == Nothing) {
		s.since = now
	}
	d.keep(before)
	s.begun, s.roll = true, v.Roll
	return d.done()
}

// done completes the plan.
func (d *decision) done() Plan {
	p := d.plan
	p.Annotate, p.Since, p.Roll, p.mesh, p.kept = d.word, d.State.since, d.Roll, d.mesh, maps.Clone(d.kept)
	switch {
	case d.word == Nothing:
		p.Role = NoRole
	case d.word.reflects():
		p.Role = AsReflects
	default:
		p.Role = AsClient
	}
	p.Reflectors = d.others()
	if d.self >= 0 {
		p.self = d.Roll.nodes[d.self]
	}
	p.lone = (IPv4 | IPv6) &^ d.Roll.families
	for _, i := range d.Roll.reflecting {
		p.lone &^= d.Roll.nodes[i].Families
	}
	return p
}

// others are the reflectors but for this node.
func (d *decision) others() []string {
	return slices.DeleteFunc(d.Roll.Reflecting(), func(name string) bool { return name == d.Self })
}

// observe notes since when the sessions with reflectors are as they are.
func (d *decision) observe() {
	seen := map[string]observed{}
	for _, name := range d.others() {
		now := observed{Session: d.Sessions[name], since: d.now}
		if was, ok := d.State.sessions[name]; ok && was.Established == now.Established {
			now.since = was.since
		}
		seen[name] = now
	}
	d.State.sessions = seen
}

// on reports whether there are to be reflectors, and notes since when there are too few nodes for them.
func (d *decision) on() bool {
	n, sitting := d.Roll.Len(), len(d.Roll.reflecting) > 0
	if d.Manual != "" {
		d.plan.Problem = fmt.Errorf("node %s is a route reflector by its annotation, and automatic reflectors are on: remove the annotation, "+
			"or switch automatic reflectors off", d.Manual)
		if !sitting {
			d.plan.Why = "an operator has chosen route reflectors"
			return false
		}
	}
	if n > d.below() || n >= d.Above {
		d.low = time.Time{}
	} else if d.low.IsZero() {
		d.low = d.now
	}
	return n >= d.Above || sitting
}

// rest sets the node's plan while all nodes have sessions with all.
func (d *decision) rest() {
	d.word, d.mesh = Client, true
	d.wait("")
	if d.plan.Why == "" {
		d.plan.Why = fmt.Sprintf("%d nodes take part, and there are reflectors from %d on", d.Roll.Len(), d.Above)
	}
}

// choose decides what this node is among others that have reflectors, or soon will.
func (d *decision) choose() {
	d.plan.On = true
	if d.Unwilling == "" && d.self >= 0 && d.Roll.nodes[d.self].Barred {
		d.Unwilling = "its Node says so"
	}
	switch {
	case d.word == Nothing:
		d.word = Client
	case d.word.reflects() && d.Unwilling != "":
		d.word = Retiring
	case d.word == Retiring:
		d.word = Reflector
	}
	switch {
	case !d.low.IsZero() && !d.word.reflects():
		d.plan.Why = fmt.Sprintf("only %d nodes take part, so that the mesh comes back", d.Roll.Len())
	case !d.low.IsZero():
		d.leave()
	case d.word.reflects():
		d.stay()
	default:
		d.stand()
	}
}

// wait notes since when there has been a reason to do something. Another reason begins anew.
func (d *decision) wait(posture string) {
	if d.posture != posture {
		d.posture, d.waiting = posture, d.now
	}
}

// due reports whether a time has come, and if not has the decision made again when it has.
func (d *decision) due(since time.Time, after time.Duration) bool {
	at := since.Add(after)
	if !at.After(d.now) {
		return true
	}
	if d.plan.Again.IsZero() || at.Before(d.plan.Again) {
		d.plan.Again = at
	}
	return false
}

// waited is due for what wait counts.
func (d *decision) waited(posture string, after time.Duration) bool {
	d.wait(posture)
	return d.due(d.waiting, after)
}

// leave ends reflection in a cluster that has become small: the mesh is up by then, and reflectors go one after
// another.
func (d *decision) leave() {
	last := slices.Index(d.Roll.reflecting, d.self)
	if d.due(d.low, lowAfter+surplusAfter*time.Duration(len(d.Roll.reflecting)-1-last)) {
		d.word = Client
		return
	}
	d.plan.Why = fmt.Sprintf("only %d nodes take part: it reflects until the mesh is back", d.Roll.Len())
}

// names of nodes, for reasons and postures.
func (d *decision) names(of []int) string {
	names := make([]string, len(of))
	for i, at := range of {
		names[i] = d.Roll.nodes[at].Name
	}
	slices.Sort(names)
	return strings.Join(names, " ")
}
