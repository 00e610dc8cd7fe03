package inventory

import (
	"encoding/json"
	"fmt"
	"maps"
	"net/netip"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"sigs.k8s.io/yaml"

	"github.com/tortie-net/tortie/internal/api"
	"github.com/tortie-net/tortie/internal/api/names"
	"github.com/tortie-net/tortie/internal/testkit/difftest"
	"github.com/tortie-net/tortie/internal/testkit/errtest"
)

func readYAML(t *testing.T, path string, into any) {
	t.Helper()
	text, err := os.ReadFile(path)
	errtest.Must(t, err)
	errtest.Must(t, yaml.Unmarshal(text, into))
}

// A block that a real Calico wrote.
func TestBlockOfCalico(t *testing.T) {
	var b Block
	readYAML(t, filepath.Join("..", "..", "testkit", "labtest", "testdata", "calico", "ipamblock-192-168-154-0-26.yaml"), &b)
	if b.Damage != nil || b.CIDR != netip.MustParsePrefix("192.168.154.0/26") || b.Name != "192-168-154-0-26" ||
		b.Free+len(b.Allocations) != 64 {
		t.Fatalf("%+v", b)
	}
	if _, ok := b.Owner(); !ok {
		t.Errorf("affinity %q", b.Affinity)
	}
	classes := map[Class]int{}
	for _, a := range b.Allocations {
		classes[a.Class]++
		if a.Handle == "" || a.Node == "" || a.Sequence == 0 || !b.CIDR.Contains(a.Address) {
			t.Errorf("%+v", a)
		}
		if a.Class == OfPod && (a.Since.IsZero() || a.Pod == "") {
			t.Errorf("%+v", a)
		}
	}
	if classes[OfPod] == 0 || classes[Unknown] != 0 {
		t.Errorf("classes: %v", classes)
	}
}

func TestClasses(t *testing.T) {
	text := func(s string) *string { return &s }
	for _, tc := range []struct {
		handle *string
		attrs  map[string]string
		want   Class
	}{
		{text("n.c"), map[string]string{"node": "a", "pod": "p", "namespace": "d"}, OfPod},
		{nil, map[string]string{"node": "a", "pod": "p", "namespace": "d"}, OfPod},
		{text("n.c"), map[string]string{"pod": "p", "namespace": "d"}, Unknown},
		{text("n.c"), map[string]string{"node": "a"}, OfContainer},
		{nil, map[string]string{"node": "a"}, Unknown},
		{text("ipip-tunnel-addr-a"), map[string]string{"node": "a", "type": TypeIPIP}, Tunnel},
		{text("x"), map[string]string{"node": "a", "type": "new in Calico"}, Unknown},
		{text("n.vmi.d.v"), map[string]string{"node": "a", "pod": "p", "namespace": "d", "vmi-name": "v"}, VM},
		{text("lb-x"), map[string]string{"service": "s", "namespace": "d", "type": "LoadBalancer"}, LoadBalancer},
		{text("Windows-Reserved-IPAM-handle"), map[string]string{"note": "windows host"}, Windows},
		{text("x"), nil, Unknown},
	} {
		if a := newAllocation(&api.AllocationAttribute{HandleID: tc.handle, Secondary: tc.attrs}); a.Class != tc.want || a.Further {
			t.Errorf("%v: %s, want %s", tc.attrs, a.Class, tc.want)
		}
		for ifName, further := range map[string]bool{"eth0": false, "net1": true, names.FloatingInterface: true} {
			attrs := map[string]string{names.AttributeInterface: ifName}
			maps.Copy(attrs, tc.attrs)
			if a := newAllocation(&api.AllocationAttribute{HandleID: tc.handle, Secondary: attrs}); a.Class != tc.want || a.Further != further {
				t.Errorf("%v: %s (further interface: %v), want %s", attrs, a.Class, a.Further, tc.want)
			}
		}
	}
	if name := HandleName("n.C\r"); name != "n.c" {
		t.Errorf("name %q", name)
	}
	if at := since("2026-11-20 16:04:32.68279702 +0000 UTC m=+0.012"); at.Year() != 2026 {
		t.Errorf("time stamp: %s", at)
	}
}

// Whoever writes an address, and however: it is the same address (projectcalico/calico#5044).
func TestPodsAddresses(t *testing.T) {
	for _, tc := range []struct {
		pod      string
		want     []string
		reported bool
	}{
		{`{"metadata":{"name":"p","namespace":"d"}}`, nil, false},
		{`{"status":{"podIP":"10.0.0.1","podIPs":[{"ip":"10.0.0.1"},{"ip":"FD00:0:0::00AB"}]}}`, []string{"10.0.0.1", "fd00::ab"}, true},
		{`{"status":{"podIP":"::ffff:10.0.0.1"}}`, []string{"10.0.0.1"}, true},
		{`{"metadata":{"annotations":{"cni.projectcalico.org/podIP":"10.0.0.1/32","cni.projectcalico.org/podIPs":"10.0.0.1/32, fd00:0::1/128"}}}`,
			[]string{"10.0.0.1", "fd00::1"}, false},
		{`{"metadata":{"annotations":{"cni.projectcalico.org/podIP":"","cni.projectcalico.org/podIPs":""}},"status":{"podIP":"10.0.0.9"}}`,
			[]string{"10.0.0.9"}, true},
		{`{"metadata":{"annotations":{"k8s.v1.cni.cncf.io/network-status":"[{\"ips\":[\"10.0.0.1\"]},{\"ips\":[\"10.9.0.1\",\"fd00::9\"]}]"}},` +
			`"status":{"podIP":"10.0.0.1"}}`, []string{"10.0.0.1", "10.9.0.1", "fd00::9"}, true},
		{`{"metadata":{"annotations":{"k8s.v1.cni.cncf.io/network-status":"odd"}},"status":{"podIP":"odd"}}`, nil, false},
	} {
		var p Pod
		errtest.Must(t, json.Unmarshal([]byte(tc.pod), &p))
		var got []string
		for _, a := range p.Addresses {
			got = append(got, a.String())
		}
		if d := cmp.Diff(tc.want, got); d != "" || p.Reported != tc.reported {
			t.Errorf("%s: reported %v, addresses (-want +got):\n%s", tc.pod, p.Reported, d)
		}
	}
}

func TestNodesAddresses(t *testing.T) {
	var n Node
	errtest.Must(t, json.Unmarshal(
		[]byte(`{"metadata":{"name":"a","annotations":{"projectcalico.org/IPv6Address":"fd00::1/64","projectcalico.org/IPv4Address":"10.0.0.1"}},
		"status":{"addresses":[{"type":"Hostname","address":"a"},{"type":"InternalIP","address":"::ffff:10.0.0.1"},
			{"type":"InternalIP","address":"odd"},{"type":"ExternalIP","address":"10.0.0.9"}]}}`),
		&n))
	difftest.Want(t, "stated", "[10.0.0.1 fd00::1] [10.0.0.1]", fmt.Sprint(n.Stated, n.Internal))
}

// Routing is the same before and after a heartbeat.
func TestNodesRouting(t *testing.T) {
	read := func(spec, heartbeat string) Routing {
		var n Node
		errtest.Must(t, json.Unmarshal([]byte(`{"metadata":{"name":"a","annotations":{"projectcalico.org/RouteReflectorClusterID":"10.0.0.1",
			"projectcalico.org/ASNumber":"64513","tortie.io/reflection":"reflector"}},"spec":`+spec+`,"status":{"conditions":[
			{"type":"MemoryPressure","status":"False"},
			{"type":"Ready","status":"True","lastHeartbeatTime":"`+heartbeat+`","lastTransitionTime":"2026-01-01T00:00:00Z"}]}}`), &n))
		return n.Routing
	}
	want := Routing{ClusterID: "10.0.0.1", ASN: "64513", Word: "reflector", Ready: true, Since: "2026-01-01T00:00:00Z"}
	difftest.Want(t, "first", want, read(`{}`, "2026-01-01T01:00:00Z"))
	difftest.Want(t, "after a heartbeat", want, read(`{"taints":[{"key":"other"}]}`, "2026-01-01T01:00:10Z"))
	want.Barred = true
	difftest.Want(t, "cordoned", want, read(`{"unschedulable":true}`, ""))
	difftest.Want(t, "leaving", want, read(`{"taints":[{"key":"karpenter.sh/disrupted"}]}`, ""))
	for _, m := range []api.Meta{{Labels: map[string]string{api.NoReflector: ""}}, {Annotations: map[string]string{api.NoReflector: ""}}} {
		if n := NewNode(m); !n.Routing.Barred {
			t.Errorf("%+v is no bar", m)
		}
	}
}

func TestJudge(t *testing.T) {
	at := netip.MustParseAddr("10.0.0.1")
	allocation := Allocation{Address: at, Handle: "n.c", Class: OfPod, Node: "a", Namespace: "d", Pod: "p"}
	change := func(f func(*Allocation)) Allocation { a := allocation; f(&a); return a }
	pod := func(f func(*Pod)) []Pod {
		p := Pod{Meta: api.Meta{Name: "p", Namespace: "d"}, Node: "a", Addresses: []netip.Addr{at}, Reported: true}
		f(&p)
		return []Pod{p}
	}
	nodes := []Node{{Meta: api.Meta{Name: "a"}}}
	for _, tc := range []struct {
		what  string
		a     Allocation
		pods  []Pod
		nodes []Node
		want  Verdict
	}{
		{"a pod that runs", allocation, pod(func(*Pod) {}), nodes, Live},
		{"a pod that runs on a node whose Node is gone", allocation, pod(func(*Pod) {}), nil, Live},
		{"a pod that is being deleted", allocation, pod(func(p *Pod) { p.DeletionTimestamp = "now" }), nodes, Live},
		{"a pod that says nothing yet", allocation, pod(func(p *Pod) { p.Addresses, p.Reported = nil, false }), nodes, Live},
		{"a pod that is not scheduled, under the name of an older one", allocation,
			pod(func(p *Pod) { p.Node, p.Addresses, p.Reported = "", nil, false }), nodes, Live},
		{"a pod that is gone", allocation, nil, nodes, Dead},
		{"a pod that is gone with its node", allocation, nil, nil, Orphaned},
		{"a completed Job's pod", allocation, pod(func(p *Pod) { p.Finished = true }), nodes, Dead},
		{"a pod on another node", allocation, pod(func(p *Pod) { p.Node = "b" }), nodes, Dead},
		{"a pod with another address", allocation,
			pod(func(p *Pod) { p.Addresses = []netip.Addr{netip.MustParseAddr("10.0.0.2")} }), nodes, Dead},
		{"a further interface of a pod that does not say so",
			change(func(a *Allocation) { a.Address, a.Further = netip.MustParseAddr("10.0.0.2"), true }),
			pod(func(*Pod) {}), nodes, Live},
		{"a further interface of a pod that is gone", change(func(a *Allocation) { a.Further = true }), nil, nodes, Dead},
		{"one of a pod's many addresses", allocation,
			pod(func(p *Pod) { p.Addresses = []netip.Addr{netip.MustParseAddr("fd00::1"), at} }), nodes, Live},
		{"a pod in the node's network", allocation, pod(func(p *Pod) { p.HostNetwork, p.Addresses = true, nil }), nodes, Dead},
		{"another namespace's pod", allocation, pod(func(p *Pod) { p.Namespace = "e" }), nodes, Dead},
		{"one that cools down", change(func(a *Allocation) { a.Released = time.Now() }), nil, nodes, Live},
		{"a tunnel", change(func(a *Allocation) { a.Class = Tunnel }), nil, nodes, Live},
		{"a dead node's tunnel", change(func(a *Allocation) { a.Class = Tunnel }), nil, nil, Orphaned},
		{"a tunnel of nobody", change(func(a *Allocation) { a.Class, a.Node = Tunnel, "" }), nil, nodes, Live},
		{"a container", change(func(a *Allocation) { a.Class = OfContainer }), nil, nodes, Live},
		{"a dead node's container", change(func(a *Allocation) { a.Class = OfContainer }), nil, nil, Orphaned},
		{"a virtual machine", change(func(a *Allocation) { a.Class = VM }), nil, nil, Foreign},
		{"a Service", change(func(a *Allocation) { a.Class = LoadBalancer }), nil, nil, Foreign},
		{"what Windows reserves", change(func(a *Allocation) { a.Class = Windows }), nil, nil, Live},
		{"nobody knows what", change(func(a *Allocation) { a.Class = Unknown }), nil, nil, Foreign},
	} {
		got, why := NewIndex(tc.nodes, tc.pods).Judge(&tc.a)
		if got != tc.want || (why == "") != (got == Live || got == Foreign) {
			t.Errorf("%s: verdict %d because %q, want %d", tc.what, got, why, tc.want)
		}
	}
}
