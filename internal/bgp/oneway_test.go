package bgp_test

import (
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/tortie-net/tortie/internal/bgp"
	"github.com/tortie-net/tortie/internal/testkit/bgptest"
	"github.com/tortie-net/tortie/internal/testkit/tier"
)

// mostAttempts is how many connections an end may open until the session is up.
const mostAttempts = 2

// firewall drops or accepts packets from one host to another's port 179, and counts the connections tried from then on.
func firewall(t *testing.T, from, to *bgptest.Host, drops bool) {
	t.Helper()
	const table = `table inet oneway; delete table inet oneway; table inet oneway {
		set tried { type inet_service; flags dynamic; size 65535; }
		chain in {
			type filter hook input priority 0
			ip saddr %s tcp dport 179 tcp flags & (syn|ack) == syn update @tried { tcp sport }
			ip saddr %s tcp dport 179 %s
		}
	}`
	verdict := "accept"
	if drops {
		verdict = "drop"
	}
	to.Run(t, "nft", fmt.Sprintf(table, from.V4, from.V4, verdict))
}

// tried returns how many connections were tried to a host behind firewall.
func tried(t *testing.T, to *bgptest.Host) int {
	t.Helper()
	_, elements, ok := strings.Cut(to.Run(t, "nft", "list", "set", "inet", "oneway", "tried"), "elements = ")
	if !ok {
		return 0
	}
	return strings.Count(elements, ",") + 1
}

// end is one end of a session that a test restarts.
type end interface {
	// restart restarts the end as the kubelet does a container that was killed.
	restart()
	// up is nil if the end has the session, and all of it.
	up() error
}

// ours is our speaker as an end.
type ours struct {
	*bgptest.Speaker
	peers []bgp.Peer
	block string
}

func (o *ours) begin(restarting bool) {
	o.Speaker = o.Host.Speaker()
	o.Start(ourASN, restarting)
	o.Originate(o.block)
	o.SetPeers(o.peers...)
}

func (o *ours) restart() {
	o.End(syscall.SIGKILL)
	o.begin(true)
}

func (o *ours) up() error {
	if p := o.Peer(o.peers[0].Addr); p.State != bgp.Established || !p.EndOfTable() {
		return fmt.Errorf("%s: %+v", o.V4, p)
	}
	return nil
}

// theirs is a daemon as an end.
type theirs struct {
	bgptest.Daemon
	peer netip.Addr
}

func (d *theirs) restart() {
	d.Signal(syscall.SIGKILL)
	d.Restart()
}

func (d *theirs) up() error {
	if state := d.State(d.peer); state != "Established" {
		return fmt.Errorf("%s: %s:\n%s", d.On().V4, state, d.Session(d.peer))
	}
	return nil
}

// A firewall that drops one end's connections does not keep the session from coming up or coming back, whichever end it
// is: RFC 4271 section 6.8 chooses among existing connections. The other end connects, also if it should wait by the
// rule of the mesh.
func TestOneWayFilter(t *testing.T) {
	t.Parallel()
	restarts := tier.Size(5, 50) // of each end
	if testing.Short() {
		restarts = 2
	}
	for name, c := range map[string]struct {
		mesh bool // one of both waits, as in the mesh
		kind bgptest.Kind
	}{
		"mesh":           {mesh: true},
		"peers":          {},
		"mesh with BIRD": {mesh: true, kind: bgptest.BIRD2},
		"BIRD":           {kind: bgptest.BIRD2},
	} {
		// As text, the address of nine is greater, so that in the mesh ten waits; as a number, and as a router ID, ten is
		// greater.
		for _, blocked := range []int{9, 10} {
			t.Run(fmt.Sprintf("%s, %d cannot connect", name, blocked), func(t *testing.T) {
				t.Parallel()
				lan := bgptest.NewLAN(t)
				hosts := map[int]*bgptest.Host{9: lan.Host(9), 10: lan.Host(10)}
				free := 19 - blocked
				// Connections that were tried before both ends are up do not count.
				firewall(t, hosts[blocked], hosts[free], true)
				firewall(t, hosts[free], hosts[blocked], true)
				speaks := func(n int) *ours {
					self, other := hosts[n], hosts[19-n]
					peer := bgp.Peer{Addr: other.V4, From: self.V4, ASN: ourASN, ConnectRetry: time.Second,
						Passive: c.mesh && bgp.Waits(self.V4, other.V4)}
					o := &ours{Speaker: self.Speaker(), block: fmt.Sprintf("10.1.%d.0/26", n), peers: []bgp.Peer{peer}}
					o.begin(false)
					return o
				}
				ends := map[int]end{}
				if c.kind == "" {
					ends[9], ends[10] = speaks(9), speaks(10)
				} else {
					// BIRD is the end of the greater text, which connects.
					config := bgptest.Config{ASN: ourASN, Announce: []netip.Prefix{netip.MustParsePrefix("10.1.9.0/26")},
						Sessions: []bgptest.Session{{Peer: hosts[10].V4, ASN: ourASN}}}
					ends[9] = &theirs{hosts[9].Daemon(c.kind, config), hosts[10].V4}
					ends[10] = speaks(10)
				}
				both := func() error {
					for _, n := range []int{9, 10} {
						if err := ends[n].up(); err != nil {
							return err
						}
					}
					return nil
				}
				if c.mesh && blocked == 9 {
					bgptest.Eventually(t, func() error {
						if tried(t, hosts[free]) == 0 {
							return errors.New("the end that is to connect has not tried yet")
						}
						return nil
					})
				}
				firewall(t, hosts[blocked], hosts[free], true)
				firewall(t, hosts[free], hosts[blocked], false)
				bgptest.Eventually(t, both)
				opened, dropped := tried(t, hosts[blocked]), tried(t, hosts[free])
				if opened < 1 || opened > mostAttempts || dropped > mostAttempts {
					t.Errorf(
						"the session is up after %d attempts of the end that can connect, and %d of the one that cannot; want 1 to %d, and %d at most",
						opened, dropped, mostAttempts, mostAttempts)
				}
				if o, ok := ends[blocked].(*ours); ok {
					bgptest.Eventually(t, func() error {
						if open := o.Run(t, "ss", "-Htn", "state", "syn-sent"); open != "" {
							return fmt.Errorf("still connecting: %s", open)
						}
						return nil
					})
					if p := o.Peer(o.peers[0].Addr); p.State != bgp.Established || p.LastErrorAt.After(p.Since) {
						t.Errorf("the attempt that failed after the session was up counts: %+v", p)
					}
				}
				for range restarts {
					for _, n := range []int{9, 10} {
						ends[n].restart()
						bgptest.Eventually(t, both)
					}
				}
			})
		}
	}
}
