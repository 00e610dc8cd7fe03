package bgptest

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/tortie-net/tortie/internal/testkit/needtest"
)

// Kind is another implementation of BGP.
type Kind string

// Kinds, as Debian has them.
const (
	BIRD1  Kind = "BIRD 1.6" // of which Calico's is a fork
	BIRD2  Kind = "BIRD 2"
	FRR    Kind = "FRR"
	GoBGPd Kind = "gobgpd"
)

// Kinds are those that write what they learn into their kernel.
func Kinds() []Kind { return []Kind{BIRD1, BIRD2, FRR} }

// AllKinds has gobgpd besides, which speaks and forwards nothing.
func AllKinds() []Kind { return append(Kinds(), GoBGPd) }

// Config is what a daemon is configured to do: announce prefixes, which lead nowhere, over sessions.
type Config struct {
	ASN      uint32
	Announce []netip.Prefix
	Sessions []Session
	// RestartTime is for how long peers are asked to keep this daemon's paths; 0: its default, 120 s for all kinds.
	RestartTime time.Duration
	// LocalPref is what is announced, by BIRD only; 0: the default of 100.
	LocalPref uint32
	// Communities are on what is announced, "64999:100" or "64999:1:2".
	Communities []string
	// Readvertise makes it a router, and not a host: what it learns from one peer it tells the others as far as BGP lets it. Reflectors
	// need it. FRR and gobgpd always do.
	Readvertise bool
	// ClusterID is that of a reflector, which reflects to the sessions that are marked as clients'.
	ClusterID netip.Addr
	// Text, if it is not empty, is the whole configuration, and all of the above only says what is in it. Of Sessions nothing is needed.
	Text string
}

// Session is one session as the daemon sees it.
type Session struct {
	Peer     netip.Addr
	ASN      uint32 // of the peer
	Port     uint16 // of the peer, 179 if 0
	Passive  bool
	Password string
	HoldTime time.Duration // the kind's default if 0
	// Client is a client of this reflector.
	Client bool
	// NextHopSelf has the daemon announce itself as the next hop of all.
	NextHopSelf bool
	// TTLSecurity is how many hops away the peer may be (RFC 5082), 0 for any.
	TTLSecurity int
}

// Route is a path that a daemon has learned, in words that all kinds have.
type Route struct {
	Prefix      netip.Prefix
	NextHop     netip.Addr
	Origin      string // IGP
	ASPath      string
	LocalPref   string
	Communities string // standard ones and then large ones, each in order: "64512:100 64512:1:2"
}

// Daemon is a speaker of somebody else on a host.
type Daemon interface {
	// On is where it runs.
	On() *Host
	// State is that of the session to peer in the words of RFC 4271.
	State(peer netip.Addr) string
	// Learned are the paths that peer has announced, ordered by prefix. They may be stale.
	Learned(peer netip.Addr) []Route
	// Session is all that the daemon says about a session, for people.
	Session(peer netip.Addr) string
	// SetPassword changes the password of the session to peer while the daemon runs.
	SetPassword(peer netip.Addr, password string)
	// Announce sets what is announced, in all sessions, while the daemon runs.
	Announce(prefixes ...netip.Prefix)
	// Shutdown ends the session to peer, administratively, and tells the peer why.
	Shutdown(peer netip.Addr, message string)
	// Reset ends the session to peer, which may come back at once.
	Reset(peer netip.Addr)
	// Signal sends a signal to what speaks BGP; after one that ends it, it is gone when this returns.
	Signal(syscall.Signal)
	// Restart starts it again, as its init system would, with these prefixes to announce, if there are any, instead of those before.
	Restart(announce ...netip.Prefix)
}

// Daemon starts a daemon on the host, with sessions from the host's address of the peer's family.
func (h *Host) Daemon(kind Kind, config Config) Daemon {
	h.T.Helper()
	needtest.More(h.T, "the daemons of make deps")
	switch kind {
	case BIRD1, BIRD2:
		return h.bird(kind, config)
	case FRR:
		return h.frr(config)
	case GoBGPd:
		return h.gobgpd(config)
	}
	h.T.Fatalf("no kind of BGP speaker is called %q", kind)
	return nil
}

// from is this host's end of a session to peer.
func (h *Host) from(peer netip.Addr) netip.Addr {
	if peer.Is4() {
		return h.V4
	}
	return h.V6
}

// WaitState waits until a daemon's session to peer is in a state.
func WaitState(t testing.TB, d Daemon, peer netip.Addr, want string) {
	t.Helper()
	Eventually(t, func() error {
		if got := d.State(peer); got != want {
			return fmt.Errorf("the session of %s to %s is %s there, want %s:\n%s", d.On().V4, peer, got, want, d.Session(peer))
		}
		return nil
	})
}

// WaitKernel waits until the kernel of a daemon's host sends prefix to via.
func WaitKernel(t testing.TB, h *Host, prefix string, via netip.Addr) {
	t.Helper()
	Eventually(t, func() error {
		if got := h.KernelRoute(prefix); !strings.Contains(got, "via "+via.String()+" ") {
			return fmt.Errorf("route to %s on %s: %q, want one via %s", prefix, h.V4, got, via)
		}
		return nil
	})
}

// large tells communities with three parts from those with two.
func large(community string) bool { return strings.Count(community, ":") == 2 }

// communities puts them in one form, whatever a daemon calls them: BIRD says (64512,100) and (64512, 1, 2).
func communities(said ...string) string {
	var all []string
	for _, text := range said {
		text = strings.NewReplacer(", ", ":", ",", ":", "(", " ", ")", " ").Replace(text)
		all = append(all, strings.Fields(text)...)
	}
	slices.SortFunc(all, func(a, b string) int {
		if large(a) != large(b) {
			return strings.Count(a, ":") - strings.Count(b, ":")
		}
		return slices.CompareFunc(strings.Split(a, ":"), strings.Split(b, ":"), func(a, b string) int {
			return cmp.Or(cmp.Compare(len(a), len(b)), strings.Compare(a, b)) // numbers without leading zeros
		})
	})
	return strings.Join(all, " ")
}

func sortRoutes(routes []Route) []Route {
	slices.SortFunc(routes, func(a, b Route) int { return a.Prefix.Compare(b.Prefix) })
	return routes
}
