package policy

import (
	"fmt"
	"net/netip"
	"testing"

	"github.com/tortie-net/tortie/internal/api"
	"github.com/tortie-net/tortie/internal/testkit/errtest"
)

// A pod of another namespace that declares thousands of numbers under a name does not make programs large that name it
// for pods of their own namespace, and a number that a pod of the own namespace comes with is noticed although the
// other one had it already.
func TestNamedPortsOfOtherNamespaces(t *testing.T) {
	subject, server, other := PodKey{"a", "subject"}, PodKey{"a", "server"}, PodKey{"b", "other"}
	n := &api.NetworkPolicy{Meta: api.Meta{Namespace: "a", Name: "egress"}}
	n.Spec.Egress = []api.NetworkPolicyEgressRule{{
		To: []api.NetworkPolicyPeer{{PodSelector: &api.LabelSelector{}}}, Ports: []api.NetworkPolicyPort{{Port: &api.IntOrString{Name: "http"}}},
	}}
	many := &Pod{PodKey: other, UID: "o", Addresses: []netip.Addr{netip.MustParseAddr("10.0.0.2")}}
	for i := range 1000 {
		many.Ports = append(many.Ports, NamedPort{"http", TCP, uint16(80 + 2*i)})
	}
	state := State{
		Local: map[string]PodKey{"cali1": subject}, Namespaces: map[string]map[string]string{"a": nil, "b": nil},
		Policies: []Policy{FromNetworkPolicy(n)},
		Pods:     map[PodKey]*Pod{other: many, subject: {PodKey: subject, UID: "s", Addresses: []netip.Addr{netip.MustParseAddr("10.0.0.1")}}},
	}
	before := Compile(state)
	if n := len(before.Programs[before.Endpoints["cali1"].Programs[Egress]].Ports[TCP]); n > 0 {
		t.Errorf("%d ranges of ports of a pod that is no peer", n)
	}
	state.Pods[server] = &Pod{PodKey: server, UID: "v", Addresses: []netip.Addr{netip.MustParseAddr("10.0.0.3")},
		Ports: []NamedPort{{"http", TCP, 80}}}
	if _, ok := before.Update(state, []PodKey{server}); ok {
		t.Error("a number that is new in the namespace changes no program")
	}
	after := Compile(state)
	for peer, want := range map[string]bool{"10.0.0.3": true, "10.0.0.2": false} {
		if v := after.Decide("cali1", Egress, netip.MustParseAddr(peer), Packet{Protocol: TCP, Port: 80}); v.Allow != want {
			t.Errorf("%s: %s", peer, fmt.Sprint(v))
		}
	}
}

// Kubernetes' rules name ports of pods, Calico's also ports of host endpoints. An address of both is the pod's.
func TestNamedPortsOfHostEndpoints(t *testing.T) {
	const host = "192.0.2.1"
	clusterwide, err := clusterPolicy(t, `{"tier":"Admin","subject":{"namespaces":{}},"egress":[{"action":"Deny",`+
		`"to":[{"networks":["0.0.0.0/0"]}],"protocols":[{"destinationNamedPort":"http"}]}]}`)
	errtest.Must(t, err)
	var n api.CalicoNetworkPolicy
	n.Namespace = "x"
	decode(t, `{"types":["Egress"],"egress":[{"action":"Allow","protocol":"TCP","destination":{"ports":["http"]}}]}`, &n.Spec)
	calico, err := FromCalicoNetworkPolicy(&n, nil)
	errtest.Must(t, err)
	for name, c := range map[string]struct {
		policies  []Policy
		host, pod bool
	}{
		"no peers": {
			[]Policy{networkPolicy(t, `{"policyTypes":["Egress"],"egress":[{"ports":[{"port":"http"}]}]}`)}, false, true,
		},
		"ipBlock": {
			[]Policy{networkPolicy(t, `{"policyTypes":["Egress"],"egress":[{"to":[{"ipBlock":{"cidr":"0.0.0.0/0"}}],"ports":[{"port":"http"}]}]}`)},
			false, true,
		},
		"ClusterNetworkPolicy":                {[]Policy{clusterwide}, true, false},
		"Calico":                              {[]Policy{calico}, true, true},
		"Calico and Kubernetes of one number": {[]Policy{clusterwide, calico}, true, false},
	} {
		t.Run(name, func(t *testing.T) {
			s := cluster(c.policies...)
			h := HostEndpoint{Name: "h", Addresses: []netip.Addr{netip.MustParseAddr(host), netip.MustParseAddr(xa)},
				Ports: []NamedPort{{"http", TCP, 9090}, {"http", TCP, 80}}}
			s.HostEndpoints = []HostEndpoint{h}
			check(t, s, flow{Egress, host, TCP, 80, c.host}, flow{Egress, host, TCP, 9090, c.host}, flow{Egress, xb, TCP, 9090, c.pod})
		})
	}
}

// A network set may have addresses of other namespaces' pods: their ports count, so that these pods have to be known.
func TestNamedPortsOfNetworkSets(t *testing.T) {
	p, err := calicoPolicy(t, "out", `{"action":"Allow","protocol":"TCP","destination":{"selector":"kind == 'wide'","ports":["http"]}}`)
	errtest.Must(t, err)
	s, other := cluster(p), PodKey{"y", "a"}
	s.Sets = []NetworkSet{
		{Namespace: "x", Name: "s", Labels: map[string]string{"kind": "wide"}, Nets: []netip.Prefix{netip.MustParsePrefix("10.0.0.0/8")}},
	}
	pod := *s.Pods[other]
	pod.Ports = []NamedPort{{"http", TCP, 7070}}
	s.Pods[other] = &pod
	if v := Compile(s).Decide("calia", Egress, pod.Addresses[0], Packet{Protocol: TCP, Port: 7070}); !v.Allow {
		t.Errorf("a port of another namespace's pod: %+v", v)
	}
	if got := s.Interest(); !got.All {
		t.Errorf("interest %+v, want all", got)
	}
}
