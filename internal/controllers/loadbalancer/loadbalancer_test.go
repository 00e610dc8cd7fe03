package loadbalancer

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/tortie-net/tortie/internal/api"
	"github.com/tortie-net/tortie/internal/testkit/errtest"
)

func service(change ...func(*api.Service)) *api.Service {
	s := &api.Service{Meta: api.Meta{Namespace: "d", Name: "s", UID: "u"},
		Spec: api.ServiceSpec{Type: api.ServiceLoadBalancer, IPFamilies: []string{"IPv4"}}}
	for _, c := range change {
		c(s)
	}
	return s
}

func note(key, value string) func(*api.Service) {
	return func(s *api.Service) { s.Annotations = map[string]string{key: value} }
}

func dual(s *api.Service) { s.Spec.IPFamilies = []string{"IPv6", "IPv4"} }

func ofClass(name string) func(*api.Service) {
	return func(s *api.Service) { s.Spec.LoadBalancerClass = &name }
}

func loadBalancerIP(text string) func(*api.Service) {
	return func(s *api.Service) { s.Spec.LoadBalancerIP = text }
}

func ofType(name string) func(*api.Service) { return func(s *api.Service) { s.Spec.Type = name } }

func addrs(texts ...string) (all []netip.Addr) {
	for _, text := range texts {
		all = append(all, netip.MustParseAddr(text))
	}
	return all
}

func pool(name, cidr string, change ...func(*api.IPPool)) api.IPPool {
	p := api.IPPool{Meta: api.Meta{Name: name}, Spec: api.IPPoolSpec{CIDR: cidr, AllowedUses: []api.AllowedUse{api.UseLoadBalancer}}}
	for _, c := range change {
		c(&p)
	}
	return p
}

func TestManaged(t *testing.T) {
	for _, tc := range []struct {
		name             string
		change           []func(*api.Service)
		all, requestOnly bool
	}{
		{"plain", nil, true, false},
		{"another type", []func(*api.Service){ofType("ClusterIP"), note(api.AnnotationServicePoolsV4, `["a"]`)}, false, false},
		{"our class", []func(*api.Service){ofClass("calico")}, true, true},
		{"another class", []func(*api.Service){ofClass("metallb"), note(api.AnnotationServicePoolsV4, `["a"]`)}, false, false},
		{"empty annotation", []func(*api.Service){note(api.AnnotationServicePoolsV4, "")}, true, false},
		{"pools", []func(*api.Service){note(api.AnnotationServicePoolsV6, `["a"]`)}, true, true},
		{"addresses", []func(*api.Service){note(api.AnnotationServiceAddresses, `["10.0.0.1"]`)}, true, true},
		{"loadBalancerIP", []func(*api.Service){loadBalancerIP("10.0.0.1")}, true, true},
		{"being deleted", []func(*api.Service){func(s *api.Service) { s.DeletionTimestamp = "2026-11-26T00:00:00Z" }}, false, false},
	} {
		s := service(tc.change...)
		if all, only := Managed(s, false), Managed(s, true); all != tc.all || only != tc.requestOnly {
			t.Errorf("%s: managed %v, of RequestedServicesOnly %v; want %v, %v", tc.name, all, only, tc.all, tc.requestOnly)
		}
	}
}

func TestRead(t *testing.T) {
	for _, tc := range []struct {
		change []func(*api.Service)
		want   string // the addresses and pools, or a part of the error
	}{
		{nil, "[] [] []"},
		{[]func(*api.Service){loadBalancerIP("10.0.0.1")}, "[10.0.0.1] [] []"},
		{[]func(*api.Service){loadBalancerIP("10.0.0.1"), note(api.AnnotationServiceAddresses, `["10.0.0.2"]`)}, "[10.0.0.2] [] []"},
		{[]func(*api.Service){note(api.AnnotationServicePoolsV4, `["a", "10.0.0.0/24"]`)}, "[] [a 10.0.0.0/24] []"},
		{[]func(*api.Service){dual, note(api.AnnotationServiceAddresses, `["fd00::1", "10.0.0.1"]`)}, "[fd00::1 10.0.0.1] [] []"},
		{[]func(*api.Service){note(api.AnnotationServiceAddresses, `["10.0.0.1", "10.0.0.2"]`)}, "10.0.0.1 and 10.0.0.2 are of one family"},
		{[]func(*api.Service){note(api.AnnotationServiceAddresses, `["fd00::1"]`)}, "fd00::1 is of a family that spec.ipFamilies lacks"},
		{[]func(*api.Service){note(api.AnnotationServiceAddresses, `["::ffff:10.0.0.1"]`)}, `"::ffff:10.0.0.1" is no IP address`},
		{[]func(*api.Service){note(api.AnnotationServiceAddresses, `10.0.0.1`)}, "no JSON list"},
		{[]func(*api.Service){note(api.AnnotationServicePoolsV4, `{"a":`+strings.Repeat("1", 1000))}, "..."},
		{[]func(*api.Service){loadBalancerIP("lb.example")}, `spec.loadBalancerIP: "lb.example" is no IP address`},
	} {
		s := service(tc.change...)
		w, err := Read(s)
		got := fmt.Sprint(w.Addresses, w.PoolsV4, w.PoolsV6)
		if err != nil {
			got = err.Error()
		}
		if !strings.Contains(got, tc.want) || len(got) > 300 {
			t.Errorf("%v %s: %s, want %s", s.Annotations, s.Spec.LoadBalancerIP, got, tc.want)
		}
	}
}

func TestSplit(t *testing.T) {
	manual := func(p *api.IPPool) { p.Spec.AssignmentMode = api.AssignManual }
	off := func(p *api.IPPool) { p.Spec.Disabled = true }
	workload := func(p *api.IPPool) { p.Spec.AllowedUses = nil }
	all := []api.IPPool{
		pool("a", "10.0.0.0/24"), pool("b", "10.0.1.0/24"), pool("manual", "10.0.2.0/24", manual), pool("six", "fd00::/112"),
		pool("off", "10.0.3.0/24", off), pool("pods", "10.0.4.0/24", workload),
	}
	broken := append(slices.Clone(all), pool("broken", "10.0.9.0/33"))
	for _, tc := range []struct {
		name             string
		pools            []api.IPPool
		change           []func(*api.Service)
		held, keep, drop []netip.Addr
	}{
		{"one", all, nil, addrs("10.0.0.1"), addrs("10.0.0.1"), nil},
		{"two of a family", all, nil, addrs("10.0.1.1", "10.0.0.1"), addrs("10.0.0.1"), addrs("10.0.1.1")},
		{"in the order of families", all, []func(*api.Service){dual}, addrs("10.0.0.1", "fd00::1"), addrs("fd00::1", "10.0.0.1"), nil},
		{"a family that it has no more", all, nil, addrs("10.0.0.1", "fd00::1"), addrs("10.0.0.1"), addrs("fd00::1")},
		{"another pool", all, []func(*api.Service){note(api.AnnotationServicePoolsV4, `["b"]`)}, addrs("10.0.0.1"), nil, addrs("10.0.0.1")},
		{"its pool by CIDR", all, []func(*api.Service){note(api.AnnotationServicePoolsV4, `["10.0.0.0/24"]`)},
			addrs("10.0.0.1"), addrs("10.0.0.1"), nil},
		{"pools of one family say nothing of the other", all, []func(*api.Service){dual, note(api.AnnotationServicePoolsV4, `["b"]`)},
			addrs("fd00::1"), addrs("fd00::1"), nil},
		{"manual, asked for", all, []func(*api.Service){note(api.AnnotationServicePoolsV4, `["manual"]`)},
			addrs("10.0.2.1"), addrs("10.0.2.1"), nil},
		{"manual, not asked for", all, nil, addrs("10.0.2.1"), nil, addrs("10.0.2.1")},
		{"manual, by address", all, []func(*api.Service){note(api.AnnotationServiceAddresses, `["10.0.2.1"]`)},
			addrs("10.0.2.1"), addrs("10.0.2.1"), nil},
		{"another address", all, []func(*api.Service){loadBalancerIP("10.0.0.2")}, addrs("10.0.0.1"), nil, addrs("10.0.0.1")},
		{"disabled pool", all, nil, addrs("10.0.3.1"), addrs("10.0.3.1"), nil},
		{"pool of pods", all, nil, addrs("10.0.4.1"), nil, addrs("10.0.4.1")},
		{"no pool", all, nil, addrs("10.0.9.1"), nil, addrs("10.0.9.1")},
		{"perhaps a pool that cannot be read", broken, nil, addrs("10.0.9.1"), addrs("10.0.9.1"), nil},
	} {
		w, err := Read(service(tc.change...))
		pools := ReadPools(tc.pools)
		if keep, drop := w.Split(tc.held, &pools); err != nil || !slices.Equal(keep, tc.keep) || !slices.Equal(drop, tc.drop) {
			t.Errorf("%s: keeps %v, drops %v, %v; want %v, %v", tc.name, keep, drop, err, tc.keep, tc.drop)
		}
	}
}

func TestUnknownPools(t *testing.T) {
	pools := ReadPools([]api.IPPool{pool("a", "10.0.0.0/24")})
	for text, fault := range map[string]bool{`["a"]`: false, `["10.0.0.0/24","a","a"]`: false, `["a","b"]`: true, `["10.0.0.0/25"]`: true} {
		w, err := Read(service(note(api.AnnotationServicePoolsV4, text)))
		errtest.Must(t, err)
		if err := w.Unknown(&pools); (err != nil) != fault {
			t.Errorf("%s: %v", text, err)
		}
		if len(w.PoolsV4) > 2 {
			t.Errorf("%s: pools %q", text, w.PoolsV4)
		}
	}
}

func TestStatus(t *testing.T) {
	pools := ReadPools([]api.IPPool{pool("a", "10.0.0.0/24")})
	s := service(func(s *api.Service) {
		s.Status.LoadBalancer.Ingress = []api.LoadBalancerIngress{{IP: "192.0.2.1"}, {IP: "10.0.0.1"}, {}, {IP: "10.0.0.2"}}
	})
	if lost := Lost(s, addrs("10.0.0.2"), nil, &pools); !slices.Equal(lost, []int{1}) {
		t.Errorf("lost entries %v, want the one of the pool that is not kept: 1", lost)
	}
	if Shows(s, addrs("10.0.0.2", "10.0.0.1")) {
		t.Error("a status with entries of others shows more than two addresses")
	}
	s.Status.LoadBalancer.Ingress = []api.LoadBalancerIngress{{IP: "10.0.0.1"}, {IP: "FD00::1"}}
	if !Shows(s, addrs("fd00::1", "10.0.0.1")) {
		t.Error("the order of entries matters")
	}
}
