package agent

import (
	"strings"
	"testing"
	"time"

	"github.com/tortie-net/tortie/internal/agent/desired"
	"github.com/tortie-net/tortie/internal/api"
	"github.com/tortie-net/tortie/internal/bgp"
	"github.com/tortie-net/tortie/internal/bgp/peering"
	"github.com/tortie-net/tortie/internal/bgp/reflectors"
	"github.com/tortie-net/tortie/internal/testkit/desiredtest"
)

// A node that is about to leave.
func TestUnwilling(t *testing.T) {
	for want, spec := range map[string]api.NodeSpec{
		"":           {Taints: []api.Taint{{Key: "node-role.kubernetes.io/control-plane"}}},
		"cordoned":   {Unschedulable: true},
		"ToBeDelete": {Taints: []api.Taint{{Key: "ToBeDeletedByClusterAutoscaler"}}},
	} {
		if got := unwilling(&api.Node{Spec: spec}); !strings.Contains(got, want) || (want == "") != (got == "") {
			t.Errorf("%+v: %q, want %q", spec, got, want)
		}
	}
}

// While no reflector is heard of, BGP's silence about a node without a session of its own means nothing.
func TestSilenceOfReflectors(t *testing.T) {
	w := desiredtest.Reflecting()
	s, _ := desired.Build(desired.Self{Name: "n1"}, w)
	now := time.Now()
	before := now.Add(-time.Hour)
	c := desired.Claim{Node: "n4", Addr: addr("192.168.4.4")}
	reflector := bgp.PeerStatus{Addr: addr("10.0.0.2"), State: bgp.Established, Since: now.Add(-time.Hour)}
	if sessionsDown(&s, nil, before, now)(c) {
		t.Error("without reflectors, a node that there is no session with is silent")
	}
	if !sessionsDown(&s, nil, now.Add(-time.Second), now)(c) {
		t.Error("the session with the node may have gone a second ago, and others are to have told all that it told")
	}
	s.Automatic = &peering.Automatic{Role: peering.Client, Reflectors: map[string]bool{"n2": true}}
	if sessionsDown(&s, []bgp.PeerStatus{reflector}, before, now)(c) {
		t.Error("a reflector has told all, and its silence is not believed")
	}
	reflector.State = bgp.Active
	if !sessionsDown(&s, []bgp.PeerStatus{reflector}, before, now)(c) || !sessionsDown(&s, nil, before, now)(c) {
		t.Error("no reflector is heard of, and what they do not say is believed")
	}
	s.Automatic.Role = peering.Reflector
	if sessionsDown(&s, nil, before, now)(c) {
		t.Error("a reflector has sessions with all of its clients")
	}
	for _, gone := range []desired.Claim{{Node: "no such node", Addr: c.Addr}, {Node: "n1", Addr: c.Addr, Elsewhere: true}} {
		if sessionsDown(&s, nil, before, now)(gone) {
			t.Errorf("%+v: there is no session that could be down", gone)
		}
	}
}

// The next pass comes when the plan is another, and at once only once.
func TestNextPlan(t *testing.T) {
	now := time.Now()
	r := reflecting{plan: reflectors.Plan{Again: now.Add(3 * time.Second)}}
	for i, c := range []struct {
		at   time.Duration
		want time.Duration
	}{{0, 3 * time.Second}, {2 * time.Second, time.Second}, {4 * time.Second, 0}, {4 * time.Second, fullPass}} {
		if got := r.again(now.Add(c.at), fullPass); got != c.want {
			t.Errorf("%d: %v, want %v", i, got, c.want)
		}
	}
	r.stirred = true
	if first, second := r.again(now, fullPass), r.again(now, fullPass); first != 0 || second != fullPass {
		t.Errorf("what has changed is looked at after %v, and again after %v", first, second)
	}
	r.plan.Ask = []string{"n2"}
	if got := r.again(now, fullPass); got != missPause {
		t.Errorf("a Node is read again after %v", got)
	}
}
