package controllers

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/tortie-net/tortie/internal/api"
	"github.com/tortie-net/tortie/internal/api/names"
	"github.com/tortie-net/tortie/internal/ipam/inventory"
	"github.com/tortie-net/tortie/internal/policy"
	"github.com/tortie-net/tortie/internal/testkit/difftest"
	"github.com/tortie-net/tortie/internal/testkit/errtest"
)

func addrs(texts ...string) (all []netip.Addr) {
	for _, text := range texts {
		all = append(all, netip.MustParseAddr(text))
	}
	return all
}

func hostNode(name string, stated ...string) inventory.Node {
	return inventory.Node{Meta: api.Meta{Name: name, CreationTimestamp: "2026-01-01T00:00:00Z", Labels: map[string]string{"zone": "z"}},
		Stated: addrs(stated...)}
}

// automatic is a host endpoint as it is stored.
func automatic(name, node, interfaceName, expected string, labels ...string) *api.CalicoHostEndpoint {
	of := map[string]string{"zone": "z", labelCreatedBy: createdBy}
	for _, l := range labels {
		key, value, _ := strings.Cut(l, "=")
		of[key] = value
	}
	h := &api.CalicoHostEndpoint{
		Meta: api.Meta{Name: name, Labels: map[string]string{labelCreatedBy: createdBy}},
		Spec: api.CalicoHostEndpointSpec{Node: node, InterfaceName: interfaceName, ExpectedIPs: strings.Fields(expected),
			Profiles: []string{"projectcalico-default-allow"}},
	}
	names.SetMetadata(&h.Meta, of, nil)
	return h
}

func described(all []*api.CalicoHostEndpoint) (texts []string) {
	for _, h := range all {
		labels := names.Labels(&h.Meta)
		texts = append(texts, fmt.Sprintf("%s %s %q %v %v %v %v", h.Name, h.Spec.Node, h.Spec.InterfaceName, h.Spec.ExpectedIPs, h.Spec.Profiles,
			labels, names.Annotations(&h.Meta)))
	}
	return texts
}

func TestPlanHosts(t *testing.T) {
	on := HostSettings{Auto: enabled, Default: true}
	with := func(templates ...api.HostEndpointTemplate) HostSettings {
		return HostSettings{Auto: enabled, Templates: templates}
	}
	template := api.HostEndpointTemplate{
		GenerateName: "lan", NodeSelector: "zone == 'z'", InterfaceCIDRs: []string{"192.0.2.0/24"},
		Labels: map[string]string{"zone": "mine", labelCreatedBy: "me", "net": "lan"}, Annotations: map[string]string{"note": "n"},
	}
	unread := func(change func(*api.HostEndpointTemplate)) HostSettings {
		bad := template
		change(&bad)
		return with(bad)
	}
	a := hostNode("a", "192.0.2.1")
	stored := automatic("a-auto-hep", "a", "*", "192.0.2.1")
	foreign := &api.CalicoHostEndpoint{Meta: api.Meta{Name: "a-auto-hep"}, Spec: api.CalicoHostEndpointSpec{Node: "a", InterfaceName: "eth0"}}
	full := hostNode("a", "192.0.2.1", "2001:db8::1")
	full.Internal = addrs("192.0.2.1", "198.51.100.1")
	full.Tunnels = map[string]netip.Addr{
		inventory.TypeVXLAN: netip.MustParseAddr("10.0.0.2"), inventory.TypeIPIP: netip.MustParseAddr("10.0.0.1"),
		inventory.TypeVXLANv6: netip.MustParseAddr("fd00::1"),
	}
	const labels, profile = "map[projectcalico.org/created-by:calico-kube-controllers zone:z] map[]", " [projectcalico-default-allow] "
	for _, tc := range []struct {
		what                   string
		settings               HostSettings
		nodes                  []inventory.Node
		existing               []*api.CalicoHostEndpoint
		create, update, remove []string
		problems               []string
	}{
		{what: "a node", settings: on, nodes: []inventory.Node{a}, create: []string{`a-auto-hep a "*" [192.0.2.1]` + profile + labels}},
		{what: "addresses in Calico's order", settings: on, nodes: []inventory.Node{full},
			create: []string{`a-auto-hep a "*" [192.0.2.1 2001:db8::1 10.0.0.1 10.0.0.2 fd00::1 198.51.100.1]` + profile + labels}},
		{what: "what is right", settings: on, nodes: []inventory.Node{a}, existing: []*api.CalicoHostEndpoint{stored}},
		{what: "another label", settings: on, nodes: []inventory.Node{a},
			existing: []*api.CalicoHostEndpoint{automatic("a-auto-hep", "a", "*", "192.0.2.1", "zone=y", "more=1")},
			update:   []string{`a-auto-hep a "*" [192.0.2.1]` + profile + labels}},
		{what: "another address", settings: on, nodes: []inventory.Node{a},
			existing: []*api.CalicoHostEndpoint{automatic("a-auto-hep", "a", "*", "192.0.2.9")},
			update:   []string{`a-auto-hep a "*" [192.0.2.1]` + profile + labels}},
		{what: "a node that is gone", settings: on, existing: []*api.CalicoHostEndpoint{stored},
			remove: described([]*api.CalicoHostEndpoint{stored})},
		{what: "disabled", settings: HostSettings{Auto: disabled}, nodes: []inventory.Node{a}, existing: []*api.CalicoHostEndpoint{stored},
			remove: described([]*api.CalicoHostEndpoint{stored})},
		{what: "not known whether", nodes: []inventory.Node{a}, existing: []*api.CalicoHostEndpoint{stored}},
		{what: "another's", settings: on, nodes: []inventory.Node{a}, existing: []*api.CalicoHostEndpoint{foreign},
			problems: []string{"HostEndpoint a-auto-hep has no label"}},
		{what: "another's, disabled", settings: HostSettings{Auto: disabled}, existing: []*api.CalicoHostEndpoint{foreign}},
		{what: "a template, whose labels precede", settings: with(template), nodes: []inventory.Node{full},
			existing: []*api.CalicoHostEndpoint{stored},
			create: []string{
				`a-lan-auto-hep a "" [192.0.2.1]` + profile + "map[net:lan projectcalico.org/created-by:calico-kube-controllers zone:mine] map[note:n]",
			},
			remove: described([]*api.CalicoHostEndpoint{stored})},
		{what: "a template for other nodes", settings: unread(func(h *api.HostEndpointTemplate) { h.NodeSelector = "has(other)" }),
			nodes: []inventory.Node{a}},
		{what: "a template of no address", settings: unread(func(h *api.HostEndpointTemplate) { h.InterfaceCIDRs = []string{"203.0.113.0/24"} }),
			nodes: []inventory.Node{a}},
		{what: "a selector that is none keeps what it has made",
			settings: unread(func(h *api.HostEndpointTemplate) { h.NodeSelector = "zone ==" }), nodes: []inventory.Node{a},
			existing: []*api.CalicoHostEndpoint{automatic("a-lan-auto-hep", "a", "", "192.0.2.1"),
				automatic("b-lan-auto-hep", "b", "", "192.0.2.2")},
			remove:   described([]*api.CalicoHostEndpoint{automatic("b-lan-auto-hep", "b", "", "192.0.2.2")}),
			problems: []string{`templates[0]: nodeSelector "zone =="`}},
		{what: "a pattern", settings: unread(func(h *api.HostEndpointTemplate) { h.InterfacePattern = "eth.*" }),
			problems: []string{`interfacePattern "eth.*" is not provided`}},
		{what: "a name that is none", settings: unread(func(h *api.HostEndpointTemplate) { h.GenerateName = "Lan" }),
			problems: []string{`generateName "Lan"`}},
		{what: "no ranges", settings: unread(func(h *api.HostEndpointTemplate) { h.InterfaceCIDRs = nil }),
			problems: []string{"interfaceCIDRs is missing"}},
		{what: "a range that is none", settings: unread(func(h *api.HostEndpointTemplate) { h.InterfaceCIDRs = []string{"lan"} }),
			problems: []string{`interfaceCIDRs "lan"`}},
		{what: "two of one name", settings: with(template, template), nodes: []inventory.Node{full},
			create: []string{
				`a-lan-auto-hep a "" [192.0.2.1]` + profile + "map[net:lan projectcalico.org/created-by:calico-kube-controllers zone:mine] map[note:n]",
			},
			problems: []string{"HostEndpoint a-lan-auto-hep is not made"}},
	} {
		got := planHosts(tc.settings, &inventory.View{Nodes: tc.nodes, Blocks: tunnelsOf("a", "10.0.0.1", "10.0.0.2", "fd00::1")}, tc.existing)
		difftest.Want(t, tc.what+": create", tc.create, described(got.create))
		difftest.Want(t, tc.what+": update", tc.update, described(got.update))
		difftest.Want(t, tc.what+": remove", tc.remove, described(got.remove))
		if !slices.EqualFunc(got.problems, tc.problems, strings.Contains) {
			t.Errorf("%s: problems %q, want %q", tc.what, got.problems, tc.problems)
		}
		for _, h := range append(got.create, got.update...) {
			if again := planHosts(HostSettings{}, &inventory.View{}, []*api.CalicoHostEndpoint{h}); len(again.remove) > 0 ||
				!sameHost(h, h) || !isAutomatic(h) {
				t.Errorf("%s: %s is not as it is read again", tc.what, h.Name)
			}
		}
	}
}

func tunnelsOf(node string, addresses ...string) (all []inventory.Block) {
	b := inventory.Block{}
	for _, a := range addrs(addresses...) {
		b.Allocations = append(b.Allocations, inventory.Allocation{Address: a, Class: inventory.Tunnel, Node: node})
	}
	return []inventory.Block{b}
}

// What Calico wrote of an object besides labels stays where it was.
func TestHostMeta(t *testing.T) {
	old := automatic("a-auto-hep", "a", "*", "")
	old.UID, old.ResourceVersion = "u", "7"
	old.Annotations[names.AnnotationMetadata] = `{"uid":"v3","creationTimestamp":"2026-01-01T00:00:00Z","labels":{"zone":"y",` +
		`"projectcalico.org/created-by":"calico-kube-controllers"}}`
	plan := planHosts(HostSettings{Auto: enabled, Default: true}, &inventory.View{Nodes: []inventory.Node{hostNode("a")}},
		[]*api.CalicoHostEndpoint{old})
	if len(plan.update) != 1 {
		t.Fatalf("%+v", plan)
	}
	want := `{"creationTimestamp":"2026-01-01T00:00:00Z","labels":{"projectcalico.org/created-by":"calico-kube-controllers",` +
		`"zone":"z"},"uid":"v3"}`
	if got := plan.update[0]; got.UID != "u" || got.ResourceVersion != "7" || got.Annotations[names.AnnotationMetadata] != want {
		t.Errorf("%+v", got.Meta)
	}
	for _, text := range []string{"null", "[]", "{"} {
		h := &api.CalicoHostEndpoint{Meta: api.Meta{Annotations: map[string]string{names.AnnotationMetadata: text}}}
		if names.SetMetadata(&h.Meta, map[string]string{"a": "b"}, nil); h.Annotations[names.AnnotationMetadata] != `{"labels":{"a":"b"}}` {
			t.Errorf("%s: %q", text, h.Annotations)
		}
	}
}

// Names are Calico's: the long one was computed apart, by sha256sum and base64.
func TestHostNames(t *testing.T) {
	long := strings.Repeat("n", 245)
	for _, tc := range []struct{ node, template, want string }{
		{"a", "", "a-auto-hep"}, {"a", "t", "a-t-auto-hep"}, {long[:244], "", long[:244] + "-auto-hep"},
		{long, "", "ewp5m34lkguin2xxvhr9f29ne8lioon3aplebjdzam-auto-hep"},
	} {
		if got := hostName(tc.node, tc.template); got != tc.want {
			t.Errorf("%s %s: %q, want %q", tc.node, tc.template, got, tc.want)
		}
	}
}

// A stolen node states addresses and labels of others on its own Node. Its host endpoint, which rules trust, has none
// of them.
func TestStolenNodesHostEndpoint(t *testing.T) {
	thief := hostNode("thief", "192.0.2.66")
	thief.CreationTimestamp = "2025-01-01T00:00:00Z" // older than its victims
	victim, pod, ofDisabled, own, tunnel, free := "192.0.2.1", "10.0.0.7", "192.0.2.77", "10.0.0.9", "10.0.0.8", "10.0.1.1"
	thief.Internal = addrs(victim, pod, ofDisabled, tunnel, free, "127.0.0.1", "169.254.0.1", "224.0.0.1")
	thief.Tunnels = map[string]netip.Addr{inventory.TypeIPIP: netip.MustParseAddr(tunnel), inventory.TypeVXLAN: netip.MustParseAddr(victim),
		inventory.TypeVXLANv6: netip.MustParseAddr(own)}
	thief.Labels = map[string]string{
		"zone": "z", labelCreatedBy: "me", "projectcalico.org/namespace": "kube-system",
		"pcns.projectcalico.org/name": "kube-system", "pcsa.role": "admin",
		"projectcalico.org/serviceaccount": "admin", "projectcalico.org/orchestrator": "k8s", "projectcalico.org/name": "admin",
	}
	blocks := tunnelsOf("victim", tunnel)
	for address, node := range map[string]string{pod: "victim", ofDisabled: "victim", own: "thief"} {
		blocks[0].Allocations = append(blocks[0].Allocations,
			inventory.Allocation{Address: netip.MustParseAddr(address), Class: inventory.OfPod, Node: node, Namespace: "d", Pod: "p"})
	}
	view := &inventory.View{
		Nodes: []inventory.Node{thief, hostNode("victim", victim)}, Blocks: blocks,
		Pools: []api.IPPool{pool("pods", "10.0.0.0/16"), {Spec: api.IPPoolSpec{CIDR: "192.0.2.0/24", Disabled: true}}},
	}
	settings := HostSettings{Auto: enabled, Default: true}
	plan := planHosts(settings, view, []*api.CalicoHostEndpoint{automatic("victim-auto-hep", "victim", "*", victim)})
	want := []string{`thief-auto-hep thief "*" [192.0.2.66] [projectcalico-default-allow] ` +
		`map[projectcalico.org/created-by:calico-kube-controllers zone:z] map[]`}
	difftest.Want(t, "the thief's", want, described(plan.create))
	if len(plan.update)+len(plan.remove) > 0 || len(plan.problems) != 1 || !strings.Contains(plan.problems[0], "node thief") {
		t.Errorf("the victim's, which is right: %+v", plan)
	}

	// Before there are host endpoints the kubelets count, which an agent's token cannot write for, and else the older
	// Node.
	victims := func() {
		t.Helper()
		for _, h := range planHosts(settings, view, nil).create {
			if slices.Contains(h.Spec.ExpectedIPs, victim) != (h.Name == "victim-auto-hep") {
				t.Errorf("%s: %v", h.Name, h.Spec.ExpectedIPs)
			}
		}
	}
	view.Nodes[0].Stated, view.Nodes[0].Internal, view.Nodes[1].Internal = addrs(victim), nil, addrs(victim)
	victims()
	view.Nodes[0].CreationTimestamp, view.Nodes[0].Internal = "2027-01-01T00:00:00Z", addrs(victim)
	victims()
	view.Nodes[0].Stated = nil
	next := netip.MustParseAddr("198.51.100.1")
	view.Nodes = view.Nodes[:1]
	view.Nodes[0].Internal = nil
	for range 100 {
		view.Nodes[0].Internal = append(view.Nodes[0].Internal, next)
		next = next.Next()
	}
	if plan := planHosts(settings, view, nil); len(plan.create[0].Spec.ExpectedIPs) != mostInternal || len(plan.problems) != 1 {
		t.Errorf("%d addresses, %q", len(plan.create[0].Spec.ExpectedIPs), plan.problems)
	}
}

// An automatic host endpoint alone neither closes its node nor opens it: all that it decides is allowed, as without
// one. A policy that selects it is in force.
func TestAutomaticHostEndpointIsOpen(t *testing.T) {
	made := planHosts(HostSettings{Auto: enabled, Default: true},
		&inventory.View{Nodes: []inventory.Node{hostNode("a", "192.0.2.1")}}, nil).create
	h, problems := policy.FromCalicoHostEndpoint(made[0])
	if len(problems) > 0 || !h.Allows || h.Labels["zone"] != "z" {
		t.Fatalf("%+v, %q", h, problems)
	}
	deny := &api.CalicoGlobalNetworkPolicy{Meta: api.Meta{Name: "deny"}}
	deny.Spec.Selector, deny.Spec.Types = "zone == 'z'", []string{"Ingress"}
	selected, err := policy.FromCalicoGlobalNetworkPolicy(deny, nil)
	errtest.Must(t, err)
	for _, policies := range [][]policy.Policy{nil, {selected}} {
		r := policy.Compile(policy.State{Node: "a", Policies: policies, HostEndpoints: []policy.HostEndpoint{h}})
		for stage := range policy.Stages {
			for _, d := range []policy.Direction{policy.Ingress, policy.Egress} {
				got := r.DecideHost("eth0", stage, d, netip.MustParseAddr("192.0.2.1"), netip.MustParseAddr("203.0.113.1"),
					policy.Packet{Protocol: policy.TCP, Port: 8080})
				if denied := len(policies) > 0 && stage == policy.Terminal && d == policy.Ingress; got.Allow == denied || got.NoTrack {
					t.Errorf("%d policies, stage %d, direction %d: %+v", len(policies), stage, d, got)
				}
			}
		}
	}
}
