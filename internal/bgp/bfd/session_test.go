package bfd

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"testing"
	"time"
)

var fast = Config{Interval: 300 * time.Millisecond, Multiplier: 3}

// start is the time of the tests, which read no clock.
var start = time.Unix(1_000_000, 0)

// TestStates is the table of RFC 5880 section 6.8.6.
func TestStates(t *testing.T) {
	for _, c := range []struct {
		is, comes, want State
		diag            Diag
	}{
		{Down, AdminDown, Down, 0}, {Down, Down, Init, 0}, {Down, Init, Up, 0}, {Down, Up, Down, 0},
		{Init, AdminDown, Down, NeighborSaysDown}, {Init, Down, Init, 0}, {Init, Init, Up, 0}, {Init, Up, Up, 0},
		{Up, AdminDown, Down, NeighborSaysDown}, {Up, Down, Down, NeighborSaysDown}, {Up, Init, Up, 0}, {Up, Up, Up, 0},
		{AdminDown, AdminDown, AdminDown, 0}, {AdminDown, Down, AdminDown, 0}, {AdminDown, Init, AdminDown, 0}, {AdminDown, Up, AdminDown, 0},
	} {
		s := newSession(fast, 1, start)
		s.state = c.is
		p := packet{state: c.comes, mult: 3, my: 2, your: 1}
		if err := s.receive(nil, &p, start); err != nil {
			t.Errorf("%s gets %s: %v", c.is, c.comes, err)
		}
		if s.state != c.want || s.diag != c.diag {
			t.Errorf("%s gets %s: %s, %s, want %s, %s", c.is, c.comes, s.state, s.diag, c.want, c.diag)
		}
		if told := s.loss != nil; told != (c.is == Up && c.want == Down) {
			t.Errorf("%s gets %s: loss %+v", c.is, c.comes, s.loss)
		}
		if s.loss != nil && s.loss.Admin != (c.comes == AdminDown) {
			t.Errorf("%s gets %s: Admin is %t", c.is, c.comes, s.loss.Admin)
		}
	}
}

// ends are two sessions with each other, and the packets on their way, at most one in each direction.
type ends struct {
	s     [2]session
	onWay [2]*packet // to that end
}

func newEnds() ends {
	return ends{s: [2]session{*newSession(fast, 1, start), *newSession(fast, 2, start)}}
}

// key identifies a state of both ends.
func (e *ends) key() string {
	text := ""
	for i := range e.s {
		s := &e.s[i]
		text += fmt.Sprint(s.state, s.remote.my, s.polling, s.final, ";")
		if p := e.onWay[i]; p != nil {
			text += fmt.Sprint(p.state, p.my, p.your, p.poll, p.final)
		}
		text += "|"
	}
	return text
}

// send makes one end send a packet, which replaces one on its way.
func (e *ends) send(from int) {
	p, err := parse(e.s[from].send(nil, start))
	if err != nil {
		panic(err)
	}
	e.onWay[1-from] = &p
}

// deliver makes an end receive the packet on its way to it.
func (e *ends) deliver(to int) error {
	p := e.onWay[to]
	e.onWay[to] = nil
	if p == nil {
		return nil
	}
	return e.s[to].receive(nil, p, start)
}

// restart starts a new process at one end, with another discriminator.
func (e *ends) restart(at int) { e.s[at] = *newSession(fast, 3+uint32(at), start) }

func (e *ends) expire(at int) { e.s[at].expire(start.Add(time.Hour)) }

// next returns the possible next states: a packet is sent, arrives or is lost, an end receives nothing for the
// detection time, or its process restarts.
func (e ends) next() []ends {
	var all []ends
	for i := range e.s {
		for _, f := range []func(*ends){
			func(n *ends) { n.send(i) },
			func(n *ends) { _ = n.deliver(i) },
			func(n *ends) { n.onWay[i] = nil },
			func(n *ends) { n.expire(i) },
			func(n *ends) { n.restart(i) },
		} {
			n := e
			f(&n)
			all = append(all, n)
		}
	}
	return all
}

// TestModel visits all states of two ends, with loss, silence and restarts. In each it checks that an end that is Up
// has the right neighbour, that both come Up when packets pass, and that neither stays Up when packets pass in one
// direction only.
func TestModel(t *testing.T) {
	first := newEnds()
	seen, queue := map[string]bool{first.key(): true}, []ends{first}
	for len(queue) > 0 {
		e := queue[0]
		queue = queue[1:]
		e.check(t)
		for _, n := range e.next() {
			if !seen[n.key()] {
				seen[n.key()] = true
				queue = append(queue, n)
			}
		}
		if t.Failed() {
			return
		}
	}
	t.Logf("%d states", len(seen))
	if len(seen) < 200 {
		t.Errorf("only %d states: the model misses some", len(seen))
	}
}

func (e ends) check(t *testing.T) {
	t.Helper()
	for i := range e.s {
		if s := &e.s[i]; s.state >= Init && s.remote.my == 0 {
			t.Errorf("end %d is %s and knows no other: %s", i, s.state, e.key())
		}
	}
	good := e
	good.exchange(10, true, true)
	if good.s[0].state != Up || good.s[1].state != Up || good.s[0].polling || good.s[1].polling {
		t.Errorf("the ends do not come up from %s: %s", e.key(), good.key())
	}
	for i := range e.s {
		bad := e
		bad.onWay = [2]*packet{}
		bad.expire(i)
		bad.exchange(10, i != 0, i != 1) // end i receives nothing
		if bad.s[0].state == Up || bad.s[1].state == Up {
			t.Errorf("an end is up although end %d hears nothing, from %s: %s", i, e.key(), bad.key())
		}
	}
}

// exchange passes packets to the chosen ends. An end detects silence if it receives none, or only packets of a session
// that it does not know.
func (e *ends) exchange(rounds int, toFirst, toSecond bool) {
	for range rounds {
		for i, passes := range []bool{toFirst, toSecond} {
			e.send(1 - i)
			switch {
			case !passes:
				e.onWay[i] = nil
				e.expire(i)
			case e.deliver(i) != nil:
				e.expire(i)
			}
		}
	}
}

// line is two ends in real time: each packet takes delay, and is lost unless passes.
type line struct {
	now    time.Time
	a, b   *session
	passes func(toB bool) bool
}

// run advances the time by d, in steps of a millisecond.
func (l *line) run(t *testing.T, d time.Duration) {
	t.Helper()
	for end := l.now.Add(d); l.now.Before(end); l.now = l.now.Add(time.Millisecond) {
		for _, way := range []struct {
			from, to *session
			toB      bool
		}{{l.a, l.b, true}, {l.b, l.a, false}} {
			way.from.expire(l.now)
			if !way.from.due(l.now) {
				continue
			}
			if b := way.from.send(nil, l.now); l.passes(way.toB) {
				way.to.take(b, l.now)
			}
		}
	}
}

func newLine(a, b Config) *line {
	return &line{now: start, a: newSession(a, 1, start), b: newSession(b, 2, start), passes: func(bool) bool { return true }}
}

func (l *line) up() bool { return l.a.state == Up && l.b.state == Up }

// TestDetection: sessions come up, each end sends as often as both want, and silence is detected in time.
func TestDetection(t *testing.T) {
	slow := Config{Interval: time.Second, Multiplier: 5}
	l := newLine(fast, slow)
	l.run(t, 5*time.Second)
	if !l.up() || l.a.interval() != time.Second || l.b.interval() != time.Second || l.a.detection() != 5*time.Second ||
		l.b.detection() != 3*time.Second {
		t.Fatalf("a %+v, b %+v", l.a.status(), l.b.status())
	}
	cut := l.now
	l.passes = func(toB bool) bool { return !toB }
	for l.b.state == Up {
		l.run(t, time.Millisecond)
	}
	if d := l.now.Sub(cut); d > 3*time.Second+2*time.Millisecond || d < 2*time.Second {
		t.Errorf("b found out after %s", d)
	}
	if l.b.diag != TimeExpired || l.b.loss == nil || l.b.loss.Admin {
		t.Errorf("b: %s, %+v", l.b.diag, l.b.loss)
	}
	l.run(t, time.Second)
	if l.a.state == Up || l.a.diag != NeighborSaysDown {
		t.Errorf("a was told by b and is %s, %s", l.a.state, l.a.diag)
	}
}

// TestJitter: intervals are between three quarters and the whole, and below nine tenths if no packet may be lost, less
// a tick of the engine.
func TestJitter(t *testing.T) {
	for mult, most := range map[uint8]float64{1: 0.8, 3: 0.9} {
		s := newSession(Config{Interval: time.Second, Multiplier: mult}, 1, start)
		low, high := 1.0, 0.0
		for range 10_000 {
			s.send(nil, start)
			part := float64(s.next.Sub(start)) / float64(time.Second)
			low, high = min(low, part), max(high, part)
		}
		if low < 0.75 || low > 0.76 || high > most || high < most-0.01 {
			t.Errorf("multiplier %d: intervals from %f to %f", mult, low, high)
		}
	}
}

// TestLoss: a quarter of the packets gets lost, which a session with a multiplier of 12 survives.
func TestLoss(t *testing.T) {
	many := Config{Interval: 100 * time.Millisecond, Multiplier: 12}
	l := newLine(many, many)
	l.run(t, 5*time.Second)
	dice := rand.New(rand.NewPCG(1, 2))
	l.passes = func(bool) bool { return dice.IntN(4) > 0 }
	up := l.a.since
	l.run(t, 10*time.Minute)
	if !l.up() || l.a.since != up {
		t.Errorf("a %+v, b %+v", l.a.status(), l.b.status())
	}
}

// TestChangedIntervals: sessions stay up when an end wants other intervals, in both directions (RFC 5880 section
// 6.8.3).
func TestChangedIntervals(t *testing.T) {
	l := newLine(fast, fast)
	l.run(t, 5*time.Second)
	up := l.a.since
	for _, interval := range []time.Duration{3 * time.Second, 50 * time.Millisecond, 300 * time.Millisecond} {
		l.a.change(Config{Interval: interval, Multiplier: 3}, l.now)
		l.run(t, 20*time.Second)
		if !l.up() || l.a.since != up || l.a.polling || l.a.interval() != max(interval, fast.Interval) {
			t.Errorf("with %s: a %+v, b %+v", interval, l.a.status(), l.b.status())
		}
	}
}

// The loss of a neighbour that falls silent in state Init has the time of its last packet.
func TestSilentAtOnce(t *testing.T) {
	e := newEnds()
	for i, to := range []int{0, 1} {
		e.send(1 - to)
		if err := e.deliver(to); err != nil || e.s[to].state != State(int(Init)+i) {
			t.Fatalf("end %d: %v, %s", to, err, e.s[to].state)
		}
	}
	s := &e.s[1]
	s.expire(start.Add(time.Hour))
	if s.loss == nil || !s.loss.Alive.Equal(start) || !s.loss.Begun.Equal(start) {
		t.Errorf("the loss is %+v, want one of a neighbour that came up and was alive at %s", s.loss, start)
	}
}

// TestSilentWish: a neighbour that wants no packets gets none.
func TestSilentWish(t *testing.T) {
	s := newSession(fast, 1, start)
	if err := s.receive(nil, &packet{state: Down, mult: 3, my: 2, minTx: time.Second}, start); err != nil {
		t.Fatal(err)
	}
	if s.due(start.Add(time.Hour)) {
		t.Error("a packet is due")
	}
}

// TestRestart: a process that starts within the detection time continues the session of the previous process, and no
// other.
func TestRestart(t *testing.T) {
	for _, auth := range []Auth{{}, {Type: MeticulousSHA1, Key: "key"}} {
		c := Config{Interval: fast.Interval, Multiplier: 3, Auth: auth}
		l := newLine(c, c)
		l.run(t, 5*time.Second)
		up := l.b.since
		l.a = newSession(c, 3, l.now)
		l.run(t, 5*time.Second)
		// With authentication the neighbour does not accept the new sequence number yet.
		if stays := l.b.since == up; !l.up() || stays != (auth.Type == NoAuth) {
			t.Errorf("authentication %s: a %+v, b %+v", auth.Type, l.a.status(), l.b.status())
		}
		if err := l.a.receive(nil, &packet{state: Up, mult: 3, my: 2, your: 9}, l.now); !errors.Is(err, errForeign) {
			t.Errorf("a packet of yet another session: %v", err)
		}
	}
}

func TestRefusedPackets(t *testing.T) {
	for name, c := range map[string]struct {
		p    packet
		want error
	}{
		"demand":              {packet{state: Down, demand: true, mult: 3, my: 2}, errDemand},
		"another session":     {packet{state: Init, mult: 3, my: 2, your: 5}, errForeign},
		"authentication":      {packet{state: Down, mult: 3, my: 2, auth: section{kind: KeyedSHA1}}, errSigned},
		"of a former process": {packet{state: AdminDown, mult: 3, my: 2, your: 9}, errForeign},
	} {
		s := newSession(fast, 1, start)
		if err := s.receive(nil, &c.p, start); !errors.Is(err, c.want) || s.remote.my != 0 {
			t.Errorf("%s: %v, want %v; remote %+v", name, err, c.want, s.remote)
		}
	}
}
