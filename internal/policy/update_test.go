package policy

import (
	"maps"
	"net/netip"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/tortie-net/tortie/internal/testkit/errtest"
)

// Members differ for exactly the addresses that Update names.
func checkTouched(t *testing.T, before, after map[netip.Addr][]SetID, touched []netip.Addr) {
	t.Helper()
	for _, a := range worldAddresses() {
		if slices.Contains(touched, a) == slices.Equal(before[a], after[a]) {
			t.Errorf("%v: sets %v, then %v; touched %v", a, before[a], after[a], touched)
		}
	}
}

func TestUpdate(t *testing.T) {
	allow := networkPolicy(t, `{"ingress":[{"from":[{"namespaceSelector":{},"podSelector":{"matchLabels":{"app":"b"}}}]}]}`)
	named := networkPolicy(t, `{"egress":[{"ports":[{"port":"http"}]}]}`)
	pod := func(labels map[string]string, ports []NamedPort, address string) *Pod {
		return &Pod{PodKey: PodKey{"y", "b"}, Labels: labels, Ports: ports, Addresses: []netip.Addr{netip.MustParseAddr(address)}}
	}
	b, http := map[string]string{"app": "b"}, []NamedPort{{"http", TCP, 9090}}
	for name, c := range map[string]struct {
		policy  Policy
		key     PodKey
		pod     *Pod
		touched []string
		ok      bool
	}{
		"gone": {allow, PodKey{"y", "b"}, nil, []string{yb, "fd00::4"}, true},
		"no change that counts": {allow, PodKey{"y", "a"},
			&Pod{PodKey: PodKey{"y", "a"}, Addresses: []netip.Addr{netip.MustParseAddr(ya)}}, nil, true},
		"other labels":            {allow, PodKey{"y", "b"}, pod(nil, http, yb), []string{yb, "fd00::4"}, true},
		"other address":           {allow, PodKey{"y", "b"}, pod(b, http, "10.0.0.9"), []string{yb, "10.0.0.9", "fd00::4"}, true},
		"a local pod":             {allow, PodKey{"x", "b"}, nil, []string{xb, "fd00::2"}, true},
		"ports that nobody names": {allow, PodKey{"y", "b"}, pod(b, nil, yb), []string{"fd00::4"}, true},
		"a new number":            {named, PodKey{"y", "b"}, pod(b, []NamedPort{{"http", TCP, 7070}}, yb), nil, false},
		"a number of others, too": {named, PodKey{"y", "b"}, pod(b, []NamedPort{{"http", TCP, 8080}}, yb), []string{yb, "fd00::4"}, true},
		"a namespace that is new": {allow, PodKey{"new", "p"}, &Pod{PodKey: PodKey{"new", "p"}, Labels: b}, nil, true},
		"a pod that is not known": {allow, PodKey{"y", "none"}, nil, nil, true},
		"an address that is taken": {allow, PodKey{"y", "z"},
			&Pod{PodKey: PodKey{"y", "z"}, Labels: b, Addresses: []netip.Addr{netip.MustParseAddr(xa)}}, nil, true},
	} {
		t.Run(name, func(t *testing.T) {
			s := cluster(c.policy)
			compiled := Compile(s)
			before := maps.Clone(compiled.Members)
			if s.Pods[c.key] = c.pod; c.pod == nil {
				delete(s.Pods, c.key)
			}
			touched, ok := compiled.Update(s, []PodKey{c.key})
			if ok != c.ok {
				t.Fatalf("ok %v, want %v", ok, c.ok)
			}
			var got []string
			for _, a := range touched {
				got = append(got, a.String())
			}
			if !slices.Equal(got, c.touched) {
				t.Errorf("touched %v, want %v", got, c.touched)
			}
			checkTouched(t, before, compiled.Members, touched)
		})
	}
}

// Local pods come, change and go, as long as each has policies, and ports if these count, that another one has, or had.
func TestUpdateOfLocalPods(t *testing.T) {
	all := networkPolicy(t, `{"ingress":[{"from":[{"podSelector":{"matchLabels":{"app":"b"}}}]}]}`)
	named := networkPolicy(t, `{"ingress":[{"ports":[{"port":"http"}]}]}`)
	one := networkPolicy(t, `{"podSelector":{"matchLabels":{"app":"b"}}}`)
	pod := func(name, app string, port uint16) *Pod {
		return &Pod{PodKey: PodKey{"x", name}, UID: name + app, Labels: map[string]string{"app": app}, Ports: []NamedPort{{"http", TCP, port}},
			Addresses: []netip.Addr{netip.MustParseAddr("10.0.0.9")}}
	}
	for name, c := range map[string]struct {
		policy Policy
		link   string // with pod, or none
		pod    *Pod   // of the name, or x/b is gone
		ok     bool
		unused bool
	}{
		"another one":                {all, "calic", pod("c", "b", 1), true, false},
		"gone":                       {all, "", nil, true, false},
		"gone, its link is there":    {all, "calib", nil, true, false},
		"a link without a pod":       {all, "calic", nil, true, false},
		"other labels":               {all, "calib", pod("b", "c", 1), true, false},
		"a link of another pod":      {all, "calib", pod("c", "b", 1), true, false},
		"with a port as another":     {named, "calic", pod("c", "c", 8080), true, false},
		"with a port of its own":     {named, "calic", pod("c", "c", 1), false, false},
		"without the policy of b":    {one, "calic", pod("c", "c", 1), true, false},
		"with the policy of b":       {one, "calic", pod("c", "b", 1), true, false},
		"b has its policy alone":     {one, "", nil, true, true},
		"nobody is without a policy": {all, "calin", &Pod{PodKey: PodKey{"new", "n"}}, false, false},
	} {
		t.Run(name, func(t *testing.T) {
			s := cluster(c.policy)
			compiled := Compile(s)
			before := maps.Clone(compiled.Members)
			gone := PodKey{"x", "b"}
			s.Local = maps.Clone(s.Local)
			if c.pod == nil {
				delete(s.Pods, gone)
			}
			switch {
			case c.link == "":
				delete(s.Local, "calib")
			case c.pod == nil:
				s.Local[c.link] = gone
			default:
				s.Local[c.link], s.Pods[c.pod.PodKey] = c.pod.PodKey, c.pod
			}
			changed := []PodKey{gone}
			if c.pod != nil {
				changed = []PodKey{c.pod.PodKey}
			}
			touched, ok := compiled.Update(s, changed)
			if ok != c.ok {
				t.Fatalf("ok %v, want %v", ok, c.ok)
			}
			if !ok {
				return
			}
			checkTouched(t, before, compiled.Members, touched)
			again := Select(s)
			if d := cmp.Diff(again.Compile().Ruleset, used(compiled), sameAddresses); d != "" || compiled.Unused() != c.unused {
				t.Errorf("unused programs %v, (-from scratch +updated):\n%s", compiled.Unused(), d)
			}
			if d := cmp.Diff(again.byLink, compiled.selection.byLink); d != "" {
				t.Errorf("policies by link (-from scratch +updated):\n%s", d)
			}
		})
	}
}

func TestUpdateAfterLabelsOfANamespace(t *testing.T) {
	allow := networkPolicy(t, `{"ingress":[{"from":[{"namespaceSelector":{},"podSelector":{"matchLabels":{"app":"b"}}}]}]}`)
	s := cluster(allow)
	delete(s.Namespaces, "y")
	compiled := Compile(s)
	if _, ok := compiled.Update(cluster(allow), []PodKey{{"y", "b"}}); ok {
		t.Error("the labels of a namespace became known, and Compile was not asked for")
	}
}

func TestInterest(t *testing.T) {
	for spec, want := range map[string]Interest{
		`{}`: {},
		`{"ingress":[{"from":[{"podSelector":{}},{"ipBlock":{"cidr":"10.0.0.0/8"}}]}]}`:                  {Namespaces: []string{"x"}},
		`{"ingress":[{"from":[{"namespaceSelector":{"matchLabels":{"team":"red"}}}]}]}`:                  {Namespaces: []string{"y"}},
		`{"ingress":[{"from":[{"namespaceSelector":{}}]}]}`:                                              {All: true},
		`{"ingress":[{"ports":[{"port":"http"}]}]}`:                                                      {},
		`{"egress":[{"ports":[{"port":"http"}]}]}`:                                                       {All: true},
		`{"egress":[{"ports":[{"port":"http"}],"to":[{"ipBlock":{"cidr":"10.0.0.0/8"}}]}]}`:              {All: true},
		`{"egress":[{"ports":[{"port":"http"}],"to":[{"podSelector":{}}]}]}`:                             {Namespaces: []string{"x"}},
		`{"podSelector":{"matchLabels":{"app":"none"}},"ingress":[{"from":[{"namespaceSelector":{}}]}]}`: {},
	} {
		got := cluster(networkPolicy(t, spec)).Interest()
		if got.All != want.All || !slices.Equal(got.Namespaces, want.Namespaces) {
			t.Errorf("%s: %+v, want %+v", spec, got, want)
		}
	}
}

// The same selector on namespaces matches others as Calico shows these, with their names.
func TestInterestOfBothViewsOfNamespaces(t *testing.T) {
	plain, err := clusterPolicy(t, `{"tier":"Admin","priority":1,"subject":{"namespaces":{}},"egress":[{"action":"Deny","to":[
		{"namespaces":{"matchExpressions":[{"key":"projectcalico.org/name","operator":"Exists"}]}}]}]}`)
	errtest.Must(t, err)
	calico, err := calicoPolicy(t, "global, out", `{"action":"Deny","destination":{"namespaceSelector":"has(projectcalico.org/name)"}}`)
	errtest.Must(t, err)
	if got := cluster(plain).Interest(); got.All || len(got.Namespaces) > 0 {
		t.Errorf("by labels alone: %+v, want none", got)
	}
	if got := cluster(plain, calico).Interest(); !slices.Equal(got.Namespaces, []string{"x", "y"}) {
		t.Errorf("with names: %+v, want both", got)
	}
}

// While there is no policy at all, links that are not known pass.
func TestClosed(t *testing.T) {
	addr := netip.MustParseAddr(outside)
	if r := Compile(cluster()); r.Closed || !r.Decide("unknown", Ingress, addr, Packet{Protocol: TCP, Port: 1}).Allow ||
		r.Endpoints["calia"].UID != "x/a" || len(r.Programs) > 0 {
		t.Errorf("without policies: %+v", r.Ruleset)
	}
	s := cluster(networkPolicy(t, `{"podSelector":{"matchLabels":{"app":"none"}}}`))
	s.Local["caligone"] = PodKey{"x", "gone"}
	r := Compile(s)
	for link, want := range map[string]bool{"unknown": false, "caligone": false, "calia": true} {
		if got := r.Decide(link, Ingress, addr, Packet{Protocol: TCP, Port: 1}).Allow; got != want {
			t.Errorf("%s passes %v, want %v", link, got, want)
		}
	}
}

// Many policies do not make the lists longer.
func TestLookupsAreBounded(t *testing.T) {
	for name, s := range map[string]State{"dense": city(true), "admin": admin(city(true), 30)} {
		most := 0
		for _, p := range Compile(s).Programs {
			p.lists(func(l *List) { most = max(most, len(l.Steps)) })
		}
		if most > 2*(mostGroups+mostDenying+3) {
			t.Errorf("%s: a list has %d steps", name, most)
		}
	}
}
