package nodeaddr

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/tortie-net/tortie/internal/testkit/errtest"
)

func on(link Link, addrs ...string) Link {
	for _, text := range addrs {
		a := Addr{}
		text, a.Tentative = strings.CutSuffix(text, " tentative")
		text, a.Passing = strings.CutSuffix(text, " temporary")
		a.Prefix = netip.MustParsePrefix(text)
		link.Addrs = append(link.Addrs, a)
	}
	return link
}

func dev(name string) Link { return Link{Name: name, Kind: "device", MTU: 1500} }

// host has addresses of every kind that detection must not choose.
func host() []Link {
	down := dev("eth9")
	down.Down = true
	slave := dev("eth7")
	slave.Master = "bond"
	return []Link{
		on(Link{Name: "lo", Kind: "device", MTU: 65536, Loopback: true}, "127.0.0.1/8", "::1/128", "10.255.0.1/32"),
		on(Link{Name: "docker0", Kind: "bridge", MTU: 1500}, "172.17.0.1/16", "fd17::1/64"),
		on(Link{Name: "cali123", Kind: "veth", MTU: 1480}, "169.254.1.1/32", "fe80::1/64"),
		on(Link{Name: "tunl0", Kind: "ipip", MTU: 1480}, "192.168.1.1/32"),
		on(Link{Name: "flannel.1", Kind: "vxlan", MTU: 1450}, "10.244.0.0/32"),
		on(Link{Name: "kube-ipvs0", Kind: "dummy", MTU: 1500}, "10.96.0.1/32"),
		on(slave, "10.7.0.5/24"),
		on(down, "10.9.0.5/24"),
		on(dev("eth0"), "169.254.7.7/16", "10.0.0.5/24", "10.0.0.100/32", "fe80::5/64", "fd00::7/64 temporary",
			"fd00::5/64", "fd00::6/64 tentative"),
	}
}

// second is a host with two networks.
func second() []Link {
	storage := dev("eth1")
	storage.MTU = 9000
	return append(host(), on(storage, "172.16.0.5/20", "fd16::5/64"))
}

func method(t *testing.T, text string, f Family) Method {
	t.Helper()
	m, err := ParseMethod(text, f)
	errtest.Must(t, err)
	return m
}

func addrs(texts ...string) []netip.Addr {
	var out []netip.Addr
	for _, t := range texts {
		out = append(out, netip.MustParseAddr(t))
	}
	return out
}

func TestChoose(t *testing.T) {
	source := func(host string) (netip.Addr, error) {
		if host == "nowhere.example" {
			return netip.Addr{}, errors.New("no such host")
		}
		return netip.MustParseAddr("10.0.0.5"), nil
	}
	for name, tc := range map[string]struct {
		family           Family
		setting, method  string
		internal, stored string
		links            []Link
		want             string // address, link
		source           string // part of
		note             string // part of
		err              string // part of
	}{
		"the InternalIP": {setting: "autodetect", internal: "fd00::5 10.0.0.5 172.16.0.5", want: "10.0.0.5/24 eth0",
			source: "InternalIP of node n1"},
		"the InternalIP of IPv6": {family: IPv6, setting: "autodetect", internal: "10.0.0.5 fd00::5",
			want: "fd00::5/64 eth0", source: "InternalIP"},
		"the InternalIP on a bridge":        {setting: "autodetect", internal: "172.17.0.1", want: "172.17.0.1/16 docker0"},
		"the first InternalIP that is here": {setting: "autodetect", internal: "10.1.1.1 10.0.0.5", want: "10.0.0.5/24 eth0"},
		"the InternalIP on a link that is down": {setting: "autodetect", internal: "10.9.0.5", want: "10.9.0.5/24 eth9",
			note: "NodeLinkDown: link eth9, which has the node's address 10.9.0.5, is down"},
		"an InternalIP of another host": {setting: "autodetect", internal: "10.0.0.6",
			err: "10.0.0.6 InternalIP n1 10.255.0.1/32 lo 172.17.0.1/16 docker0"},
		"no InternalIP": {setting: "autodetect",
			err: "n1 IPv4 status.addresses --node-ip IP IP_AUTODETECTION_METHOD IP=none"},
		"no InternalIP of IPv6": {family: IPv6, setting: "autodetect", internal: "10.0.0.5", err: "IP6=none"},
		"a tentative InternalIP": {family: IPv6, setting: "autodetect", internal: "fd00::6",
			err: "fd00::6 InternalIP n1 eth0"},
		"a stale annotation": {setting: "autodetect", stored: "10.0.0.77/24",
			err: "n1 IPv4 InternalIP status.addresses"},
		"a failed detection keeps the stored address": {setting: "autodetect", stored: "10.0.0.5/24", want: "10.0.0.5/24 eth0",
			source: "kept from the Node", note: "NoNodeAddress: node n1 has no IPv4 InternalIP"},
		"the prefix length is the interface's": {setting: "", stored: "10.0.0.5/16", want: "10.0.0.5/24 eth0",
			source: "kept from the Node"},
		"no setting, a stale annotation": {setting: "", stored: "10.0.0.77/24", internal: "10.0.0.5",
			want: "10.0.0.5/24 eth0", source: "InternalIP"},
		"no setting for IPv6":                   {family: IPv6, internal: "fd00::5"},
		"no setting for IPv6, a stored address": {family: IPv6, stored: "fd00::5/64", want: "fd00::5/64 eth0"},
		"no setting for IPv6, a stale annotation": {family: IPv6, stored: "fd00::99/64",
			note: "NoNodeAddress: the Node's annotation says fd00::99/64, which is on no link"},
		"none":                           {setting: "none", internal: "10.0.0.5"},
		"none, and a stored address":     {setting: "none", stored: "10.0.0.5/24", want: "10.0.0.5/24 eth0"},
		"an address":                     {setting: "10.0.0.5", want: "10.0.0.5/24 eth0", source: "environment variable IP"},
		"an address with its own length": {setting: "10.0.0.5/20", want: "10.0.0.5/20 eth0"},
		"an address of IPv6": {family: IPv6, setting: "fd00::5", want: "fd00::5/64 eth0",
			source: "environment variable IP6"},
		"an address on no interface": {setting: "10.0.0.6", err: "10.0.0.6 variable IP"},
		"first-found": {setting: "autodetect", method: "first-found",
			want: "10.0.0.5/24 eth0", source: "first-found"},
		"first-found, IPv6": {family: IPv6, setting: "autodetect", method: "first-found", want: "fd00::5/64 eth0"},
		"first-found, several candidates": {setting: "autodetect", method: "first-found", links: second(),
			want: "10.0.0.5/24 eth0", note: "AmbiguousAddress: IP_AUTODETECTION_METHOD=first-found fits 2 addresses: 10.0.0.5 on eth0 is used, " +
				"and 172.16.0.5 on eth1 would do as well"},
		"first-found prefers the stored address": {setting: "autodetect", method: "first-found", links: second(), stored: "172.16.0.5/20",
			want: "172.16.0.5/20 eth1", note: "AmbiguousAddress: IP_AUTODETECTION_METHOD=first-found fits 2"},
		"first-found without candidates": {setting: "autodetect", method: "first-found", links: host()[:5],
			err: "172.17.0.1/16 docker0 bridge"},
		"an interface": {setting: "autodetect", method: "interface=ens.*,eth1", links: second(),
			want: "172.16.0.5/20 eth1", source: "interface=ens.*,eth1"},
		"interface matches part of a name, as in Calico": {setting: "autodetect", method: "interface=th1", links: second(),
			want: "172.16.0.5/20 eth1"},
		"interface names a bridge":                  {setting: "autodetect", method: "interface=docker.*", want: "172.17.0.1/16 docker0"},
		"interface matches part of a bridge's name": {setting: "autodetect", method: "interface=ocker", err: "172.17.0.1/16 docker0 bridge"},
		"interface names a bond's slave":            {setting: "autodetect", method: "interface=eth7", want: "10.7.0.5/24 eth7"},
		"an interface that no host has": {setting: "autodetect", method: "interface=foo0", stored: "10.0.0.5/24",
			want: "10.0.0.5/24 eth0", note: "NoNodeAddress: IP_AUTODETECTION_METHOD=interface=foo0 finds no address: "},
		"an interface that is down": {setting: "autodetect", method: "interface=eth9", err: "10.9.0.5/24 eth9 down"},
		"skip-interface": {setting: "autodetect", method: "skip-interface=eth0", links: second(),
			want: "172.16.0.5/20 eth1"},
		"a range": {setting: "autodetect", method: "cidr=172.16.0.0/20, 192.0.2.0/24", links: second(),
			want: "172.16.0.5/20 eth1"},
		"a range on loopback":        {setting: "autodetect", method: "cidr=10.255.0.0/16", want: "10.255.0.1/32 lo"},
		"a range without an address": {setting: "autodetect", method: "cidr=192.0.2.0/24", err: "10.0.0.5/24 eth0 ranges"},
		"can-reach": {setting: "autodetect", method: "can-reach=8.8.8.8", want: "10.0.0.5/24 eth0",
			source: "packets to 8.8.8.8 leave from it"},
		"can-reach, unknown name": {setting: "autodetect", method: "can-reach=nowhere.example",
			err: "IP_AUTODETECTION_METHOD=can-reach=nowhere.example host"},
		"can-reach, source on no interface": {setting: "autodetect", method: "can-reach=8.8.8.8", links: host()[:5],
			err: "IP_AUTODETECTION_METHOD=can-reach=8.8.8.8 10.0.0.5"},
		"only a virtual address": {setting: "autodetect", method: "first-found",
			links: []Link{on(dev("eth0"), "10.128.0.3/32")}, want: "10.128.0.3/32 eth0"},
		"a host without IPv6": {family: IPv6, setting: "autodetect", method: "first-found",
			links: []Link{on(dev("eth0"), "10.0.0.5/24")}, err: "IP6_AUTODETECTION_METHOD=first-found IPv6"},
		"a bond itself": {setting: "autodetect", method: "first-found",
			links: []Link{on(Link{Name: "bond0", Kind: "bond"}, "10.0.0.5/24")}, want: "10.0.0.5/24 bond0"},
		"a VLAN": {setting: "autodetect", method: "first-found",
			links: []Link{on(Link{Name: "eth0.5", Kind: "vlan"}, "10.0.0.5/24")}, want: "10.0.0.5/24 eth0.5"},
		"a slave of a VRF": {setting: "autodetect", method: "first-found",
			links: []Link{on(Link{Name: "eth0", Kind: "device", Master: "vrf"}, "10.0.0.5/24")}, want: "10.0.0.5/24 eth0"},
		"one address on two links, one of them down": {setting: "10.9.0.5", links: append(host(), on(dev("eth8"), "10.9.0.5/24")),
			want: "10.9.0.5/24 eth8"},
	} {
		t.Run(name, func(t *testing.T) {
			f := tc.family
			if f == 0 {
				f = IPv4
			}
			setting, err := ParseSetting(tc.setting, f)
			errtest.Must(t, err)
			r := Request{
				Family: f, Setting: setting, Method: method(t, tc.method, f), Node: "n1", Links: tc.links,
				Internal: addrs(strings.Fields(tc.internal)...), Source: source,
			}
			if tc.links == nil {
				r.Links = host()
			}
			if tc.stored != "" {
				r.Stored = netip.MustParsePrefix(tc.stored)
			}
			got, err := Choose(r)
			check(t, r, got, err)
			if tc.err != "" {
				if !errtest.Names(err, tc.err) {
					t.Fatalf("got %+v, error %v; want one that names %q", got, err, tc.err)
				}
				return
			}
			text, notes := "", ""
			for _, n := range got.Notes {
				notes += n.Reason + ": " + n.Text + "\n"
			}
			if got.Addr.IsValid() {
				text = got.Addr.String() + " " + got.Link
			}
			if err != nil || text != tc.want || !strings.Contains(got.Source, tc.source) || !strings.HasPrefix(notes, tc.note) ||
				(tc.note == "" && notes != "") {
				t.Errorf("got %q from %q, note %q, error %v; want %q, source %q, note %q", text, got.Source, notes, err, tc.want, tc.source, tc.note)
			}
		})
	}
}

// check asserts the invariants of every choice.
func check(t *testing.T, r Request, got Choice, err error) {
	t.Helper()
	chosen := 0
	for _, c := range got.Candidates {
		if c.Why == "" {
			t.Errorf("candidate %s on %s has no reason", c.Addr, c.Link)
		}
		if !c.Chosen {
			continue
		}
		chosen++
		if c.Addr.Addr() != got.Addr.Addr() || c.Link != got.Link || Unusable(c.Addr.Addr()) != "" || !r.Family.has(c.Addr.Addr()) {
			t.Errorf("chosen %+v, answer %s on %s", c, got.Addr, got.Link)
		}
	}
	if want := 0; got.Addr.IsValid() && chosen != 1 || !got.Addr.IsValid() && chosen != want || err != nil && got.Addr.IsValid() {
		t.Errorf("%d candidates are chosen, the answer is %s, error %v", chosen, got.Addr, err)
	}
}

func TestEveryCandidateHasItsReason(t *testing.T) {
	got, err := Choose(Request{Family: IPv4, Setting: Setting{Mode: Detect}, Method: method(t, "first-found", IPv4), Links: second()})
	errtest.Must(t, err)
	want := map[string]string{
		"127.0.0.1/8": "a loopback address", "10.255.0.1/32": "on loopback", "172.17.0.1/16": "on a bridge",
		"169.254.1.1/32": "a link-local address",
		"192.168.1.1/32": "on a tunnel (ipip)", "10.244.0.0/32": "on a tunnel (vxlan)", "10.96.0.1/32": "on a link that leads nowhere (dummy)",
		"10.7.0.5/24": "its link is part of a bond", "10.9.0.5/24": "the link is down", "169.254.7.7/16": "a link-local address",
		"10.0.0.5/24": "chosen: first-found", "10.0.0.100/32": "a single address beside the link's own: a virtual one, which moves",
		"172.16.0.5/20": "would do as well",
	}
	for _, c := range got.Candidates {
		if c.Why != want[c.Addr.String()] {
			t.Errorf("%s on %s: %q, want %q", c.Addr, c.Link, c.Why, want[c.Addr.String()])
		}
		delete(want, c.Addr.String())
	}
	if len(want) > 0 {
		t.Errorf("not among the candidates: %v", want)
	}
}

func TestParseRefuses(t *testing.T) {
	for _, tc := range []struct {
		text   string
		family Family
		want   string
	}{
		{"10.0.0", IPv4, "autodetect none IPv4"},
		{"fd00::5", IPv4, "IPv4"},
		{"10.0.0.5/24", IPv6, "IPv6"},
		{"127.0.0.1", IPv4, "loopback"},
		{"fe80::1", IPv6, "link-local"},
		{"fe80::1%eth0", IPv6, "IPv6"},
		{"224.0.0.1", IPv4, "unicast"},
		{"::ffff:10.0.0.5", IPv6, "IPv6"},
	} {
		if got, err := ParseSetting(tc.text, tc.family); !errtest.Names(err, tc.want) {
			t.Errorf("setting %q: %+v, %v; want an error with %q", tc.text, got, err, tc.want)
		}
	}
	for text, want := range map[string]string{
		"kubernetes": "kubernetes-internal-ip", "interface=": "interface=", "interface=(": `"("`, "interface=,": "interface",
		"can-reach=a b": `can-reach "a b"`, "can-reach=fd00::1": "can-reach IPv4 fd00::1", "cidr=10.0.0.0": `"10.0.0.0" IPv4`,
		"cidr=fd00::/8": `"fd00::/8" IPv4`,
		"guess=x":       "kubernetes-internal-ip",
	} {
		if _, err := ParseMethod(text, IPv4); !errtest.Names(err, want) {
			t.Errorf("method %q: %v; want an error with %q", text, err, want)
		}
	}
}

func TestRouterID(t *testing.T) {
	v4 := netip.MustParseAddr("10.0.0.5")
	for _, tc := range []struct {
		set  string
		v4   netip.Addr
		want string
	}{
		{"", v4, "10.0.0.5"},
		{"1.2.3.4", v4, "1.2.3.4"},
		{"hash", netip.Addr{}, "202.18.243.27"},
	} {
		if got, err := RouterID(tc.set, "node1", tc.v4); err != nil || got.String() != tc.want {
			t.Errorf("set %q: %s, %v; want %s", tc.set, got, err, tc.want)
		}
	}
	if _, err := RouterID("", "node1", netip.Addr{}); !errtest.Names(err, "node1 CALICO_ROUTER_ID=hash") {
		t.Errorf("without an IPv4 address: %v", err)
	}
	for _, text := range []string{"0.0.0.0", "fd00::1", "name"} {
		if ParseRouterID(text) == nil {
			t.Errorf("router ID %q was accepted", text)
		}
	}
}

func FuzzChoose(f *testing.F) {
	for _, m := range []string{"", "first-found", "interface=eth.*", "skip-interface=eth0", "cidr=10.0.0.0/8", "can-reach=10.0.0.1",
		"kubernetes-internal-ip", "interface=("} {
		for _, s := range []string{"", "autodetect", "none", "10.0.0.5", "fd00::5/64"} {
			f.Add(s, m, "10.0.0.5", "eth0", "device", false)
		}
	}
	f.Fuzz(func(t *testing.T, setting, method, stored, name, kind string, v6 bool) {
		r := Request{Family: IPv4, Node: "n1", Links: append(host(), on(Link{Name: name, Kind: kind}, "10.1.1.1/24", "fd01::1/64"))}
		if v6 {
			r.Family = IPv6
		}
		var err error
		if r.Setting, err = ParseSetting(setting, r.Family); err != nil {
			return
		}
		if r.Method, err = ParseMethod(method, r.Family); err != nil {
			return
		}
		if a, err := netip.ParseAddr(stored); err == nil {
			r.Stored, r.Internal = netip.PrefixFrom(a, a.BitLen()), []netip.Addr{a}
		}
		r.Source = func(string) (netip.Addr, error) { return r.Stored.Addr(), nil }
		got, err := Choose(r)
		check(t, r, got, err)
	})
}

// A starting agent waits for duplicate address detection only of an address that it may use: every new interface has a
// link-local address that is tentative for a second or two.
func TestAwaits(t *testing.T) {
	links := []Link{on(dev("eth0"), "10.0.0.5/24", "fe80::5/64 tentative"), on(Link{Name: "lo", Loopback: true}, "::1/128 tentative")}
	global := append(slices.Clone(links), on(dev("eth1"), "fd00::6/64 tentative", "fd00::7/64"))
	for name, c := range map[string]struct {
		setting string
		stored  string
		links   []Link
		want    bool
	}{
		"link-local only, detected": {"autodetect", "", links, false},
		"no setting":                {"", "", global, false},
		"none":                      {"none", "", global, false},
		"detected":                  {"autodetect", "", global, true},
		"stored":                    {"", "fd00::6/64", global, true},
		"another address is stored": {"none", "fd00::7/64", global, false},
		"set":                       {"fd00::6", "", global, true},
		"another address is set":    {"fd00::7", "", global, false},
	} {
		setting, err := ParseSetting(c.setting, IPv6)
		errtest.Must(t, err)
		r := Request{Family: IPv6, Setting: setting, Links: c.links}
		if c.stored != "" {
			r.Stored = netip.MustParsePrefix(c.stored)
		}
		if got := r.Awaits(); got != c.want {
			t.Errorf("%s: %t", name, got)
		}
	}
}

// TestList: an error lists ten addresses of a host, and how many others there are but for loopback.
func TestList(t *testing.T) {
	for count, want := range map[int]string{0: "no IPv4 address", 1: "10.0.0.0/24 on eth0", 12: ", and 2 more"} {
		f := finder{r: Request{Family: IPv4}, found: []candidate{{Candidate: Candidate{Addr: netip.MustParsePrefix("127.0.0.1/8"), Link: "lo"}}}}
		for i := range count {
			f.found = append(f.found, candidate{Candidate: Candidate{Addr: netip.MustParsePrefix(fmt.Sprintf("10.0.%d.0/24", i)), Link: "eth0"}})
		}
		if got := f.list(); !strings.HasSuffix(got, want) {
			t.Errorf("%d addresses: %q, want %q", count, got, want)
		}
	}
}
