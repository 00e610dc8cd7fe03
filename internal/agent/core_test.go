package agent

import (
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"k8s.io/client-go/rest"

	"github.com/tortie-net/tortie/internal/agent/nodestatus"
	"github.com/tortie-net/tortie/internal/api"
	"github.com/tortie-net/tortie/internal/app/config"
	"github.com/tortie-net/tortie/internal/app/nodeaddr"
	"github.com/tortie-net/tortie/internal/bgp"
	"github.com/tortie-net/tortie/internal/bgp/peering"
	"github.com/tortie-net/tortie/internal/cluster/state"
	"github.com/tortie-net/tortie/internal/datastore/kubernetes"
	"github.com/tortie-net/tortie/internal/testkit/desiredtest"
	"github.com/tortie-net/tortie/internal/testkit/errtest"
	"github.com/tortie-net/tortie/internal/testkit/labstore"
	"github.com/tortie-net/tortie/internal/testkit/labtest"
	"github.com/tortie-net/tortie/internal/testkit/waittest"
)

const soon = 30 * time.Second // a change is seen in some 50 ms, on a machine that is not busy

// named waits until the status has a text.
func named(t *testing.T, status *Status, part string) {
	t.Helper()
	waittest.Until(t, soon, "the status names "+part, func() bool {
		r := status.Report()
		return slices.ContainsFunc(append(r.Problems, r.LastError), func(p string) bool { return strings.Contains(p, part) })
	})
}

// told returns the last sessions and prefixes set at the speaker.
func (p *peers) told() (sessions []bgp.Peer, originated []bgp.Path) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.sessions, p.originated
}

// Empty, steady, drift, foreign, shrink and partial failure, for the whole agent in one kernel.
func TestAgentSync(t *testing.T) {
	r := newRig(t)
	speaker := newPeers()
	status, _ := r.agent(t, speaker)
	waittest.Until(t, 2*soon, "ready", func() bool { return status.Report().Ready })
	if got := r.routes(t); got != "" {
		t.Errorf("an empty cluster has routes: %s", got)
	}

	r.affinity(t, rigNode, "10.90.1.0/26", "rig-node-10-90-1-0-26")
	other := r.affinity(t, rigOther, "10.90.2.0/26", "rig-other-10-90-2-0-26")
	waittest.Until(t, soon, "routes", func() bool { return r.has(t, toOther)() && r.has(t, "unreachable 10.90.1.0/26")() })
	waittest.Until(t, 2*settleTime, "the start is over", func() bool { return !status.Report().Routes.Starting })

	changes := r.ns.Changes(t)
	tables := r.ns.Run(t, "nft", "-a", "list", "ruleset")
	for range 2 {
		passes := status.Report().LastPass
		speaker.tell(false)
		waittest.Until(t, soon, "a pass", func() bool { return status.Report().LastPass.After(passes) })
	}
	if n := changes(); n > 0 {
		t.Errorf("%d changes although all is as it should be", n)
	}
	if after := r.ns.Run(t, "nft", "-a", "list", "ruleset"); after != tables {
		t.Errorf("tables (-before +after):\n%s", cmp.Diff(tables, after))
	}

	r.ns.Run(t, "ip", "route", "replace", "10.90.2.0/26", "via", "172.31.0.9", "dev", "eth0", "proto", "84")
	waittest.Until(t, soon, "a route that was bent is right again", r.has(t, toOther))
	if n := changes(); n < 2 {
		t.Errorf("%d changes by ip and the agent", n)
	}
	r.ns.Run(t, "ip", "route", "delete", "unreachable", "10.90.1.0/26")
	waittest.Until(t, soon, "the own block is back", r.has(t, "unreachable 10.90.1.0/26"))
	r.ns.Run(t, "ip", "route", "add", "10.99.0.0/24", "via", "172.31.0.9", "dev", "eth0", "proto", "84")
	waittest.Until(t, soon, "a route of our mark that nobody wants is gone", func() bool { return !r.has(t, "10.99.0.0/24")() })

	r.ns.Run(t, "ip", "route", "add", "10.98.0.0/24", "via", "172.31.0.9", "dev", "eth0", "proto", "static")
	// Another program's route is in the place of a new block; the block beside it must not suffer.
	r.ns.Run(t, "ip", "route", "add", "10.90.3.0/26", "via", "172.31.0.9", "dev", "eth0", "proto", "static")
	r.affinity(t, rigOther, "10.90.3.0/26", "rig-other-10-90-3-0-26")
	r.affinity(t, rigOther, "10.90.4.0/26", "rig-other-10-90-4-0-26")
	waittest.Until(t, soon, "the other block", r.has(t, "10.90.4.0/26 via 172.31.0.2 dev eth0"))
	named(t, status, "10.90.3.0/26")
	if !status.Report().Ready {
		t.Error("one route made the node unready")
	}
	r.ns.Run(t, "ip", "route", "delete", "10.90.3.0/26", "proto", "static")
	waittest.Until(t, soon, "the block's route, once there is room", r.has(t, "10.90.3.0/26 via 172.31.0.2 dev eth0"))

	errtest.Must(t, r.store.Delete(t.Context(), other))
	waittest.Until(t, soon, "the route goes with the affinity", func() bool { return !r.has(t, toOther)() })
	gone := &api.Node{Meta: api.Meta{Name: rigOther}}
	errtest.Must(t, r.store.Get(t.Context(), gone))
	errtest.Must(t, r.store.Delete(t.Context(), gone))
	waittest.Until(t, soon, "all routes go with the Node, whatever its affinities say", func() bool { return !r.has(t, "172.31.0.2")() })
	if foreign := r.ns.Run(t, "ip", "route", "show", "proto", "static"); !strings.Contains(foreign, "10.98.0.0/24") {
		t.Errorf("somebody else's route is gone: %s", foreign)
	}
}

func TestAgentWithBothFamilies(t *testing.T) {
	r := newRig(t)
	r.ns.Addr(t, "eth0", "fd31::1/64")
	r.configure = func(c *config.Node) {
		c.Addresses.V6.Setting = nodeaddr.Setting{Mode: nodeaddr.Fixed, Addr: prefix("fd31::1/128")}
		c.Addresses.ASN = 65001
	}
	errtest.Must(t, os.MkdirAll(filepath.Join(r.sysctls, "net/ipv6/conf/all"), 0o755))
	forwarding := filepath.Join(r.sysctls, "net/ipv6/conf/all/forwarding")
	errtest.Must(t, os.WriteFile(forwarding, []byte("0\n"), 0o644))
	labstore.Make(t, r.store, &api.IPPool{Meta: api.Meta{Name: "rig-six"}, Spec: api.IPPoolSpec{CIDR: "fd90::/64"}})
	r.affinity(t, rigNode, "fd90::100/122", "rig-node-six")
	r.affinity(t, rigOther, "fd90::200/122", "rig-other-six")
	r.affinity(t, rigOther, "10.90.2.0/26", "rig-other-10-90-2-0-26")
	other := &api.Node{Meta: api.Meta{Name: rigOther}}
	r.update(t, other, func() { other.Annotations[api.AnnotationIPv6Address] = "fd31::2/64" })
	// A pod that has borrowed its address, and one that has not.
	r.ns.Run(t, "ip", "link", "add", "cali0000000001", "type", "veth", "peer", "name", "pod")
	r.ns.Run(t, "ip", "link", "set", "cali0000000001", "up")
	for _, pod := range []string{"fd90::107", "fd90::307"} {
		r.ns.Run(t, "ip", "route", "add", pod, "dev", "cali0000000001", "proto", "boot")
	}

	speaker := newPeers()
	status, _ := r.agent(t, speaker)
	waittest.Until(t, 2*soon, "ready", func() bool { return status.Report().Ready })
	six := func() string {
		return strings.Join(strings.Fields(r.ns.Run(t, "ip", "-6", "route", "show", "proto", "84")), " ")
	}
	waittest.Until(t, soon, "routes of both families", func() bool {
		return r.has(t, toOther)() && strings.Contains(six(), "fd90::200/122 via fd31::2 dev eth0") &&
			strings.Contains(six(), "unreachable fd90::100/122")
	})
	sessions, originated := speaker.told()
	if len(sessions) != 2 || sessions[0].Addr != addr("172.31.0.2") || sessions[1].Addr != addr("fd31::2") ||
		sessions[1].From != addr("fd31::1") || sessions[1].ASN != 64512 {
		t.Errorf("sessions %+v", sessions)
	}
	if want := []bgp.Path{{Prefix: prefix("fd90::100/122")}, {Prefix: prefix("fd90::307/128")}}; !slices.Equal(originated, want) {
		t.Errorf("originated %v, want %v", originated, want)
	}
	if l := speaker.local; l.ASN != 65001 || !slices.Equal(l.Listen, []netip.Addr{addr("172.31.0.1"), addr("fd31::1")}) ||
		l.RouterID != addr("172.31.0.1") {
		t.Errorf("local end %+v", l)
	}
	self := &api.Node{Meta: api.Meta{Name: rigNode}}
	errtest.Must(t, r.store.Get(t.Context(), self))
	for key, want := range map[string]string{
		api.AnnotationIPv4Address: "172.31.0.1/24", api.AnnotationIPv6Address: "fd31::1/64", api.AnnotationASNumber: "65001",
	} {
		if got := self.Annotations[key]; got != want {
			t.Errorf("annotation %s is %q, want %q", key, got, want)
		}
	}
	if text, err := os.ReadFile(forwarding); err != nil || strings.TrimSpace(string(text)) != "1" {
		t.Errorf("IPv6 forwarding is %q, %v", text, err)
	}

	r.ns.Run(t, "ip", "-6", "route", "delete", "fd90::200/122")
	waittest.Until(t, soon, "a route that was removed is back", func() bool { return strings.Contains(six(), "fd90::200/122 via fd31::2") })
	r.ns.Run(t, "ip", "route", "delete", "fd90::307", "dev", "cali0000000001")
	waittest.Until(t, soon, "a pod that is gone is not announced", func() bool { _, paths := speaker.told(); return len(paths) == 1 })
}

func TestAgentFollowsTheLink(t *testing.T) {
	r := newRig(t)
	status, _ := r.agent(t, newPeers())
	waittest.Until(t, 2*soon, "ready", func() bool { return status.Report().Ready })
	mtu := func() string { text, _ := os.ReadFile(filepath.Join(r.stateDir, "mtu")); return string(text) }
	r.ns.Run(t, "ip", "link", "set", "eth0", "mtu", "1400")
	waittest.Until(t, soon, "the plugins' MTU follows the link's", func() bool { return mtu() == "1400" })

	r.affinity(t, rigOther, "10.90.2.0/26", "rig-other-10-90-2-0-26")
	waittest.Until(t, soon, "the route", r.has(t, toOther))
	r.ns.Run(t, "ip", "address", "delete", "172.31.0.1/24", "dev", "eth0")
	named(t, status, "is on no interface of this host")
	named(t, status, "going on as 172.31.0.1")
	r.ns.Run(t, "ip", "address", "add", "172.31.0.1/24", "dev", "eth0")
	waittest.Until(t, soon, "nothing is wrong once it is back", func() bool { return status.Report().LastError == "" && r.has(t, toOther)() })
}

func TestAgentTakesUpSettings(t *testing.T) {
	r := newRig(t)
	speaker := newPeers()
	status, _ := r.agent(t, speaker)
	waittest.Until(t, 2*soon, "ready", func() bool { return status.Report().Ready })
	session := func() bgp.Peer {
		sessions, _ := speaker.told()
		if len(sessions) != 1 {
			return bgp.Peer{}
		}
		return sessions[0]
	}
	labstore.Make(t, r.store,
		&api.BGPConfiguration{Meta: api.Meta{Name: api.DefaultName}, Spec: api.BGPConfigurationSpec{NodeMeshMaxRestartTime: "90s"}})
	waittest.Until(t, soon, "the restart time", func() bool { return session().RestartTime == 90*time.Second })

	c := &api.BGPConfiguration{Meta: api.Meta{Name: api.DefaultName}}
	r.update(t, c, func() { c.Spec.NodeMeshMaxRestartTime = "for ever" })
	named(t, status, `BGPConfiguration default: spec.nodeMeshMaxRestartTime "for ever"`)
	if got := session().RestartTime; got != 90*time.Second {
		t.Errorf("a restart time that cannot be used took the last one away: %s", got)
	}
	off := false
	r.update(t, c, func() { c.Spec.NodeMeshMaxRestartTime, c.Spec.NodeToNodeMeshEnabled = "", &off })
	waittest.Until(t, soon, "no mesh, no sessions", func() bool { sessions, _ := speaker.told(); return len(sessions) == 0 })
}

// A path that a peer must not announce is refused, shown, and does not hide a usable one.
func TestAgentRefusesWhatIsNotThePeers(t *testing.T) {
	r := newRig(t)
	r.affinity(t, rigOther, "10.90.2.0/26", "rig-other-10-90-2-0-26")
	r.lent(t, rigOther)
	const rogue = "172.31.0.66"
	r.node(t, "rig-rogue", rogue, map[string]string{api.AnnotationIPv4Address: rogue + "/24"})
	from := func(p, hop string) bgp.Path {
		return bgp.Path{Prefix: prefix(p), NextHop: addr(hop), From: addr(hop)}
	}
	speaker := newPeers()
	speaker.tell(false, from("10.90.2.0/26", rogue), from("10.90.2.32/27", rogue), from("10.90.7.7/32", rogue),
		from("10.90.7.8/32", "172.31.0.2"), from("10.90.7.7/32", "172.31.0.2"))
	status, _ := r.agent(t, speaker)
	waittest.Until(t, 2*soon, "the borrower's route", r.has(t, "10.90.7.7 via 172.31.0.2"))
	waittest.Until(t, soon, "all four refusals, with their reasons", func() bool {
		text := strings.Join(status.Report().Problems, "\n")
		for _, part := range []string{
			"10.90.2.0/26 via " + rogue + ": the block belongs to node rig-other at 172.31.0.2, not to rig-rogue",
			"10.90.2.32/27 via " + rogue + ": it is part of block 10.90.2.0/26",
			"10.90.7.7/32 via " + rogue + ": the record of block 10.90.7.0/26 says that the address is in use on node rig-other, not on rig-rogue",
			"10.90.7.8/32 via 172.31.0.2: the record of block 10.90.7.0/26 does not assign the address",
		} {
			if !strings.Contains(text, part) {
				return false
			}
		}
		return true
	})
	if got := r.routes(t); strings.Contains(got, rogue) || strings.Contains(got, "10.90.7.8") || !r.has(t, toOther)() {
		t.Errorf("routes: %s", got)
	}
	if got := status.Report().Routes.Refused; got != 4 {
		t.Errorf("%d paths are counted as refused", got)
	}
	// The session with the borrower is lost: its record and its Node stand, and the route with them.
	waittest.Until(t, 3*settleTime, "the start is over", func() bool { return !status.Report().Routes.Starting })
	passes := status.Report().LastPass
	speaker.tell(true)
	waittest.Until(t, soon, "two passes", func() bool { return status.Report().LastPass.After(passes.Add(coalesce)) })
	if !r.has(t, "10.90.7.7 via 172.31.0.2")() || !r.has(t, toOther)() {
		t.Errorf("a lost session took routes: %s", r.routes(t))
	}
}

func TestAgentWithAnAddressOfAnother(t *testing.T) {
	r := newRig(t)
	twin := &api.Node{Meta: api.Meta{Name: rigOther}}
	patch := kubernetes.Patch{Status: map[string]any{"addresses": []api.NodeAddress{{Type: "InternalIP", Address: "172.31.0.1"}}}}
	errtest.Must(t, r.store.PatchStatus(t.Context(), twin, patch, false))
	r.update(t, twin, func() { twin.Annotations[api.AnnotationIPv4Address] = "172.31.0.1/24" })
	status, _ := r.agent(t, newPeers())
	named(t, status, "node address 172.31.0.1 of node rig-node is also that of node rig-other")
	self := &api.Node{Meta: api.Meta{Name: rigNode}}
	errtest.Must(t, r.store.Get(t.Context(), self))
	if status.Report().Ready || self.Annotations[api.AnnotationIPv4Address] != "" {
		t.Errorf("ready, or announced %q", self.Annotations[api.AnnotationIPv4Address])
	}
	r.update(t, twin, func() { twin.Annotations[api.AnnotationIPv4Address] = "172.31.0.2/24" })
	waittest.Until(t, 2*soon, "ready once the other has its own", func() bool { return status.Report().Ready })
}

// An address of this node that another node announces, without its kubelet, does not keep this node from joining.
func TestAgentWhoseAddressAnotherClaims(t *testing.T) {
	r := newRig(t)
	liar := &api.Node{Meta: api.Meta{Name: rigOther}}
	r.update(t, liar, func() { liar.Annotations[api.AnnotationIPv4Address] = "172.31.0.1/24" })
	status, _ := r.agent(t, newPeers())
	waittest.Until(t, 2*soon, "ready", func() bool { return status.Report().Ready })
	named(t, status, "Node rig-other: its address 172.31.0.1 is that of node rig-node too, which counts")
}

// A Node that was deleted, or that an API server with an old datastore does not know, takes nothing with it.
func TestAgentGoesOnWithoutItsNode(t *testing.T) {
	r := newRig(t)
	r.affinity(t, rigOther, "10.90.2.0/26", "rig-other-10-90-2-0-26")
	speaker := newPeers()
	status, _ := r.agent(t, speaker)
	waittest.Until(t, 2*soon, "ready", func() bool { return status.Report().Ready })
	waittest.Until(t, soon, "the route", r.has(t, toOther))
	self := &api.Node{Meta: api.Meta{Name: rigNode}}
	errtest.Must(t, r.store.Get(t.Context(), self))
	errtest.Must(t, r.store.Delete(t.Context(), self))
	named(t, status, "node rig-node does not exist in the API")
	r.ns.Run(t, "ip", "route", "delete", "10.90.2.0/26")
	waittest.Until(t, soon, "a route that was removed by hand is back", r.has(t, toOther))
	if sessions, _ := speaker.told(); len(sessions) != 1 || !status.Report().Ready {
		t.Errorf("sessions %v, ready %v", sessions, status.Report().Ready)
	}
	r.node(t, rigNode, "172.31.0.1", nil)
	waittest.Until(t, soon, "it comes back and is announced", func() bool {
		again := &api.Node{Meta: api.Meta{Name: rigNode}}
		return r.store.Get(t.Context(), again) == nil && again.Annotations[api.AnnotationIPv4Address] == "172.31.0.1/24" &&
			status.Report().LastError == ""
	})
}

// If no address is usable, all are shown with the reasons, and the right one is used when it appears.
func TestAgentWithoutAnAddress(t *testing.T) {
	r := newRig(t)
	r.configure = func(c *config.Node) {
		c.Addresses.V4.Method, _ = nodeaddr.ParseMethod("cidr=172.29.0.0/16", nodeaddr.IPv4)
	}
	status, _ := r.agent(t, newPeers())
	named(t, status, "172.31.0.1/24 on eth0 (outside of the ranges)")
	report := status.Report()
	if report.Ready || !slices.ContainsFunc(report.Candidates, func(c nodestatus.Candidate) bool {
		return c.Address == "172.31.0.1/24" && !c.Chosen && c.Reason == "outside of the ranges"
	}) {
		t.Errorf("ready %v, candidates %+v", report.Ready, report.Candidates)
	}
	r.ns.Run(t, "ip", "address", "add", "172.29.0.1/24", "dev", "eth0")
	waittest.Until(t, 2*soon, "ready with the address that came", func() bool {
		r := status.Report()
		return r.Ready && r.Address == "172.29.0.1/24" && r.AddressSource == "cidr=172.29.0.0/16"
	})
}

// An agent that starts while the API server is away uses the earlier agent's state: BGP and the kernel's repair do not
// wait. It removes nothing, and goes on as usual when the API server is there.
func TestAgentStartsWithoutTheAPIServer(t *testing.T) {
	r := newRig(t)
	r.affinity(t, rigNode, "10.90.1.0/26", "rig-node-10-90-1-0-26")
	other := r.affinity(t, rigOther, "10.90.2.0/26", "rig-other-10-90-2-0-26")
	status, stop := r.agent(t, newPeers())
	waittest.Until(t, 2*soon, "ready", func() bool { return status.Report().Ready })
	waittest.Until(t, soon, "the route", r.has(t, toOther))
	stop()

	// Its port is known, and nothing listens there.
	l, err := new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0")
	errtest.Must(t, err)
	l.Close()
	server := strings.TrimPrefix(r.api.Host, "https://")
	r.api = rest.CopyConfig(r.api)
	r.api.Host = "https://" + l.Addr().String()
	r.ns.Run(t, "ip", "route", "add", "10.90.9.0/26", "via", "172.31.0.2", "dev", "eth0", "proto", "84")
	r.ns.Run(t, "ip", "route", "delete", "10.90.2.0/26")
	const lastKnown = "172.31.0.77" // a node that the agent before had no time to write down
	r.ns.Run(t, "nft", "add", "element", "inet", "tortie", "guard-nodes-v4", "{ "+lastKnown+" }")
	errtest.Must(t, r.store.Delete(t.Context(), other))
	speaker := newPeers()
	status, _ = r.agent(t, speaker)
	waittest.Until(t, 2*soon, "the route is repaired", r.has(t, toOther))
	named(t, status, "the API server has not answered since this agent started")
	waittest.Until(t, soon, "BGP is told", func() bool {
		sessions, originated := speaker.told()
		return len(sessions) == 1 && len(originated) == 1 && speaker.local.Restarting
	})
	if !r.has(t, "10.90.9.0/26")() {
		t.Errorf("something was removed: %s", r.routes(t))
	}
	if set := r.ns.Run(t, "nft", "list", "set", "inet", "tortie", "guard-nodes-v4"); !strings.Contains(set, lastKnown) {
		t.Errorf("a node was locked out: %s", set)
	}

	if l, err = new(net.ListenConfig).Listen(t.Context(), "tcp", l.Addr().String()); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	go labtest.Forward(l, server)
	waittest.Until(t, 6*soon, "ready once it answers", func() bool { return status.Report().Ready && status.Report().LastError == "" })
	waittest.Until(t, 6*soon, "what has changed meanwhile is so", func() bool { return !r.has(t, toOther)() && !r.has(t, "10.90.9.0/26")() })
}

func TestMemory(t *testing.T) {
	path := filepath.Join(t.TempDir(), "tortie/world.json")
	m := memory{path: path}
	now := time.Now()
	w := desiredtest.World(nil)
	w.Self, w.Revision, w.MeshPassword = &w.Nodes[1], 7, state.Password{Set: true, Text: "secret word"}
	w.MeshBFD = "3x300ms"
	ref := &api.BGPPassword{SecretKeyRef: &api.SecretKeyRef{Name: "tor", Key: "rr"}}
	place, _ := ref.Place()
	w.Peers = []api.BGPPeer{{Meta: api.Meta{Name: "tor"}, Spec: api.BGPPeerSpec{PeerIP: "10.0.0.254", ASNumber: 65000, Password: ref}}}
	w.Passwords = map[api.Place]state.Password{place: {Set: true, Text: "secret word"}}
	w.Filters = []api.BGPFilter{{Meta: api.Meta{Name: "f"}}}
	past := []peering.Past{{Peer: w.Peers[0], Filters: w.Filters}}
	for _, step := range []struct {
		after    time.Duration
		revision uint64
		putOff   bool
	}{{0, 5, false}, {worldPause / 2, 5, false}, {worldPause / 4, 7, true}, {mostWorldPause, 7, false}} {
		now, w.Revision = now.Add(step.after), step.revision
		if err := m.save(now, w, nil, past); err != nil || m.putOff != step.putOff || m.putOff == (m.revision == w.Revision) {
			t.Fatalf("%+v: %v, put off %v, written %d", step, err, m.putOff, m.revision)
		}
	}
	if m.pause < worldPause || m.pause > mostWorldPause {
		t.Errorf("the next writing is put off by %v", m.pause)
	}
	got, _, err := m.load(now, "node1")
	if err != nil || len(got.Nodes) != 4 || len(got.Affinities) != 5 || got.Self.Name != "node1" || got.MeshPassword.Err == nil ||
		got.MeshBFD != w.MeshBFD {
		t.Errorf("%+v, %v", got, err)
	}
	if len(got.Peers) != 1 || len(got.Filters) != 1 || got.Passwords[place].Err == nil || len(m.past) != 1 || len(m.past[0].Filters) != 1 {
		t.Errorf("peers %+v, filters %+v, passwords %+v, past %+v", got.Peers, got.Filters, got.Passwords, m.past)
	}
	data, err := os.ReadFile(path)
	if info, err2 := os.Stat(path); err != nil || err2 != nil || strings.Contains(string(data), "secret word") || info.Mode() != 0o600 {
		t.Errorf("%v, %v, %v; or the password is in it", err, err2, info)
	}
	for name, change := range map[string]func(){
		"not JSON":      func() { _ = os.WriteFile(path, []byte("{"), 0o600) },
		"empty":         func() { _ = os.WriteFile(path, nil, 0o600) },
		"another node":  func() { _ = os.WriteFile(path, data, 0o600) },
		"from long ago": func() { _ = os.Chtimes(path, now.Add(-25*time.Hour), now.Add(-25*time.Hour)) },
		"missing":       func() { _ = os.Remove(path) },
	} {
		_ = os.WriteFile(path, data, 0o600)
		change()
		node := "node1"
		if name == "another node" {
			node = "node2"
		}
		if _, _, err := m.load(now, node); err == nil {
			t.Errorf("%s: was believed", name)
		}
	}
}
