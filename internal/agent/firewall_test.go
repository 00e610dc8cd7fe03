package agent

import (
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/tortie-net/tortie/internal/api"
	"github.com/tortie-net/tortie/internal/bgp"
	"github.com/tortie-net/tortie/internal/kernel/podnet"
	"github.com/tortie-net/tortie/internal/testkit/errtest"
	"github.com/tortie-net/tortie/internal/testkit/labstore"
	"github.com/tortie-net/tortie/internal/testkit/netnstest"
	"github.com/tortie-net/tortie/internal/testkit/waittest"
)

// TestAllowedSources: the prefixes that a pod may send from are in force if workloadSourceSpoofing is Any, also for an
// agent that has just started, and go with the pod's link.
func TestAllowedSources(t *testing.T) {
	r := newRig(t)
	felix := &api.FelixConfiguration{Meta: api.Meta{Name: "node." + rigNode}}
	labstore.Forget(t, r.store, &api.FelixConfiguration{Meta: felix.Meta})
	pod, link := netnstest.New(t), "cali0123456789a"
	r.ns.Within(t, func() error {
		_, err := podnet.Setup(t.Context(), podnet.Config{
			Netns: pod.Path(), IfName: "eth0", HostVeth: link, Addresses: []netip.Addr{netip.MustParseAddr("10.90.0.77")},
			Sources: []netip.Prefix{netip.MustParsePrefix("10.99.0.0/16"), netip.MustParsePrefix("fd00:99::/64")},
		})
		return err
	})
	_, stop := r.agent(t, newPeers())
	has := func(text string) func() bool {
		return func() bool { return strings.Contains(r.ns.Run(t, "nft", "list", "ruleset"), text) }
	}
	const allowed = `"cali0123456789a" . 10.99.0.0/16`
	waittest.Until(t, 20*time.Second, "table", has("spoofed-from-pod"))
	if has(allowed)() {
		t.Error("the pod's annotation counts although no operator said so")
	}
	felix.Spec = api.FelixConfigurationSpec{WorkloadSourceSpoofing: "Any"}
	errtest.Must(t, r.store.Create(t.Context(), felix))
	waittest.Until(t, fullPass/3, "what the pod asks for", has(allowed))
	stop()
	r.ns.Run(t, "nft", "delete", "table", "inet", "tortie")
	r.agent(t, newPeers())
	waittest.Until(t, 20*time.Second, "the same from the next agent", has(allowed))
	r.ns.Run(t, "ip", "link", "delete", link)
	waittest.Until(t, fullPass/3, "nothing of a pod that has gone", func() bool { return !has(allowed)() })
}

func ptr[T any](v T) *T { return &v }

// TestAgentKeepsTheTable: foreign changes of an agent's nftables are undone at once, long before the next full pass; a
// FelixConfiguration steers the tables.
func TestAgentKeepsTheTable(t *testing.T) {
	r := newRig(t)
	felix := &api.FelixConfiguration{Meta: api.Meta{Name: "node." + rigNode}}
	labstore.Forget(t, r.store, &api.FelixConfiguration{Meta: felix.Meta})
	r.agent(t, newPeers())
	table := func() string {
		if !strings.Contains(r.ns.Run(t, "nft", "list", "tables"), "table inet tortie") {
			return ""
		}
		return r.ns.Run(t, "nft", "list", "table", "inet", "tortie")
	}
	const masquerade, guard = "@nat-outgoing-v4 ip daddr != @pools-v4 masquerade fully-random", `comment "ipip-from-pod"`
	waittest.Until(t, 20*time.Second, "table", func() bool {
		text := table()
		return strings.Contains(text, masquerade) && strings.Contains(text, guard)
	})
	want := table()
	for _, script := range []string{
		"flush chain inet tortie nat-postrouting", "delete table inet tortie", "flush set inet tortie pools-v4",
		"insert rule inet tortie guard-input accept", "delete element inet tortie guard-nodes-v4 { 172.31.0.2 }",
	} {
		r.ns.Run(t, "nft", script)
		begun := time.Now()
		waittest.Until(t, fullPass/3, "repair of "+script, func() bool { return table() == want })
		t.Logf("%s: undone after %v", script, time.Since(begun))
	}

	felix.Spec = api.FelixConfigurationSpec{NATPortRange: ptr(api.PortRange("40000:41000")), NATOutgoingExclusions: "IPPoolsAndHostIPs"}
	errtest.Must(t, r.store.Create(t.Context(), felix))
	waittest.Until(t, fullPass/3, "what the FelixConfiguration says", func() bool {
		text := table()
		return strings.Contains(text, "masquerade to :40000-41000 fully-random") && strings.Contains(text, "10.90.0.0/16, 172.31.0.1")
	})
}

// TestFloatingAddresses: floating addresses that the plugin has stored are in force if floatingIPs is Enabled. They are
// translated, also for the node itself, announced if another node has their block, and gone with the pod's link.
// Addresses that are not in force are named.
func TestFloatingAddresses(t *testing.T) {
	r := newRig(t)
	felix := &api.FelixConfiguration{Meta: api.Meta{Name: "node." + rigNode}}
	labstore.Forget(t, r.store, &api.FelixConfiguration{Meta: felix.Meta})
	r.affinity(t, rigNode, "10.90.1.0/26", "rig-node-10-90-1-0-26")
	r.affinity(t, rigOther, "10.90.2.0/26", "rig-other-10-90-2-0-26")
	labstore.Make(t, r.store, &api.IPPool{Meta: api.Meta{Name: "rig-hosts"}, Spec: api.IPPoolSpec{CIDR: "172.31.0.0/24"}})
	pod, link := netnstest.New(t), "cali0123456789a"
	floating := []netip.Addr{addr("10.90.1.9"), addr("10.90.2.9"), addr("172.31.0.1"), addr("172.31.0.2"), addr("10.99.0.9")}
	r.ns.Within(t, func() error {
		_, err := podnet.Setup(t.Context(), podnet.Config{
			Netns: pod.Path(), IfName: "eth0", HostVeth: link, Addresses: []netip.Addr{addr("10.90.1.5")}, Floating: floating,
		})
		return err
	})
	pod.EchoUDP(t, "10.90.1.5:7000")
	r.ns.Run(t, "ip", "route", "add", "default", "via", "172.31.0.2") // without a way to 169.254.1.1 the node does not answer for it
	r.ns.Run(t, "sysctl", "-qw", "net.ipv4.ip_forward=1")
	speaker := newPeers()
	speaker.tell(false, bgp.Path{Prefix: prefix("10.90.2.9/32"), NextHop: addr("172.31.0.2")})
	status, stop := r.agent(t, speaker)
	has := func(text string) bool { return strings.Contains(r.ns.Run(t, "nft", "list", "ruleset"), text) }
	waittest.Until(t, 20*time.Second, "ready", func() bool { return status.Report().Ready })
	for _, f := range floating {
		named(t, status, f.String()+" of the pod behind link "+link+" is not in force: set floatingIPs to Enabled")
	}
	if announced := speaker.announced(); has("nat-floating") || slices.Contains(announced, "10.90.2.9/32") {
		t.Errorf("in force although no operator said so; announced: %v", announced)
	}

	felix.Spec = api.FelixConfigurationSpec{FloatingIPs: "Enabled"}
	errtest.Must(t, r.store.Create(t.Context(), felix))
	const both = "10.90.1.9 : 10.90.1.5, 10.90.2.9 : 10.90.1.5"
	inForce := func() bool {
		announced := speaker.announced()
		return has("elements = { "+both+" }") && slices.Contains(announced, "10.90.2.9/32") && !slices.Contains(announced, "10.90.1.9/32") &&
			r.has(t, "10.90.1.9 dev "+link)()
	}
	waittest.Until(t, fullPass/3, "those that may be in force, and no others", inForce)
	named(t, status, "172.31.0.1 of the pod behind link "+link+" is not in force: it is a node's address")
	named(t, status, "172.31.0.2 of the pod behind link "+link+" is not in force: it is a node's address")
	named(t, status, "10.99.0.9 of the pod behind link "+link+" is not in force: it lies in no IPPool")
	for _, to := range []string{"10.90.1.9:7000", "10.90.2.9:7000"} {
		if got, err := r.ns.AskUDP(t, "", to, "hello", 10*time.Second); err != nil || !strings.HasSuffix(got, " hello") {
			t.Errorf("from the node to %s: %q, %v", to, got, err)
		}
	}
	named(t, status, "a pod on this node has the address") // what another node announces
	stop()
	r.ns.Run(t, "nft", "delete", "table", "inet", "tortie")
	speaker = newPeers()
	r.agent(t, speaker)
	waittest.Until(t, 20*time.Second, "the same from the next agent", inForce)
	r.ns.Run(t, "ip", "link", "delete", link)
	waittest.Until(t, fullPass/3, "nothing of a pod that has gone", func() bool {
		return !has("nat-floating") && !slices.Contains(speaker.announced(), "10.90.2.9/32")
	})
}
