package diagnose

import (
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/tortie-net/tortie/internal/agent/nodestatus"
	"github.com/tortie-net/tortie/internal/app/cniconf"
	"github.com/tortie-net/tortie/internal/kernel/netlinkx"
	"github.com/tortie-net/tortie/internal/kernel/nft"
	"github.com/tortie-net/tortie/internal/testkit/errtest"
)

// sound returns a host without any fault.
func sound() *Observations {
	now := time.Date(2026, 11, 20, 14, 30, 0, 0, time.UTC)
	return &Observations{
		Time: now, Protocol: 84,
		Agent: &nodestatus.Report{
			Node: "n1", Time: now, Started: now.Add(-time.Hour), Ready: true, LastPass: now.Add(-5 * time.Second),
			Address: "10.0.0.5/24", Interface: "eth0",
			Tunnels:      []nodestatus.Tunnel{{Kind: "IPIP", Device: "tunl0", Address: "192.168.1.0", MTU: 1480}},
			ForwardsIPv6: true,
			Pools:        []nodestatus.Pool{{Name: "p", CIDR: "192.168.0.0/16", IPIPMode: "Always"}, {Name: "p6", CIDR: "fd00:10::/48"}},
			Facts:        &nodestatus.Facts{Written: now, Usable: true},
		},
		Peers: []Peer{{
			Addr: netip.MustParseAddr("10.0.0.7"), Node: "n2", Session: "Established", Port: 179, Tunnelled: true, Probed: true, Way: "eth0",
			Echo: Probe{Outcome: Answered}, IPIP: Probe{Outcome: Answered}, WantSize: 1500, GotSize: 1500, Overhead: 20,
		}},
		Links: []netlinkx.Link{{Index: 1, Name: "lo"}, {Index: 2, Name: "eth0"}, {Index: 3, Name: "tunl0", Kind: "ipip"},
			{Index: 4, Name: "cali1"}},
		Routes: []netlinkx.Route{
			{Dst: netip.MustParsePrefix("0.0.0.0/0"), Protocol: netlinkx.ProtocolBoot, Dev: 2},
			{Dst: netip.MustParsePrefix("192.168.2.0/26"), Protocol: 84, Dev: 3},
			{Dst: netip.MustParsePrefix("192.168.1.7/32"), Protocol: netlinkx.ProtocolBoot, Dev: 4},
		},
		Chains: []nft.Place{{Table: "filter", Chain: "KUBE-FORWARD"}, {Table: "tortie", Chain: "nat-postrouting"}},
		Sysctls: map[string]string{
			"net/ipv4/ip_forward": "1", "net/ipv6/conf/all/forwarding": "1", "net/ipv4/conf/all/rp_filter": "0",
			"net/ipv4/conf/eth0/rp_filter": "2", "net/ipv4/conf/tunl0/rp_filter": "0",
		},
		Kernel:  Kernel{IPIP: Feature{Has: true}, NFTables: Feature{Has: true}, MD5: Feature{Has: true}},
		Configs: CNIConfigs{Dir: "/etc/cni/net.d", Files: []cniconf.File{{Name: "10-calico.conflist", Types: []string{"calico", "portmap"}}}},
		Managers: Managers{NetworkManager: Manager{Running: true}, Networkd: Manager{Running: true, Manages: []string{"eth0"}},
			KeepsForeignRoutes: true},
	}
}

// Fields of Calico's without effect are named, and are no problem.
func TestFieldsWithoutEffect(t *testing.T) {
	o := sound()
	o.Agent.FieldsWithoutEffect = []nodestatus.FieldsWithoutEffect{
		{Kind: "FelixConfiguration", Name: "default", Fields: []string{"spec.bpfEnabled", "spec.routeSource"}},
	}
	r := &Result{Findings: Check(o)}
	i := slices.IndexFunc(r.Findings, func(f Finding) bool { return f.Check == "fields" })
	if i < 0 || r.Findings[i].About != "FelixConfiguration default" ||
		!strings.Contains(r.Findings[i].Seen, "spec.bpfEnabled, spec.routeSource") {
		t.Errorf("%+v", r.Findings)
	}
	if r.Count(Problem)+r.Count(Warning) > 0 {
		t.Errorf("%+v", r.Findings)
	}
}

// inVXLAN changes a host to VXLAN.
func inVXLAN(o *Observations) {
	o.Agent.Tunnels = []nodestatus.Tunnel{{Kind: "VXLAN", Device: "vxlan.calico", Address: "192.168.1.1", MTU: 1450, Port: 4789}}
	o.Agent.Pools[0].IPIPMode, o.Agent.Pools[0].VXLANMode = "Never", "Always"
	o.Links[2].Name, o.Links[2].Kind = "vxlan.calico", "vxlan"
	o.Sysctls["net/ipv4/conf/vxlan.calico/rp_filter"] = "0"
	p := &o.Peers[0]
	p.Tunnelled, p.IPIP, p.VTEP, p.Overhead = false, Probe{}, netip.MustParseAddr("192.168.2.1"), 50
	p.VXLAN, p.UDP = Probe{Outcome: Answered}, Probe{Outcome: Silent}
}

func TestNothingIsWrong(t *testing.T) {
	second, third := sound(), sound()
	inVXLAN(second)
	// the pool that every cluster gets, on nodes with IPv4 alone
	third.Agent.ForwardsIPv6, third.Sysctls["net/ipv6/conf/all/forwarding"] = false, "0"
	for _, f := range slices.Concat(Check(sound()), Check(second), Check(third)) {
		if f.Level != OK || f.Seen == "" || f.Check == "" {
			t.Errorf("%+v", f)
		}
	}
}

// A large mesh is reported, until reflectors are on their way.
func TestLargeMesh(t *testing.T) {
	o := sound()
	for i := range largeMesh + 1 {
		for range 2 { // both families
			o.Agent.Peers = append(o.Agent.Peers, nodestatus.Peer{Kind: "mesh", Node: fmt.Sprint("n", i)})
		}
	}
	told := func() (found []Finding) {
		return slices.DeleteFunc(Check(o), func(f Finding) bool { return f.Check != "mesh" })
	}
	if f := told(); len(f) != 1 || f[0].Level != Warning || !strings.Contains(f[0].Seen, "101 others") {
		t.Errorf("%+v", f)
	}
	o.Agent.Reflection = &nodestatus.Reflection{Role: "client"}
	if f := told(); len(f) != 0 {
		t.Errorf("with reflectors: %+v", f)
	}
	o.Agent.Reflection, o.Agent.Peers = nil, o.Agent.Peers[:2*largeMesh]
	if f := told(); len(f) != 0 {
		t.Errorf("a mesh of 100 others: %+v", f)
	}
}

// The encapsulation of packets to a peer follows from the agent's routes.
func TestWaysOfPackets(t *testing.T) {
	r := &nodestatus.Report{
		PodMTU: 1410,
		Tunnels: []nodestatus.Tunnel{
			{Kind: "IPIP", Device: "tunl0", MTU: 1480}, {Kind: "VXLAN", Device: "vxlan.calico", MTU: 1450},
			{Kind: "VXLAN", Device: "vxlan-v6.calico", MTU: 1410},
		},
		Routes: nodestatus.Routes{List: []nodestatus.Route{
			{Destination: "10.1.2.0/26", Via: "10.1.2.1", Device: "vxlan.calico", Encap: "VXLAN", Node: "n2"},
			{Destination: "10.1.3.0/26", Via: "10.0.0.8", Device: "tunl0", Encap: "IPIP", Node: "n3"},
			{Destination: "fd00:1::/122", Via: "fd00:1::1", Device: "vxlan-v6.calico", Encap: "VXLAN", Node: "n2"},
			{Destination: "10.1.4.0/26", Via: "10.0.0.9", Device: "eth0", Node: "n4"},
		}},
	}
	for _, c := range []struct {
		peer nodestatus.Peer
		ipip bool
		vtep string
	}{
		{nodestatus.Peer{Address: "10.0.0.7", Node: "n2"}, false, "10.1.2.1"},
		{nodestatus.Peer{Address: "fd00::7", Node: "n2"}, false, "fd00:1::1"},
		{nodestatus.Peer{Address: "10.0.0.8", Node: "n3"}, true, "invalid IP"},
		{nodestatus.Peer{Address: "10.0.0.9", Node: "n4"}, false, "invalid IP"}, {nodestatus.Peer{Address: "10.0.0.1"}, false, "invalid IP"},
	} {
		if ipip, end := tunnelled(r, c.peer), vtep(r, c.peer); ipip != c.ipip || end.String() != c.vtep {
			t.Errorf("%+v: IPIP %v, VXLAN to %s", c.peer, ipip, end)
		}
	}
	size4, over4 := packetSize(r, true)
	size6, over6 := packetSize(r, false)
	plain, none := packetSize(&nodestatus.Report{PodMTU: 1500}, true)
	if size4 != 1500 || over4 != 20 || size6 != 1480 || over6 != 70 || plain != 1500 || none != 0 {
		t.Errorf("%d of them %d, IPv6 %d of them %d, without tunnels %d of them %d", size4, over4, size6, over6, plain, none)
	}
}

// Each change makes the one finding that names it, and affects no other check.
func TestChecks(t *testing.T) {
	one := func(o *Observations) *Peer { return &o.Peers[0] }
	for name, c := range map[string]struct {
		change func(*Observations)
		level  Level
		check  string
		want   []string // in what was seen, why or the remedy
	}{
		"VXLAN and pings get lost": {func(o *Observations) {
			inVXLAN(o)
			one(o).VXLAN.Outcome, one(o).Echo.Outcome, one(o).WantSize = Silent, Silent, 0
		}, Problem, "peer-vxlan", []string{"nor a ping of the node: not VXLAN alone gets lost"}},
		"no WireGuard": {func(o *Observations) {
			o.Agent.Problems = []string{"the kernel has no WireGuard"}
			o.Agent.Reason("the kernel has no WireGuard", "NoWireGuard")
		}, Problem, "problem", []string{"NoWireGuard", "packets go in the clear", "modprobe wireguard, or turn it off (wireguard.enabled)"}},
		"a source check that cannot be": {func(o *Observations) {
			o.Agent.Problems = []string{"pods may send from addresses of others"}
			o.Agent.Reason("pods may send from addresses of others", "NoSourceCheck")
		}, Problem, "problem", []string{"pose as others", "modprobe nft_fib_inet"}},
		"policies that do not hold": {func(o *Observations) {
			o.Agent.Problems = []string{"rules are refused"}
			o.Agent.Reason("rules are refused", "PolicyNotInForce")
		}, Problem, "problem", []string{"policies could not be programmed"}},
		"policies that another engine enforces": {func(o *Observations) {
			o.Agent.Problems = []string{"Cilium enforces"}
			o.Agent.Reason("Cilium enforces", "PolicyLeftToOther")
		}, Warning, "problem", []string{"Felix, Cilium or Antrea enforces policies on the node"}},
		"a node that is reached in the clear": {func(o *Observations) {
			o.Agent.Problems = []string{"Node n2: in the clear"}
			o.Agent.Reason("Node n2: in the clear", "NotEncrypted")
		}, Problem, "problem", []string{"packets in the clear", "start its agent"}},
		"a broken pool": {func(o *Observations) {
			o.Agent.Problems = []string{"IPPool p: spec.cidr is odd"}
			o.Agent.Reason("IPPool p: spec.cidr is odd", "InvalidPool")
		}, Warning, "problem", []string{"an unusable IPPool is left out | correct the named field"}},
		"a wrong peer": {func(o *Observations) {
			o.Agent.Problems = []string{"BGPPeer p: spec.asNumber"}
			o.Agent.Reason("BGPPeer p: spec.asNumber", "InvalidPeer")
		}, Problem, "problem", []string{"correct the named field (examples (docs/bgp.md))"}},
		"a peer with a remedy of its own": {func(o *Observations) {
			o.Agent.Problems = []string{"BGPPeer p: key \"k\" of Secret n/s: agents may not read it (no: never): helm upgrade with --set x={s}"}
			o.Agent.Reason(o.Agent.Problems[0], "InvalidPeer")
		}, Problem, "problem",
			[]string{"agents may not read it (no: never) | the BGPPeer is unusable, its last good form stays | helm upgrade with --set x={s}"}},
		"no VXLAN": {func(o *Observations) { inVXLAN(o); one(o).VXLAN.Outcome = Silent }, Problem, "peer-vxlan",
			[]string{"192.168.2.1", "VXLAN is dropped", "UDP port 4789"}},
		"no VXLAN device there": {func(o *Observations) { inVXLAN(o); one(o).VXLAN.Outcome, one(o).UDP.Outcome = Silent, Refused }, Problem,
			"peer-vxlan", []string{"UDP port 4789 there is closed", "vxlan.calico"}},
		"no way to the end of VXLAN": {func(o *Observations) { inVXLAN(o); one(o).VXLAN = Probe{NoWay, "no route to host"} }, Problem,
			"peer-vxlan", []string{"no route to host", "ip neigh show dev vxlan.calico"}},
		"VXLAN kept in": {func(o *Observations) { inVXLAN(o); one(o).VXLAN = Probe{NotAllowed, "operation not permitted"} }, Problem,
			"peer-vxlan", []string{"not let out"}},
		"no rights to try VXLAN": {func(o *Observations) { inVXLAN(o); one(o).VXLAN = Probe{Impossible, "odd"} }, Unknown,
			"peer-vxlan", []string{"NET_RAW"}},
		"a small MTU for VXLAN": {func(o *Observations) { inVXLAN(o); one(o).GotSize = 1400 }, Problem, "peer-mtu",
			[]string{"1500 bytes do not arrive", "1400 and 1350", "vxlanMTU"}},
		"wrong passwords": {func(o *Observations) {
			one(o).Session, one(o).TCP, one(o).Password, o.WrongPasswords = "Active", Probe{Outcome: Silent}, true, 3
		}, Problem, "peer-bgp", []string{"segments with a wrong password", "compare the Secret"}},
		"wrong TCP-AO keys": {func(o *Observations) {
			one(o).Session, one(o).TCP, one(o).TCPAO, o.WrongAO = "Active", Probe{Outcome: Silent}, true, 3
		}, Problem, "peer-bgp", []string{"without a right TCP-AO key", "compare the Secret"}},
		"too far away": {func(o *Observations) {
			one(o).Session, one(o).TCP, one(o).TTLHops = "Active", Probe{Outcome: Silent}, 1
		}, Problem, "peer-bgp", []string{"more than 1 hops away", "ttlSecurity"}},
		"no agent": {func(o *Observations) { o.AgentErr = errors.New("no agent answers"); o.Agent = nil }, Problem, "agent",
			[]string{"no agent answers", "kubectl"}},
		"an agent that hangs": {func(o *Observations) { o.Agent.LastPass = o.Time.Add(-time.Hour) }, Problem, "agent",
			[]string{"1h0m0s ago", "hangs"}},
		"not ready": {func(o *Observations) { o.Agent.Ready, o.Agent.LastError = false, "no InternalIP" }, Problem, "agent",
			[]string{"not ready: no InternalIP"}},
		"a failed pass": {func(o *Observations) { o.Agent.LastError = "tunl0: odd" }, Problem, "agent", []string{"tunl0: odd"}},
		"an object":     {func(o *Observations) { o.Agent.Problems = []string{"IPPool x: odd"} }, Warning, "problem", []string{"IPPool x"}},
		"stale facts": {func(o *Observations) { o.Agent.Facts.Usable = false; o.Agent.Facts.Written = o.Time.Add(-time.Minute) }, Warning,
			"facts", []string{"1m0s old"}},
		"no facts": {func(o *Observations) { o.Agent.Facts = nil }, Warning, "facts", []string{"not been told"}},
		"a journal": {func(o *Observations) { o.Agent.Journal = nodestatus.Journal{Entries: 3, LastError: "away"} }, Warning, "journal",
			[]string{"3 containers", "away"}},
		"no forwarding": {func(o *Observations) { o.Sysctls["net/ipv4/ip_forward"] = "0" }, Problem, "forwarding",
			[]string{"net.ipv4.ip_forward", "is 0"}},
		"no IPv6 forwarding": {func(o *Observations) { o.Sysctls["net/ipv6/conf/all/forwarding"] = "0" }, Problem, "forwarding",
			[]string{"net.ipv6.conf.all.forwarding"}},
		"strict rp_filter": {func(o *Observations) { o.Sysctls["net/ipv4/conf/tunl0/rp_filter"] = "1" }, Warning, "rp-filter",
			[]string{"tunl0", "strict", "net.ipv4.conf.tunl0.rp_filter to 2"}},
		"strict for all": {func(o *Observations) { o.Sysctls["net/ipv4/conf/all/rp_filter"] = "1" }, Warning, "rp-filter",
			[]string{"tunl0", "net.ipv4.conf.all.rp_filter"}},
		"strict, asymmetric": {func(o *Observations) { o.Sysctls["net/ipv4/conf/eth0/rp_filter"] = "1"; o.Peers[0].Way = "eth1" },
			Warning, "rp-filter", nil},
		"no ipip":         {func(o *Observations) { o.Kernel.IPIP = Feature{} }, Problem, "kernel", []string{"ipip", "CONFIG_NET_IPIP"}},
		"ipip not loaded": {func(o *Observations) { o.Kernel.IPIP = Feature{Loadable: true} }, Problem, "kernel", []string{"modprobe ipip"}},
		"no nf_tables":    {func(o *Observations) { o.Kernel.NFTables = Feature{} }, Problem, "kernel", []string{"nf_tables"}},
		"no md5":          {func(o *Observations) { o.Kernel.MD5 = Feature{} }, Warning, "kernel", []string{"CONFIG_TCP_MD5SIG"}},
		"unknown nf_tables": {func(o *Observations) { o.Kernel.NFTables = Feature{Err: errors.New("no rights")} }, Unknown,
			"kernel", []string{"no rights"}},
		"no conflist": {func(o *Observations) { o.Configs.Files = nil }, Problem, "cni-config",
			[]string{"/etc/cni/net.d", "empty", "install"}},
		"hidden conflists": {func(o *Observations) { o.Configs.Err = os.ErrNotExist }, Unknown, "cni-config",
			[]string{"could not look", "on the host"}},
		"another conflist": {func(o *Observations) {
			o.Configs.Files = append(o.Configs.Files, cniconf.File{Name: "20-x.conf", Types: []string{"flannel"}})
		}, Warning, "cni-config", []string{"20-x.conf", "flannel"}},
		"a broken conflist": {func(o *Observations) {
			o.Configs.Files = append(o.Configs.Files, cniconf.File{Name: "20-x.conf", Err: errors.New("odd")})
		}, Warning, "cni-config", []string{"20-x.conf", "odd"}},
		"keys that nothing reads": {func(o *Observations) { o.Configs.Files[0].Unread = "keys of calico without effect: mtuu" },
			Warning, "cni-config",
			[]string{"mtuu", "cni.conflist"}},
		"flannel": {func(o *Observations) { o.Links = append(o.Links, netlinkx.Link{Index: 9, Name: "flannel.1"}) }, Warning, "other-network",
			[]string{"flannel", "link flannel.1"}},
		"Cilium": {func(o *Observations) {
			o.Chains = append(o.Chains, nft.Place{Table: "raw", Chain: "CILIUM_PRE_raw"})
		}, Warning, "other-network", []string{"Cilium", "chain CILIUM_PRE_raw of table raw"}},
		"BIRD": {func(o *Observations) {
			o.Routes = append(o.Routes, netlinkx.Route{Dst: netip.MustParsePrefix("172.20.0.0/26"), Protocol: 12, Dev: 2})
		}, Warning, "other-network", []string{"BIRD", "route to 172.20.0.0/26"}},
		"a foreign route": {func(o *Observations) {
			o.Routes = append(o.Routes, netlinkx.Route{Dst: netip.MustParsePrefix("192.168.2.0/28"), Via: netip.MustParseAddr("10.0.0.1"),
				Protocol: netlinkx.ProtocolBoot, Dev: 2})
		}, Problem, "foreign-routes", []string{"192.168.2.0/28 via 10.0.0.1 dev eth0"}},
		"NetworkManager": {func(o *Observations) { o.Managers.NetworkManager.Manages = []string{"eth0", "cali1"} }, Problem, "network-manager",
			[]string{"manages cali1", "unmanaged-devices"}},
		"networkd": {func(o *Observations) { o.Managers.Networkd.Manages = []string{"tunl0"} }, Problem, "network-manager",
			[]string{"manages tunl0", "Unmanaged=yes"}},
		"networkd's broom": {func(o *Observations) { o.Managers.KeepsForeignRoutes = false }, Warning, "network-manager",
			[]string{"ManageForeignRoutes=no"}},
		"not the host": {func(o *Observations) {
			o.Managers = Managers{Err: errNotTheHost, Sockets: []string{"/run/NetworkManager/private"}}
		}, Unknown, "network-manager", []string{"listens at /run/NetworkManager/private", "nmcli device"}},

		"no time": {func(o *Observations) { one(o).Probed = false }, Unknown, "peer", []string{"node diagnose 10.0.0.7"}},
		"not learned": {func(o *Observations) {
			one(o).Addr, one(o).Session = netip.MustParseAddr("fe80::%eth0"), "Idle"
			one(o).LastError = "no router advertisement was received on eth0: have the router send them"
		}, Problem, "peer-bgp", []string{"fe80::%eth0", "no router advertisement was received on eth0", "have the router send them"}},
		"refused": {func(o *Observations) { one(o).TCP = Probe{Outcome: Refused} }, Problem, "peer-bgp",
			[]string{"10.0.0.7 (n2)", "TCP port 179 from 10.0.0.5: refused"}},
		"filtered": {func(o *Observations) { one(o).TCP = Probe{Outcome: Silent} }, Problem, "peer-bgp",
			[]string{"filtered", "security groups"}},
		"no route": {func(o *Observations) { one(o).TCP = Probe{NoWay, "no route to host"} }, Problem, "peer-bgp",
			[]string{"no route: no route to host", "ip route get 10.0.0.7"}},
		"not let out": {func(o *Observations) { one(o).TCP = Probe{NotAllowed, "operation not permitted"} }, Problem, "peer-bgp",
			[]string{"this host's firewall"}},
		"open, no session": {func(o *Observations) {
			one(o).TCP = Probe{Outcome: Answered}
			one(o).Session, one(o).LastError = "Active", "wrong AS number"
		}, Warning, "peer-bgp", []string{"the session is Active: wrong AS number"}},
		"IPIP dropped": {func(o *Observations) { one(o).IPIP = Probe{Outcome: Silent} }, Problem, "peer-ipip",
			[]string{"protocol 4 is dropped", "security groups"}},
		"IPIP unknown": {func(o *Observations) { one(o).IPIP = Probe{NoProtocol, "protocol not available"} }, Problem, "peer-ipip",
			[]string{"does not know protocol 4", "modprobe ipip"}},
		"IPIP rejected": {func(o *Observations) { one(o).IPIP = Probe{Refused, "connection refused"} }, Problem, "peer-ipip",
			[]string{"is rejected"}},
		"no raw socket": {func(o *Observations) { one(o).IPIP = Probe{Impossible, "operation not permitted"} }, Unknown,
			"peer-ipip", []string{"NET_RAW"}},
		"a small MTU": {func(o *Observations) { one(o).GotSize = 1400 }, Problem, "peer-mtu",
			[]string{"1500 bytes do not arrive", "has 1400", "1400 and 1380", "ipipMTU"}},
		"no ping": {func(o *Observations) { one(o).Echo = Probe{Outcome: Silent} }, Unknown, "peer-mtu", []string{"answers no ping"}},
	} {
		o := sound()
		c.change(o)
		var found []string
		for _, f := range Check(o) {
			if f.Level == OK {
				continue
			}
			text := strings.Join([]string{string(f.Level), f.Check, f.About, f.Seen, f.Why, f.Do}, " | ")
			found = append(found, text)
			if f.Level != Unknown && (f.Why == "" && f.Check != "peer-bgp" && f.Check != "cni-config" || f.Do == "") {
				t.Errorf("%s: without reason or remedy: %s", name, text)
			}
		}
		ok := false
		for _, text := range found {
			fits := strings.HasPrefix(text, string(c.level)+" | "+c.check+" | ")
			for _, want := range c.want {
				fits = fits && strings.Contains(text, want)
			}
			ok = ok || fits
		}
		if name == "strict, asymmetric" {
			ok = len(found) == 1 && strings.HasPrefix(found[0], "problem | rp-filter | eth0 | is 1 (strict), and 10.0.0.7 (n2) is reached by eth1")
		}
		if !ok || len(found) != 1 && name != "no agent" {
			t.Errorf("%s:\n%s\nwant one %s of %s with %q", name, strings.Join(found, "\n"), c.level, c.check, c.want)
		}
	}
}

func TestWhatIsNotLookedAtIsSaid(t *testing.T) {
	o := sound()
	o.ChainsErr = errors.New("no rights")
	got := o.otherNetworks()
	if len(got) != 1 || got[0].Level != OK || !strings.Contains(got[0].Seen, "no rights") {
		t.Errorf("%+v", got)
	}
}

func TestAnotherNetworkBeforeOurs(t *testing.T) {
	o := sound()
	o.Configs.Files = []cniconf.File{{Name: "05-cilium.conflist", Types: []string{"cilium-cni"}}, o.Configs.Files[0]}
	got := o.cniConfigs()
	if len(got) != 2 || got[0].Level != Problem || got[1].Level != Warning || !strings.Contains(got[1].Why, "05-cilium.conflist") {
		t.Errorf("%+v", got)
	}
}

// The agent's own devices are no trace of another network, even without an agent's answer.
func TestOwnDevicesOfASilentAgent(t *testing.T) {
	o := sound()
	o.AgentErr, o.Agent = errors.New("no agent answers"), nil
	for i, name := range []string{"vxlan.calico", "vxlan-v6.calico", "wireguard.cali", "wg-v6.cali", "tunl0", "tunl0-ac1e0002"} {
		o.Links = append(o.Links, netlinkx.Link{Index: 20 + i, Name: name})
	}
	if got := o.otherNetworks(); len(got) != 1 || got[0].Level != OK {
		t.Errorf("%+v", got)
	}
}

func TestTextAndOrder(t *testing.T) {
	r := &Result{Node: "n1", Seconds: 1.26, Findings: []Finding{
		{Check: "b", Level: OK, Seen: "fine"}, {Check: "z", Level: Problem, About: "eth0", Seen: "one\ntwo", Why: "because", Do: "this"},
		{Check: "c", Level: Unknown, Seen: "dark"},
	}}
	r.Order()
	var b strings.Builder
	errtest.Must(t, r.WriteText(&b))
	want := "Node n1: 3 checks in 1.3 s: 1 problem, 0 warnings, 1 could not be made, 1 ok\n\nPROBLEM  z, eth0: one\n              two\n" +
		"         why: because\n         do:  this\n\nUNKNOWN  c: dark\n\nok       b: fine\n"
	if b.String() != want {
		t.Errorf("got\n%s\nwant\n%s", b.String(), want)
	}
}

// A cluster without any answer does not fill the screen.
func TestTextOfMany(t *testing.T) {
	r := &Result{}
	for range 100 {
		r.Findings = append(r.Findings, Finding{Check: "peer-bgp", Level: Problem, Seen: "refused"},
			Finding{Check: "peer-bgp", Level: OK, Seen: "fine"})
	}
	r.Order()
	var b strings.Builder
	errtest.Must(t, r.WriteText(&b))
	if text := b.String(); strings.Count(text, "refused") != 5 ||
		!strings.Contains(text, "\nPROBLEM  peer-bgp: 95 more: -o json has them\n") || strings.Count(text, "fine") != 100 {
		t.Errorf("got\n%s", text)
	}
}

func TestManagersFiles(t *testing.T) {
	root := t.TempDir()
	h := host{root: root}
	links := []netlinkx.Link{{Index: 3, Name: "tunl0"}, {Index: 4, Name: "cali1"}}
	if m := h.managers(links); !errors.Is(m.Err, errNotTheHost) {
		t.Errorf("an empty directory is taken for the host: %+v", m)
	}
	for path, text := range map[string]string{
		"etc/os-release":                        "ID=debian\n",
		"run/NetworkManager/devices/3":          "[device]\nmanaged=false\n",
		"run/NetworkManager/devices/4":          "[device]\nmanaged=true\n",
		"run/systemd/netif/links/3":             "# This is private data.\nADMIN_STATE=configured\n",
		"run/systemd/netif/links/4":             "ADMIN_STATE=unmanaged\n",
		"etc/systemd/networkd.conf":             "[Network]\nManageForeignRoutes=yes\n",
		"etc/systemd/networkd.conf.d/50-x.conf": "[Network]\nManageForeignRoutes = no\n",
	} {
		write(t, filepath.Join(root, path), text)
	}
	m := h.managers(links)
	if m.Err != nil || strings.Join(m.NetworkManager.Manages, " ") != "cali1" ||
		strings.Join(m.Networkd.Manages, " ") != "tunl0" || !m.KeepsForeignRoutes {
		t.Errorf("%+v", m)
	}
}

func write(t *testing.T, path, text string) {
	t.Helper()
	errtest.Must(t, os.MkdirAll(filepath.Dir(path), 0o755))
	errtest.Must(t, os.WriteFile(path, []byte(text), 0o644))
}

// FuzzPackets: whatever packets are read, there is no panic, and no payload is longer than its packet.
func FuzzPackets(f *testing.F) {
	a := netip.MustParseAddr("10.0.0.1")
	f.Add(ipv4Packet(a, a, protocolICMP, ipv4Packet(a, a, protocolICMP, echoRequest(true, 1, 2, 64))))
	f.Add([]byte{0x4f})
	f.Fuzz(func(t *testing.T, b []byte) {
		_, inner := inside(b)
		if inner != nil && len(inner) > len(b)-ipv4Header {
			t.Errorf("%d bytes inside of %d", len(inner), len(b))
		}
		_, message := inside(inner)
		echoReply(message, true, 1)
		echoReply(b, false, 1)
	})
}
