package policy

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/tortie-net/tortie/internal/api"
)

// A tenant's networks count for policies of others up to the limit of a namespace, by order of names; all count for its
// own policies, and where other policies would be open without them. Networks of other tenants, and of administrators,
// all count.
func TestSharedNetworksAreBounded(t *testing.T) {
	next := 0
	object := func(namespace, name string, nets int) (*api.CalicoNetworkSet, []netip.Addr) {
		s := &api.CalicoNetworkSet{Meta: api.Meta{Namespace: namespace, Name: name, Labels: map[string]string{"role": "mon"}}}
		var all []netip.Addr
		for range nets {
			s.Spec.Nets = append(s.Spec.Nets, host(next).String())
			all = append(all, host(next).Addr())
			next++
		}
		return s, all
	}
	one, ofOne := object("b", "1", 6000)
	two, ofTwo := object("b", "2", 6000)
	three, ofThree := object("b", "3", 1)
	other, ofOther := object("c", "x", mostShared)
	objects := []*api.CalicoNetworkSet{three, other, two, one}
	surplus := FindSurplus(objects)
	if len(surplus) != 2 || surplus[two].Shared != 4000 || len(surplus[two].Problems) != 1 || surplus[three].Shared != 0 ||
		len(surplus[three].Problems) != 0 {
		t.Fatalf("%+v", surplus)
	}
	for _, want := range []string{"spec.nets[4000]", "namespace b ", " 12001 networks", " 10000 "} {
		if !strings.Contains(surplus[two].Problems[0], want) {
			t.Errorf("the problem lacks %q: %s", want, surplus[two].Problems[0])
		}
	}
	state := State{Local: map[string]PodKey{}, Namespaces: map[string]map[string]string{}, Pods: map[PodKey]*Pod{}}
	for i, namespace := range []string{"a", "b"} {
		key := PodKey{namespace, "p"}
		state.Local["cali-"+namespace], state.Namespaces[namespace] = key, nil
		state.Pods[key] = &Pod{PodKey: key, Addresses: []netip.Addr{netip.AddrFrom4([4]byte{192, 0, 2, byte(i)})}}
	}
	state.Namespaces["c"] = nil
	for _, o := range objects {
		set, problems := FromCalicoNetworkSet(o)
		if of, found := surplus[o]; found {
			set = set.Sharing(of)
		}
		if len(problems) > 0 {
			t.Fatal(problems)
		}
		state.Sets = append(state.Sets, set)
	}
	kept, left := slices.Concat(ofOne[:1], ofTwo[3999:4000], ofOther[mostShared-1:]), slices.Concat(ofTwo[4000:4001], ofTwo[5999:], ofThree)
	for name, c := range map[string]struct {
		action, entity string
		namespace      string // of the policy
		link           string
		counts         []netip.Addr
		not            []netip.Addr
	}{
		"Allow of an administrator": {"Allow", `"selector":"role == 'mon'"`, "", "a", kept, left},
		"Deny of an administrator":  {"Deny", `"selector":"role == 'mon'"`, "", "a", slices.Concat(kept, left), nil},
		"Pass of an administrator":  {"Pass", `"selector":"role == 'mon'"`, "", "a", left, kept},
		"all others to an Allow":    {"Allow", `"notSelector":"role == 'mon'"`, "", "a", nil, slices.Concat(kept, left)},
		"all others of one":         {"Deny", `"notSelector":"role == 'mon'"`, "", "a", left, kept},
		"of another namespace":      {"Allow", `"selector":"role == 'mon'","namespaceSelector":"all()"`, "a", "a", kept, left},
		"of its own":                {"Allow", `"selector":"role == 'mon'"`, "b", "b", slices.Concat(ofOne[:1], left), ofOther[:1]},
		"of its own, with all others": {"Allow", `"selector":"role == 'mon'","namespaceSelector":"all()"`, "b", "b",
			slices.Concat(kept, left), nil},
	} {
		t.Run(name, func(t *testing.T) {
			rest := map[string]string{"Allow": "Deny", "Deny": "Allow", "Pass": "Allow"}[c.action]
			p := policyIn(t, fmt.Sprintf(`{"spec":{"types":["Ingress"],"ingress":[{"action":"%s","source":{%s}},{"action":"%s"}]}}`, c.action,
				c.entity, rest), c.namespace)
			state.Policies = []Policy{p}
			got := Compile(state)
			if len(got.TooLarge) > 0 {
				t.Errorf("too large: %v", got.TooLarge)
			}
			for _, a := range slices.Concat(c.counts, c.not) {
				packet, want := Packet{Protocol: TCP, Port: 80}, (c.action == "Allow") == slices.Contains(c.counts, a)
				if v := got.Decide("cali-"+c.link, Ingress, a, packet); v.Allow != want {
					t.Errorf("%s: %+v", a, v)
				}
				if e := Explain(state, Party{Address: a}, Party{Pod: PodKey{c.link, "p"}}, packet); e.Allow != want {
					t.Errorf("%s: explained as %v", a, e.Allow)
				}
			}
		})
	}
}

// Networks over the limit take no more room than the others, however many they are: the nearest are joined.
func TestSurplusIsBounded(t *testing.T) {
	var s NetworkSet
	for i := range 3 * mostShared {
		s.Nets = append(s.Nets, host(12*(i/3)+i%3)) // three near each other, far from the next three
	}
	objects := []*api.CalicoNetworkSet{
		{Meta: api.Meta{Namespace: "a", Name: "one"}, Spec: api.CalicoNetworkSetSpec{Nets: make([]string, len(s.Nets))}},
	}
	s = s.Sharing(FindSurplus(objects)[objects[0]])
	wide := s.wide()
	if len(wide) > mostShared || len(minus(rangesOf(s.Private), wide)) > 0 {
		t.Fatalf("%d ranges for %d networks", len(wide), len(s.Private))
	}
	if between := host(12*mostShared/2 + 8).Addr(); wide.contains(between) {
		t.Errorf("%s is far from all networks", between)
	}
}
