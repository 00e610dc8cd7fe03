package flows

import (
	"net/netip"
	"strings"

	"github.com/tortie-net/tortie/internal/kernel/netpol"
	"github.com/tortie-net/tortie/internal/policy"
)

// asking judges a connection by the policies of a pod or of a host endpoint; false if these are not known.
type asking func(*policy.Judge) (*policy.Judgement, bool)

// reports reports whether the end whose policies apply in a direction is a pod of this node; or the node itself behind
// a host endpoint, unless the other end is the node or one of its pods. Forwarded connections are reported for the
// pods.
func (r *Recorder) reports(c *connection, d policy.Direction) bool {
	if _, link := r.judge.Pod(c.subject(d)); link != "" {
		return true
	}
	link, own := r.own[c.subject(d)]
	return own && r.judge.Governs(link) && !r.here(c.subject(1-d))
}

// here reports whether the node or one of its pods has an address.
func (r *Recorder) here(a netip.Addr) bool {
	_, own := r.own[a]
	_, link := r.judge.Pod(a)
	return own || link != ""
}

// byHost reports whether a host endpoint may have denied a packet.
func byHost(by netpol.Denied) bool {
	return by.By.Kind == policy.KindCalicoGlobalNetworkPolicy || strings.HasPrefix(by.Reason, policy.KindHostEndpoint+" ")
}

// decides returns the judgement on a connection and how it was asked for; nil: not known. For a denied packet it
// prefers the judgement that denies by the policy in the log, else the first one.
func (r *Recorder) decides(c *connection, d policy.Direction, v verdict) (first *policy.Judgement, by asking) {
	for _, ask := range r.askings(c, d, v) {
		judged, known := ask(r.judge)
		switch {
		case !known:
		case v.allow || denies(judged, v.by):
			return judged, ask
		case first == nil:
			first, by = judged, ask
		}
	}
	return first, by
}

func denies(judged *policy.Judgement, by netpol.Denied) bool {
	id := judged.Verdict.By
	return !judged.Verdict.Allow && (id == by.By || id.String() == by.Reason)
}

// askings returns the askings of a pod, or of the node's own host endpoint. For a denied packet it adds all host
// endpoints that the packet may have passed.
func (r *Recorder) askings(c *connection, d policy.Direction, v verdict) (all []asking) {
	own, peer := c.subject(d), c.subject(1-d)
	host := func(link string, stage policy.Stage) {
		all = append(all, func(j *policy.Judge) (*policy.Judgement, bool) {
			return j.JudgeHost(link, stage, d, own, peer, c.packet)
		})
	}
	if _, link := r.judge.Pod(own); link != "" {
		all = append(all, func(j *policy.Judge) (*policy.Judgement, bool) { return j.Judge(link, d, peer, c.packet) })
	} else if link, is := r.own[own]; is && !(v.allow && r.judge.Spares(d, peer, c.packet)) {
		host(link, policy.Terminal)
	}
	if v.allow || !byHost(v.by) {
		return all
	}
	for _, link := range r.judge.HostLinks() {
		for stage := range policy.Stages {
			host(link, stage)
		}
	}
	return all
}
