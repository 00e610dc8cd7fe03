package plugin

import (
	"fmt"
	"net/netip"
	"strconv"
	"strings"
	"testing"

	"github.com/containernetworking/cni/pkg/types"

	"github.com/tortie-net/tortie/internal/api"
	"github.com/tortie-net/tortie/internal/testkit/difftest"
	"github.com/tortie-net/tortie/internal/testkit/errtest"
)

// shop returns a workload with these annotations on pod and namespace.
func shop(pod, namespace map[string]string) *workload {
	return &workload{
		pod:       api.Pod{Meta: api.Meta{Name: "web", Namespace: "shop", Annotations: pod}},
		namespace: api.Namespace{Meta: api.Meta{Name: "shop", Annotations: namespace, Labels: map[string]string{"team": "red"}}},
	}
}

// permissive is a configuration that allows every annotation.
func permissive(t testing.TB) netConf {
	t.Helper()
	c, err := readConf(calico, edited(t, map[string]string{
		"ipam":            `{"type":"calico-ipam","ipv4_pools":["conf4"],"ipv6_pools":["conf6"]}`,
		"feature_control": `{"ip_addrs_no_ipam":true,"floating_ips":true}`,
	}), noEnv)
	errtest.Must(t, err)
	return c
}

// text returns the request beside the configuration's pools and families.
func (w request) text() string {
	var parts []string
	add := func(name string, value any) {
		if s := fmt.Sprint(value); s != "[]" && s != "" {
			parts = append(parts, name+" "+s)
		}
	}
	add("v4", map[bool]string{false: "no"}[w.v4])
	add("v6", map[bool]string{true: "yes"}[w.v6])
	if fmt.Sprint(w.poolsV4, w.poolsV6) != "[conf4] [conf6]" {
		add("pools4", w.poolsV4)
		add("pools6", w.poolsV6)
	}
	add("addresses", w.addresses)
	add("unmanaged", w.unmanaged)
	add("floating", w.floating)
	add("sources", w.sources)
	add("mac", w.mac)
	return strings.Join(parts, "; ")
}

// addressList is a JSON list of so many addresses.
func addressList(n int) string {
	var all []string
	for i := range n {
		all = append(all, fmt.Sprintf(`"::%x"`, i))
	}
	return "[" + strings.Join(all, ",") + "]"
}

// annotationCases has, for each annotation, accepted values with their meaning, and refused values.
var annotationCases = map[string]struct {
	good map[string]string
	bad  []string
}{
	api.AnnotationIPv4Pools: {map[string]string{
		`["a"]`:               "pools4 [a]; pools6 [conf6]",
		`["a", "10.0.0.0/8"]`: "pools4 [a 10.0.0.0/8]; pools6 [conf6]",
	}, []string{"default", "[]", "null", "[1]", "[", `[""]`, `["a",null]`, `{"a":1}`}},
	api.AnnotationIPv6Pools: {map[string]string{
		`["fd00::/64"]`: "pools4 [conf4]; pools6 [fd00::/64]",
	}, []string{"default", "[]", "null"}},
	api.AnnotationIPFamilies: {map[string]string{
		`["IPv4"]`: "", `["IPv6"]`: "v4 no; v6 yes", `["IPv6","IPv4"]`: "v6 yes",
	}, []string{"IPv4", `["ipv4"]`, `["IPv4","IPv5"]`, "[]", "null", "4"}},
	api.AnnotationIPAddrs: {map[string]string{
		`["10.0.0.5"]`: "addresses [10.0.0.5]", `["fd00::5","10.0.0.5"]`: "v6 yes; addresses [fd00::5 10.0.0.5]",
		`["fd00::5"]`:         "v4 no; v6 yes; addresses [fd00::5]",
		`["::ffff:10.0.0.5"]`: "addresses [10.0.0.5]",
	}, []string{"10.0.0.5", `["10.0.0.5/32"]`, `["10.0.0.5","10.0.0.6"]`, `["fd00::5","fd00::6"]`, `["fe80::1%eth0"]`, `["10.0.0"]`, "[]",
		"null", `["10.0.0.5","fd00::5","fd00::6"]`}},
	api.AnnotationIPAddrsNoIPAM: {map[string]string{
		`["10.0.0.5","fd00::5"]`: "unmanaged [10.0.0.5 fd00::5]",
	}, []string{"10.0.0.5", `["10.0.0.5","10.0.0.6"]`, "[]"}},
	api.AnnotationFloatingIPs: {map[string]string{
		`["192.0.2.7","192.0.2.8"]`: "floating [192.0.2.7 192.0.2.8]", `["192.0.2.8","192.0.2.7","192.0.2.8"]`: "floating [192.0.2.7 192.0.2.8]",
	}, []string{"192.0.2.7", `["192.0.2.7/32"]`, "[]", `["x.0.2.7"]`, `["192.0.2.7%eth0"]`, addressList(mostFloating + 1)}},
	api.AnnotationHwAddr: {map[string]string{
		"02:00:5e:10:00:01": "mac 02:00:5e:10:00:01", "02-00-5E-10-00-01": "mac 02:00:5e:10:00:01",
	}, []string{"02:00:5e:10:00", "02:00:5e:10:00:01:02:03", "01:00:5e:10:00:01", "ff:ff:ff:ff:ff:ff", "00:00:00:00:00:00", "eth0",
		`["02:00:5e:10:00:01"]`}},
	api.AnnotationAllowedSources: {map[string]string{
		`["10.1.2.3/16","fd00::/8"]`: "sources [10.1.0.0/16 fd00::/8]",
	}, []string{"10.1.0.0/16", `["10.1.0.1"]`, `["10.1.0.0/33"]`, "[]"}},
}

func TestEveryAnnotation(t *testing.T) {
	if all := Annotations(); len(all) != len(annotationCases) {
		t.Errorf("%d annotations and %d tests", len(all), len(annotationCases))
	}
	for _, a := range Annotations() {
		tt, ok := annotationCases[a.Key]
		if !ok || len(tt.good) == 0 || len(tt.bad) == 0 {
			t.Errorf("no test says what %s accepts and refuses", a.Key)
			continue
		}
		r := &session{conf: permissive(t), namespace: "shop", pod: "web"}
		for text, want := range tt.good {
			got, err := r.request(shop(map[string]string{a.Key: text}, nil))
			if err != nil || got.text() != want {
				t.Errorf("%s %s: %q, %v; want %q", a.Key, text, got.text(), err, want)
			}
			if !a.OfNamespace {
				want = ""
			}
			if got, err := r.request(shop(nil, map[string]string{a.Key: text})); err != nil || got.text() != want {
				t.Errorf("%s %s on the namespace: %q, %v; want %q", a.Key, text, got.text(), err, want)
			}
			// The pod's annotation wins over its namespace's.
			if got, err := r.request(shop(map[string]string{a.Key: text}, map[string]string{a.Key: tt.bad[0]})); err != nil {
				t.Errorf("%s %s on the pod, %s on the namespace: %+v, %v", a.Key, text, tt.bad[0], got, err)
			}
		}
		for _, text := range tt.bad {
			wantRefused(t, r, a, text)
		}
	}
}

// wantRefused fails the test unless an annotation is refused with an error that names it, its object, its value and the
// right form.
func wantRefused(t *testing.T, r *session, a Annotation, text string) {
	t.Helper()
	on := map[string]*workload{"pod shop/web": shop(map[string]string{a.Key: text}, nil)}
	if a.OfNamespace {
		on["namespace shop"] = shop(nil, map[string]string{a.Key: text})
	}
	for whose, w := range on {
		_, err := r.request(w)
		if err == nil || code(t, err) != types.ErrInvalidNetworkConfig {
			t.Fatalf("%s %s: %v", a.Key, text, err)
		}
		difftest.Contains(t, err.Error(), a.Key, whose, strconv.Quote(text), a.Form)
	}
}

// A value of a quarter of a megabyte is not repeated as a whole.
func TestLongAnnotation(t *testing.T) {
	r := &session{conf: permissive(t)}
	_, err := r.request(shop(map[string]string{api.AnnotationIPAddrs: strings.Repeat("9", 1<<18)}, nil))
	if err == nil || len(err.Error()) > 600 {
		t.Errorf("%.1000v", err)
	}
}

func TestForbiddenAnnotations(t *testing.T) {
	const addrs = `["10.0.0.5"]`
	for _, tt := range []struct {
		name        string
		edit        func(*netConf)
		annotations map[string]string
		want        []string
	}{
		{"ipAddrs of another IPAM plugin", func(c *netConf) { c.IPAM.Type = "host-local" }, map[string]string{api.AnnotationIPAddrs: addrs},
			[]string{"ipAddrs", "shop/web", "10.0.0.5", "calico-ipam", "host-local"}},
		{"ipAddrsNoIpam with another IPAM plugin", func(c *netConf) { c.IPAM.Type = "host-local" },
			map[string]string{api.AnnotationIPAddrsNoIPAM: addrs},
			[]string{"ipAddrsNoIpam", "shop/web", "10.0.0.5", "calico-ipam", "host-local"}},
		{"ipAddrsNoIpam not allowed", func(c *netConf) { c.FeatureControl.IPAddrsNoIPAM = false },
			map[string]string{api.AnnotationIPAddrsNoIPAM: addrs},
			[]string{"ipAddrsNoIpam", "shop/web", "10.0.0.5", "feature_control.ip_addrs_no_ipam"}},
		{"both", nil, map[string]string{api.AnnotationIPAddrs: addrs, api.AnnotationIPAddrsNoIPAM: addrs},
			[]string{"ipAddrsNoIpam", "shop/web", "ipAddrs "}},
		{"floatingIPs not allowed", func(c *netConf) { c.FeatureControl.FloatingIPs = false },
			map[string]string{api.AnnotationFloatingIPs: addrs},
			[]string{"floatingIPs", "shop/web", "10.0.0.5", "feature_control.floating_ips"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			r := &session{conf: permissive(t), namespace: "shop", pod: "web"}
			if tt.edit != nil {
				tt.edit(&r.conf)
			}
			_, err := r.request(shop(tt.annotations, nil))
			if err == nil || code(t, err) != types.ErrInvalidNetworkConfig {
				t.Fatalf("error %v", err)
			}
			difftest.Contains(t, err.Error(), tt.want...)
		})
	}
}

func TestWishOfArguments(t *testing.T) {
	asked := netip.MustParseAddr("10.0.0.9")
	r := &session{conf: permissive(t), address: asked}
	got, err := r.request(shop(nil, nil))
	if err != nil || got.text() != "addresses [10.0.0.9]" || got.namespaceLabels["team"] != "red" {
		t.Errorf("IP in CNI_ARGS: %+v, %v", got, err)
	}
	got, err = r.request(shop(map[string]string{api.AnnotationIPAddrs: `["10.0.0.5"]`}, nil))
	if err != nil || got.text() != "addresses [10.0.0.5]" {
		t.Errorf("the annotation wins: %+v, %v", got, err)
	}
	// calico-ipam looks at no annotations.
	got, err = r.configuredRequest(map[string]string{"team": "red"})
	if err != nil || got.text() != "addresses [10.0.0.9]" || got.namespaceLabels["team"] != "red" {
		t.Errorf("calico-ipam: %+v, %v", got, err)
	}
	r.address, r.conf.IPAM.AssignIPv4 = netip.Addr{}, "false"
	if _, err = r.configuredRequest(nil); err == nil || !strings.Contains(err.Error(), "assign_ipv6") {
		t.Errorf("calico-ipam without a family: %v", err)
	}
	if got, err = r.request(shop(map[string]string{api.AnnotationIPFamilies: `["IPv6"]`}, nil)); err != nil || got.v4 || !got.v6 {
		t.Errorf("a family by annotation: %+v, %v", got, err)
	}
}

// Without policy.type k8s nobody has read the pod.
func TestNoAnnotationsOfContainersThatAreNoPods(t *testing.T) {
	r := &session{conf: permissive(t)}
	r.conf.Policy.Type = ""
	if got, err := r.request(shop(map[string]string{api.AnnotationHwAddr: "bad"}, nil)); err != nil || got.text() != "" {
		t.Errorf("%+v, %v", got, err)
	}
}

func TestFloatingNeedsAnAddressOfItsFamily(t *testing.T) {
	r := &session{namespace: "shop", pod: "web"}
	want := &request{floating: []netip.Addr{netip.MustParseAddr("192.0.2.7"), netip.MustParseAddr("2001:db8::7")}}
	v4, v6 := netip.MustParseAddr("10.0.0.5"), netip.MustParseAddr("fd00::5")
	if err := r.checkFloating(want, []netip.Addr{v4, v6}); err != nil {
		t.Error(err)
	}
	if err := r.checkFloating(want, []netip.Addr{v4}); err == nil || !strings.Contains(err.Error(), "2001:db8::7") ||
		!strings.Contains(err.Error(), "shop/web") {
		t.Errorf("without IPv6: %v", err)
	}
}
