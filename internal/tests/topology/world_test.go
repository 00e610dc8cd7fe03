package topology

import (
	"encoding/json"
	"fmt"
	"maps"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/tortie-net/tortie/internal/agent/nodestatus"
	"github.com/tortie-net/tortie/internal/api"
	"github.com/tortie-net/tortie/internal/kernel/sysctl"
	"github.com/tortie-net/tortie/internal/testkit/bgptest"
	"github.com/tortie-net/tortie/internal/testkit/errtest"
	"github.com/tortie-net/tortie/internal/testkit/labtest"
	"github.com/tortie-net/tortie/internal/testkit/meshtest"
	"github.com/tortie-net/tortie/internal/testkit/netnstest"
)

// world is a cluster, its routers, and the shell for an operator's commands.
type world struct {
	*meshtest.Cluster
	path string // of programs, for the operator's shell
	pods map[*meshtest.Node]*meshtest.Pod
}

// newWorld returns a cluster without nodes, dual-stack if dual.
func newWorld(t testing.TB, dual bool) *world {
	t.Helper()
	kubectl := labtest.Program(t, "kubectl")
	w := &world{Cluster: meshtest.NewCluster(t), path: filepath.Dir(kubectl) + ":" + os.Getenv("PATH"),
		pods: map[*meshtest.Node]*meshtest.Pod{}}
	w.Dual = dual
	return w
}

// shell runs commands as the cluster's administrator.
func (w *world) shell(t testing.TB, commands, input string) {
	t.Helper()
	commands, input = labtest.InGroupText(t, commands), labtest.InGroupText(t, input)
	cmd := exec.CommandContext(t.Context(), "sh", "-ec", commands)
	cmd.Env = append(os.Environ(), "KUBECONFIG="+w.Server.Kubeconfig(), "PATH="+w.path)
	cmd.Stdin = strings.NewReader(input)
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%s\n%s: %v\n%s", commands, input, err, out)
	}
}

// node adds a node to a subnet, with a block and a pod derived from its number.
func (w *world) node(t testing.TB, subnet, number int) *meshtest.Node {
	t.Helper()
	n, pod := w.NewNodeWithPod(t, subnet, number)
	w.pods[n] = pod
	return n
}

// link is an interface of a router: a port of a bridge of the fabric.
type link struct {
	name, bridge string
	addrs        []string // with their lengths
}

// host returns a router's namespace with these links; its sessions are from the first addresses of the first link.
func (w *world) host(t testing.TB, name string, links ...link) *bgptest.Host {
	t.Helper()
	h := &bgptest.Host{NS: netnstest.New(t), T: t}
	for i, l := range links {
		port := fmt.Sprintf("%s-%d", name, i)
		netnstest.Cable(t, h.NS, l.name, w.Fabric, port)
		w.Fabric.Run(t, "ip", "link", "set", port, "master", l.bridge)
		for _, a := range l.addrs {
			h.Addr(t, l.name, a)
			switch addr := netip.MustParsePrefix(a).Addr(); {
			case i > 0:
			case addr.Is4() && !h.V4.IsValid():
				h.V4 = addr
			case addr.Is6() && !h.V6.IsValid():
				h.V6 = addr
			}
		}
	}
	h.Within(t, func() error {
		if err := sysctl.DefaultRoot.Set(sysctl.Key{"net", "ipv6", "conf", "all", "forwarding"}, "1"); err != nil {
			return err
		}
		return sysctl.DefaultRoot.Set(sysctl.Key{"net", "ipv4", "ip_forward"}, "1")
	})
	return h
}

// bridge adds a network to the fabric.
func (w *world) bridge(t testing.TB, name string) string {
	t.Helper()
	w.Fabric.Run(t, "ip", "link", "add", name, "up", "type", "bridge")
	return name
}

// run starts a router with the configuration of the page, with replacements in pairs of old and new text.
func run(t testing.TB, h *bgptest.Host, b block, changes ...string) bgptest.Daemon {
	t.Helper()
	if b.text == "" {
		t.Fatalf("%s has no configuration for the router at %s", document, h.V4)
	}
	kind := bgptest.FRR
	if b.language == "bird" {
		kind = bgptest.BIRD2
	}
	return h.Daemon(kind, bgptest.Config{ASN: 1, Text: strings.NewReplacer(changes...).Replace(b.text)})
}

// podPools creates a pool of each family for pods, without encapsulation and outgoing NAT.
func (w *world) podPools(t testing.TB) {
	t.Helper()
	for name, cidr := range map[string]string{"pods": "10.90.0.0/16", "pods6": "fd90::/48"} {
		pool := meshtest.NewPool(name, cidr, api.EncapNever)
		pool.Spec.NATOutgoing = false
		w.Create(t, pool)
	}
}

// torOf starts a router of AS 65000 on the first subnet with a session of each family with each node, and creates the
// BGPPeers tor and tor6.
func (w *world) torOf(t testing.TB, kind bgptest.Kind, annotations map[string]string,
	nodes ...*meshtest.Node) (*bgptest.Host, bgptest.Daemon) {
	t.Helper()
	host := w.host(t, "tor", link{"nodes", "br0", []string{"172.31.1.2/24", "fd31:1::2/64"}})
	var sessions []bgptest.Session
	for _, n := range nodes {
		sessions = append(sessions, bgptest.Session{Peer: n.Prefix.Addr(), ASN: 64512}, bgptest.Session{Peer: n.V6, ASN: 64512})
	}
	for name, ip := range map[string]string{"tor": "172.31.1.2", "tor6": "fd31:1::2"} {
		w.Create(t, &api.BGPPeer{Meta: api.Meta{Name: name, Annotations: annotations}, Spec: api.BGPPeerSpec{PeerIP: ip, ASNumber: 65000}})
	}
	return host, host.Daemon(kind, bgptest.Config{ASN: 65000, Sessions: sessions})
}

// clientOf returns a host behind a router, on a link of its own called outside.
func clientOf(t testing.TB, router *bgptest.Host, gateway, addr string) *meshtest.Pod {
	t.Helper()
	p := &meshtest.Pod{NS: netnstest.New(t), V4: netip.MustParsePrefix(addr).Addr()}
	netnstest.Cable(t, p.NS, "eth0", router.NS, "outside")
	router.Addr(t, "outside", gateway)
	p.Addr(t, "eth0", addr)
	p.Route(t, "0.0.0.0/0", netip.MustParsePrefix(gateway).Addr().String(), "eth0")
	return p
}

// sessions returns a node's sessions by peer address.
func sessions(t testing.TB, n *meshtest.Node) map[string]nodestatus.Peer {
	t.Helper()
	r, err := n.Status()
	errtest.Must(t, err)
	found := map[string]nodestatus.Peer{}
	for _, p := range r.Peers {
		found[p.Address] = p
	}
	return found
}

// peersWith waits until a node has sessions with exactly these peers, all established.
func peersWith(t testing.TB, n *meshtest.Node, want ...string) {
	t.Helper()
	slices.Sort(want)
	meshtest.Eventually(t, func() error {
		found := sessions(t, n)
		if have := slices.Sorted(maps.Keys(found)); !slices.Equal(have, want) {
			return fmt.Errorf("%s has peers %v, want %v", n.Name, have, want)
		}
		for _, p := range found {
			if p.State != "Established" {
				return fmt.Errorf("%s: the session with %s is %s: %s", n.Name, p.Address, p.State, p.LastError)
			}
		}
		return nil
	})
}

// uptime is the time since which each established session has been up.
type uptime map[*meshtest.Node]map[string]time.Time

func uptimes(t testing.TB, nodes ...*meshtest.Node) uptime {
	t.Helper()
	u := uptime{}
	for _, n := range nodes {
		u[n] = map[string]time.Time{}
		for addr, p := range sessions(t, n) {
			if p.State == "Established" {
				u[n][addr] = p.Since
			}
		}
	}
	return u
}

// untouched fails the test if a session was reset since, except with the peers in but.
func (u uptime) untouched(t testing.TB, after string, but ...string) {
	t.Helper()
	for n, was := range u {
		now := sessions(t, n)
		for addr, since := range was {
			if slices.Contains(but, addr) {
				continue
			}
			if p := now[addr]; p.State != "Established" || !p.Since.Equal(since) {
				t.Errorf("%s: the session of %s with %s is %q since %v, and was up since %v: %s", after, n.Name, addr, p.State,
					p.Since, since, p.LastError)
			}
		}
	}
}

// hops returns the sorted next hops of a namespace's routes to exactly prefix: "172.31.1.2 eth0".
func hops(t testing.TB, ns *netnstest.NS, prefix string) []string {
	t.Helper()
	family := "-4"
	if strings.Contains(prefix, ":") {
		family = "-6"
	}
	type hop struct {
		Gateway, Dev string
		Via          struct{ Host string }
	}
	var routes []struct {
		hop
		Type     string
		Nexthops []hop
	}
	text := ns.Run(t, "ip", family, "-j", "route", "show", "exact", prefix)
	if strings.TrimSpace(text) == "" {
		return nil
	}
	if err := json.Unmarshal([]byte(text), &routes); err != nil {
		t.Fatalf("%v: %s", err, text)
	}
	var all []string
	for _, r := range routes {
		if r.Type != "" && r.Type != "unicast" {
			all = append(all, r.Type)
			continue
		}
		for _, h := range append(r.Nexthops, r.hop) {
			if gateway := h.Gateway + h.Via.Host; gateway != "" {
				all = append(all, gateway+" "+h.Dev)
			}
		}
	}
	slices.Sort(all)
	return all
}

// leads waits until a namespace's kernel has exactly these next hops for a prefix.
func leads(t testing.TB, ns *netnstest.NS, who, prefix string, want ...string) {
	t.Helper()
	slices.Sort(want)
	meshtest.Eventually(t, func() error {
		if have := hops(t, ns, prefix); !slices.Equal(have, want) {
			return fmt.Errorf("%s: the route to %s leads to %v, want %v", who, prefix, have, want)
		}
		return nil
	})
}

// learnedFrom waits until a node's route to a prefix is learned by BGP from exactly these peers: routes to owners of
// blocks may come from the API, too.
func learnedFrom(t testing.TB, n *meshtest.Node, prefix string, by ...string) {
	t.Helper()
	meshtest.Eventually(t, func() error {
		r, err := n.Status()
		if err != nil {
			return err
		}
		i := slices.IndexFunc(r.Routes.List, func(r nodestatus.Route) bool { return r.Destination == prefix })
		if i < 0 {
			return fmt.Errorf("%s has no route to %s: %+v", n.Name, prefix, r.Routes.Refusals)
		}
		route := r.Routes.List[i]
		stranger := func(peer string) bool { return !slices.Contains(by, peer) }
		if peers := append(slices.Clone(route.Peers), route.Peer); route.Source != "BGP" ||
			slices.ContainsFunc(slices.DeleteFunc(peers, isEmpty), stranger) {
			return fmt.Errorf("%s: the route to %s is from %s of %v, want BGP from %v", n.Name, prefix, route.Source, peers, by)
		}
		return nil
	})
}

func isEmpty(s string) bool { return s == "" }

// learned waits until a router has learned exactly these paths from a peer; empty fields of want are not compared.
func learned(t testing.TB, d bgptest.Daemon, peer netip.Addr, want ...bgptest.Route) {
	t.Helper()
	meshtest.Eventually(t, func() error {
		have := d.Learned(peer)
		if len(have) != len(want) {
			return fmt.Errorf("the router at %s has learned of %s: %+v, want %+v", d.On().V4, peer, have, want)
		}
		for i, w := range want {
			h := have[i]
			if h.Prefix != w.Prefix || w.NextHop.IsValid() && h.NextHop != w.NextHop || w.ASPath != "" && h.ASPath != w.ASPath ||
				w.Communities != "" && h.Communities != w.Communities {
				return fmt.Errorf("the router at %s has learned of %s: %+v, want %+v", d.On().V4, peer, h, w)
			}
		}
		return nil
	})
}

// asked counts the requests; each uses a port of its own.
var asked atomic.Int32

// talk sends a packet between all pairs of pods, in each family that both have, and checks the source address in the
// reply.
func talk(t testing.TB, pods ...*meshtest.Pod) {
	t.Helper()
	for _, from := range pods {
		for _, to := range pods {
			if from != to {
				asks(t, from, to, from.V4, to.V4)
				asks(t, from, to, from.V6, to.V6)
			}
		}
	}
}

func asks(t testing.TB, from, to *meshtest.Pod, src, dst netip.Addr) {
	t.Helper()
	if !src.IsValid() || !dst.IsValid() {
		return
	}
	address := netip.AddrPortFrom(dst, uint16(20000+asked.Add(1))).String()
	to.EchoUDP(t, address)
	answer, err := from.AskUDP(t, netip.AddrPortFrom(src, 0).String(), address, "who am I?", meshtest.Patience)
	if err != nil || answer != src.String()+" who am I?" {
		t.Errorf("reply to %s from %s: %q, %v", src, dst, answer, err)
	}
}

// down waits until a node's session is not established, with a reason that contains a word.
func down(t testing.TB, n *meshtest.Node, peer, word string) {
	t.Helper()
	meshtest.Eventually(t, func() error {
		p := sessions(t, n)[peer]
		if p.State == "Established" || p.LastError == "" || !strings.Contains(p.LastError, word) {
			return fmt.Errorf("%s: the session with %s is %s (%s), want it down with %q", n.Name, peer, p.State, p.LastError, word)
		}
		return nil
	})
}
