package agent

import (
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/tortie-net/tortie/internal/api"
	"github.com/tortie-net/tortie/internal/kernel/podnet"
	"github.com/tortie-net/tortie/internal/testkit/errtest"
	"github.com/tortie-net/tortie/internal/testkit/labstore"
	"github.com/tortie-net/tortie/internal/testkit/netnstest"
	"github.com/tortie-net/tortie/internal/testkit/waittest"
)

// TestAllowedSources: what a pod asked to send from is in force if a FelixConfiguration says Any, also for an agent that has just
// started, and goes with the pod's link.
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

// TestAgentKeepsTheTable: what somebody does to the nftables of an agent is undone at once, long before a pass that nothing wakes; a
// FelixConfiguration steers them.
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
