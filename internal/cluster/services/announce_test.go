package services

import (
	"encoding/json"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/tortie-net/tortie/internal/api"
	"github.com/tortie-net/tortie/internal/testkit/errtest"
)

// texts are the settings of a test.
type texts struct {
	ClusterIPs, ExternalIPs, LoadBalancerIPs []string
	Aggregation                              string
}

func (t texts) spec() *api.BGPConfigurationSpec {
	of := func(all []string) (out []api.ServiceRange) {
		for _, cidr := range all {
			out = append(out, api.ServiceRange{CIDR: cidr})
		}
		return out
	}
	return &api.BGPConfigurationSpec{
		ServiceClusterIPs: of(t.ClusterIPs), ServiceExternalIPs: of(t.ExternalIPs), ServiceLoadBalancerIPs: of(t.LoadBalancerIPs),
		ServiceLoadBalancerAggregation: t.Aggregation,
	}
}

// parsed reads settings that are right.
func parsed(t *testing.T, settings texts) Config {
	t.Helper()
	c, problems := Parse(settings.spec())
	if len(problems) > 0 {
		t.Fatal(problems)
	}
	return c
}

func web(change func(*api.Service)) api.Service {
	s := api.Service{Meta: api.Meta{Namespace: "shop", Name: "web"}}
	s.Spec = api.ServiceSpec{
		Type: api.ServiceLoadBalancer, ClusterIP: "10.96.0.7", ClusterIPs: []string{"10.96.0.7"},
		ExternalIPs:           []string{"192.0.2.7", "203.0.113.9"},
		ExternalTrafficPolicy: api.TrafficCluster,
	}
	s.Status.LoadBalancer.Ingress = []api.LoadBalancerIngress{{IP: "198.51.100.7"}, {}}
	if change != nil {
		change(&s)
	}
	return s
}

func local(s *api.Service) { s.Spec.ExternalTrafficPolicy = api.TrafficLocal }

func dual(s *api.Service) { s.Spec.ClusterIPs = []string{"10.96.0.7", "fd00:96::7"} }

func both(changes ...func(*api.Service)) func(*api.Service) {
	return func(s *api.Service) {
		for _, change := range changes {
			change(s)
		}
	}
}

var (
	here      = []Endpoints{{Namespace: "shop", Service: "web", Here: true, Anywhere: true}}
	elsewhere = []Endpoints{{Namespace: "shop", Service: "web", Anywhere: true},
		{Namespace: "other", Service: "web", Here: true, Anywhere: true}}
	here6   = []Endpoints{{Namespace: "shop", Service: "web", IPv6: true, Here: true, Anywhere: true}}
	unready = []Endpoints{{Namespace: "shop", Service: "web"}}
)

func TestAnnounce(t *testing.T) {
	const clusterIPs, externalIPs, loadBalancerIPs = "10.96.0.0/12", "192.0.2.0/24", "198.51.100.0/24"
	cluster := texts{ClusterIPs: []string{clusterIPs}}
	all := texts{ClusterIPs: []string{clusterIPs}, ExternalIPs: []string{externalIPs}, LoadBalancerIPs: []string{loadBalancerIPs}}
	apart := all
	apart.Aggregation = "Disabled"
	wholes := clusterIPs + " " + externalIPs + " " + loadBalancerIPs
	for _, c := range []struct {
		name      string
		texts     texts
		service   api.Service
		endpoints []Endpoints
		excluded  bool
		want      string
	}{
		{"nothing is asked for", texts{}, web(local), here, false, ""},
		{"ranges from every node", all, web(nil), nil, false, wholes},
		{"policy Cluster adds nothing", all, web(nil), here, false, wholes},
		{"an excluded node announces nothing", all, web(local), here, true, ""},
		{"Local, endpoint here", all, web(local), here, false,
			clusterIPs + " 10.96.0.7/32 " + externalIPs + " 192.0.2.7/32 " + loadBalancerIPs + " 198.51.100.7/32"},
		{"Local, endpoint elsewhere", all, web(local), elsewhere, false, wholes},
		{"Local, not ready", all, web(local), unready, false, wholes},
		{"Local, no endpoint known", all, web(local), nil, false, wholes},
		{"Local, only cluster IPs are announced", cluster, web(local), here, false, clusterIPs + " 10.96.0.7/32"},
		{"cluster IPs are not asked for", texts{ExternalIPs: []string{externalIPs}}, web(local), here, false, externalIPs + " 192.0.2.7/32"},
		{"a cluster IP outside of the range", cluster,
			web(both(local, func(s *api.Service) { s.Spec.ClusterIP, s.Spec.ClusterIPs = "10.200.0.1", []string{"10.200.0.1"} })), here, false,
			clusterIPs + " 10.200.0.1/32"},
		{"an old API server knows one cluster IP", cluster, web(both(local, func(s *api.Service) { s.Spec.ClusterIPs = nil })), here, false,
			clusterIPs + " 10.96.0.7/32"},
		{"both families, IPv4 endpoint", cluster, web(both(local, dual)), here, false, clusterIPs + " 10.96.0.7/32"},
		{"both families, IPv6 endpoint", cluster, web(both(local, dual)), here6, false, clusterIPs + " fd00:96::7/128"},
		{"both families, both endpoints", cluster, web(both(local, dual)), append(slices.Clone(here), here6...), false,
			clusterIPs + " 10.96.0.7/32 fd00:96::7/128"},
		{"aggregation off, an endpoint elsewhere", apart, web(nil), elsewhere, false,
			clusterIPs + " 10.96.0.7/32 " + externalIPs + " 192.0.2.7/32 198.51.100.7/32"},
		{"aggregation off, no endpoint", apart, web(nil), unready, false, clusterIPs + " " + externalIPs},
		{"aggregation off, Local elsewhere", apart, web(local), elsewhere, false, clusterIPs + " " + externalIPs},
		{"aggregation off, Local here", apart, web(local), here, false,
			clusterIPs + " 10.96.0.7/32 " + externalIPs + " 192.0.2.7/32 198.51.100.7/32"},
		{"aggregation off is about load balancers", apart, web(func(s *api.Service) { s.Spec.Type = api.ServiceNodePort }), here, false,
			clusterIPs + " " + externalIPs},
		{"a single load balancer IP needs no endpoint", texts{LoadBalancerIPs: []string{"198.51.100.7/32"}}, web(nil), nil,
			false, "198.51.100.7/32"},
		{"a single one that was asked for", texts{LoadBalancerIPs: []string{"198.51.100.7/32", "198.51.100.8/32"}},
			web(func(s *api.Service) { s.Spec.LoadBalancerIP = "198.51.100.8" }), nil, false, "198.51.100.7/32"},
		{"a single one that nobody has", texts{LoadBalancerIPs: []string{"198.51.100.9/32"}}, web(nil), here, false, ""},
		{"a single one, Local, elsewhere", texts{LoadBalancerIPs: []string{"198.51.100.7/32"}}, web(local), elsewhere, false, ""},
		{"a single external IP", texts{ExternalIPs: []string{"192.0.2.7/32"}}, web(nil), nil, false, "192.0.2.7/32"},
		{"a single cluster IP is a range", texts{ClusterIPs: []string{"10.96.0.1/32"}}, web(nil), nil, false, "10.96.0.1/32"},
		{"no policy, as of a ClusterIP", all,
			web(func(s *api.Service) { s.Spec.Type, s.Spec.ExternalTrafficPolicy = api.ServiceClusterIP, "" }), here, false, wholes},
		{"ClusterIP with an external address, Local",
			all, web(both(local, func(s *api.Service) { s.Spec.Type, s.Status.LoadBalancer.Ingress = api.ServiceClusterIP, nil })), here, false,
			clusterIPs + " 10.96.0.7/32 " + externalIPs + " 192.0.2.7/32 " + loadBalancerIPs},
		{"headless", all, web(both(local, func(s *api.Service) { s.Spec.ClusterIP, s.Spec.ClusterIPs = "None", []string{"None"} })),
			here, false, wholes},
		{"a name alone", all, web(both(local, func(s *api.Service) { s.Spec.Type = "ExternalName" })), here, false, wholes},
	} {
		got := Announce(Input{Config: parsed(t, c.texts), Excluded: c.excluded, Services: []api.Service{c.service}, Endpoints: c.endpoints})
		if text := textOf(got); text != c.want {
			t.Errorf("%s:\n got %s\nwant %s", c.name, text, c.want)
		}
	}
}

func textOf(all []netip.Prefix) string {
	texts := make([]string, len(all))
	for i, p := range all {
		texts[i] = p.String()
	}
	return strings.Join(texts, " ")
}

// An address that two services have goes with the last of them.
func TestSharedAddresses(t *testing.T) {
	first, second := web(local), web(local)
	second.Name, second.Spec.ClusterIP, second.Spec.ClusterIPs = "second", "10.96.0.8", []string{"10.96.0.8"}
	in := Input{
		Config:   parsed(t, texts{ExternalIPs: []string{"192.0.2.0/24"}}),
		Services: []api.Service{first, second},
		Endpoints: []Endpoints{
			{Namespace: "shop", Service: "web", Here: true, Anywhere: true}, {Namespace: "shop", Service: "second", Here: true, Anywhere: true},
		},
	}
	const want = "192.0.2.0/24 192.0.2.7/32"
	if got := textOf(Announce(in)); got != want {
		t.Errorf("two services: %s", got)
	}
	in.Endpoints[0].Here = false
	if got := textOf(Announce(in)); got != want {
		t.Errorf("one of them: %s", got)
	}
	in.Endpoints[1].Here = false
	if got := textOf(Announce(in)); got != "192.0.2.0/24" {
		t.Errorf("none: %s", got)
	}
}

func TestSettingsAreChecked(t *testing.T) {
	c, problems := Parse(texts{
		ClusterIPs: []string{"10.96.0.0/12", "10.96.5.1/12", "10.96", "0.0.0.0/0"}, ExternalIPs: []string{"::ffff:10.0.0.0/120"},
		LoadBalancerIPs: []string{"fd00::/64"}, Aggregation: "off",
	}.spec())
	if textOf(c.ClusterIPs) != "10.96.0.0/12" || len(c.ExternalIPs) != 0 || textOf(c.LoadBalancerIPs) != "fd00::/64" || c.Apart || !c.On() {
		t.Errorf("%+v", c)
	}
	for i, want := range []string{`spec.serviceClusterIPs "10.96"`, `spec.serviceClusterIPs "0.0.0.0/0"`, "spec.serviceExternalIPs",
		"spec.serviceLoadBalancerAggregation \"off\""} {
		if i >= len(problems) || !strings.Contains(problems[i].Error(), want) {
			t.Fatalf("problems %q; want %q at %d", problems, want, i)
		}
	}
	if textOf(c.Ranges()) != "10.96.0.0/12 fd00::/64" || textOf(c.Passed()) != "fd00::/64" || !c.Equal(c) ||
		c.Equal(Config{}) || (Config{}).On() {
		t.Errorf("ranges %s, passed on %s", textOf(c.Ranges()), textOf(c.Passed()))
	}
}

func TestReduce(t *testing.T) {
	for text, want := range map[string]Endpoints{
		`{"addressType":"IPv4","endpoints":[{"nodeName":"n1","conditions":{}}]}`: {
			Here: true, Anywhere: true,
		},
		`{"addressType":"IPv4","endpoints":[{"nodeName":"n1","conditions":{"ready":true}}]}`: {
			Here: true, Anywhere: true,
		},
		`{"addressType":"IPv4","endpoints":[{"nodeName":"n1","conditions":{"ready":false,` +
			`"serving":true}}]}`: {},
		`{"addressType":"IPv6","endpoints":[{"nodeName":"n2","conditions":{"ready":true}}]}`: {
			IPv6: true, Anywhere: true,
		},
		`{"addressType":"IPv4","endpoints":[{"conditions":{"ready":true}}]}`: {
			Anywhere: true,
		},
		`{"addressType":"IPv4","endpoints":[{"nodeName":"n2","conditions":{"ready":true}},{"nodeName":"n1","conditions":{"ready":false}}]}`: {
			Anywhere: true,
		},
		`{"addressType":"IPv4","endpoints":[{"nodeName":"n2","conditions":{"ready":false}},{"nodeName":"n1","conditions":{"ready":null}}, {}]}`: {
			Here: true, Anywhere: true,
		},
		`{"addressType":"IPv4"}`: {},
	} {
		var s api.EndpointSlice
		errtest.Must(t, json.Unmarshal([]byte(text), &s))
		s.Meta = api.Meta{Namespace: "shop", Name: "web-x", Labels: map[string]string{api.LabelServiceName: "web"}}
		want.Namespace, want.Service = "shop", "web"
		if got, ok := Reduce(&s, "n1"); !ok || got != want {
			t.Errorf("%s: %+v, %v", text, got, ok)
		}
	}
	for _, useless := range []api.EndpointSlice{
		{AddressType: "IPv4"}, {Meta: api.Meta{Labels: map[string]string{api.LabelServiceName: "web"}}, AddressType: "FQDN"},
	} {
		if got, ok := Reduce(&useless, "n1"); ok {
			t.Errorf("%+v became %+v", useless, got)
		}
	}
}

// Whatever is in the objects: what is announced is sorted, each once, a range that was asked for or an address of a
// service, and nothing at all from an excluded node.
func FuzzAnnounce(f *testing.F) {
	f.Add(`{"spec":{"type":"LoadBalancer","clusterIP":"10.96.0.7","clusterIPs":["10.96.0.7","fd00::7"],`+
		`"externalIPs":["192.0.2.7"],"externalTrafficPolicy":"Local"},"status":{"loadBalancer":{"ingress":[{"ip":"198.51.100.7"}]}}}`,
		`{"addressType":"IPv4","endpoints":[{"nodeName":"n1","conditions":{}}]}`, "10.96.0.0/12", "192.0.2.0/24", "198.51.100.7/32", "Disabled")
	f.Add(`{"spec":{"type":"NodePort","clusterIP":"::ffff:10.0.0.1","externalTrafficPolicy":"Local"}}`,
		`{"addressType":"IPv6","endpoints":[{"nodeName":"n1"}]}`, "fd00::/8", "x", "0.0.0.0/0", "")
	f.Fuzz(func(t *testing.T, service, slice, clusterIPs, externalIPs, loadBalancerIPs, aggregation string) {
		var s api.Service
		var e api.EndpointSlice
		if json.Unmarshal([]byte(service), &s) != nil || json.Unmarshal([]byte(slice), &e) != nil {
			return
		}
		s.Namespace, s.Name, e.Namespace, e.Labels = "shop", "web", "shop", map[string]string{api.LabelServiceName: "web"}
		c, _ := Parse(texts{ClusterIPs: []string{clusterIPs}, ExternalIPs: []string{externalIPs}, LoadBalancerIPs: []string{loadBalancerIPs},
			Aggregation: aggregation}.spec())
		in := Input{Config: c, Services: []api.Service{s}}
		if r, ok := Reduce(&e, "n1"); ok {
			in.Endpoints = []Endpoints{r}
		}
		owned := map[netip.Addr]bool{}
		addrs := slices.Concat(s.Spec.ClusterIPs, s.Spec.ExternalIPs, []string{s.Spec.ClusterIP})
		for _, i := range s.Status.LoadBalancer.Ingress {
			addrs = append(addrs, i.IP)
		}
		for _, text := range addrs {
			if a, err := netip.ParseAddr(text); err == nil {
				owned[a] = true
			}
		}
		out := Announce(in)
		if !slices.IsSortedFunc(out, netip.Prefix.Compare) || len(slices.Compact(slices.Clone(out))) != len(out) {
			t.Errorf("not in order, or twice: %s", textOf(out))
		}
		for _, p := range out {
			if p != p.Masked() || p.Bits() == 0 || p.Addr().Is4In6() || !slices.Contains(c.Ranges(), p) && (!p.IsSingleIP() || !owned[p.Addr()]) {
				t.Errorf("%s is announced", p)
			}
		}
		in.Excluded = true
		if out := Announce(in); len(out) > 0 {
			t.Errorf("an excluded node announces %s", textOf(out))
		}
	})
}

func BenchmarkAnnounce(b *testing.B) {
	c, _ := Parse(texts{ClusterIPs: []string{"10.0.0.0/8"}}.spec())
	in := Input{Config: c}
	for i := range 5000 {
		s := web(local)
		a := netip.AddrFrom4([4]byte{10, 96, byte(i >> 8), byte(i)}).String()
		s.Name, s.Spec.ClusterIP, s.Spec.ClusterIPs = a, a, []string{a}
		in.Services = append(in.Services, s)
		in.Endpoints = append(in.Endpoints, Endpoints{Namespace: "shop", Service: a, Here: i%10 == 0, Anywhere: true})
	}
	for b.Loop() {
		if len(Announce(in)) != 501 {
			b.Fatal("not all")
		}
	}
}
