package topology

import (
	"fmt"
	"net/netip"
	"slices"
	"syscall"
	"testing"
	"time"

	"github.com/tortie-net/tortie/internal/api"
	"github.com/tortie-net/tortie/internal/kernel/sysctl"
	"github.com/tortie-net/tortie/internal/testkit/bgptest"
	"github.com/tortie-net/tortie/internal/testkit/meshtest"
	"github.com/tortie-net/tortie/internal/testkit/tier"
)

// reflected is a pair of nodes with a reflector of one kind, and a pod on the first node with an address borrowed from
// the second: only the reflector announces its route.
type reflected struct {
	kind           bgptest.Kind
	nodes          []*meshtest.Node
	lender, guest  *meshtest.Pod
	reflector      bgptest.Daemon
	at             netip.Addr
	borrowed, name string
}

// A graceful restart of a reflector of each kind loses no packet, not even to addresses whose routes only it announces.
func TestReflectorRestarts(t *testing.T) {
	tier.All(t)
	t.Parallel()
	w := newWorld(t, false)
	w.Create(t, meshtest.NewPool("pods", "10.90.0.0/16", api.EncapNever))
	off := false
	w.Create(t, &api.BGPConfiguration{Meta: api.Meta{Name: api.DefaultName}, Spec: api.BGPConfigurationSpec{NodeToNodeMeshEnabled: &off}})
	var all []*reflected
	var nodes []*meshtest.Node
	for i, kind := range bgptest.Kinds() {
		all = append(all, w.reflected(t, kind, 20+10*i))
		nodes = append(nodes, all[i].nodes...)
	}
	meshtest.Start(t, nodes...)
	t.Run("kinds", func(t *testing.T) {
		for _, r := range all {
			t.Run(string(r.kind), func(t *testing.T) {
				t.Parallel()
				for _, n := range r.nodes {
					peersWith(t, n, r.at.String())
				}
				leads(t, r.nodes[1].NS, r.nodes[1].Name, r.borrowed, r.nodes[0].Prefix.Addr().String()+" eth0")
				learnedFrom(t, r.nodes[1], blockOf(r.nodes[0]), r.at.String())
				packets := meshtest.StartTraffic(t, r.lender, r.guest)
				for range 2 {
					begun := time.Now()
					r.reflector.Signal(syscall.SIGKILL)
					r.reflector.Restart()
					for _, n := range r.nodes {
						meshtest.Eventually(t, func() error {
							if p := sessions(t, n)[r.at.String()]; p.State != "Established" || p.Since.Before(begun) || !p.EndOfTable {
								return fmt.Errorf("%s: the session with the reflector is %s since %v, End-of-RIB received: %t; %s", n.Name, p.State, p.Since,
									p.EndOfTable, p.LastError)
							}
							return nil
						})
					}
					packets.Onward(t, time.Second)
				}
				packets.Intact(t)
			})
		}
	})
}

// reflected creates two nodes, numbered from number, and their reflector.
func (w *world) reflected(t *testing.T, kind bgptest.Kind, number int) *reflected {
	t.Helper()
	r := &reflected{kind: kind, name: fmt.Sprint("reflector-", number), at: netip.AddrFrom4([4]byte{172, 31, 1, byte(number)})}
	config := bgptest.Config{ASN: 64512, Readvertise: true, ClusterID: r.at}
	for i := range 2 {
		n := w.node(t, 0, number+1+i)
		r.nodes = append(r.nodes, n)
		w.shell(t, fmt.Sprintf("kubectl label node %s reflector=%s", n.Name, r.name), "")
		config.Sessions = append(config.Sessions, bgptest.Session{Peer: n.Prefix.Addr(), ASN: 64512, Client: true})
	}
	w.AssignBorrowed(t, blockOf(r.nodes[1]), r.nodes[1], 9, r.nodes[0])
	r.borrowed = fmt.Sprintf("10.90.%d.9", number+2)
	r.lender, r.guest = w.pods[r.nodes[1]], r.nodes[0].NewPod(t, r.borrowed)
	r.reflector = w.host(t, fmt.Sprint("rr", number), link{"nodes", "br0", []string{r.at.String() + "/24"}}).Daemon(kind, config)
	w.Create(t, &api.BGPPeer{Meta: api.Meta{Name: r.name}, Spec: api.BGPPeerSpec{
		PeerIP: r.at.String(), ASNumber: 64512, NodeSelector: fmt.Sprintf("reflector == '%s'", r.name),
	}})
	return r
}

// A router's session is lost and comes back, and its process is killed and restarted: with a second path, and graceful
// restart, no packet is lost.
func TestRouterFlaps(t *testing.T) {
	tier.All(t)
	t.Parallel()
	r := newRacks(t)
	here, there := r.one[0], r.two[0]
	r.bothLead(t, here, there)
	r.bothLead(t, there, here)
	for _, tor := range []string{"tor-1a", "tor-1b"} {
		leads(t, r.tors[tor].On().NS, tor, blockOf(there), "172.31.0.21 spine", "172.31.0.22 spine")
	}
	for _, tor := range []string{"tor-2a", "tor-2b"} {
		leads(t, r.tors[tor].On().NS, tor, blockOf(here), "172.31.0.11 spine", "172.31.0.12 spine")
	}
	// Each flow is hashed to one of the paths.
	for _, n := range r.everywhere() {
		n.Within(t, func() error {
			if err := sysctl.DefaultRoot.Set(sysctl.Key{"net", "ipv6", "fib_multipath_hash_policy"}, "1"); err != nil {
				return err
			}
			return sysctl.DefaultRoot.Set(sysctl.Key{"net", "ipv4", "fib_multipath_hash_policy"}, "1")
		})
	}
	packets := meshtest.StartTraffic(t, r.pods[here], r.pods[there])
	tor := r.tors["tor-1a"].On()
	addr := r.ways(t, here, false)[0].peer
	back := func(after time.Time) {
		meshtest.Eventually(t, func() error {
			p := sessions(t, here)[addr]
			if p.State != "Established" || p.Since.Before(after) || !p.EndOfTable || p.BFD == nil || p.BFD.State != "Up" {
				return fmt.Errorf("the session with %s is %s since %v, End-of-RIB received: %t, BFD %+v; %s", addr, p.State, p.Since,
					p.EndOfTable, p.BFD, p.LastError)
			}
			return nil
		})
		packets.Onward(t, time.Second)
	}
	for range 3 {
		lost := time.Now()
		tor.Run(t, "ss", "-K", "state", "established", "dst", fmt.Sprintf("[%s]", here.LinkLocal(t, uplink(1))))
		back(lost)
	}
	killed := time.Now()
	r.tors["tor-1a"].Signal(syscall.SIGKILL)
	r.tors["tor-1a"].Restart()
	back(killed)
	packets.Intact(t)

	// A router that closes a session withdraws its routes: the node has one path, and then two. Convergence between the
	// routers is not tested: only packets from the node are counted.
	up := meshtest.Traffic{
		meshtest.StartStream(t, "up", r.pods[there], r.pods[here]),
		meshtest.StartStreamBetween(t, "up, IPv6", r.pods[there], r.pods[here], r.pods[there].V6, r.pods[here].V6),
	}
	ends := r.tors["tor-2a"]
	for range 2 {
		ended := time.Now()
		ends.Reset(there.Prefix.Addr())
		ends.Reset(there.V6)
		for _, addr := range []string{"172.31.2.2", "fd31:2::2"} {
			meshtest.Eventually(t, func() error {
				if p := sessions(t, there)[addr]; p.State != "Established" || p.Since.Before(ended) {
					return fmt.Errorf("the session with %s is %s since %v: %s", addr, p.State, p.Since, p.LastError)
				}
				return nil
			})
		}
		r.bothLead(t, there, here)
	}
	up.Intact(t)
}

// everywhere returns all namespaces on the paths between racks.
func (r *racks) everywhere() (all []namespace) {
	for _, n := range slices.Concat(r.one, r.two) {
		all = append(all, n)
	}
	for _, d := range r.tors {
		all = append(all, d.On())
	}
	return all
}

type namespace interface {
	Within(t testing.TB, fn func() error)
}
