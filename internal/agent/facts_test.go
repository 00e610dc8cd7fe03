package agent

import (
	"fmt"
	"net/netip"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/tortie-net/tortie/internal/api"
	"github.com/tortie-net/tortie/internal/cluster/state"
	"github.com/tortie-net/tortie/internal/ipam"
	"github.com/tortie-net/tortie/internal/plugin/facts"
	"github.com/tortie-net/tortie/internal/testkit/errtest"
)

func ownAffinity(name, cidr string) api.BlockAffinity {
	return api.BlockAffinity{
		Meta: api.Meta{Name: name, UID: "uid-" + name, ResourceVersion: "7", Labels: map[string]string{"l": "v"},
			Annotations: map[string]string{"a": "v"}},
		Spec: api.BlockAffinitySpec{State: api.AffinityConfirmed, Node: "node-1", CIDR: cidr, Type: api.AffinityHost},
	}
}

func TestBuildFacts(t *testing.T) {
	yes, no := true, false
	node := &api.Node{Meta: api.Meta{Name: "node-1", Labels: map[string]string{"zone": "a"}}}
	type asg = state.Assignment
	tests := map[string]struct {
		in    asg
		local local
		want  func(f *facts.Facts) // changes the facts of an empty cluster
	}{
		"an empty cluster": {},
		"ready": {
			in:    asg{Information: &api.ClusterInformation{Spec: api.ClusterInformationSpec{DatastoreReady: &yes}}},
			local: local{ready: true},
			want:  func(f *facts.Facts) { f.AgentReady, f.DatastoreReady = true, true },
		},
		"plain pods": {local: local{plainPods: []string{"uid-1"}}, want: func(f *facts.Facts) { f.PlainPods = []string{"uid-1"} }},
		"locked":     {in: asg{Information: &api.ClusterInformation{Spec: api.ClusterInformationSpec{DatastoreReady: &no}}}},
		"not set":    {in: asg{Information: &api.ClusterInformation{}}},
		"a config": {in: asg{Config: &api.IPAMConfig{Spec: api.IPAMConfigSpec{StrictAffinity: true}}},
			want: func(f *facts.Facts) { f.Config = api.IPAMConfigSpec{StrictAffinity: true} }},
		"two pools": {
			in: asg{Pools: []api.IPPool{
				{Meta: api.Meta{Name: "b", UID: "u", ResourceVersion: "9", Annotations: map[string]string{"projectcalico.org/metadata": "{}"}},
					Spec: api.IPPoolSpec{CIDR: "10.1.0.0/16"}},
				{Meta: api.Meta{Name: "a", DeletionTimestamp: "2026-11-21T00:00:00Z"}, Spec: api.IPPoolSpec{CIDR: "broken"},
					Status: &api.IPPoolStatus{Conditions: []api.Condition{{Type: "Allocatable", Status: "False"}}}},
			}},
			want: func(f *facts.Facts) {
				f.Pools = []api.IPPool{
					{Meta: api.Meta{Name: "a", DeletionTimestamp: "2026-11-21T00:00:00Z"}, Spec: api.IPPoolSpec{CIDR: "broken"},
						Status: &api.IPPoolStatus{Conditions: []api.Condition{{Type: "Allocatable", Status: "False"}}}},
					{Meta: api.Meta{Name: "b"}, Spec: api.IPPoolSpec{CIDR: "10.1.0.0/16"}},
				}
			},
		},
		"reservations": {
			in: asg{Reservations: []api.IPReservation{
				{Meta: api.Meta{Name: "r", UID: "u"}, Spec: api.IPReservationSpec{ReservedCIDRs: []string{"10.1.0.0/30"}}},
			}},
			want: func(f *facts.Facts) {
				f.Reservations = []api.IPReservation{{Meta: api.Meta{Name: "r"}, Spec: api.IPReservationSpec{ReservedCIDRs: []string{"10.1.0.0/30"}}}}
			},
		},
		"affinities are whole": {
			in: asg{Affinities: []api.BlockAffinity{ownAffinity("b", "10.1.0.64/26"), ownAffinity("a", "10.1.0.0/26")}},
			want: func(f *facts.Facts) {
				f.Affinities = []facts.Affinity{{BlockAffinity: ownAffinity("a", "10.1.0.0/26")}, {BlockAffinity: ownAffinity("b", "10.1.0.64/26")}}
			},
		},
		"an affinity that is marked deleted": {
			in: asg{Affinities: []api.BlockAffinity{{Spec: api.BlockAffinitySpec{Deleted: true, CIDR: "10.1.0.0/26"}}}},
		},
		"namespaces without selectors": {
			in: asg{Namespaces: []api.Namespace{
				{Meta: api.Meta{Name: "x", UID: "u", Labels: map[string]string{"team": "blue"},
					Annotations: map[string]string{api.AnnotationIPv4Pools: `["a"]`}}},
				{Meta: api.Meta{Name: "y", Labels: map[string]string{"team": "red"}}},
			}},
			want: func(f *facts.Facts) {
				f.Namespaces = map[string]facts.Namespace{"x": {Annotations: map[string]string{api.AnnotationIPv4Pools: `["a"]`}}, "y": {}}
			},
		},
		"namespaces that a pool selects": {
			in: asg{
				Pools: []api.IPPool{
					{Meta: api.Meta{Name: "a"}, Spec: api.IPPoolSpec{CIDR: "10.1.0.0/16", NamespaceSelector: "team == 'blue' || has(tier)"}},
				},
				Namespaces: []api.Namespace{{Meta: api.Meta{Name: "x", Labels: map[string]string{"team": "blue", "other": "left out"}}},
					{Meta: api.Meta{Name: "y", Labels: map[string]string{"other": "left out"}}}},
			},
			want: func(f *facts.Facts) {
				f.Pools = []api.IPPool{
					{Meta: api.Meta{Name: "a"}, Spec: api.IPPoolSpec{CIDR: "10.1.0.0/16", NamespaceSelector: "team == 'blue' || has(tier)"}},
				}
				f.Namespaces = map[string]facts.Namespace{"x": {Labels: map[string]string{"team": "blue"}}, "y": {}}
			},
		},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			tt.in.Node = node
			want := facts.Facts{
				Node: "node-1", NodeLabels: map[string]string{"zone": "a"}, Config: ipam.DefaultConfig(), Pools: []api.IPPool{},
				Reservations: []api.IPReservation{}, Affinities: []facts.Affinity{}, Namespaces: map[string]facts.Namespace{},
			}
			if tt.want != nil {
				tt.want(&want)
			}
			got, ok := buildFacts(tt.in, tt.local)
			if d := cmp.Diff(want, got, cmpopts.IgnoreUnexported(facts.Facts{})); !ok || d != "" {
				t.Errorf("ok %v (-want +got):\n%s", ok, d)
			}
		})
	}
	if f, ok := buildFacts(asg{Pools: []api.IPPool{{}}}, local{ready: true}); ok {
		t.Errorf("a node that does not exist has facts: %+v", f)
	}
}

func TestNoneFree(t *testing.T) {
	all := func(cidr string) (addrs []netip.Addr) {
		p := netip.MustParsePrefix(cidr)
		for a := p.Addr(); p.Contains(a); a = a.Next() {
			addrs = append(addrs, a)
		}
		return addrs
	}
	tests := map[string]struct {
		cidr string
		pods []netip.Addr
		full bool
	}{
		"no pods":                  {cidr: "10.1.0.0/30"},
		"all but one":              {cidr: "10.1.0.0/30", pods: all("10.1.0.0/30")[:3]},
		"all":                      {cidr: "10.1.0.0/30", pods: all("10.1.0.0/30"), full: true},
		"all, and others around":   {cidr: "10.1.0.4/30", pods: all("10.1.0.0/28"), full: true},
		"others only":              {cidr: "10.1.0.4/30", pods: append(all("10.1.0.0/30"), all("10.1.0.8/30")...)},
		"one address":              {cidr: "10.1.0.1/32", pods: all("10.1.0.0/30"), full: true},
		"a damaged CIDR":           {cidr: "10.1.0.0", pods: all("10.1.0.0/30")},
		"IPv6, of unknown pods":    {cidr: "fd00::/122", pods: all("10.1.0.0/28")},
		"more than can be counted": {cidr: "fd00::/64", pods: all("fd00::/122")},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			got := noneFree(ownAffinity("a", tt.cidr), tt.pods)
			if (got != nil) != tt.full || got != nil && *got != 0 {
				t.Errorf("got %v, want full %v", got, tt.full)
			}
		})
	}
}

// The watches return objects in a map's order: it must not look like a change.
func TestFactsDoNotDependOnOrder(t *testing.T) {
	in := state.Assignment{Node: &api.Node{Meta: api.Meta{Name: "node-1"}}}
	for i := range 20 {
		name := fmt.Sprintf("n%d", i)
		in.Pools = append(in.Pools, api.IPPool{Meta: api.Meta{Name: name}})
		in.Reservations = append(in.Reservations, api.IPReservation{Meta: api.Meta{Name: name}})
		in.Affinities = append(in.Affinities, ownAffinity(name, fmt.Sprintf("10.1.%d.0/26", i)))
		in.Namespaces = append(in.Namespaces,
			api.Namespace{Meta: api.Meta{Name: name, Annotations: map[string]string{"cni.projectcalico.org/x": name}}})
	}
	encode := func() string {
		f, _ := buildFacts(in, local{})
		data, err := facts.Encode(f)
		errtest.Must(t, err)
		return string(data)
	}
	first := encode()
	slices.Reverse(in.Pools)
	slices.Reverse(in.Reservations)
	slices.Reverse(in.Affinities)
	slices.Reverse(in.Namespaces)
	if again := encode(); again != first {
		t.Errorf("in another order:\n%s\n%s", first, again)
	}
}

func TestOccupied(t *testing.T) {
	pods := []netip.Addr{addr("10.1.0.2"), addr("10.1.0.5")}
	for tunnel, want := range map[string][]netip.Addr{
		"":         pods,
		"10.1.0.3": {addr("10.1.0.2"), addr("10.1.0.3"), addr("10.1.0.5")},
		"10.1.0.5": pods,
		"10.1.0.9": {addr("10.1.0.2"), addr("10.1.0.5"), addr("10.1.0.9")},
	} {
		var tunnels []netip.Addr
		if tunnel != "" {
			tunnels = append(tunnels, addr(tunnel))
		}
		if got := occupied(pods, tunnels); !slices.Equal(got, want) {
			t.Errorf("with tunnel %q: %v, want %v", tunnel, got, want)
		}
	}
}

// What one change costs the agent in a big cluster.
func BenchmarkFacts(b *testing.B) {
	in := state.Assignment{Node: &api.Node{Meta: api.Meta{Name: "node-1"}}, Affinities: []api.BlockAffinity{ownAffinity("a", "10.1.0.0/26")}}
	for i := range 2000 {
		labels := map[string]string{"kubernetes.io/metadata.name": fmt.Sprintf("team-namespace-%d", i), "team": "blue"}
		in.Namespaces = append(in.Namespaces, api.Namespace{Meta: api.Meta{Name: fmt.Sprintf("team-namespace-%d", i), Labels: labels}})
	}
	for _, selector := range []string{"", "team == 'blue'"} {
		b.Run("2000 namespaces, selector "+selector, func(b *testing.B) {
			in.Pools = []api.IPPool{{Meta: api.Meta{Name: "p"}, Spec: api.IPPoolSpec{CIDR: "10.1.0.0/16", NamespaceSelector: selector}}}
			size := 0
			for b.Loop() {
				f, _ := buildFacts(in, local{})
				data, err := facts.Encode(f)
				errtest.Must(b, err)
				size = len(data)
			}
			b.ReportMetric(float64(size), "bytes")
		})
	}
}
