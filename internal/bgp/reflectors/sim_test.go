package reflectors

import (
	"cmp"
	"container/heap"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"time"
)

// The simulation is a cluster whose agents decide by the real code and by nothing else. What is between them is
// modelled: an API whose watches lag, each by its own time and not always the same, sessions that take time to come up
// and to fill, connections that break or go silent, agents and nodes that end.

// Times of the model.
const (
	simTick     = 100 * time.Millisecond // what watches bring comes in portions, as agents coalesce it
	simConnect  = 2 * time.Second        // longest time until two that want a session have it
	simTable    = 2 * time.Second        // longest time until it has brought a table
	simHold     = 90 * time.Second       // until a silent peer is given up
	simRestart  = 120 * time.Second      // for how long paths of a peer stay that has not said goodbye
	simPass     = 30 * time.Second       // between two passes of an agent that nothing wakes
	simNotReady = 40 * time.Second       // until the API says of a dead node that it is not ready
)

// record is a Node as the API has it.
type record struct {
	Node
	refusal string
	here    bool      // its agent has announced an address, and a word with it
	deadAt  time.Time // zero: its kubelet lives
}

// simAgent is one node and its agent.
type simAgent struct {
	name    string
	running bool // the agent
	alive   bool // the node
	cut     int  // which side of a broken network it is on
	blind   bool // it cannot reach the API
	lag     time.Duration

	state    State
	plan     Plan
	seen     int // the latest portion of the API's that it knows
	sure     bool
	verdicts map[string]Verdict
	asked    map[string]time.Time
	unwill   string
	want     map[string]bool // sessions that it is configured with
	wakeAt   time.Time
}

// simSession is one between two nodes.
type simSession struct {
	up                    bool
	since, complete, lost time.Time
	trying                bool
	said                  bool // it was ended by a word: nobody keeps paths
}

type sim struct {
	settings Settings
	tick     time.Duration
	rng      *rand.Rand
	now      time.Time
	begun    time.Time
	queue    simQueue
	serial   int

	api      map[string]*record
	changed  bool
	portions []map[string]record // nil entries of equal content share a roll
	rolls    []*Roll
	times    []time.Time

	agents   map[string]*simAgent
	order    []string
	sessions map[[2]string]*simSession

	writes, asks, decisions int
	words                   []Word // that were written
	log                     []string
}

type simEvent struct {
	at     time.Time
	serial int
	do     func()
}

type simQueue []simEvent

func (q simQueue) Len() int { return len(q) }
func (q simQueue) Less(i, j int) bool {
	if !q[i].at.Equal(q[j].at) {
		return q[i].at.Before(q[j].at)
	}
	return q[i].serial < q[j].serial
}
func (q simQueue) Swap(i, j int) { q[i], q[j] = q[j], q[i] }
func (q *simQueue) Push(x any)   { *q = append(*q, x.(simEvent)) }
func (q *simQueue) Pop() any {
	old := *q
	e := old[len(old)-1]
	*q = old[:len(old)-1]
	return e
}

func newSim(seed uint64, settings Settings) *sim {
	s := &sim{
		settings: settings, tick: simTick, rng: rand.New(rand.NewPCG(seed, seed)), now: time.Unix(1_800_000_000, 0), api: map[string]*record{},
		agents: map[string]*simAgent{}, sessions: map[[2]string]*simSession{},
	}
	s.begun = s.now
	s.portions, s.rolls, s.times = []map[string]record{{}}, []*Roll{NewRoll(nil)}, []time.Time{s.now}
	s.after(0, s.publish)
	return s
}

func (s *sim) after(d time.Duration, do func()) {
	s.serial++
	heap.Push(&s.queue, simEvent{s.now.Add(d), s.serial, do})
}

func (s *sim) upTo(d time.Duration) time.Duration {
	return time.Duration(s.rng.Int64N(int64(d))) + time.Millisecond
}

// run lets time pass.
func (s *sim) run(d time.Duration) {
	for end := s.now.Add(d); ; {
		if len(s.queue) == 0 || s.queue[0].at.After(end) {
			s.now = end
			return
		}
		e := heap.Pop(&s.queue).(simEvent)
		s.now = e.at
		e.do()
	}
}

// runUntil returns how long something has taken, up to a limit.
func (s *sim) runUntil(limit time.Duration, done func() bool) (time.Duration, bool) {
	begun := s.now
	for s.now.Sub(begun) < limit {
		s.run(s.tick)
		if done() {
			return s.now.Sub(begun), true
		}
	}
	return limit, false
}

// publish hands out what was written, in one portion.
func (s *sim) publish() {
	s.after(s.tick, s.publish)
	if !s.changed {
		return
	}
	s.changed = false
	nodes := make([]Node, 0, len(s.api))
	portion := make(map[string]record, len(s.api))
	for name, r := range s.api {
		if r.here {
			nodes = append(nodes, r.Node)
		}
		portion[name] = *r
	}
	s.portions, s.rolls, s.times = append(s.portions, portion), append(s.rolls, NewRoll(nodes)), append(s.times, s.now)
	number := len(s.portions) - 1
	for _, name := range s.order {
		a := s.agents[name]
		// A watch that lags lags for a while, and brings things in their order.
		if s.rng.IntN(50) == 0 {
			a.lag = s.upTo(3 * time.Second)
		} else if a.lag > 300*time.Millisecond && s.rng.IntN(5) > 0 {
			a.lag = s.upTo(300 * time.Millisecond)
		}
		s.after(a.lag, func() {
			if !a.blind && a.seen < number {
				a.seen = number
				s.wake(a)
			}
		})
	}
}

// see lets an agent whose watches were interrupted know what there is.
func (s *sim) see(a *simAgent) { a.seen = len(s.portions) - 1 }

func (s *sim) addNode(name, zone string) {
	s.api[name] = &record{Node: Node{Name: name, Zone: zone, Families: IPv4, Announces: IPv4}}
	a := &simAgent{name: name, alive: true, lag: s.upTo(300 * time.Millisecond)}
	s.agents[name] = a
	s.order = append(s.order, name)
	s.changed = true
	s.start(a)
}

// start starts the agent, which first has a complete list.
func (s *sim) start(a *simAgent) {
	a.running, a.sure, a.state, a.plan = true, false, State{}, Plan{}
	a.verdicts, a.asked, a.want = map[string]Verdict{}, map[string]time.Time{}, map[string]bool{}
	s.after(s.tick+s.upTo(500*time.Millisecond), func() {
		if a.running && !a.blind {
			s.see(a)
			s.wake(a)
		}
	})
}

// kill ends the agent; its connections break, and its kernel goes on.
func (s *sim) kill(a *simAgent) {
	a.running, a.want = false, map[string]bool{}
	s.eachSession(a.name, func(_ string, x *simSession) { s.down(x, false) })
	s.wakeAll(a.name)
}

// powerOff ends the node: nobody is told.
func (s *sim) powerOff(a *simAgent) {
	a.running, a.alive, a.want = false, false, map[string]bool{}
	if r := s.api[a.name]; r != nil {
		r.deadAt = s.now
	}
	s.after(simHold, func() {
		if !a.alive {
			s.eachSession(a.name, func(_ string, x *simSession) { s.down(x, false) })
			s.wakeAll(a.name)
		}
	})
}

func (s *sim) powerOn(a *simAgent) {
	a.alive = true
	if r := s.api[a.name]; r != nil {
		r.deadAt = time.Time{}
	}
	s.eachSession(a.name, func(_ string, x *simSession) { s.down(x, false) })
	s.start(a)
}

func (s *sim) deleteNode(name string) {
	delete(s.api, name)
	s.changed = true
	if a := s.agents[name]; a != nil {
		s.kill(a)
		a.alive = false
	}
}

// split puts nodes on the other side of a broken network, or back.
func (s *sim) split(names []string, side int) {
	for _, name := range names {
		s.agents[name].cut = side
	}
	s.after(simHold, func() {
		for _, key := range s.pairs() {
			if x := s.sessions[key]; x.up && s.agents[key[0]].cut != s.agents[key[1]].cut {
				s.down(x, false)
				s.wake(s.agents[key[0]])
				s.wake(s.agents[key[1]])
			}
		}
	})
	s.retryAll()
}

// pairs are those that have ever had a session, in an order that does not change: what has a seed can be repeated.
func (s *sim) pairs() [][2]string {
	return slices.SortedFunc(maps.Keys(s.sessions), func(a, b [2]string) int {
		return cmp.Or(strings.Compare(a[0], b[0]), strings.Compare(a[1], b[1]))
	})
}

func (s *sim) eachSession(name string, do func(other string, x *simSession)) {
	for key, x := range s.sessions {
		switch name {
		case key[0]:
			do(key[1], x)
		case key[1]:
			do(key[0], x)
		}
	}
}

func (s *sim) down(x *simSession, said bool) {
	if x.up {
		x.up, x.lost, x.said = false, s.now, said
	} else if said && !x.lost.IsZero() {
		x.said = true
	}
}

func (s *sim) wakeAll(except string) {
	for _, name := range s.order {
		if name != except {
			s.wake(s.agents[name])
		}
	}
}

// wake has an agent decide soon.
func (s *sim) wake(a *simAgent) { s.wakeIn(a, 20*time.Millisecond+s.upTo(30*time.Millisecond)) }

func (s *sim) wakeIn(a *simAgent, d time.Duration) {
	at := s.now.Add(d)
	if a.wakeAt.After(s.now) && !a.wakeAt.After(at) {
		return
	}
	a.wakeAt = at
	s.after(d, func() {
		if a.wakeAt.Equal(at) {
			a.wakeAt = time.Time{}
			s.decide(a)
		}
	})
}

// decide is a pass of the agent.
func (s *sim) decide(a *simAgent) {
	if !a.running {
		return
	}
	roll := s.rolls[a.seen]
	own, exists := s.portions[a.seen][a.name]
	if !exists && !a.sure { // it waits for its Node; later, it goes on without
		s.wakeIn(a, time.Second)
		return
	}
	a.sure = true
	s.decisions++
	v := View{Self: a.name, Roll: roll, Unwilling: a.unwill, Refusal: own.refusal, Sessions: map[string]Session{}, Verdicts: a.verdicts}
	for _, name := range roll.Reflecting() {
		if x := s.sessions[pairOf(a.name, name)]; x != nil && x.up {
			v.Sessions[name] = Session{Established: true, Complete: !s.now.Before(x.complete)}
		}
	}
	v.Shown = func(node string) bool { return s.reflected(a, node, false) }
	a.plan = a.state.Decide(s.settings, v, s.now)
	if exists && (a.plan.Annotate != own.Says || !own.here) && !a.blind {
		s.write(a, a.plan.Annotate)
	}
	s.ask(a)
	s.configure(a)
	next := simPass
	if !a.plan.Again.IsZero() {
		next = min(next, max(time.Millisecond, a.plan.Again.Sub(s.now)))
	}
	s.wakeIn(a, next)
}

// write is a PATCH of the own Node; one that changes nothing is no change to anybody.
func (s *sim) write(a *simAgent, w Word) {
	s.after(s.upTo(100*time.Millisecond), func() {
		if r := s.api[a.name]; r != nil && a.running && (r.Says != w || !r.here) {
			r.Says, r.here = w, true
			s.writes++
			s.words = append(s.words, w)
			s.changed = true
			s.note("%s says %q (%s)", a.name, w, a.plan.Why)
		}
	})
}

// ask reads Nodes, each at most once in ten seconds.
func (s *sim) ask(a *simAgent) {
	for _, name := range a.plan.Ask {
		if a.blind || s.now.Sub(a.asked[name]) < 10*time.Second {
			s.wakeIn(a, 10*time.Second)
			continue
		}
		a.asked[name] = s.now
		s.asks++
		s.after(s.upTo(50*time.Millisecond), func() {
			r := s.api[name]
			dead := r == nil || !r.deadAt.IsZero() && s.now.Sub(r.deadAt) > simNotReady
			a.verdicts[name] = Verdict{Dead: dead, At: s.now}
			s.wake(a)
		})
	}
}

func pairOf(a, b string) [2]string { return [2]string{min(a, b), max(a, b)} }

// wanted are the sessions of an agent's plan, as peering has it.
func (s *sim) wanted(a *simAgent) map[string]bool {
	want := map[string]bool{}
	p := &a.plan
	among := maps.Keys(s.portions[a.seen])
	if p.Role == AsClient && !p.mesh && p.lone&IPv4 == 0 { // the same, without a look at thousands
		among = maps.Keys(p.Roll.outside)
		for name := range p.kept {
			want[name] = true
		}
		for _, name := range p.Reflectors {
			want[name] = true
		}
	}
	for name := range among {
		if !s.portions[a.seen][name].here {
			continue
		}
		if p.Roll.Has(name) && (p.Role == AsReflects || slices.Contains(p.Reflectors, name)) || p.KeepMesh(name) {
			want[name] = true
		}
	}
	delete(want, a.name)
	return want
}

// configure gives the agent's speaker the sessions of its plan, as peering has it.
func (s *sim) configure(a *simAgent) {
	want := s.wanted(a)
	if maps.Equal(want, a.want) {
		return
	}
	for _, name := range slices.Sorted(maps.Keys(a.want)) {
		if !want[name] {
			if x := s.sessions[pairOf(a.name, name)]; x != nil {
				s.down(x, true)
				s.wake(s.agents[name])
			}
		}
	}
	before := a.want
	a.want = want
	for _, name := range slices.Sorted(maps.Keys(want)) {
		if !before[name] {
			s.try(pairOf(a.name, name))
		}
	}
}

// possible reports whether both ends want a session and can reach each other.
func (s *sim) possible(key [2]string) bool {
	a, b := s.agents[key[0]], s.agents[key[1]]
	return a.running && b.running && a.cut == b.cut && a.want[b.name] && b.want[a.name]
}

// try connects, now or later.
func (s *sim) try(key [2]string) {
	x := s.sessions[key]
	if x == nil {
		x = &simSession{}
		s.sessions[key] = x
	}
	if x.up || x.trying || !s.possible(key) {
		return
	}
	x.trying = true
	s.after(s.upTo(simConnect), func() {
		x.trying = false
		if !s.possible(key) {
			return
		}
		x.up, x.since, x.complete = true, s.now, s.now.Add(s.upTo(simTable))
		for _, name := range key {
			a := s.agents[name]
			s.wake(a)
			s.after(x.complete.Sub(s.now), func() { s.wake(a) })
		}
	})
}

func (s *sim) retryAll() {
	for _, key := range s.pairs() {
		s.try(key)
	}
}

// heard reports whether one node has another's paths from the session between them.
func (s *sim) heard(x *simSession) bool {
	switch {
	case x == nil:
		return false
	case x.up:
		return !s.now.Before(x.complete) || !x.lost.IsZero() && !x.said && x.since.Sub(x.lost) < simRestart
	}
	return !x.lost.IsZero() && !x.said && s.now.Sub(x.lost) < simRestart
}

// reflected reports whether a reflector has told a node of another; kept counts what it keeps of restarting ones.
func (s *sim) reflected(a *simAgent, node string, kept bool) bool {
	for _, name := range a.state.roll.orEmpty().Reflecting() {
		r := s.agents[name]
		if name == node || name == a.name || r == nil || !r.running && !kept || r.plan.Role != AsReflects {
			continue
		}
		to, from := s.sessions[pairOf(a.name, name)], s.sessions[pairOf(name, node)]
		if to == nil || from == nil || !kept && (!to.up || !from.up) || !s.heard(to) || !s.heard(from) {
			continue
		}
		if later := maxTime(to.complete, from.complete); kept || s.now.Sub(later) > 500*time.Millisecond {
			return true
		}
	}
	return false
}

func (r *Roll) orEmpty() *Roll {
	if r == nil {
		return NewRoll(nil)
	}
	return r
}

func maxTime(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
}

// knows reports whether BGP alone has told a node of another.
func (s *sim) knows(a *simAgent, node string) bool {
	return s.heard(s.sessions[pairOf(a.name, node)]) || s.reflected(a, node, true)
}

func (s *sim) note(format string, args ...any) {
	s.log = append(s.log, fmt.Sprintf("%8.1fs ", s.now.Sub(s.begun).Seconds())+fmt.Sprintf(format, args...))
}

// members are those that should agree: their nodes exist, and their agents run.
func (s *sim) members() (all []*simAgent) {
	for _, name := range s.order {
		if a := s.agents[name]; a.running && s.api[name] != nil {
			all = append(all, a)
		}
	}
	return all
}

// agreed says what is wrong with what the nodes have come to; empty if nothing.
func (s *sim) agreed() string {
	members := s.members()
	var can, reflecting []string
	zones, used := map[string]bool{}, map[string]bool{}
	for _, a := range members {
		r := s.api[a.name]
		if !r.Says.known() && r.refusal == "" {
			return a.name + " has not said a word"
		}
		if !r.Barred && a.unwill == "" && r.Says.known() {
			can = append(can, a.name)
			zones[r.Zone] = true
		}
		if r.Says.reflects() {
			reflecting = append(reflecting, a.name)
			used[r.Zone] = true
		}
	}
	n := 0
	for _, r := range s.api {
		if r.Says.known() {
			n++
		}
	}
	want := min(s.settings.Count, len(can))
	switch {
	case n >= s.settings.Above && len(reflecting) != want:
		return fmt.Sprintf("%d reflectors of %d: %v", len(reflecting), want, reflecting)
	case n <= s.settings.below() && len(reflecting) != 0:
		return fmt.Sprintf("reflectors for %d nodes: %v", n, reflecting)
	case n >= s.settings.Above && len(used) < min(want, len(zones)):
		return fmt.Sprintf("reflectors in %d zones of %d: %v", len(used), len(zones), reflecting)
	case len(reflecting) > 0:
		return s.joined(members, reflecting)
	}
	return ""
}

// joined says who has no session with a reflector.
func (s *sim) joined(members []*simAgent, reflecting []string) string {
	for _, a := range members {
		for _, name := range reflecting {
			if x := s.sessions[pairOf(a.name, name)]; name != a.name && (x == nil || !x.up) {
				return fmt.Sprintf("%s has no session with reflector %s", a.name, name)
			}
		}
		if a.plan.Role != AsReflects && a.plan.On && len(a.plan.kept) > 0 {
			for name := range a.plan.kept {
				return fmt.Sprintf("%s still has its session of the mesh with %s, %d such in all", a.name, name, len(a.plan.kept))
			}
		}
	}
	return ""
}

func (s *sim) tail(lines int) string {
	return strings.Join(s.log[max(0, len(s.log)-lines):], "\n")
}

// pick returns some of the nodes whose agents run.
func (s *sim) pick(count int) []*simAgent {
	all := s.members()
	s.rng.Shuffle(len(all), func(i, j int) { all[i], all[j] = all[j], all[i] })
	return all[:min(count, len(all))]
}

// reflecting are the agents of those that say so.
func (s *sim) reflecting() (all []*simAgent) {
	for _, name := range slices.Sorted(maps.Keys(s.api)) {
		if s.api[name].Says.reflects() {
			all = append(all, s.agents[name])
		}
	}
	return all
}
