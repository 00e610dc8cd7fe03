package policies

import (
	"slices"
	"time"

	"github.com/tortie-net/tortie/internal/policy"
)

// listTime bounds how long running pods keep their former policies while a policy that newly selects them names pods or
// nodes that have not been listed. A busy API server takes seconds to list 10,000 pods to a thousand agents, and a
// policy that denies must not be without effect for longer than people wait for it.
const listTime = 10 * time.Second

// unlisted handles policies that name pods or nodes which the API server has not listed yet. Without them an Allow
// would deny what it must allow, so that established connections end; an Allow of all but these would allow all, so it
// allows nothing. A Deny or Pass would deny nothing, so it denies everything at its ports. Running pods keep all their
// former policies for a while, as they were at one moment, so that nothing passes that was denied then and is denied
// later. New pods get the new policies at once.
type unlisted struct {
	since  time.Time        // since when such policies count for a pod of this node; zero: none do
	closed []policy.ID      // policies with closed rules
	holds  map[podHeld]hold // by pod that such policies select
}

// podHeld identifies a pod while it runs. A user may write another pod's UID on his own pod.
type podHeld struct {
	policy.PodKey
	uid string
}

// hold is the policies that a pod keeps.
type hold struct {
	policies [2][]*policy.Policy
	until    time.Time // zero: the pod is new and keeps nothing
}

// await closes rules that name unlisted objects, and makes running pods keep their former policies.
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

// hold returns the hold of a pod that certainly ran before: with a UID that a user may have written it may be new.
func (c compiled) hold(link string, pod *policy.Pod, now time.Time) hold {
	if pod.Stated || c.rules == nil || c.rules.Endpoints[link].UID != pod.UID {
		return hold{}
	}
	had, _ := c.selection.Of(link)
	return hold{had, now.Add(listTime)}
}

// due returns when the next pod loses its former policies, or late becomes true; zero: nothing waits.
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

// late reports whether policies have waited so long that it is a problem.
func (u *unlisted) late(now time.Time) bool {
	return !u.since.IsZero() && now.Sub(u.since) >= listTime
}

// closeUnlisted closes rules where necessary, and returns the policies that count for pods of this node and name
// unlisted objects.
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

// lists reports whether everything that the rules name has been listed.
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

// closeRule closes a rule that names unlisted objects, unless it already allows less without them; it reports whether
// it did.
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
		r.Own = nil // the host endpoint's own end may be unlisted
	}
	switch { // numbers of named ports are unknown: the pods declare them
	case d == policy.Egress:
		r.AnyPort = r.AnyPort || named(r.Ports)
	case named(r.Sources):
		r.Sources = nil
	}
	return true
}
