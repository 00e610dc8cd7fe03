package reflectors

import (
	"fmt"
	"slices"
	"time"
)

// stand lets a client become a reflector where one is missing, or where its zone is.
func (d *decision) stand() {
	sitting, missed := d.sitting()
	d.plan.Why = fmt.Sprintf("%d nodes take part", d.Roll.Len())
	if d.self < 0 || !d.Roll.fit(d.self) || d.Unwilling != "" {
		d.wait("")
		if d.Unwilling != "" {
			d.plan.Why += ", and it is not to reflect: " + d.Unwilling
		}
		return
	}
	switch {
	case len(sitting) >= d.Count:
		d.spread(sitting)
	case d.next(sitting) && d.agreed(sitting, missed):
		d.word = Reflector
	}
}

// sitting are the reflectors that can be counted on; missed are those whose sessions with this node have been down for
// long.
func (d *decision) sitting() (sitting, missed []int) {
	for _, i := range d.Roll.reflecting {
		s := d.State.sessions[d.Roll.nodes[i].Name]
		switch {
		case !d.Roll.fit(i) || i == d.self: // it goes by itself once there are others
		case s.Established || !d.due(s.since, downAfter):
			sitting = append(sitting, i)
		default:
			missed = append(missed, i)
		}
	}
	return sitting, missed
}

// step is how many pauses a node lets others have before it fills one of some vacancies. Those before it may not live
// any more, their whole zone perhaps: so everybody has two places, one of them by order alone.
func (d *decision) step(sitting []int) int {
	p, vacant := d.Roll.place(d.self, sitting), d.Count-len(sitting)
	return min(2*max(0, p.spread-vacant+1), 2*max(0, p.plain-vacant+1)+1)
}

// next reports whether it is this node's turn.
func (d *decision) next(sitting []int) bool {
	return d.waited("beside "+d.names(sitting), electAfter+stagger*time.Duration(d.step(sitting)))
}

// agreed reports whether enough of the reflectors without a session are not ready in the API, or have been down long
// enough, that this node is needed. Otherwise its own network may be at fault. A node that is not next in the order
// does not ask the API.
func (d *decision) agreed(sitting, missed []int) bool {
	step := stagger * time.Duration(d.step(sitting))
	for _, i := range missed {
		name := d.Roll.nodes[i].Name
		if d.due(d.State.sessions[name].since, deadAfter+step) {
			continue
		}
		v, ok := d.Verdicts[name]
		switch {
		case !ok || !d.now.Before(v.At.Add(freshFor)):
			d.plan.Ask = append(d.plan.Ask, name)
		case !v.Dead:
			d.due(v.At, freshFor)
			sitting = append(sitting, i)
		}
	}
	return len(d.plan.Ask) == 0 && len(sitting) < d.Count && d.due(d.waiting, electAfter+stagger*time.Duration(d.step(sitting)))
}

// spread lets a node reflect whose zone has none while another has two: the surplus one goes.
func (d *decision) spread(sitting []int) {
	used := d.Roll.used(sitting)
	unsettled := slices.ContainsFunc(sitting, func(i int) bool { return !d.settled(i) })
	if unsettled || used[d.Roll.zone[d.self]]+1 >= slices.Max(used) {
		d.wait("")
		return
	}
	step := d.Roll.place(d.self, sitting).spread
	if d.waited("spread beside "+d.names(sitting), spreadAfter*time.Duration(1+step)) {
		d.word = Reflector
	}
}

// settled reports whether a reflector has told this node all that it knows.
func (d *decision) settled(i int) bool {
	if i == d.self {
		return true
	}
	s := d.State.sessions[d.Roll.nodes[i].Name]
	return s.Established && s.Complete && d.due(s.since, coverAfter)
}

// stay lets a reflector step down that is not needed, once those that are stand by its own view.
func (d *decision) stay() {
	d.plan.Why = fmt.Sprintf("it is one of %d reflectors for %d nodes", len(d.Roll.reflecting), d.Roll.Len())
	var standing []int
	for _, i := range d.Roll.reflecting {
		if d.Roll.fit(i) && d.settled(i) && (i != d.self || d.word == Reflector) {
			standing = append(standing, i)
		}
	}
	seats := d.Roll.seats(d.Count, standing)
	if d.Unwilling != "" {
		d.plan.Why += ", until another stands in: " + d.Unwilling
	}
	if d.self < 0 || slices.Contains(seats, d.self) || !d.replaced(seats) {
		d.wait("")
		return
	}
	surplus := slices.DeleteFunc(standing, func(i int) bool { return slices.Contains(seats, i) })
	after := 0
	for _, i := range surplus {
		if i > d.self {
			after++ // it goes first
		}
	}
	if d.waited("surplus beside "+d.names(seats), surplusAfter*time.Duration(1+after)) {
		d.word = Client
	}
}

// replaced reports whether those who would be left are as many as there can be.
func (d *decision) replaced(seats []int) bool {
	can := d.Roll.eligible()
	if d.self >= 0 && d.Roll.fit(d.self) && d.word == Retiring { // it will not be there
		can--
	}
	return len(seats) > 0 && len(seats) >= min(d.Count, can)
}

// keep decides which sessions stay although reflectors are to stand in for them.
func (d *decision) keep(before Word) {
	switch {
	case d.word == Nothing:
		d.mesh, d.kept = true, nil
		return
	case d.mesh || !d.low.IsZero() && d.due(d.low, meshAfter):
		d.mesh, d.kept = !d.plan.On || !d.low.IsZero(), nil
		if !d.mesh && d.State.roll != nil { // reflectors begin: who has come at the same moment never had a session of the mesh
			d.keepAll(d.State.roll.Names())
			d.keepOld()
		}
		return
	}
	switch {
	case d.word.reflects(): // it has sessions with all anyway
		d.kept = nil
		return
	case before.reflects():
		d.keepAll(d.Roll.Names())
	}
	if d.State.roll != nil && d.State.roll != d.Roll {
		d.keepOld()
	}
	d.drop()
}

func (d *decision) keepAll(names []string) {
	if d.kept == nil {
		d.kept = make(map[string]time.Time, len(names))
	}
	for _, name := range names {
		if _, ok := d.kept[name]; !ok && name != d.Self {
			d.kept[name] = time.Time{}
		}
	}
}

// keepOld keeps the sessions with those that reflected until now, or did not take part.
func (d *decision) keepOld() {
	old := d.State.roll
	for name := range old.outside {
		if d.Roll.Has(name) {
			d.keepAll([]string{name})
		}
	}
	for _, name := range old.Reflecting() {
		if n, ok := d.Roll.Get(name); ok && !n.Says.reflects() {
			d.keepAll([]string{name})
		}
	}
	for name := range d.kept {
		if !d.Roll.Has(name) {
			delete(d.kept, name)
		}
	}
}

// drop gives up the sessions that reflectors have stood in for long enough.
func (d *decision) drop() {
	if !d.cover() {
		d.covered = time.Time{}
		return
	}
	if d.covered.IsZero() {
		d.covered = d.now
	}
	if len(d.kept) == 0 || !d.due(d.covered, coverAfter) {
		return
	}
	for name, safe := range d.kept {
		n, _ := d.Roll.Get(name)
		shown := n.Announces == 0 || d.Shown != nil && d.Shown(name)
		switch {
		case !shown:
			d.kept[name] = time.Time{}
		case safe.IsZero():
			d.kept[name] = d.now
			d.due(d.now, dropAfter+d.pause(name))
		case d.due(safe, dropAfter+d.pause(name)):
			delete(d.kept, name)
		}
	}
}

// pause is the same at both ends of a session, and in full seconds, so that thousands of sessions go in a few portions.
func (d *decision) pause(name string) time.Duration {
	a, b := min(name, d.Self), max(name, d.Self)
	return time.Duration(hash(a, b)%uint64(dropSpread/time.Second)) * time.Second
}

// cover reports whether so many reflectors have told all they know that this node can do without the mesh.
func (d *decision) cover() bool {
	complete := 0
	for _, s := range d.State.sessions {
		if s.Established && s.Complete {
			complete++
		}
	}
	return complete > 0 && complete >= min(enough, d.Count)
}
