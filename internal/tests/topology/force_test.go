package topology

import (
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/tortie-net/tortie/internal/agent/nodestatus"
	"github.com/tortie-net/tortie/internal/api"
	"github.com/tortie-net/tortie/internal/testkit/bgptest"
	"github.com/tortie-net/tortie/internal/testkit/errtest"
	"github.com/tortie-net/tortie/internal/testkit/meshtest"
	"github.com/tortie-net/tortie/internal/testkit/tier"
)

// force is a cluster of three nodes and two routers, one of which all changes are about, and the state before each
// change.
type force struct {
	*world
	nodes      []*meshtest.Node
	tor, other bgptest.Daemon
	before     uptime
	begun      time.Time
}

const (
	torAddr, otherAddr = "172.31.1.2", "172.31.1.3"
	torASN             = 65000
)

func newForce(t *testing.T) *force {
	t.Helper()
	f := &force{world: newWorld(t, false)}
	f.Create(t, meshtest.NewPool("pods", "10.90.0.0/16", api.EncapNever))
	for number := 11; number <= 13; number++ {
		f.nodes = append(f.nodes, f.node(t, 0, number))
	}
	f.GrantSecret(t, "bgp-passwords")
	f.secret(t, "one")
	config := bgptest.Config{ASN: torASN, Readvertise: true, Announce: []netip.Prefix{netip.MustParsePrefix("198.51.100.0/24")}}
	for _, n := range f.nodes {
		config.Sessions = append(config.Sessions, bgptest.Session{Peer: n.Prefix.Addr(), ASN: 64512, Passive: true})
	}
	f.tor = f.host(t, "tor", link{"nodes", "br0", []string{torAddr + "/24"}}).Daemon(bgptest.BIRD2, config)
	config.Announce = []netip.Prefix{netip.MustParsePrefix("203.0.113.0/24")}
	f.other = f.host(t, "other", link{"nodes", "br0", []string{otherAddr + "/24"}}).Daemon(bgptest.BIRD1, config)
	f.Create(t, newPeer("other", otherAddr))
	meshtest.Start(t, f.nodes...)
	for i, n := range f.nodes {
		peersWith(t, n, f.meshOf(i, otherAddr)...)
		meshtest.Eventually(t, func() error { return n.Settled(3) }) // stale routes of an earlier agent are removed only then
	}
	return f
}

func newPeer(name, ip string) *api.BGPPeer {
	return &api.BGPPeer{Meta: api.Meta{Name: name}, Spec: api.BGPPeerSpec{PeerIP: ip, ASNumber: torASN}}
}

// meshOf returns the peers of a node: the other nodes, and some more.
func (f *force) meshOf(node int, more ...string) []string {
	for i, n := range f.nodes {
		if i != node {
			more = append(more, n.Prefix.Addr().String())
		}
	}
	return more
}

// secret sets the password that BGPPeers refer to.
func (f *force) secret(t testing.TB, password string) {
	t.Helper()
	core, err := kubernetes.NewForConfig(f.Admin)
	errtest.Must(t, err)
	secrets := core.CoreV1().Secrets("kube-system")
	secret := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: "bgp-passwords"}, StringData: map[string]string{"tor": password}}
	if _, err = secrets.Get(t.Context(), secret.Name, metav1.GetOptions{}); err == nil {
		_, err = secrets.Update(t.Context(), secret, metav1.UpdateOptions{})
	} else {
		_, err = secrets.Create(t.Context(), secret, metav1.CreateOptions{})
	}
	errtest.Must(t, err)
}

// change reads an object, edits and writes it.
func change[T api.Resource](t testing.TB, w *world, obj T, edit func(T)) {
	t.Helper()
	meshtest.Eventually(t, func() error {
		if err := w.Store.Get(t.Context(), obj); err != nil {
			return err
		}
		edit(obj)
		return w.Store.Update(t.Context(), obj)
	})
}

// now records the uptimes before a change.
func (f *force) now(t testing.TB) {
	t.Helper()
	f.before, f.begun = uptimes(t, f.nodes...), time.Now()
}

// nowBut records the uptimes before a change that resets the sessions of one node with the others.
func (f *force) nowBut(t testing.TB, one *meshtest.Node) {
	t.Helper()
	f.now(t)
	for _, n := range f.nodes {
		delete(f.before[n], one.Prefix.Addr().String())
		delete(f.before[one], n.Prefix.Addr().String())
	}
}

// holds waits until check succeeds, logs the time, and fails the test if a session with other peers than but was reset.
func (f *force) holds(t testing.TB, what string, check func() error, but ...string) {
	t.Helper()
	meshtest.Eventually(t, func() error {
		if err := check(); err != nil {
			return fmt.Errorf("%s: %w", what, err)
		}
		return nil
	})
	meshtest.Timed(t, "in force: "+what, f.begun)
	f.before.untouched(t, what, but...)
}

// established returns nil when all nodes have a session with the router.
func (f *force) established(_ testing.TB) func() error {
	return func() error {
		for _, n := range f.nodes {
			if state := f.tor.State(n.Prefix.Addr()); state != "Established" {
				return fmt.Errorf("the session with %s is %s there", n.Name, state)
			}
		}
		return nil
	}
}

// announced returns nil when the router has learned want from every node.
func (f *force) announced(_ testing.TB, want func(n *meshtest.Node) map[string]string) func() error {
	return func() error {
		for _, n := range f.nodes {
			expected := want(n)
			routes := f.tor.Learned(n.Prefix.Addr())
			for _, r := range routes {
				if communities, ok := expected[r.Prefix.String()]; !ok || communities != r.Communities {
					return fmt.Errorf("the router has learned of %s: %+v, want %v", n.Name, routes, expected)
				}
			}
			if len(routes) != len(expected) {
				return fmt.Errorf("the router has learned of %s: %+v, want %v", n.Name, routes, expected)
			}
		}
		return nil
	}
}

// allBlocks returns the blocks of all nodes, which each node announces to a router, with these communities.
func (f *force) allBlocks(communities string) func(*meshtest.Node) map[string]string {
	return func(*meshtest.Node) map[string]string {
		all := map[string]string{}
		for _, n := range f.nodes {
			all[blockOf(n)] = communities
		}
		return all
	}
}

// complains returns nil when all nodes report a problem with an object, or none does.
func (f *force) complains(_ testing.TB, about string, want bool) func() error {
	return func() error {
		for _, n := range f.nodes {
			r, err := n.Status()
			if err != nil {
				return err
			}
			found := slices.ContainsFunc(r.Problems, func(text string) bool { return strings.Contains(text, about) })
			if found != want {
				return fmt.Errorf("%s has the problems %q, and one about %s is wanted: %t", n.Name, r.Problems, about, want)
			}
		}
		return nil
	}
}

// Each change of an operator takes effect at once, and resets only the sessions that it concerns.
func TestInForce(t *testing.T) {
	tier.All(t)
	t.Parallel()
	f := newForce(t)
	peer := newPeer("tor", torAddr)
	noBlocks := func(*meshtest.Node) map[string]string { return nil }

	f.now(t)
	peer.Spec.Password = passwordRef("missing")
	f.Create(t, peer)
	f.holds(t, "a BGPPeer is created whose password is not there: there is no session until then",
		f.complains(t, "there is no session until then", true))
	if f.established(t)() == nil {
		t.Error("there is a session without the password")
	}
	f.now(t)
	change(t, f.world, peer, func(p *api.BGPPeer) { p.Spec.Password = nil })
	f.holds(t, "a BGPPeer needs no password any more: all have the session", f.established(t))
	f.holds(t, "a BGPPeer needs no password any more: the router knows all blocks", f.announced(t, f.allBlocks("")))

	f.now(t)
	f.Create(t, &api.BGPFilter{Meta: api.Meta{Name: "nothing"}, Spec: api.BGPFilterSpec{ExportV4: []api.BGPFilterRule{{Action: "Reject"}}}})
	change(t, f.world, peer, func(p *api.BGPPeer) { p.Spec.Filters = []string{"nothing"} })
	f.holds(t, "a BGPPeer gets a filter: what it refuses is withdrawn", f.announced(t, noBlocks))

	f.now(t)
	change(t, f.world, &api.BGPFilter{Meta: api.Meta{Name: "nothing"}}, func(o *api.BGPFilter) {
		o.Spec = api.BGPFilterSpec{ImportV4: []api.BGPFilterRule{{Action: "Reject", MatchOperator: "In", CIDR: "198.51.100.0/24"}}}
	})
	f.holds(t, "a BGPFilter is changed: routes go out again", f.announced(t, f.allBlocks("")))
	f.holds(t, "a BGPFilter is changed: what it refuses is no route any more", func() error {
		for _, n := range f.nodes {
			if have := hops(t, n.NS, "198.51.100.0/24"); len(have) > 0 {
				return fmt.Errorf("%s still has a route to 198.51.100.0/24: %v", n.Name, have)
			}
		}
		return nil
	})

	f.now(t)
	change(t, f.world, peer, func(p *api.BGPPeer) { p.Spec.Filters = []string{"nothing", "missing"} })
	f.holds(t, "a BGPPeer names a filter that is not there: it is named", f.complains(t, "missing", true))
	f.holds(t, "a BGPPeer names a filter that is not there: nothing changes", f.announced(t, f.allBlocks("")))

	f.now(t)
	change(t, f.world, peer, func(p *api.BGPPeer) { p.Spec.PeerIP = "router" })
	f.holds(t, "a BGPPeer has no address: it is named", f.complains(t, `"router"`, true))
	f.holds(t, "a BGPPeer has no address: nothing changes", f.established(t))

	f.now(t)
	change(t, f.world, peer, func(p *api.BGPPeer) { p.Spec.PeerIP, p.Spec.Filters = torAddr, nil })
	f.holds(t, "a BGPPeer is put right", f.complains(t, "missing", false))
	f.holds(t, "a BGPPeer loses its filter: routes come in again", func() error {
		for _, n := range f.nodes {
			if have := hops(t, n.NS, "198.51.100.0/24"); len(have) != 1 {
				return fmt.Errorf("%s has no route to 198.51.100.0/24: %v", n.Name, have)
			}
		}
		return nil
	})

	f.now(t)
	configuration := &api.BGPConfiguration{Meta: api.Meta{Name: api.DefaultName}, Spec: api.BGPConfigurationSpec{
		Communities:          []api.Community{{Name: "pods", Value: "65000:100"}},
		PrefixAdvertisements: []api.PrefixAdvertisement{{CIDR: "10.90.0.0/16", Communities: []string{"pods", "65000:1:2"}}},
	}}
	f.Create(t, configuration)
	f.holds(t, "prefixAdvertisements are made", f.announced(t, f.allBlocks("65000:100 65000:1:2")))
	f.now(t)
	change(t, f.world, configuration, func(c *api.BGPConfiguration) { c.Spec.Communities[0].Value = "65000:200" })
	f.holds(t, "a community is changed", f.announced(t, f.allBlocks("65000:200 65000:1:2")))

	f.secretChanges(t, peer)
	f.meshGoes(t, configuration)
	f.roleChanges(t)
	f.labelMoves(t, peer)
	f.listenerMoves(t, configuration)
	f.agentStartsWithoutFilter(t, peer)

	f.now(t)
	pool := &api.IPPool{Meta: api.Meta{Name: "pods"}}
	change(t, f.world, pool, func(p *api.IPPool) { p.Spec.DisableBGPExport = true })
	f.holds(t, "a pool's disableBGPExport: its blocks are withdrawn", f.announced(t, noBlocks))
	f.now(t)
	change(t, f.world, pool, func(p *api.IPPool) { p.Spec.DisableBGPExport = false })
	f.holds(t, "a pool's disableBGPExport is taken back", f.announced(t, f.allBlocks("65000:200 65000:1:2")))

	f.now(t)
	f.Remove(t, newPeer("tor", torAddr))
	f.holds(t, "a BGPPeer is deleted: the sessions are closed", func() error {
		for _, n := range f.nodes {
			if state := f.tor.State(n.Prefix.Addr()); state == "Established" {
				return fmt.Errorf("the session with %s is still established", n.Name)
			}
		}
		return nil
	}, torAddr)
	f.holds(t, "a BGPPeer is deleted: the router keeps nothing", f.announced(t, noBlocks), torAddr)
	for i, n := range f.nodes {
		peersWith(t, n, f.meshOf(i, otherAddr)...)
		n.Running(t)
	}
}

func passwordRef(key string) *api.BGPPassword {
	return &api.BGPPassword{SecretKeyRef: &api.SecretKeyRef{Name: "bgp-passwords", Key: key}}
}

// secretChanges sets a password, another one, and one that cannot be read.
func (f *force) secretChanges(t *testing.T, peer *api.BGPPeer) {
	at := func(password string) {
		for _, n := range f.nodes {
			f.tor.SetPassword(n.Prefix.Addr(), password)
		}
	}
	renewed := func() error {
		for _, n := range f.nodes {
			if p := sessions(t, n)[torAddr]; p.State != "Established" || !p.Since.After(f.begun) {
				return fmt.Errorf("%s: the session with the router is %s since %v: %s", n.Name, p.State, p.Since, p.LastError)
			}
		}
		return nil
	}
	f.now(t)
	at("one")
	change(t, f.world, peer, func(p *api.BGPPeer) { p.Spec.Password = passwordRef("tor") })
	f.holds(t, "a BGPPeer gets a password, and the router, too: sessions are new", renewed, torAddr)
	f.now(t)
	at("two")
	f.secret(t, "two")
	f.holds(t, "a Secret is changed, and the router, too: sessions are new", renewed, torAddr)
	f.now(t)
	change(t, f.world, peer, func(p *api.BGPPeer) { p.Spec.Password = passwordRef("missing") })
	f.holds(t, "a BGPPeer names a key that is not there: it is named, and the last password stays", f.complains(t, "missing", true))
	change(t, f.world, peer, func(p *api.BGPPeer) { p.Spec.Password = passwordRef("tor") })
	f.holds(t, "the key is there again", f.complains(t, "missing", false))
}

// meshGoes turns the mesh off and on.
func (f *force) meshGoes(t *testing.T, configuration *api.BGPConfiguration) {
	var members []string
	for _, n := range f.nodes {
		members = append(members, n.Prefix.Addr().String())
	}
	sessionsWith := func(count int) func() error {
		return func() error {
			for _, n := range f.nodes {
				if err := n.Settled(count); err != nil {
					return err
				}
			}
			return nil
		}
	}
	off := false
	f.now(t)
	change(t, f.world, configuration, func(c *api.BGPConfiguration) { c.Spec.NodeToNodeMeshEnabled = &off })
	f.holds(t, "the mesh is turned off: sessions with routers alone are left", sessionsWith(2), members...)
	f.now(t)
	change(t, f.world, configuration, func(c *api.BGPConfiguration) { c.Spec.NodeToNodeMeshEnabled = nil })
	f.holds(t, "the mesh is turned on: all sessions are established", sessionsWith(4))
}

// roleChanges makes a node a route reflector, with one cluster ID and another, and reverts that. Its sessions with the
// other nodes are reset, as the kind of session changes; sessions between the others stay, and those with routers of
// another AS.
func (f *force) roleChanges(t *testing.T) {
	last := f.nodes[len(f.nodes)-1]
	renewed := func(kind, cluster string) func() error {
		return func() error {
			r, err := last.Status()
			if err != nil {
				return err
			}
			if have := r.Reflection; (have != nil) != (cluster != "") || have != nil && have.ClusterID != cluster {
				return fmt.Errorf("%s reflects as %+v, want %q", last.Name, have, cluster)
			}
			own := sessions(t, last) // first: after it has changed, the others' sessions with it are none of before
			for _, n := range f.nodes[:len(f.nodes)-1] {
				for _, p := range []nodestatus.Peer{own[n.Prefix.Addr().String()], sessions(t, n)[last.Prefix.Addr().String()]} {
					if p.Kind != kind || p.State != "Established" || !p.Since.After(f.begun) {
						return fmt.Errorf("the session of %s with %s: %+v", n.Name, last.Name, p)
					}
				}
			}
			return nil
		}
	}
	now := func() { f.nowBut(t, last) }
	inner := &api.BGPPeer{Meta: api.Meta{Name: "inner"}, Spec: api.BGPPeerSpec{Node: last.Name, PeerSelector: "all()"}}
	now()
	f.Create(t, inner)
	f.holds(t, "a node has a BGPPeer's sessions with the others, in the place of the mesh's", renewed("node", ""))
	for _, id := range []string{"244.0.0.1", "244.0.0.2", ""} {
		text := &id
		if id == "" {
			text = nil
		}
		now()
		last.Annotate(t, api.AnnotationReflector, text)
		f.holds(t, fmt.Sprintf("a node's cluster ID becomes %q", id), renewed("node", id))
	}
	now()
	f.Remove(t, inner)
	f.holds(t, "all sessions are the mesh's again", renewed("mesh", ""))
}

// labelMoves selects the nodes of a BGPPeer by a label.
func (f *force) labelMoves(t *testing.T, peer *api.BGPPeer) {
	f.now(t)
	change(t, f.world, peer, func(p *api.BGPPeer) { p.Spec.NodeSelector = "router == 'yes'" })
	has := func(who ...int) func() error {
		return func() error {
			for i, n := range f.nodes {
				state := f.tor.State(n.Prefix.Addr())
				if want := slices.Contains(who, i); want != (state == "Established") {
					return fmt.Errorf("the session with %s is %s, and wanted: %t", n.Name, state, want)
				}
			}
			return nil
		}
	}
	f.holds(t, "a BGPPeer selects no node any more", has(), torAddr)
	for i, n := range f.nodes {
		f.now(t)
		f.shell(t, "kubectl label node "+n.Name+" router=yes", "")
		f.holds(t, "a node gets the label (and kubectl's own time): its session is there", has([]int{0, 1, 2}[:i+1]...))
	}
	f.now(t)
	change(t, f.world, peer, func(p *api.BGPPeer) { p.Spec.NodeSelector = "" })
	// The report of a later change of the object shows that this one is in force.
	change(t, f.world, peer, func(p *api.BGPPeer) { p.Spec.Filters = []string{"other-filter"} })
	f.holds(t, "a BGPPeer selects the same nodes in another way", f.complains(t, "other-filter", true))
	change(t, f.world, peer, func(p *api.BGPPeer) { p.Spec.Filters = nil })
	f.holds(t, "a BGPPeer selects the same nodes in another way, all have the session", f.complains(t, "other-filter", false))
	errtest.Must(t, f.established(t)())
}

// listenerMoves changes the port and the addresses at which a node listens.
func (f *force) listenerMoves(t *testing.T, configuration *api.BGPConfiguration) {
	last := f.nodes[len(f.nodes)-1]
	addr := last.Prefix.Addr().String()
	connected := func(port uint16) func() error {
		return func() error {
			for _, n := range f.nodes[:len(f.nodes)-1] {
				if p := sessions(t, n)[addr]; p.Port != port || p.State != "Established" || !p.Since.After(f.begun) {
					return fmt.Errorf("%s: the session with %s, port %d, is %s since %v: %s", n.Name, last.Name, p.Port, p.State, p.Since, p.LastError)
				}
			}
			return nil
		}
	}
	listens := func(at string) func() error {
		return func() error {
			if text := last.Run(t, "ss", "-Hltn"); !strings.Contains(text, " "+at+" ") {
				return fmt.Errorf("%s does not listen at %s: %s", last.Name, at, text)
			}
			return nil
		}
	}
	own := &api.BGPConfiguration{Meta: api.Meta{Name: "node." + last.Name}, Spec: api.BGPConfigurationSpec{ListenPort: 1790}}
	f.nowBut(t, last)
	f.Create(t, own)
	f.holds(t, "a node's listenPort: the others connect there", connected(1790))
	f.now(t)
	change(t, f.world, configuration, func(c *api.BGPConfiguration) { c.Spec.BindMode = "None" })
	f.holds(t, "bindMode None: a node listens at all addresses", listens("0.0.0.0:1790"))
	f.now(t)
	change(t, f.world, configuration, func(c *api.BGPConfiguration) { c.Spec.BindMode = "" })
	f.holds(t, "no bindMode: a node listens at its own address", listens(addr+":1790"))
	f.nowBut(t, last)
	f.Remove(t, own)
	f.holds(t, "no listenPort: the others connect to the usual one", connected(179))
}

// agentStartsWithoutFilter kills an agent while a BGPFilter is missing: the next one uses what the earlier one
// persisted.
func (f *force) agentStartsWithoutFilter(t *testing.T, peer *api.BGPPeer) {
	first := f.nodes[0]
	change(t, f.world, peer, func(p *api.BGPPeer) { p.Spec.Filters = []string{"missing"} })
	meshtest.Eventually(t, f.complains(t, "missing", true))
	meshtest.Eventually(t, func() error {
		text, err := os.ReadFile(filepath.Join(first.Dir, "run/tortie/world.json"))
		_, past, _ := strings.Cut(string(text), `{"peer":{"metadata":{"name":"tor"`)
		past, _, _ = strings.Cut(past, `{"peer":`)
		// Written seconds after the change; an earlier form would not connect.
		if err == nil && !strings.Contains(past, `"password":`) {
			err = errors.New("no persisted state of the peer with its password")
		}
		return err
	})
	begun := time.Now()
	first.Signal(t, syscall.SIGKILL)
	first.Start(t, meshtest.Build)
	meshtest.Eventually(t, func() error {
		r, err := first.Status()
		if err != nil {
			return err
		}
		i := slices.IndexFunc(r.Peers, func(p nodestatus.Peer) bool { return p.Address == torAddr })
		if i < 0 || r.Peers[i].State != "Established" || r.Peers[i].Since.Before(begun) {
			return fmt.Errorf("no session with the router again: %+v", r.Peers)
		}
		return nil
	})
	meshtest.Eventually(t, f.complains(t, "missing", true))
	change(t, f.world, peer, func(p *api.BGPPeer) { p.Spec.Filters = nil })
	meshtest.Eventually(t, f.complains(t, "missing", false))
	for i, n := range f.nodes {
		peersWith(t, n, f.meshOf(i, torAddr, otherAddr)...)
	}
}
