package plugin_test

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"

	"github.com/containernetworking/cni/pkg/types"

	"github.com/tortie-net/tortie/internal/api"
	"github.com/tortie-net/tortie/internal/kernel/podnet"
	"github.com/tortie-net/tortie/internal/plugin"
)

// annotationEffects tests, for each annotation that the plugin reads, its effect in the real programs. The tests of
// annotations.go cover the right forms.
var annotationEffects = map[string]func(*testing.T, *world){
	api.AnnotationIPv4Pools: func(t *testing.T, w *world) {
		other := strings.Replace(w.cidr, "10.", "11.", 1)
		w.createNamedPool(t, w.name+"-other", other)
		w.createPod(t, "web", fmt.Sprintf(`cni.projectcalico.org/ipv4pools: '["%s-other"]'`, w.name))
		wantAddrs(t, w.sandbox(t, "web").add(t).addrs(t), other)
	},
	api.AnnotationIPv6Pools: func(t *testing.T, w *world) {
		w.createPool6(t)
		w.createNamedPool(t, w.name+"-other6", w.cidr6("fd11"))
		w.annotateNamespace(t, api.AnnotationIPv6Pools, fmt.Sprintf(`["%s"]`, w.cidr6("fd11")))
		wantAddrs(t, w.newPod(t, "web").addWith(t, "ipam.assign_ipv6", "true").addrs(t), w.cidr, w.cidr6("fd11"))
	},
	api.AnnotationIPFamilies: func(t *testing.T, w *world) {
		w.createPool6(t)
		w.annotateNamespace(t, api.AnnotationIPFamilies, `["IPv6"]`)
		wantFamilies(t, w.newPod(t, "six").add(t), 0, 1)
		w.createPod(t, "both", `cni.projectcalico.org/ipFamilies: '["IPv4","IPv6"]'`)
		wantFamilies(t, w.sandbox(t, "both").addWith(t, "ipam.assign_ipv4", "false"), 1, 1)
	},
	api.AnnotationIPAddrs:       explicitAddresses,
	api.AnnotationIPAddrsNoIPAM: unmanagedAddresses,
	api.AnnotationFloatingIPs:   floatingAddresses,
	api.AnnotationHwAddr: func(t *testing.T, w *world) {
		w.createPod(t, "web", `cni.projectcalico.org/hwAddr: "02:00:5e:10:00:01"`)
		s := w.sandbox(t, "web")
		res := s.add(t).result(t)
		if mac := s.ns.Link(t, "eth0").HardwareAddr.String(); mac != "02:00:5e:10:00:01" || res.Interfaces[1].Mac != mac {
			t.Errorf("MAC %s, in the result %s", mac, res.Interfaces[1].Mac)
		}
	},
	api.AnnotationAllowedSources: func(t *testing.T, w *world) {
		w.createPod(t, "web", `cni.projectcalico.org/allowedSourcePrefixes: '["10.1.0.0/16"]'`)
		s := w.sandbox(t, "web")
		s.add(t).ok(t)
		if noted, want := w.host.Run(t, "ip", "route", "show", "table", fmt.Sprint(podnet.SourcesTable)), "10.1.0.0/16 dev "+
			s.hostVeth(); !strings.Contains(noted, want) {
			t.Errorf("the agent is told %q, want %q", noted, want)
		}
		w.createPod(t, "refused", `cni.projectcalico.org/allowedSourcePrefixes: '["10.1.0.1"]'`)
		w.wantFailure(t, w.sandbox(t, "refused").add(t), types.ErrInvalidNetworkConfig, "allowedSourcePrefixes",
			w.name+"/refused", "10.1.0.1", "CIDR")
	},
}

func TestEveryAnnotation(t *testing.T) {
	t.Parallel()
	for _, a := range plugin.Annotations() {
		do, ok := annotationEffects[a.Key]
		if !ok {
			t.Errorf("no test shows what %s does", a.Key)
			continue
		}
		t.Run(strings.TrimPrefix(a.Key, "cni.projectcalico.org/"), func(t *testing.T) {
			t.Parallel()
			do(t, newWorld(t))
		})
	}
	if all := plugin.Annotations(); len(all) != len(annotationEffects) {
		t.Errorf("%d annotations and %d tests", len(all), len(annotationEffects))
	}
}

// addrs returns the addresses of an ADD's result.
func (a answer) addrs(t testing.TB) []netip.Addr {
	t.Helper()
	var addrs []netip.Addr
	for _, ip := range a.result(t).IPs {
		addr, _ := netip.AddrFromSlice(ip.Address.IP)
		addrs = append(addrs, addr.Unmap())
	}
	return addrs
}

// fixed is an address of the world's pool.
func (w *world) fixed(last string) string { return strings.Replace(w.cidr, "0.0/16", last, 1) }

func explicitAddresses(t *testing.T, w *world) {
	w.createPool6(t)
	v4, v6 := w.fixed("9.9"), strings.Replace(w.cidr6("fd10"), "::/48", "::9", 1)
	w.createPod(t, "web", fmt.Sprintf(`cni.projectcalico.org/ipAddrs: '["%s","%s"]'`, v4, v6))
	s := w.sandbox(t, "web")
	first := s.add(t)
	wantAddrs(t, first.addrs(t), v4+"/32", v6+"/128")
	if res := first.result(t); len(res.Routes) != 0 || res.IPs[0].Address.String() != v4+"/32" {
		t.Errorf("Calico prints explicit addresses without routes: %s", first.stdout)
	}
	if again := s.add(t); again.result(t).IPs[0].Address.String() != v4+"/32" {
		t.Errorf("a second ADD: %s", again.stdout)
	}
	// Another pod must not get it; the error names its holder.
	w.createPod(t, "thief", fmt.Sprintf(`cni.projectcalico.org/ipAddrs: '["%s"]'`, v4))
	w.wantFailure(t, w.sandbox(t, "thief").add(t), codeTaken, v4, w.name+"/web", "ipAddrs")
	// A new sandbox of the same pod takes it over; the old one's DEL comes late and changes nothing.
	w.host.forget(t, s.netns)
	next := w.sandbox(t, "web")
	wantAddrs(t, next.add(t).addrs(t), v4+"/32", v6+"/128")
	s.del(t).ok(t)
	w.wantHeld(t, map[netip.Addr]*sandbox{netip.MustParseAddr(v4): next})
	next.del(t).ok(t)
	w.wantHeld(t, map[netip.Addr]*sandbox{})
	// An address that no pool has.
	w.createPod(t, "outside", `cni.projectcalico.org/ipAddrs: '["192.0.2.1"]'`)
	w.wantFailure(t, w.sandbox(t, "outside").add(t), codeNoPool, "192.0.2.1", "IPPool")
}

// Users who may write a pod may write another pod's container ID on it, at least on creation. That must not free the
// other pod's address.
func TestContainerIDOfAnotherPod(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	victim := w.newPod(t, "victim")
	a := address(t, victim.add(t).result(t))
	w.createPod(t, "thief",
		fmt.Sprintf(`cni.projectcalico.org/ipAddrs: '["%s"]', cni.projectcalico.org/containerID: %s, cni.projectcalico.org/podIPs: %s/32`,
			a, victim.container, a))
	e := w.sandbox(t, "thief").add(t).failure(t)
	if !strings.Contains(e.Error(), w.name+"/victim") {
		t.Errorf("the holder is not named: %s", e.Error())
	}
	w.wantHeld(t, map[netip.Addr]*sandbox{a: victim})
}

// An earlier sandbox may live while the pod asks for other addresses: it keeps its own.
func TestOtherAddressesThanBefore(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.createPod(t, "web", fmt.Sprintf(`cni.projectcalico.org/ipAddrs: '["%s"]'`, w.fixed("9.9")))
	first := w.sandbox(t, "web")
	first.add(t).ok(t)
	w.annotatePod(t, "web", api.AnnotationIPAddrs, fmt.Sprintf(`["%s"]`, w.fixed("9.10")))
	w.host.forget(t, first.netns)
	second := w.sandbox(t, "web")
	second.add(t).ok(t)
	w.wantHeld(t, map[netip.Addr]*sandbox{netip.MustParseAddr(w.fixed("9.9")): first, netip.MustParseAddr(w.fixed("9.10")): second})
	first.del(t).ok(t)
	w.wantHeld(t, map[netip.Addr]*sandbox{netip.MustParseAddr(w.fixed("9.10")): second})
}

func unmanagedAddresses(t *testing.T, w *world) {
	const v4, v6 = "192.0.2.9", "2001:db8::9"
	w.createPod(t, "web", fmt.Sprintf(`cni.projectcalico.org/ipAddrsNoIpam: '["%s","%s"]'`, v4, v6))
	s := w.sandbox(t, "web")
	nothing := w.unchanged(t)
	wantAddrs(t, s.addWith(t, "feature_control.ip_addrs_no_ipam", true).addrs(t), v4+"/32", v6+"/128")
	if taken := w.allocations(t); len(taken) != 0 {
		t.Errorf("IPAM has %v", taken)
	}
	if got, want := w.podAnnotations(t, "web"), "podIPs="+v4+"/32,"+v6+"/128"; !strings.Contains(got, want) {
		t.Errorf("annotations %q", got)
	}
	for range 2 {
		s.del(t).ok(t)
	}
	nothing()
}

// floating makes a pod with floating addresses.
func (w *world) floating(t *testing.T, pod string, addrs ...string) *sandbox {
	t.Helper()
	w.createPod(t, pod, fmt.Sprintf(`cni.projectcalico.org/floatingIPs: '["%s"]'`, strings.Join(addrs, `","`)))
	return w.sandbox(t, pod)
}

// float is an ADD with floating addresses allowed.
func (s *sandbox) float(t *testing.T) answer {
	t.Helper()
	return s.addWith(t, "feature_control.floating_ips", true)
}

func floatingAddresses(t *testing.T, w *world) {
	one, two := w.fixed("9.9"), w.fixed("9.10")
	s := w.floating(t, "web", two, one)
	added := s.float(t)
	own := address(t, added.result(t))
	s.check(t, added).ok(t)
	if again := address(t, s.float(t).result(t)); again != own {
		t.Errorf("a repeated ADD gives %s, not %s", again, own)
	}
	held := map[netip.Addr]*sandbox{own: s, netip.MustParseAddr(one): s, netip.MustParseAddr(two): s}
	w.wantHeld(t, held)
	if got, want := w.podAnnotations(t, "web"), "podIP="+own.String()+"/32 podIPs="+own.String()+"/32"; !strings.Contains(got, want) {
		t.Errorf("annotations %q, want %q", got, want)
	}
	noted := w.host.Run(t, "ip", "route", "show", "table", fmt.Sprint(podnet.FloatingTable))
	for _, a := range []string{one, two} {
		if want := a + " dev " + s.hostVeth(); !strings.Contains(noted, want) {
			t.Errorf("the agent is told %q, want %q", noted, want)
		}
	}

	// Addresses that a pod cannot have are refused, and leave nothing: other pods', own or floating, outside of the pools,
	// of a family that it lacks.
	for pod, of := range map[string]struct {
		addr  string
		code  uint
		words []string
	}{
		"thief":      {one, codeTaken, []string{w.name + "/web", "floatingIPs"}},
		"robber":     {own.String(), codeTaken, []string{w.name + "/web"}},
		"outside":    {"192.0.2.9", codeNoPool, []string{"in no IPPool"}},
		"service":    {"10.96.0.1", codeNoPool, []string{"in no IPPool"}},
		"one-legged": {"2001:db8::7", types.ErrInvalidNetworkConfig, []string{"no address of that family"}},
	} {
		a := w.floating(t, pod, w.fixed("9.99"), of.addr).float(t)
		w.wantFailure(t, a, of.code, append(of.words, "floatingIPs", w.name+"/"+pod, of.addr)...)
		w.wantHeld(t, held)
	}
	for first, spec := range map[string]string{"11.": "disabled: true", "12.": "allowedUses: [LoadBalancer]"} {
		cidr := strings.Replace(w.cidr, "10.", first, 1)
		w.api.create(t,
			manifest(t, fmt.Sprintf(`{apiVersion: crd.projectcalico.org/v1, kind: IPPool, metadata: {name: %s-%s}, spec: {cidr: %s, %s}}`,
				w.name, first+"x", cidr, spec)))
		w.api.settle(t)
		a := strings.Replace(cidr, "0.0/16", "9.9", 1)
		word, _, _ := strings.Cut(spec, ":")
		w.wantFailure(t, w.floating(t, "of-"+first+"x", a).float(t), codeNoPool, "floatingIPs", a, word)
	}
	w.wantHeld(t, held)

	// A new sandbox of the same pod takes the floating addresses over; the old one's DEL comes late and takes none away.
	w.host.forget(t, s.netns)
	next := w.sandbox(t, "web")
	fresh := address(t, next.float(t).result(t))
	s.del(t).ok(t)
	w.wantHeld(t, map[netip.Addr]*sandbox{fresh: next, netip.MustParseAddr(one): next, netip.MustParseAddr(two): next})
	next.del(t).ok(t)
	w.wantHeld(t, map[netip.Addr]*sandbox{})
}

// Whoever may change a pod may write a container ID of another pod on it. That must not move the other's floating
// address.
func TestContainerIDOfAnotherFloatingPod(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	victim := w.floating(t, "victim", w.fixed("9.9"))
	own := address(t, victim.float(t).result(t))
	thief := w.floating(t, "thief", w.fixed("9.9"))
	w.annotatePod(t, "thief", api.AnnotationContainerID, victim.container)
	w.wantFailure(t, thief.float(t), codeTaken, w.name+"/victim")
	w.wantHeld(t, map[netip.Addr]*sandbox{own: victim, netip.MustParseAddr(w.fixed("9.9")): victim})
}
