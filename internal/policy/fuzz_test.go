package policy

import (
	"encoding/json"
	"net/netip"
	"slices"
	"testing"

	"github.com/tortie-net/tortie/internal/api"
)

// Every stored object can be converted and compiled, and opens nothing that its author did not leave open.
func FuzzNetworkPolicy(f *testing.F) {
	f.Add(`{"ingress":[{"from":[{"ipBlock":{"cidr":"010.0.0.0/8","except":["10.1.0.0/16"]}},{}],"ports":[{"port":"x","endPort":1}]}]}`)
	f.Add(`{"egress":[{"to":[{"podSelector":{"matchExpressions":[{"key":"a","operator":"In","values":["b"]}]}}],` +
		`"ports":[{"protocol":"UDP"},{"port":1}]}]}`)
	f.Fuzz(func(t *testing.T, spec string) {
		n := api.NetworkPolicy{Meta: api.Meta{Namespace: "x", Name: "p"}}
		if json.Unmarshal([]byte(spec), &n.Spec) != nil {
			return
		}
		p := FromNetworkPolicy(&n)
		for i, r := range p.Rules[Ingress] {
			checkOpen(t, r, len(n.Spec.Ingress[i].From) == 0, len(n.Spec.Ingress[i].Ports) == 0)
		}
		for i, r := range p.Rules[Egress] {
			checkOpen(t, r, len(n.Spec.Egress[i].To) == 0, len(n.Spec.Egress[i].Ports) == 0)
		}
		compare(t, cluster(p), &Compile(cluster(p)).Ruleset)
	})
}

func checkOpen(t *testing.T, r Rule, anyPeer, anyPort bool) {
	t.Helper()
	if r.AnyPeer != anyPeer || r.AnyPort != anyPort {
		t.Errorf("any peer %v, any port %v, want %v, %v", r.AnyPeer, r.AnyPort, anyPeer, anyPort)
	}
	for _, p := range r.Peers {
		if p.Pods == nil && (!p.Net.IsValid() || p.Net != p.Net.Masked() || p.Net.Addr().Is4In6()) {
			t.Errorf("network %v is not in its own form", p.Net)
		}
	}
}

func FuzzClusterNetworkPolicy(f *testing.F) {
	f.Add(`{"tier":"Admin","subject":{"namespaces":{}},"egress":[{"action":"Accept","to":[{"networks":["::/0"]},{"nodes":{}}],` +
		`"protocols":[{"tcp":{}}]}]}`)
	f.Add(`{"tier":"Baseline","subject":{"pods":{}},"ingress":[{"action":"Pass","from":[{}]},{"action":"Deny","from":[{"pods":{}}],` +
		`"protocols":[{"destinationNamedPort":"a"}]}]}`)
	f.Fuzz(func(t *testing.T, spec string) {
		c := api.ClusterNetworkPolicy{Meta: api.Meta{Name: "c"}}
		if json.Unmarshal([]byte(spec), &c.Spec) != nil {
			return
		}
		p, err := FromClusterNetworkPolicy(&c)
		if err != nil {
			return
		}
		for _, rules := range p.Rules {
			for _, r := range rules {
				if r.AnyPeer && r.Action != Deny {
					t.Errorf("a rule that does not deny matches any peer: %+v", r)
				}
			}
		}
		compare(t, cluster(p), &Compile(cluster(p)).Ruleset)
	})
}

// What netip reads is read as by netip, with and without zeros in front.
func FuzzPrefix(f *testing.F) {
	for _, text := range []string{"10.0.0.1/8", "010.001.0.0/08", "::ffff:1.2.3.4/120", "::ffff:1.2.3.4/90", "2001:0db8::00001/064", "0/0",
		"00.0.0.0/00", "1.2.3.4", "fe80::1%eth0/64", "/"} {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		r := &reader{}
		got, ok := r.prefix("field", text)
		if ok != (len(r.problems) == 0) || ok && got != got.Masked() {
			t.Fatalf("%q: %v, %v, %q", text, got, ok, r.problems)
		}
		want, err := netip.ParsePrefix(text)
		if err == nil && !want.Addr().Is4In6() && (!ok || got != want.Masked()) {
			t.Errorf("%q: %v, %v, want %v", text, got, ok, want.Masked())
		}
	})
}

func TestPrefix(t *testing.T) {
	for text, want := range map[string]string{
		"10.1.2.3/8": "10.0.0.0/8", "010.000.000.008/032": "10.0.0.8/32", "0.0.0.0/0": "0.0.0.0/0", "00.00.00.00/00": "0.0.0.0/0",
		"2001:0DB8:00000::1/32": "2001:db8::/32", "::/0": "::/0", "::ffff:10.1.2.3/104": "10.0.0.0/8", "::FFFF:0:0/96": "0.0.0.0/0",
		"10.0.0.0": "", "10.0.0.0/33": "", "10.0.0/8": "", "10.0.0.0/+8": "", "256.0.0.0/8": "", "fe80::1%eth0/64": "", "": "", "10.0.0.0/8 ": "",
	} {
		r := &reader{}
		got, ok := r.prefix("field", text)
		if ok != (want != "") || ok && got.String() != want {
			t.Errorf("%q: %v, %v, want %q", text, got, ok, want)
		}
	}
}

// Ranges are compared with sets of the 256 addresses of a /24 and its IPv6 twin.
func FuzzRanges(f *testing.F) {
	for seed := range uint64(200) {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, seed uint64) {
		w := newWorld(seed)
		random := func() (rs ranges, has map[netip.Addr]bool) {
			has = map[netip.Addr]bool{}
			var prefixes []netip.Prefix
			for range w.IntN(5) {
				i := byte(w.IntN(256))
				if w.chance(50) {
					prefixes = append(prefixes, netip.PrefixFrom(netip.AddrFrom4([4]byte{255, 255, 255, i}), 24+w.IntN(9)))
				} else {
					prefixes = append(prefixes, netip.PrefixFrom(netip.AddrFrom16([16]byte{15: i}), 120+w.IntN(9)))
				}
			}
			for _, a := range edgeAddresses() {
				for _, p := range prefixes {
					has[a] = has[a] || p.Contains(a)
				}
			}
			return rangesOf(prefixes), has
		}
		a, inA := random()
		b, inB := random()
		rest, both := minus(a, b), union(a, b)
		for _, x := range edgeAddresses() {
			if a.contains(x) != inA[x] || rest.contains(x) != (inA[x] && !inB[x]) || both.contains(x) != (inA[x] || inB[x]) {
				t.Fatalf("%v, %v, minus %v, union %v: wrong at %v", a, b, rest, both, x)
			}
		}
		most := w.IntN(4)
		few := both.fewer(most)
		if len(few) > max(most, 2) || len(minus(both, few)) > 0 || len(both) <= most && !slices.Equal(few, both) {
			t.Fatalf("%v in %d ranges: %v", both, most, few)
		}
		for _, rs := range []ranges{a, rest, both, few} {
			for i := 1; i < len(rs); i++ {
				if !rs[i-1].Last.Less(rs[i].First) || touch(rs[i-1], rs[i]) || rs[i].Last.Less(rs[i].First) {
					t.Fatalf("%v are not ascending, disjoint and apart", rs)
				}
			}
		}
	})
}

// edgeAddresses are at the end of IPv4, which IPv6 follows.
func edgeAddresses() (all []netip.Addr) {
	for i := range 256 {
		all = append(all, netip.AddrFrom4([4]byte{255, 255, 255, byte(i)}), netip.AddrFrom16([16]byte{15: byte(i)}))
	}
	return all
}
