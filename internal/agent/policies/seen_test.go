package policies

import (
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/tortie-net/tortie/internal/api"
	"github.com/tortie-net/tortie/internal/kernel/netpol"
	"github.com/tortie-net/tortie/internal/policy"
)

// Watches that fail for long are reported, with the time since when changes may be missing, also by an agent that
// enforces; short failures are not.
func TestFailingWatchesAreTold(t *testing.T) {
	refused, begin := errors.New("networkpolicies is forbidden"), time.Now()
	var s Seen
	for _, step := range []struct {
		after time.Duration
		err   error
		told  bool
	}{{0, refused, false}, {deafTime / 2, refused, false}, {deafTime - 1, nil, false}, {deafTime, refused, false},
		{2*deafTime - 1, refused, false}, {2 * deafTime, refused, true}, {3 * deafTime, nil, false}} {
		s.hear(step.err, begin.Add(step.after))
		if got := s.Problems(); errors.Is(s.Unmet(), refused) != step.told ||
			(len(got) == 1 && strings.Contains(got[0], refused.Error())) != step.told {
			t.Errorf("after %v: %v, problems %q, want it told: %v", step.after, s.Unmet(), got, step.told)
		}
		if s.DeafSince.IsZero() != (step.err == nil) {
			t.Errorf("after %v: since %v", step.after, s.DeafSince)
		}
	}

	w := New(Options{Log: slog.New(slog.NewTextHandler(t.Output(), nil))})
	w.synced, w.model.view.Err = true, refused
	w.report(nil)
	if got := w.Seen(); !got.Enforcing || got.DeafSince.IsZero() || got.Deaf != nil {
		t.Errorf("a watch that has begun to fail: %+v", got)
	}
}

// Each obstacle of policies has the reason of an Event. A kernel that has not answered is no obstacle.
func TestReasonsOfObstacles(t *testing.T) {
	odd := errors.New("odd")
	for _, c := range []struct {
		seen Seen
		want []string // of the problems, in order
	}{
		{Seen{Lacks: errors.Join(fmt.Errorf("%w: %w", netpol.ErrNoLog, odd), fmt.Errorf("%w: %w", netpol.ErrLacks, odd))},
			[]string{"PolicyUnsupported", "PolicyUnsupported"}},
		{Seen{Lacks: errors.Join(fmt.Errorf("%w: %w", netpol.ErrNoLog, odd), fmt.Errorf("%w: %w", netpol.ErrNotProbed, odd))},
			[]string{"PolicyUnsupported", ""}},
		{Seen{Lacks: fmt.Errorf("%w: %w", netpol.ErrNotProbed, odd)}, []string{""}},
		{Seen{Reason: reasonFailing, Why: "odd", Err: odd}, []string{"PolicyNotInForce"}},
		{Seen{Reason: reasonStarting, Why: "odd"}, nil},
		{Seen{Reason: reasonCilium, Why: "odd"}, []string{"PolicyLeftToOther"}},
		{Seen{Enforcing: true, Err: odd, Refused: errors.New("refused"), SameLink: []string{"a and b"}},
			[]string{"PolicyNotInForce", "PolicyNotInForce", "PolicyNotInForce"}},
	} {
		var got []string
		for _, text := range c.seen.Problems() {
			got = append(got, c.seen.EventReasons()[text])
		}
		if !slices.Equal(got, c.want) {
			t.Errorf("problems %q have reasons %q, want %q", c.seen.Problems(), got, c.want)
		}
	}
}

// Pods that are closed whatever their policies allow are counted, with the reason: their namespace's policies are too
// large for a node, or they share a link.
func TestClosedPodsAreTold(t *testing.T) {
	huge := api.NetworkPolicy{Meta: api.Meta{Namespace: "a", Name: "huge"}}
	for i := range 3000 {
		last := int32(65535 - i)
		huge.Spec.Ingress = append(huge.Spec.Ingress, api.NetworkPolicyIngressRule{
			From:  []api.NetworkPolicyPeer{{IPBlock: &api.IPBlock{CIDR: fmt.Sprintf("10.%d.%d.0/24", i>>7, i<<1&0xff)}}},
			Ports: []api.NetworkPolicyPort{{Port: &api.IntOrString{Number: int32(i + 1)}, EndPort: &last}},
		})
	}
	large, other := policy.PodKey{Namespace: "a", Name: "large"}, policy.PodKey{Namespace: "b", Name: "other"}
	state := policy.State{
		Policies: []policy.Policy{policy.FromNetworkPolicy(&huge)}, Namespaces: map[string]map[string]string{"a": nil, "b": nil},
		Local: map[string]policy.PodKey{"cali1": large, "cali2": other},
		Pods:  map[policy.PodKey]*policy.Pod{large: {PodKey: large, UID: "1"}, other: {PodKey: other, UID: "2"}},
	}
	w := New(Options{Log: slog.New(slog.NewTextHandler(t.Output(), nil))})
	w.inForce.rules = policy.Compile(state)
	w.report(nil)
	s := w.Seen()
	if s.Closed != 1 || !slices.Equal(s.TooLarge, []policy.ID{{Kind: policy.KindNetworkPolicy, Namespace: "a", Name: "huge"}}) ||
		s.Unmet() == nil || !strings.Contains(s.Unmet().Error(), "NetworkPolicy a/huge: "+policy.TooLargeText) {
		t.Errorf("closed %d, too large %v: %v", s.Closed, s.TooLarge, s.Unmet())
	}
	w.inForce.rules = policy.Compile(policy.State{})
	w.model.withSameLink, w.model.sameLink = 2, []string{"pods a/b and c/d are closed"}
	w.report(nil)
	if s = w.Seen(); s.Closed != 2 || len(s.TooLarge) > 0 || s.Unmet() == nil || s.Unmet().Error() != "pods a/b and c/d are closed" {
		t.Errorf("closed %d, too large %v: %v", s.Closed, s.TooLarge, s.Unmet())
	}
}
