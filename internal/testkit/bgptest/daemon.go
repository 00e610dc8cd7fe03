package bgptest

import (
	"cmp"
	"fmt"
	"net/netip"
	"os"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/tortie-net/tortie/internal/testkit/needtest"
)

// Kind is another implementation of BGP.
type Kind string

// Kinds of daemons, in Debian's versions.
const (
	BIRD1 Kind = "BIRD 1.6" // Calico's BIRD is a fork of it
	BIRD2 Kind = "BIRD 2"
	BIRD3 Kind = "BIRD 3" // of Debian's unstable release, only in the virtual machine of lab vmtest -bird
	FRR   Kind = "FRR"
)

// Kinds returns the kinds that this machine has, without GoBGP, on which the agent's own speaker is based.
func Kinds() []Kind {
	if BIRD() == BIRD3 {
		return []Kind{BIRD3}
	}
	return []Kind{BIRD1, BIRD2, FRR}
}

// BIRD returns the newest kind of BIRD that this machine has.
func BIRD() Kind {
	if _, err := os.Stat("/bird3"); err == nil {
		return BIRD3
	}
	return BIRD2
}

// Config is the configuration of a daemon: the prefixes that it originates, as blackholes, and its sessions.
type Config struct {
	ASN      uint32
	Announce []netip.Prefix
	Sessions []Session
	// RestartTime is the restart time of graceful restart; 0: the default of all kinds, 120 s.
	RestartTime time.Duration
	// LocalPref is the local preference of originated prefixes, for BIRD only; 0: the default of 100.
	LocalPref uint32
	// Communities are attached to originated prefixes: "64999:100" or "64999:1:2".
	Communities []string
	// Readvertise makes it readvertise learned routes to other peers as far as BGP allows it. Reflectors need it. FRR
	// always does it.
	Readvertise bool
	// ClusterID is the cluster ID of a reflector. Its clients are the sessions with Client.
	ClusterID netip.Addr
	// Text, if not empty, is the whole configuration. The other fields then only describe it, and Sessions may be empty.
	Text string
}

// Session is one session in the daemon's configuration.
type Session struct {
	Peer     netip.Addr
	ASN      uint32 // of the peer
	Port     uint16 // of the peer, 179 if 0
	Passive  bool
	Password string
	HoldTime time.Duration // the kind's default if 0
	// Client is a client of this reflector.
	Client bool
	// NextHopSelf makes the daemon the next hop of all routes that it announces.
	NextHopSelf bool
	// TTLSecurity is the maximum number of hops to the peer (RFC 5082), 0 for no limit.
	TTLSecurity int
	// BFD is the interval of BFD's packets, three of which may be lost; 0: no BFD. It is the same for all sessions of a
	// daemon.
	BFD time.Duration
	// BFDKey authenticates BFD's packets by BFDAuth, in BIRD's syntax; for BIRD only.
	BFDAuth, BFDKey string
	// BFDGraceful treats the end of a BFD session as a restart of the peer if its C bit is not set; for BIRD 2 and FRR.
	BFDGraceful bool
}

// bfd returns the first session with BFD; nil: there is none.
func (c *Config) bfd() *Session {
	if i := slices.IndexFunc(c.Sessions, func(s Session) bool { return s.BFD > 0 }); i >= 0 {
		return &c.Sessions[i]
	}
	return nil
}

// Route is a path that a daemon has learned, in a form common to all kinds.
type Route struct {
	Prefix      netip.Prefix
	NextHop     netip.Addr
	Origin      string // IGP
	ASPath      string
	LocalPref   string
	Communities string // standard, then large communities, each sorted: "64512:100 64512:1:2"
}

// Daemon is another BGP implementation on a host.
type Daemon interface {
	// On returns its host.
	On() *Host
	// State returns the state of the session with peer by its name in RFC 4271.
	State(peer netip.Addr) string
	// Learned returns the paths from peer, ordered by prefix. They may be stale.
	Learned(peer netip.Addr) []Route
	// Session returns the daemon's details of a session, for failure messages.
	Session(peer netip.Addr) string
	// SetPassword changes the password of the session with peer at run time.
	SetPassword(peer netip.Addr, password string)
	// Announce sets the originated prefixes of all sessions at run time.
	Announce(prefixes ...netip.Prefix)
	// Shutdown closes the session with peer by an administrative shutdown with a message (RFC 8203).
	Shutdown(peer netip.Addr, message string)
	// Reset resets the session with peer, which may be established again at once.
	Reset(peer netip.Addr)
	// Signal sends a signal to the process that speaks BGP, and waits for the exit after one that ends it.
	Signal(syscall.Signal)
	// Restart starts the daemon again, as its init system does. Prefixes, if any, replace the originated ones.
	Restart(announce ...netip.Prefix)
}

// Daemon starts a daemon on the host, with sessions from the host's address of the peer's family.
func (h *Host) Daemon(kind Kind, config Config) Daemon {
	h.T.Helper()
	needtest.More(h.T, "the daemons of make deps")
	switch kind {
	case BIRD1, BIRD2, BIRD3:
		return h.bird(kind, config)
	case FRR:
		return h.frr(config)
	}
	h.T.Fatalf("no kind of BGP speaker is called %q", kind)
	return nil
}

// from returns the host's address in the family of peer.
func (h *Host) from(peer netip.Addr) netip.Addr {
	if peer.Is4() {
		return h.V4
	}
	return h.V6
}

// WaitState waits until a daemon's session with peer is in a state.
func WaitState(t testing.TB, d Daemon, peer netip.Addr, want string) {
	t.Helper()
	Eventually(t, func() error {
		if got := d.State(peer); got != want {
			return fmt.Errorf("the session of %s to %s is %s there, want %s:\n%s", d.On().V4, peer, got, want, d.Session(peer))
		}
		return nil
	})
}

// WaitKernel waits until the kernel route of a daemon's host to prefix is via an address.
func WaitKernel(t testing.TB, h *Host, prefix string, via netip.Addr) {
	t.Helper()
	Eventually(t, func() error {
		if got := h.KernelRoute(prefix); !strings.Contains(got, "via "+via.String()+" ") {
			return fmt.Errorf("route to %s on %s: %q, want one via %s", prefix, h.V4, got, via)
		}
		return nil
	})
}

// large reports whether a community has three parts.
func large(community string) bool { return strings.Count(community, ":") == 2 }

// communities converts a daemon's communities to a common form: BIRD prints (64512,100) and (64512, 1, 2).
func communities(printed ...string) string {
	var all []string
	for _, text := range printed {
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
