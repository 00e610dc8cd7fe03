package policies

import (
	"slices"
	"time"

	"github.com/tortie-net/tortie/internal/policy"
)

// listTime bounds how long running pods keep the policies that they had, while one that selects them now names pods or
// nodes that have not been listed: a busy API server takes seconds to list 10,000 pods to a thousand agents, and a
// policy that denies must not be without effect for longer than people wait for it.
const listTime = 10 * time.Second

// unlisted is about policies that name pods or nodes which the API server has not listed yet. Without these an Allow
// denies what it is to allow, so that established connections end, or, if it is of all but these, would allow all, so
// that it allows nothing. A Deny or Pass would deny nothing, so that it denies everything at its ports. Pods that run
// keep for a
// while all policies that they had: these are as they were at one moment, so that nothing passes that was denied then
// and is denied later. Pods that are new get the new policies at once.
type unlisted struct {
	since  time.Time        // since when there are such policies that count for a pod of this node; zero: there are none
	closed []policy.ID      // those with rules that deny everything, or allow nothing
	holds  map[podHeld]hold // of the pods that such policies select
}

// podHeld is a pod as long as it runs. A user may write another pod's UID on one of his own.
type podHeld struct {
	policy.PodKey
	uid string
}

// hold has the policies that a pod keeps.
type hold struct {
	policies [2][]*policy.Policy
	until    time.Time // zero: it keeps nothing, as it was new
}

// await closes rules of what has not been listed, and lets pods that run keep what they had before.
func (m *model) await(selection *policy.Selection, interest policy.Interest, before compiled, now time.Time) {
	awaiting := m.closeUnlisted(selection, interest)
	if len(awaiting) == 0 {
		m.unlisted = unlisted{}
		return
	}
	if m.since.IsZero() {
		m.since = now
	}
	holds := map[podHeld]hold{}
	for link, key := range m.Local {
		policies, ok := selection.Of(link)
		if !ok || !anyOf(policies, awaiting) {
			continue
		}
		pod := m.Pods[key]
		id := podHeld{key, pod.UID}
		h, known := m.holds[id]
		if !known {
			h = before.hold(link, pod, now)
		}
		if holds[id] = h; now.Before(h.until) {
			selection.Keep(link, h.policies)
		}
	}
	m.holds = holds
}

func anyOf(policies [2][]*policy.Policy, ids map[policy.ID]bool) bool {
	in := func(p *policy.Policy) bool { return ids[p.ID] }
	return slices.ContainsFunc(policies[policy.Ingress], in) || slices.ContainsFunc(policies[policy.Egress], in)
}

// hold is that of a pod which runs, if it certainly does: one whose UID a user may have written may be new.
func (c compiled) hold(link string, pod *policy.Pod, now time.Time) hold {
	if pod.Stated || c.rules == nil || c.rules.Endpoints[link].UID != pod.UID {
		return hold{}
	}
	had, _ := c.selection.Of(link)
	return hold{had, now.Add(listTime)}
}

// due returns when the next pod loses what it keeps, or the state is due to tell of policies that wait for a list;
// zero: nothing waits.
func (u *unlisted) due(now time.Time) (next time.Time) {
	consider := func(t time.Time) {
		if t.After(now) && (next.IsZero() || t.Before(next)) {
			next = t
		}
	}
	if !u.since.IsZero() {
		consider(u.since.Add(listTime))
	}
	for _, h := range u.holds {
		consider(h.until)
	}
	return next
}

// late reports that policies have waited for so long that people should know.
func (u *unlisted) late(now time.Time) bool {
	return !u.since.IsZero() && now.Sub(u.since) >= listTime
}

// closeUnlisted closes the rules that have to be, and returns the policies that count for pods of this node and name
// what has not been listed.
func (m *model) closeUnlisted(selection *policy.Selection, interest policy.Interest) (awaiting map[policy.ID]bool) {
	if m.closed = nil; m.view.KnowsAll(interest) {
		return nil
	}
	awaiting = map[policy.ID]bool{}
	for p := range selection.Counting() {
		closed := false
		for d := range p.Rules {
			if !p.Applies[d] || m.lists(policy.Direction(d), p.Rules[d]...) {
				continue
			}
			awaiting[p.ID] = true
			p.Rules[d] = slices.Clone(p.Rules[d])
			for i := range p.Rules[d] {
				closed = m.closeRule(policy.Direction(d), &p.Rules[d][i]) || closed
			}
		}
		if closed && !slices.Contains(m.closed, p.ID) { // a host endpoint may have it with other rules
			m.closed = append(m.closed, p.ID)
		}
	}
	return awaiting
}

// lists reports whether all that rules name has been listed.
func (m *model) lists(d policy.Direction, rules ...policy.Rule) bool {
	v := &m.view
	unlisted := func(p policy.Peer) bool {
		return p.Nodes != nil && !v.NodesKnown || p.Service != nil && v.MissingServices[p.Service.Name] ||
			p.Match.ReadsAccounts() && v.AccountsMissing
	}
	for _, r := range rules {
		if slices.ContainsFunc(r.Peers, unlisted) || r.Own.ReadsAccounts() && v.AccountsMissing {
			return false
		}
	}
	return v.Knows(m.InterestOf(d, rules...))
}

// closeRule closes a rule, if it has to be.
func (m *model) closeRule(d policy.Direction, r *policy.Rule) bool {
	decides := r.Action == policy.Deny || r.Action == policy.Pass
	if !decides && !r.AllBut(d) || m.lists(d, *r) {
		return false
	}
	if !decides {
		r.AnyPeer, r.Peers = false, nil
		return true
	}
	named := func(ports []policy.Port) bool {
		return slices.ContainsFunc(ports, func(p policy.Port) bool { return p.Name != "" })
	}
	r.Action, r.AnyPeer, r.Peers = policy.Deny, true, nil
	if m.HasHosts() {
		r.Own = nil // the end of a host endpoint may be what is not listed
	}
	switch { // numbers of named ports are those that the pods declare
	case d == policy.Egress:
		r.AnyPort = r.AnyPort || named(r.Ports)
	case named(r.Sources):
		r.Sources = nil
	}
	return true
}
