package takeover

import (
	"errors"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/tortie-net/tortie/internal/kernel/netlinkx"
	"github.com/tortie-net/tortie/internal/kernel/nft"
	"github.com/tortie-net/tortie/internal/kernel/routes"
	"github.com/tortie-net/tortie/internal/kernel/wireguard"
	"github.com/tortie-net/tortie/internal/testkit/difftest"
	"github.com/tortie-net/tortie/internal/testkit/errtest"
	"github.com/tortie-net/tortie/internal/testkit/netnstest"
)

var pools = []netip.Prefix{netip.MustParsePrefix("10.244.0.0/16")}

// calicoNode is a namespace as Calico's versions up to 3.31 leave a node: a pool without encapsulation, one with VXLAN,
// a pod, and Felix's rules in its mode of nftables.
func calicoNode(t testing.TB) *netnstest.NS {
	t.Helper()
	ns := netnstest.New(t)
	netnstest.Cable(t, ns, "eth0", ns, "far")
	netnstest.Cable(t, ns, "cali1", ns, "pod")
	ns.Addr(t, "eth0", "10.0.0.1/24")
	ns.Run(t, "ip", "link", "add", "vxlan.calico", "type", "vxlan", "id", "4096", "dstport", "4789", "dev", "eth0", "local", "10.0.0.1")
	ns.Up(t, "vxlan.calico")
	for _, r := range []string{
		"blackhole 10.244.0.0/26 proto bird", "10.244.0.5 dev cali1 scope link", "10.244.1.0/26 via 10.0.0.2 dev eth0 proto bird",
		"10.244.200.0/26 via 10.244.200.0 dev vxlan.calico proto 80 onlink", "blackhole 10.244.199.0/26 proto 80",
		"10.244.9.0/26 via 10.0.0.9 dev eth0 proto bird",
	} {
		ns.Run(t, "ip", append([]string{"route", "add"}, strings.Fields(r)...)...)
	}
	felix(t, ns)
	return ns
}

// felix makes rules as Felix does.
func felix(t testing.TB, ns *netnstest.NS) {
	t.Helper()
	file := filepath.Join(t.TempDir(), "felix.nft")
	const text = `table ip calico {
	chain filter-cali-from-wl-dispatch { drop
	}
	chain filter-FORWARD { type filter hook forward priority 0; policy accept; iifname "cali*" jump filter-cali-from-wl-dispatch
	}
}
`
	errtest.Must(t, os.WriteFile(file, []byte(text), 0o600))
	ns.Run(t, "nft", "-f", file)
}

// desired are the agent's routes on that node.
var desired = []routes.Route{
	{Dst: netip.MustParsePrefix("10.244.0.0/26"), Type: netlinkx.Unreachable},
	routes.To(netip.MustParsePrefix("10.244.1.0/26"), routes.Hop{Via: netip.MustParseAddr("10.0.0.2"), Dev: "eth0"}),
	routes.To(netip.MustParsePrefix("10.244.200.0/26"),
		routes.Hop{Via: netip.MustParseAddr("10.244.200.0"), Dev: "vxlan.calico", Onlink: true}),
}

// takeover holds the agent's parts for a takeover.
type takeover struct {
	*Watch
	fib *routes.Table
}

func newTakeover(ns *netnstest.NS, remove bool) takeover {
	crypt := wireguard.New(ns.Conn, routes.DefaultProtocol, Protocols)
	h := takeover{NewWatch(ns.Conn, nft.New(ns.Namespace), crypt, remove),
		routes.New(ns.Conn, routes.Options{TakeOver: Protocols, Devices: []string{"vxlan.calico"}})}
	h.sockets = func() (found []string, err error) {
		err = ns.Namespace.Do(func() error {
			found, err = listeningBIRD()
			return err
		})
		return found, err
	}
	return h
}

func (h takeover) pass(t testing.TB, now time.Time) routes.Stats {
	t.Helper()
	h.fib.SetPredecessors(h.Predecessors(now, pools))
	stats, err := h.fib.Sync(t.Context(), desired)
	errtest.Must(t, err)
	h.Took(now, h.fib.Taken())
	h.Look(t.Context(), now, true)
	return stats
}

func wantRoutes(t testing.TB, ns *netnstest.NS, want ...string) {
	t.Helper()
	text := ns.Run(t, "ip", "route", "show", "root", "10.244.0.0/16")
	var got []string
	for line := range strings.Lines(text) {
		got = append(got, strings.Join(strings.Fields(line), " "))
	}
	if strings.Join(got, "\n") != strings.Join(want, "\n") {
		t.Errorf("routes\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
}

var agentsRoutes = []string{
	"unreachable 10.244.0.0/26 proto 84",
	"10.244.0.5 dev cali1 scope link",
	"10.244.1.0/26 via 10.0.0.2 dev eth0 proto 84",
	"10.244.200.0/26 via 10.244.200.0 dev vxlan.calico proto 84 onlink",
}

func TestTakeOverAndBack(t *testing.T) {
	ns := calicoNode(t)
	h := newTakeover(ns, true)
	now := time.Now()
	if got, want := h.pass(t, now), (routes.Stats{Replaced: 3, Deleted: 2}); got != want {
		t.Errorf("%+v, want %+v", got, want)
	}
	wantRoutes(t, ns, agentsRoutes...)
	if got := h.pass(t, now); got != (routes.Stats{Kept: 3}) || len(h.Problems(now)) > 0 {
		t.Errorf("the second pass: %+v, %v", got, h.Problems(now))
	}
	if text := ns.Run(t, "nft", "list", "ruleset"); text != "" {
		t.Errorf("rules of Felix's:\n%s", text)
	}

	ns.Run(t, "nft", "add", "table", "inet", "tortie")
	ns.Run(t, "nft", "add", "table", "inet", "tortie-policy")
	back := Handover{Kernel: ns.Conn, Table: nft.New(ns.Namespace), Protocol: 84}
	dry := back
	dry.DryRun = true
	would, err := dry.Run(t.Context())
	if err != nil || len(would) != 4 {
		t.Errorf("would do %v, %v", would, err)
	}
	wantRoutes(t, ns, agentsRoutes...)
	did, err := back.Run(t.Context())
	if err != nil || len(did) != 4 || did[3].What != "keep" {
		t.Errorf("did %v, %v; would have done %v", did, err, would)
	}
	calicos := []string{
		"blackhole 10.244.0.0/26 proto bird",
		"10.244.0.5 dev cali1 scope link",
		"10.244.1.0/26 via 10.0.0.2 dev eth0 proto bird",
		"10.244.200.0/26 via 10.244.200.0 dev vxlan.calico proto 80 onlink",
	}
	wantRoutes(t, ns, calicos...)
	felix(t, ns)
	did, err = back.Run(t.Context())
	if err != nil || len(did) != 1 || did[0] != (Step{"remove", "table inet tortie, table inet tortie-policy"}) {
		t.Errorf("once Felix has its rules: %v, %v", did, err)
	}
	if text := ns.Run(t, "nft", "list", "tables"); strings.TrimSpace(text) != "table ip calico" {
		t.Errorf("tables:\n%s", text)
	}
	if did, err = back.Run(t.Context()); err != nil || len(did) > 0 {
		t.Errorf("again: %v, %v", did, err)
	}
	wantRoutes(t, ns, calicos...)
}

// TestRulesGoOnceOthersAreInPlace: Felix's rules stay until the agent's are in place, and go as soon as that is so; the
// agent's stay until Felix has policies in force, in each of its modes.
func TestRulesGoOnceOthersAreInPlace(t *testing.T) {
	ns := calicoNode(t)
	h := newTakeover(ns, true)
	now := time.Now()
	h.Look(t.Context(), now, false)
	if ns.Run(t, "nft", "list", "tables") == "" {
		t.Error("Felix's rules are gone before the agent's are in place")
	}
	difftest.Contains(t, errors.Join(h.Problems(now)...).Error(), "the agent removes them once its own are in force")
	now = now.Add(time.Second)
	h.Look(t.Context(), now, true)
	if text := ns.Run(t, "nft", "list", "tables"); text != "" || len(h.Problems(now)) > 0 {
		t.Errorf("once they are: %v\n%s", h.Problems(now), text)
	}

	back := Handover{Kernel: ns.Conn, Table: nft.New(ns.Namespace), Protocol: 84}
	for _, mode := range [][]string{{"iptables-nft"}, {"iptables-legacy"}, {"nft", "add table ip calico; add chain ip calico "}} {
		ns.Run(t, "nft", "add", "table", "inet", "tortie-policy")
		chain := func(table, name string) {
			if mode[0] == "nft" {
				ns.Run(t, "nft", mode[1]+table+"-"+name)
				return
			}
			ns.Run(t, mode[0], "-t", table, "-N", name)
		}
		chain("nat", "cali-nat-outgoing")
		if did, err := back.Run(t.Context()); err != nil || len(did) != 1 && len(did) != 4 || did[len(did)-1].What != "keep" {
			t.Errorf("%s: before Felix has policies in force: %v, %v", mode[0], did, err)
		}
		chain("filter", "cali-from-wl-dispatch")
		if did, err := back.Run(t.Context()); err != nil || len(did) != 1 || did[0].What != "remove" {
			t.Errorf("%s: once Felix has: %v, %v", mode[0], did, err)
		}
		if text := ns.Run(t, "nft", "list", "tables"); strings.Contains(text, "tortie-policy") {
			t.Errorf("%s: tables\n%s", mode[0], text)
		}
		ns.Run(t, "nft", "flush", "ruleset")
		if mode[0] == "iptables-legacy" {
			ns.Run(t, mode[0], "-F")
			ns.Run(t, mode[0], "-X")
			ns.Run(t, mode[0], "-t", "nat", "-X")
		}
	}
}

func TestHandoverWhereCalicoHasItsOwn(t *testing.T) {
	ns := calicoNode(t)
	newTakeover(ns, false).pass(t, time.Now())
	ns.Run(t, "ip", strings.Fields("route add 10.244.1.0/26 via 10.0.0.3 dev eth0 proto bird metric 1024")...) // since 3.32
	did, err := Handover{Kernel: ns.Conn, Table: nft.New(ns.Namespace), Protocol: 84}.Run(t.Context())
	if err != nil || len(did) != 3 {
		t.Errorf("%v, %v", did, err)
	}
	wantRoutes(t, ns, "blackhole 10.244.0.0/26 proto bird", "10.244.0.5 dev cali1 scope link",
		"10.244.1.0/26 via 10.0.0.3 dev eth0 proto bird metric 1024", "10.244.200.0/26 via 10.244.200.0 dev vxlan.calico proto 80 onlink")
}

// TestHandoverOfAll: a pod's link is removed, by its name or its alias, and a foreign pair stays, although a route
// leads to it.
func TestHandoverOfAll(t *testing.T) {
	ns, pod := calicoNode(t), netnstest.New(t)
	newTakeover(ns, true).pass(t, time.Now())
	ns.Run(t, "nft", "add", "table", "inet", "tortie")
	for _, link := range []string{"cali2", "lan3", "docker0"} {
		netnstest.Cable(t, ns, link, pod, "eth-"+link)
	}
	ns.Run(t, "ip", "link", "set", "lan3", "alias", "tortie:k8s-pod-network.c:eth0")
	ns.Run(t, "ip", "route", "add", "10.244.0.6", "dev", "cali2", "scope", "link")
	ns.Run(t, "ip", "route", "add", "172.17.0.9", "dev", "docker0", "scope", "link")
	all := Handover{Kernel: ns.Conn, Table: nft.New(ns.Namespace), Protocol: 84, All: true}
	dry := all
	dry.DryRun = true
	would, err := dry.Run(t.Context())
	errtest.Must(t, err)
	did, err := all.Run(t.Context())
	if err != nil || len(did) != 7 || !slices.Equal(would, did) {
		t.Errorf("%v, %v, and without doing it %v", did, err, would)
	}
	wantRoutes(t, ns, "10.244.0.5 dev cali1 scope link")
	if text := ns.Run(t, "nft", "list", "ruleset"); text != "" {
		t.Errorf("rules:\n%s", text)
	}
	links := ns.Run(t, "ip", "-br", "link")
	for name, want := range map[string]bool{"vxlan.calico": false, "cali2": false, "lan3": false, "docker0": true, "eth0": true} {
		if there := strings.Contains("\n"+links, "\n"+name); there != want {
			t.Errorf("%s is there: %v, want %v:\n%s", name, there, want, links)
		}
	}
	if again, err := all.Run(t.Context()); err != nil || len(again) != 0 {
		t.Errorf("once more: %v, %v", again, err)
	}
}

// TestBIRDRuns: while its socket listens its routes stay, and when it has ended all are taken over.
func TestBIRDRuns(t *testing.T) {
	ns := calicoNode(t)
	var socket net.Listener
	ns.Within(t, func() (err error) {
		socket, err = net.Listen("unix", filepath.Join(t.TempDir(), "bird.ctl"))
		return err
	})
	h := newTakeover(ns, false)
	now := time.Now()
	for range 3 {
		if got := h.pass(t, now); got.Left != 2 || got.Added+got.Replaced+got.Deleted > 0 && got.Replaced+got.Deleted != 2 {
			t.Errorf("%+v, want both of BIRD's routes left alone", got)
		}
	}
	if problems := h.Problems(now); len(problems) != 2 || !strings.Contains(problems[0].Error(), "BIRD still runs on this node (") {
		t.Errorf("problems: %v", problems)
	}
	socket.Close()
	if got := h.pass(t, now); got.Left != 0 || got.Replaced != 2 || got.Deleted != 1 {
		t.Errorf("%+v", got)
	}
	wantRoutes(t, ns, agentsRoutes...)
}

// TestFelixRuns: rules that came back once are left alone, and reported.
func TestFelixRuns(t *testing.T) {
	ns := calicoNode(t)
	h := newTakeover(ns, true)
	now := time.Now()
	h.pass(t, now)
	again := func() {
		ns.Run(t, "ip", strings.Fields("route replace 10.244.200.0/26 via 10.244.200.0 dev vxlan.calico proto 80 onlink")...)
		felix(t, ns)
	}
	again()
	now = now.Add(90 * time.Second)
	h.pass(t, now)
	again()
	for range 3 {
		now = now.Add(rulesPause)
		if got := h.pass(t, now); got.Left != 1 || got.Added+got.Replaced+got.Deleted > 0 {
			t.Errorf("%+v, want Felix's route left alone", got)
		}
	}
	if problems := h.Problems(now); len(problems) != 1 || !strings.Contains(problems[0].Error(), "Felix still runs on this node") {
		t.Errorf("problems: %v", problems)
	}
	if text := ns.Run(t, "nft", "list", "tables"); !strings.Contains(text, "table ip calico") {
		t.Errorf("its rules were removed again:\n%s", text)
	}
	now = now.Add(longPause)
	if got := h.pass(t, now); got.Left != 0 || got.Replaced != 1 {
		t.Errorf("long after: %+v", got)
	}
	if problems := h.Problems(now); len(problems) > 0 {
		t.Errorf("problems: %v", problems)
	}
}

// TestRulesAreToldOf: Felix's rules are reported, and stay unless their removal is configured.
func TestRulesAreToldOf(t *testing.T) {
	ns := calicoNode(t)
	ns.Run(t, "ip", strings.Fields("rule add priority 99 not fwmark 0x100000/0x100000 table 1")...)
	ns.Run(t, "iptables-legacy", "-N", "cali-FORWARD")
	h := newTakeover(ns, false)
	now := time.Now()
	h.pass(t, now)
	text := errors.Join(h.Problems(now)...).Error()
	difftest.Contains(t, text, "table ip calico", "TORTIE_REMOVE_CALICO_RULES", "ip rule 99 leads packets to table 1",
		"chain cali-FORWARD of table filter")
	if did, err := RemoveRules(t.Context(), ns.Conn, nft.New(ns.Namespace), true); err != nil || len(did) != 1 {
		t.Errorf("would %v, %v", did, err)
	}
	if did, err := RemoveRules(t.Context(), ns.Conn, nft.New(ns.Namespace), false); err != nil || len(did) != 1 {
		t.Errorf("did %v, %v", did, err)
	}
	ns.Run(t, "ip", strings.Fields("rule del priority 99")...)
	ns.Run(t, "iptables-legacy", "-X", "cali-FORWARD")
	h.pass(t, now.Add(rulesPause/2))
	if len(h.Problems(now)) == 0 {
		t.Error("it was looked again at once")
	}
	h.pass(t, now.Add(2*rulesPause))
	if problems := h.Problems(now); len(problems) > 0 {
		t.Errorf("problems: %v", problems)
	}
}

// TestRuleOfOurOwn: a starting agent that no longer encrypts keeps the former agent's rule for a while. That rule is
// not reported; one of Felix's is.
func TestRuleOfOurOwn(t *testing.T) {
	const rule = "priority 99 not fwmark 0x200000/0x200000 table 1"
	ns := netnstest.New(t)
	for _, c := range []struct {
		protocol string
		told     int
	}{{"84", 0}, {"80", 1}} {
		own := strings.Fields(rule + " protocol " + c.protocol)
		ns.Run(t, "ip", append([]string{"rule", "add"}, own...)...)
		h := newTakeover(ns, false)
		h.Look(t.Context(), time.Now(), true)
		if problems := h.Problems(time.Now()); len(problems) != c.told {
			t.Errorf("protocol %s: %v", c.protocol, problems)
		}
		ns.Run(t, "ip", append([]string{"rule", "delete"}, own...)...)
	}
}
