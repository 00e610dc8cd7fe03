package flows

import (
	"cmp"
	"net/netip"

	"github.com/tortie-net/tortie/internal/kernel/netpol"
	"github.com/tortie-net/tortie/internal/policy"
)

// connection is a connection as its opening packet describes it.
type connection struct {
	client, server netip.Addr
	packet         policy.Packet
	expected       bool // a conntrack helper has allowed it
}

// subject returns the end with the deciding policies in a direction: the client at egress, the server at ingress.
func (c *connection) subject(d policy.Direction) netip.Addr {
	if d == policy.Ingress {
		return c.server
	}
	return c.client
}

// verdict is the kernel's decision on a packet: allowed, or denied by a policy.
type verdict struct {
	allow bool
	by    netpol.Denied
}

// question is a key of the cache of labels.
type question struct {
	connection
	policy.Direction
	verdict
}

// label returns the record key under which a connection is counted in a direction.
func (r *Recorder) label(c *connection, d policy.Direction, v verdict) *label {
	q := question{*c, d, v}
	if !r.sources {
		q.packet.SourcePort = 0
	}
	if known, ok := r.labels[q]; ok {
		return known
	}
	l := r.judged(c, d, v)
	if len(r.labels) >= mostLabels {
		clear(r.labels)
	}
	r.labels[q] = l
	return l
}

func (r *Recorder) judged(c *connection, d policy.Direction, v verdict) *label {
	l := &label{Key: Key{Direction: d, Allow: v.allow, Source: r.end(c.client), Dest: r.end(c.server), Protocol: c.packet.Protocol}}
	if policy.HasPorts(c.packet.Protocol) {
		l.Port = c.packet.Port
	}
	if _, own := r.own[c.subject(1-d)]; c.expected || v.allow && d == policy.Ingress && own {
		return l // no policy applies
	}
	enforced, ask := r.decides(c, d, v)
	if enforced == nil {
		return l
	}
	r.stage(l, enforced, ask)
	switch {
	case enforced.Verdict.Allow == v.allow:
		l.Enforced = hitOf(enforced)
	case !v.allow:
		l.Enforced = Hit{Policy: v.by.By, Rule: -1} // the policies have changed since
		if v.by.Reason != "" {
			l.Enforced.Policy.Kind = v.by.Reason
		}
	}
	return l
}

// stage adds to a label the deciding policy with staged policies in force, if the decision changes.
func (r *Recorder) stage(l *label, enforced *policy.Judgement, ask asking) {
	if r.pending == nil {
		return
	}
	pending, known := ask(r.pending)
	if !known {
		return
	}
	by, own, changes := pending.Pending(enforced, r.stagedBy)
	if !changes {
		return
	}
	l.Staged, l.Pending, l.staged = true, hitOf(pending), by
	if own {
		l.Pending.Policy = by
	}
}

func hitOf(j *policy.Judgement) Hit {
	return Hit{j.Tier, cmp.Or(j.Policy, j.Verdict.By), j.Rule, j.Verdict.Allow}
}

// end names an address by its pod, node, network set or kind of network.
func (r *Recorder) end(a netip.Addr) End {
	if pod, _ := r.judge.Pod(a); pod != nil {
		if pod.Prefix != "" {
			return End{TypePod, pod.Namespace, pod.Prefix + "*"}
		}
		return End{TypePod, pod.Namespace, pod.Name}
	}
	if _, own := r.own[a]; own {
		return End{Type: TypeHost, Name: r.Node}
	}
	if set, ok := r.judge.Set(a); ok {
		return End{TypeSet, set.Namespace, set.Name}
	}
	if a.IsPrivate() || a.IsLinkLocalUnicast() || a.IsLoopback() {
		return End{Type: TypeNetwork, Name: private}
	}
	return End{Type: TypeNetwork, Name: public}
}
