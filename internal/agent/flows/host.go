package flows

import (
	"net/netip"
	"strings"

	"github.com/tortie-net/tortie/internal/kernel/netpol"
	"github.com/tortie-net/tortie/internal/policy"
)

// asking asks the policies of a pod, or of a host endpoint, about a connection. It is false if these are not known.
type asking func(*policy.Judge) (*policy.Judgement, bool)

// reports reports whether the end that has policies in the direction is a pod of this node; or the node itself behind a
// host endpoint, to or from others than its pods. Forwarded connections are reported for the pods.
func (r *Recorder) reports(c *connection, d policy.Direction) bool {
	if _, link := r.judge.Pod(c.subject(d)); link != "" {
		return true
	}
	link, own := r.own[c.subject(d)]
	return own && r.judge.Governs(link) && !r.here(c.subject(1-d))
}

// here reports whether the node or a pod of it has an address.
func (r *Recorder) here(a netip.Addr) bool {
	_, own := r.own[a]
	_, link := r.judge.Pod(a)
	return own || link != ""
}

// byHost reports that it may be a host endpoint that has denied a packet.
func byHost(by netpol.Denied) bool {
	return by.By.Kind == policy.KindCalicoGlobalNetworkPolicy || strings.HasPrefix(by.Reason, policy.KindHostEndpoint+" ")
}

// decides finds who decides on a connection; nil: that is not known. Of a denied packet it is who says so by the policy
// that has denied it, or else whose policies come first.
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

// askings are a pod's policies and those of the node's own host endpoint, and of a packet that was denied those of all
// that it may have passed.
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
