package policies

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/tortie-net/tortie/internal/api"
	"github.com/tortie-net/tortie/internal/app/config"
	"github.com/tortie-net/tortie/internal/cluster"
	"github.com/tortie-net/tortie/internal/kernel/netpol"
	"github.com/tortie-net/tortie/internal/policy"
)

// If a policy's subject becomes unreadable, its last readable version stays in force. A policy that was never readable,
// or only has the name of another one, is left out. A policy with an unknown tier is closed. Each is named.
func TestUnreadablePolicies(t *testing.T) {
	of := func(uid, tier string) *api.ClusterNetworkPolicy {
		p := &api.ClusterNetworkPolicy{Meta: api.Meta{Name: "deny", UID: uid}, Spec: api.ClusterNetworkPolicySpec{
			Tier: tier, Priority: 7, Subject: api.ClusterNetworkPolicySubject{Namespaces: &api.LabelSelector{}},
		}}
		if tier == "" {
			p.Salvage([]byte(`{"spec":{"tier":"Admin","priority":8,"subject":7}}`), errors.New("subject is a number"))
		}
		return p
	}
	m := model{}
	id := policy.ID{Kind: "ClusterNetworkPolicy", Name: "deny"}
	for _, step := range []struct {
		uid, tier        string
		order            float64 // of the policy in force; -1: none
		leftOut, invalid int
	}{
		{"first", "", -1, 1, 0}, {"first", "Admin", 7, 0, 0}, {"first", "", 7, 1, 0}, {"first", "", 7, 1, 0}, {"second", "", -1, 1, 0},
		{"second", "Baseline", 7, 0, 0},
		{"second", "Nowhere", 7, 0, 1},
	} {
		m.take(cluster.PolicyView{ClusterNetworkPolicies: []*api.ClusterNetworkPolicy{of(step.uid, step.tier)}})
		m.build(routed{})
		if len(m.LeftOut[id]) != step.leftOut || len(m.Invalid[id]) != step.invalid || len(m.Policies) == 0 != (step.order < 0) ||
			len(m.Policies) > 0 && m.Policies[0].Order != step.order {
			t.Errorf("%+v: %d policies, left out %v, invalid %v", step, len(m.Policies), m.LeftOut, m.Invalid)
		}
	}
}

// noFeed knows nothing.
type noFeed struct{ Feed }

func (noFeed) Want(policy.Interest)     {}
func (noFeed) SetGround(cluster.Ground) {}

// A Deny or Pass of unlisted objects denies everything at its ports, so that it does not open what it must close.
func TestDenyOfWhatIsNotListedIsClosed(t *testing.T) {
	key := policy.PodKey{Namespace: "a", Name: "web"}
	links, _ := Links([]policy.PodKey{key})
	link := slices.Collect(maps.Keys(links))[0]
	node, other := netip.MustParseAddr("192.0.2.1"), netip.MustParseAddr("192.0.2.2")
	ports := func(p api.ClusterNetworkPolicyPort) []api.ClusterNetworkPolicyProtocol {
		return []api.ClusterNetworkPolicyProtocol{{TCP: &api.ClusterNetworkPolicyPorts{DestinationPort: &p}}}
	}
	nodes := []api.ClusterNetworkPolicyPeer{{Nodes: &api.LabelSelector{}}}
	pods := []api.ClusterNetworkPolicyPeer{{Namespaces: &api.LabelSelector{MatchLabels: map[string]string{"b": "c"}}}}
	for name, c := range map[string]struct {
		action     string
		to         []api.ClusterNetworkPolicyPeer
		ports      []api.ClusterNetworkPolicyProtocol
		closed     bool // while nothing is listed
		otherPorts bool // are closed then, too
	}{
		"deny nodes":          {"Deny", nodes, ports(api.ClusterNetworkPolicyPort{Number: 80}), true, false},
		"deny nodes and pods": {"Deny", append(nodes, pods...), nil, true, true},
		"pass nodes":          {"Pass", nodes, nil, true, true},
		"accept nodes":        {"Accept", nodes, nil, false, false},
		"deny pods":           {"Deny", pods, ports(api.ClusterNetworkPolicyPort{Number: 80}), true, false},
		"deny networks":       {"Deny", []api.ClusterNetworkPolicyPeer{{Networks: []string{"10.0.0.0/8"}}}, nil, false, false},
	} {
		t.Run(name, func(t *testing.T) {
			o := &api.ClusterNetworkPolicy{Meta: api.Meta{Name: "rule"},
				Spec: api.ClusterNetworkPolicySpec{Tier: "Admin", Subject: api.ClusterNetworkPolicySubject{Namespaces: &api.LabelSelector{}},
					Egress: []api.ClusterNetworkPolicyEgressRule{{Action: c.action, To: c.to, Protocols: c.ports}}}}
			w := &Worker{Options: Options{Feed: noFeed{}}}
			w.model.view = cluster.PolicyView{ClusterNetworkPolicies: []*api.ClusterNetworkPolicy{o}, Local: []policy.PodKey{key},
				Pods: map[policy.PodKey]*policy.Pod{key: {PodKey: key}}, Namespaces: map[string]map[string]string{"a": {}, "b": {"b": "c"}}}
			passes := func(a netip.Addr, port uint16) bool {
				return w.compiled.rules.Decide(link, policy.Egress, a, policy.Packet{Protocol: policy.TCP, Port: port}).Allow
			}
			if err := w.compile(routed{}, time.Now()); err != nil {
				t.Fatal(err)
			}
			if passes(node, 80) == c.closed || passes(other, 80) == c.closed || passes(node, 81) == c.otherPorts ||
				(len(w.model.closed) > 0) != c.closed {
				t.Errorf("not listed: passes %v, %v, at other ports %v", passes(node, 80), passes(other, 80), passes(node, 81))
			}
			if got, want := w.interest, w.model.Interest(); got.All != want.All || !slices.Equal(got.Namespaces, want.Namespaces) {
				t.Errorf("wants %+v, not %+v", got, want)
			}
			if slices.ContainsFunc(c.to, func(p api.ClusterNetworkPolicyPeer) bool { return p.Namespaces != nil }) {
				return // a list of pods cannot be had here
			}
			w.model.view.NodesKnown, w.model.view.Nodes = true, map[string]policy.Node{"n": {Addresses: []netip.Addr{node}}}
			if err := w.compile(routed{}, time.Now()); err != nil {
				t.Fatal(err)
			}
			if passes(node, 80) == (name == "deny nodes") || !passes(other, 80) || len(w.model.closed) > 0 {
				t.Errorf("listed: passes %v, %v", passes(node, 80), passes(other, 80))
			}
		})
	}
}

// A label of a namespace, or of a pod of this node, may bring an address without a set into a denied one: its
// connections must end.
func TestAddressesThatComeIntoDeniedSetsForbid(t *testing.T) {
	addr := netip.MustParseAddr("10.0.0.1")
	of := func(allow bool, members map[netip.Addr][]policy.SetID) *policy.Ruleset {
		list := policy.List{Steps: []policy.Step{{Set: 7, Verdict: policy.Verdict{Allow: allow}}}}
		return &policy.Ruleset{Closed: true, Endpoints: map[string]policy.Endpoint{"cali1": {UID: "u", Programs: [2]string{"p", ""}}},
			Programs: map[string]policy.Program{"p": {Ports: map[uint8][]policy.PortRange{6: {{First: 80, Last: 80, List: list}}}}},
			Members:  members}
	}
	for _, allow := range []bool{false, true} {
		if got := mayForbid(of(allow, nil), of(allow, map[netip.Addr][]policy.SetID{addr: {7}})); got == allow {
			t.Errorf("a set that is allowed (%v): may forbid %v", allow, got)
		}
	}
}

// A pod that becomes known may have had connections while nothing was closed, and one that may have had an address
// under that address.
func TestWhatWasNotKnownMayForbid(t *testing.T) {
	for _, closed := range []bool{false, true} {
		if got := mayForbid(&policy.Ruleset{Closed: closed},
			&policy.Ruleset{Closed: true, Endpoints: map[string]policy.Endpoint{"cali1": {UID: "u"}}}); got == closed {
			t.Errorf("a new endpoint, nothing passed before (%v): may forbid %v", closed, got)
		}
	}
	key, addr := policy.PodKey{Namespace: "a", Name: "remote"}, netip.MustParseAddr("192.0.2.1")
	for _, pod := range []policy.Pod{{Addresses: []netip.Addr{addr}}, {Unsure: []netip.Addr{addr}}} {
		m := model{view: cluster.PolicyView{Pods: map[policy.PodKey]*policy.Pod{key: &pod}}}
		m.Pods = map[policy.PodKey]*policy.Pod{key: &pod}
		changed, known, ok := m.follow(news{rerouted: true}, routed{}, routed{links: map[netip.Addr]string{addr: "cali1"}})
		if !slices.Equal(changed, []policy.PodKey{key}) || !known || !ok {
			t.Errorf("%+v, whose address has a route now: changed %v, known %v, %v", pod, changed, known, ok)
		}
		if got := m.Pods[key]; len(got.Addresses)+len(got.Unsure) > 0 {
			t.Errorf("has %v, which is another's", got)
		}
	}
}

// Pods with the same link by their names are closed there, and all are named.
func TestPodsWithTheSameLinkAreClosed(t *testing.T) {
	keys := []policy.PodKey{{Namespace: "a", Name: "victim"}, {Namespace: "b", Name: "twin"}, {Namespace: "b", Name: "web"},
		{Namespace: "c", Name: "third"}}
	got, same := linksBy(keys, func(k policy.PodKey) string {
		if k.Name == "web" {
			return "cali2"
		}
		return "cali1"
	})
	if len(got) != 1 || got["cali2"] != keys[2] {
		t.Errorf("links of %v", got)
	}
	if len(same) != 1 || !strings.Contains(same[0], "a/victim and b/twin and c/third are closed") || !strings.Contains(same[0], "cali1") {
		t.Errorf("told: %q", same)
	}
	if s := (Seen{SameLink: same}); !slices.Equal(s.Problems(), same) {
		t.Errorf("problems: %q", s.Problems())
	}
}

// lacking is the engine of a kernel with these results of Probe; the last one repeats.
type lacking struct {
	Engine
	answers []error
	asked   int
}

func (l *lacking) Probe(context.Context) error {
	l.asked++
	return l.answers[min(l.asked, len(l.answers))-1]
}

// What the kernel lacks is reported at the start, before a policy needs it, and once. Without a result the probe is
// repeated after a pause.
func TestLackingKernelIsNamedAtTheStart(t *testing.T) {
	var text strings.Builder
	lacks := errors.Join(errors.New("no log"), errors.New("no ct"))
	engine := &lacking{answers: []error{fmt.Errorf("%w: no buffers", netpol.ErrNotProbed), lacks}}
	w := New(Options{Mode: config.PolicyAuto, Engine: engine, Log: slog.New(slog.NewTextHandler(&text, nil))})
	now := time.Now()
	pass := func(after time.Duration) []string {
		w.probe(t.Context(), now.Add(after))
		w.report(nil)
		s := w.Seen()
		return s.Problems()
	}
	for range 3 {
		if got := pass(0); len(got) != 1 || !strings.Contains(got[0], "no buffers") || engine.asked != 1 {
			t.Errorf("without an answer: asked %d times, problems %q", engine.asked, got)
		}
	}
	for range 3 {
		if got := pass(2 * firstProbe); !slices.Equal(got, []string{"no log", "no ct"}) || engine.asked != 2 {
			t.Errorf("asked %d times, problems %q", engine.asked, got)
		}
	}
	if strings.Count(text.String(), "no log") != 1 || strings.Count(text.String(), "no ct") != 1 {
		t.Errorf("log:\n%s", &text)
	}
}

// A missing feature with policies in force is no failure, and is reported as long as it is requested.
func TestKernelThatCannotReject(t *testing.T) {
	w := New(Options{Log: slog.New(slog.NewTextHandler(t.Output(), nil))})
	told := func() bool {
		w.report(nil)
		s := w.Seen()
		return slices.ContainsFunc(s.Problems(), func(text string) bool {
			return strings.Contains(text, "Reject") && strings.Contains(text, "nft_reject")
		})
	}
	w.SetHandling(policy.Handling{Reject: true}, "")
	noReject := fmt.Errorf("%w: nft_reject", netpol.ErrNoReject)
	if told() || w.takeRefusals(nil) != nil || w.takeRefusals(noReject) != nil || w.refused != nil || !told() {
		t.Errorf("refused %v, problems %q", w.refused, w.seen.Problems())
	}
	if w.takeRefusals(fmt.Errorf("%w: %w", netpol.ErrNoLog, unix.ENOENT)) != nil || w.takeRefusals(nil) != nil || !told() {
		t.Error("it is told once only")
	}
	if err := w.takeRefusals(unix.ENOBUFS); !errors.Is(err, unix.ENOBUFS) {
		t.Errorf("a failure: %v", err)
	}
	if both := errors.Join(noReject, netpol.ErrRefused); w.takeRefusals(both) != nil || !errors.Is(w.refused, netpol.ErrRefused) {
		t.Errorf("a program that is refused: %v", w.refused)
	}
	if w.SetHandling(policy.Handling{}, ""); told() {
		t.Error("told of what is not asked for")
	}
}

// A node waits a while for its configuration: the defaults could close a failsafe port that an earlier agent has left
// open, and open the node to its pods.
func TestBeginsWithHostRules(t *testing.T) {
	w, now := New(Options{}), time.Now()
	w.model.view.Complete, w.model.Node = true, "n"
	if w.begins(now) || !w.begins(now.Add(listTime)) {
		t.Error("the agent does not wait, or forever")
	}
	w.SetHostRules(policy.HostRules{})
	if !w.begins(now) {
		t.Error("the agent waits for what it knows")
	}
}

// A policy waits for the Services that it names itself, not for Services of other policies.
func TestPoliciesAwaitTheirOwnServices(t *testing.T) {
	m := model{}
	m.view.NodesKnown, m.view.MissingServices = true, map[string]bool{"new": true}
	naming := func(name string) policy.Rule {
		return policy.Rule{Peers: []policy.Peer{{Service: &policy.Service{Namespace: "shop", Name: name}}}}
	}
	if !m.lists(policy.Egress, naming("old")) || m.lists(policy.Egress, naming("old"), naming("new")) {
		t.Error("the wrong policies wait")
	}
}

// An address that is routed to a pod of this node is certainly that pod's only. Until a pod has a route, the API's
// addresses count.
func TestRoutesDecideWhoseAddressesAre(t *testing.T) {
	at := func(numbers ...byte) (all []netip.Addr) {
		for _, n := range numbers {
			all = append(all, netip.AddrFrom4([4]byte{192, 0, 2, n}))
		}
		return all
	}
	r := routed{byLink: map[string][]netip.Addr{"cali1": at(1)}, links: map[netip.Addr]string{at(1)[0]: "cali1"}}
	for _, c := range []struct {
		link                      string // empty: of another node
		said, unsure, want, mayBe []netip.Addr
	}{
		{"cali1", at(1), nil, at(1), nil},
		{"cali1", at(2), at(3), at(1), nil},
		{"cali1", at(1), at(3), at(1), nil},
		{"cali2", at(1, 2), at(1, 3), at(2), at(3)},
		{"cali2", at(2), at(3), at(2), at(3)},
		{"", at(1, 2), at(1, 3), at(2), at(3)},
		{"", at(2), at(1), at(2), nil},
		{"", at(1), at(2), nil, at(2)},
	} {
		p := &policy.Pod{Addresses: c.said, Unsure: c.unsure}
		got := r.unroutedPod(p)
		if c.link != "" {
			got = r.localPod(p, c.link)
		}
		if !slices.Equal(got.Addresses, c.want) || !slices.Equal(got.Unsure, c.mayBe) {
			t.Errorf("%+v: has %v, may have %v", c, got.Addresses, got.Unsure)
		}
	}
}
