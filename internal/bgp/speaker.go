package bgp

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"time"

	"github.com/tortie-net/tortie/internal/bgp/bfd"
	"github.com/tortie-net/tortie/internal/bgp/relay"
	"github.com/tortie-net/tortie/internal/bgp/tcpao"
	"github.com/tortie-net/tortie/internal/bgp/wire"
)

// Defaults. Hold time: BIRD offers 240 s, the lower of both sides' offers counts, and 90 s finds a dead node early
// enough while a busy one keeps its sessions. Connect retry is what Calico sets for BIRD (GoBGP's own default is 120
// s), restart time what BIRD announces.
const (
	DefaultPort         uint16 = 179
	DefaultHoldTime            = 90 * time.Second
	DefaultConnectRetry        = 5 * time.Second
	DefaultRestartTime         = 120 * time.Second
)

// Bounds on the resources that one peer may use. A node of the largest cluster of one mesh announces some hundreds of
// prefixes, a route reflector for such a cluster some thousands.
const (
	DefaultMaxPrefixes = 20000
	// DefaultHoldDown is how long a peer that exceeded its MaxPrefixes is held down; it doubles each time, up to
	// MaxHoldDown.
	DefaultHoldDown = 60 * time.Second
	MaxHoldDown     = 10 * time.Minute
)

// maxPassword is the kernel's maximum length of a TCP MD5 key in bytes.
const maxPassword = 80

// Errors that a caller can act on.
var (
	// ErrNotStarted: the operation needs a Start that has returned nil.
	ErrNotStarted = errors.New("BGP speaker is not started")
	// ErrStopped: Stop has been called. A stopped speaker does not start again: end the process.
	ErrStopped = errors.New("BGP speaker is stopped")
)

// Speaker is a BGP speaker. Methods that set take the whole desired set, methods that read return the whole actual one.
// All methods may be called from any goroutine; each ends at its context's deadline even when the speaker is stuck.
type Speaker interface {
	// Start binds local's addresses and starts the speaker. It retries an address that it cannot bind with backoff until
	// ctx ends; the error then names address, port, cause and remedy (*ListenError). An error that does not go away by
	// waiting (invalid Local, missing capability) is returned at once. After an error Start may be called again. If it has
	// ended at its deadline and the speaker started later, the next call is a SetLocal.
	//
	// With another AS number or router ID Start restarts a started speaker: it breaks all connections without a
	// NOTIFICATION, so that peers with graceful restart keep our paths, and forgets peers, policy, and all paths. The
	// caller must set these as after the first Start; Local.Restarting counts again. After a *ListenError sessions are as
	// before; after another error there may be none, and only Start brings them back.
	Start(ctx context.Context, local Local) error

	// SetLocal changes the addresses and the port that a started speaker listens on, and its cluster ID. Sessions stay,
	// except that those with another cluster ID are connected anew, over which both sides keep the other's paths. An
	// address that cannot be bound is a *ListenError and changes nothing. Local.Restarting is ignored.
	SetLocal(ctx context.Context, local Local) error

	// SetPeers makes peers the whole set of sessions; nil closes all. The key of a peer is its address. Removed peers, and
	// those with another AS number at either end, own address, hold, keepalive or restart time, get a Cease. A change of
	// BFD, Client, NextHop, AllowOwnASN, or of AO to keys that it can roll over to keeps the connection. Any other change
	// breaks it and makes a new one, over which both sides keep the other's paths as in a graceful restart: a password
	// changes without losing a route. An invalid peer is an error and nothing changes. The next call tries failed
	// operations again.
	SetPeers(ctx context.Context, peers []Peer) error

	// SetPolicy sets the import and export rules of the sessions. No session is closed, and most changes concern only the
	// sessions they are for: the Adj-RIB-In is judged again from memory, the Adj-RIB-Out is corrected. It must be called
	// before the first SetPeers, and may be called before SetOriginated.
	SetPolicy(ctx context.Context, p Policy) error

	// SetOriginated sets the paths that this node originates: Prefix, Aggregate, and NextHop unless it is this end of each
	// session. Learned paths are announced as Policy states. After a restart it must be called before SetPeers: a peer
	// drops the paths that are not announced again before the end of our table.
	SetOriginated(ctx context.Context, paths []Path) error

	// Snapshot returns the paths learned so far, ordered by prefix: for each prefix the most preferred path to which judge
	// has no objection (nil has none), followed by the equal-cost paths with other next hops, 16 in all at most: traffic
	// may be shared between them. It omits prefixes that this node originates, and paths with a next hop that is not
	// unicast or is our own. Paths of a peer that restarts gracefully stay, marked Stale, until the peer has sent them
	// again or its restart time is over. It also returns the objections to paths that would otherwise be included.
	//
	// The judge applies here, to the result, and not as an import policy inside of the speaker: there a refused path would
	// still hide an acceptable one of lower preference.
	Snapshot(ctx context.Context, judge Judge) ([]Path, []Objection, error)

	// Peers returns the state of each configured session, ordered by address.
	Peers(ctx context.Context) ([]PeerStatus, error)

	// Traffic returns what has passed on the connections of each configured peer, Totals the sums over all peers, and Told
	// the prefixes announced to any peer, in ascending order, learned ones among them. They do not wait for a speaker that
	// is busy.
	Traffic() map[netip.Addr]Traffic
	Totals() Totals
	Told() []netip.Prefix

	// Ends returns the record of how sessions have ended.
	Ends() *Ends

	// Dirty wakes its one reader after a possible change of paths or sessions. Wake-ups are coalesced, may be spurious,
	// and carry nothing: read Snapshot and Peers.
	Dirty() <-chan struct{}

	// Healthy checks that the loop of the speaker runs and that connections are accepted. It does not depend on the state
	// of sessions and works before Start.
	Healthy(ctx context.Context) error

	// Stop ends the speaker in the given mode; all later calls but Healthy return ErrStopped.
	Stop(ctx context.Context, mode Mode) error
}

// Mode is how a speaker ends.
type Mode int

const (
	// Exit sends nothing and leaves the sessions to the end of the process: peers with graceful restart keep our paths.
	Exit Mode = iota
	// Cease ends every session with a Cease NOTIFICATION: peers drop our paths.
	Cease
)

// Local is this end of all sessions.
type Local struct {
	ASN uint32
	// RouterID is an IPv4 address that no other speaker uses; it need not be an address of this host.
	RouterID netip.Addr
	// Listen are the addresses to accept sessions on, at least one; 0.0.0.0 and :: stand for all. Unknown peers are
	// refused.
	Listen []netip.Addr
	// Port to listen on, DefaultPort if 0.
	Port uint16
	// ClusterID identifies this node as a route reflector (RFC 4456). It has the form of an IPv4 address; other reflectors
	// may use it only if they serve exactly the same clients. The zero Addr: this node is no reflector, and Peer.Client
	// has no effect.
	ClusterID netip.Addr
	// Restarting: an earlier process of this node announced its prefixes within the last restart time and the kernel still
	// forwards for them (RFC 4724's forwarding state). OPENs then have the R and F bits set. If it is set wrongly, peers
	// keep dead paths.
	Restarting bool
}

// Peer is one session. The zero value of a duration means its default. Peers are compared by ==.
type Peer struct {
	Addr netip.Addr // key
	ASN  uint32
	// LocalASN is our AS number towards this peer, Local.ASN if 0.
	LocalASN uint32
	Port     uint16 // of the peer, DefaultPort if 0
	// From is our end's address, of Addr's family. With the zero Addr the kernel chooses it, and the peer may connect to
	// any of our addresses.
	From netip.Addr
	// Passive: this end waits for the peer to connect, and connects itself if the peer has not for one and a half
	// ConnectRetry.
	Passive      bool
	HoldTime     time.Duration
	Keepalive    time.Duration // between keepalives that we send, a third of the hold time if 0
	ConnectRetry time.Duration
	RestartTime  time.Duration // announced time for which the peer keeps our paths after the session is lost
	// Password signs the session's TCP segments (RFC 2385); empty: they are not signed. It is never logged or shown.
	Password string
	// AO signs the segments by TCP-AO instead (RFC 5925); empty: no TCP-AO. It is never logged or shown.
	AO tcpao.Keys
	// MaxPrefixes is how many prefixes the peer may announce, DefaultMaxPrefixes if 0. A session with more is ended by
	// Cease, maximum number of prefixes reached, and the peer is held down: see PeerStatus.HeldUntil.
	MaxPrefixes int
	// Client: the peer, in our own AS, is our route reflection client: its paths are announced to all others, and theirs
	// to it.
	Client bool
	// AllowOwnASN is how often our own AS number may be in the AS paths of the peer, at most MaxOwnASN.
	AllowOwnASN int
	// NextHop is the next hop of learned paths that are passed on to the peer.
	NextHop NextHopMode
	// TTLSecurity is how many hops away the peer may be (RFC 5082): packets from further away are dropped. 0: no limit.
	TTLSecurity int
	// BFD configures the BFD session that ends the BGP session when the peer falls silent; no interval: no BFD. Its own
	// address is From.
	BFD bfd.Config
}

// MaxOwnASN bounds Peer.AllowOwnASN, as other speakers do.
const MaxOwnASN = 10

// NextHopMode is how the next hop of a learned path is set when it is announced. Originated paths always lead to this
// node.
type NextHopMode = relay.NextHop

// Next hop modes.
const (
	NextHopAuto = relay.Auto
	NextHopSelf = relay.Self
	NextHopKeep = relay.Keep
)

// String is for errors and logs: it omits the password.
func (p Peer) String() string { return fmt.Sprintf("peer %s in AS %d", p.Addr, p.ASN) }

// GoString is String for %#v.
func (p Peer) GoString() string { return p.String() }

// Waits reports whether self is the passive one of two nodes; see Peer.Passive. Exactly one of each pair is, by the
// rule of Calico's BIRD templates, which compares the addresses as text ("10.0.0.9" is greater than "10.0.0.10"): the
// node with the lesser text waits. With any other rule, in some pairs with a Calico node neither end would
// connect.
func Waits(self, peer netip.Addr) bool { return peer.String() > self.String() }

// Path is a prefix and its next hop. Paths are compared by ==.
type Path struct {
	Prefix  netip.Prefix
	NextHop netip.Addr
	// Aggregate: this node originates it for the peers that have it among Policy's Aggregates.
	Aggregate bool
	// Learned paths only:
	From   netip.Addr // the peer that sent it
	ASPath string     // AS numbers from the peer to the origin, a set in braces; empty inside one AS
	Stale  bool       // From is restarting and has not confirmed it yet
	// LocalPref is 100 where none was sent, MED 0.
	LocalPref, MED uint32
	// Communities are the standard ones ("64512:100"), then the large ones ("1:2:3"), each in order, separated by spaces;
	// empty: none.
	Communities string
	Origin      Origin
}

// Origin is a path's ORIGIN attribute.
type Origin uint8

// Origins, by RFC 4271's numbers.
const (
	OriginIGP Origin = iota
	OriginEGP
	OriginIncomplete
)

// String implements fmt.Stringer.
func (o Origin) String() string {
	switch o {
	case OriginIGP:
		return "IGP"
	case OriginEGP:
		return "EGP"
	}
	return "incomplete"
}

// Judge decides which learned paths may be used. A path is judged once, and again by a judge that is not deeply equal:
// Objection must depend on the path and on the judge's fields only, which must not change.
type Judge interface {
	// Objection returns why a path must not be used; its Why is empty if the path may.
	Objection(p Path) Objection
}

// Objection is a path that must not become a route, with the reason.
type Objection struct {
	Path Path
	Why  string
	// Pending: the check of whether the path may be used is under way.
	Pending bool
	// Usual: no action is needed.
	Usual bool
}

// within reports whether p is one of some or inside of one.
func within(p netip.Prefix, some []netip.Prefix) bool {
	return slices.ContainsFunc(some, func(outer netip.Prefix) bool { return outer.Bits() <= p.Bits() && outer.Contains(p.Addr()) })
}

// State is a session's state as RFC 4271 names it.
type State string

// States. GoBGP has no Connect: it dials in Active.
const (
	Idle        State = "Idle"
	Active      State = "Active"
	OpenSent    State = "OpenSent"
	OpenConfirm State = "OpenConfirm"
	Established State = "Established"
)

// PeerStatus is the state of one configured session.
type PeerStatus struct {
	Addr     netip.Addr
	ASN      uint32
	LocalASN uint32 // ours, for this peer
	Client   bool   // it is a client of ours: we reflect its paths
	Passive  bool
	State    State
	// Since is when the session was established or, if it is not, when it was lost or first configured.
	Since time.Time
	// Received counts the prefixes that the peer announces, refused ones among them, Sent those announced to it.
	Received, Sent int
	// Refused counts the refused prefixes by reason, ordered by reason.
	Refused []Refusal
	// SaysEnd: the peer marks the end of its table (RFC 4724). TableEnded is when the mark came in the present session;
	// zero: not yet.
	SaysEnd    bool
	TableEnded time.Time
	// Supports lists the capabilities of the peer in the present or last session, for people; empty if there was none.
	Supports string
	// Restarting: the session is lost and the peer's paths are kept, as it asked for.
	Restarting bool
	// LastError is why the session is not, or last was not, established; empty if it never failed.
	LastError string
	// Failure is LastError without details and without the peer's text: one of few texts, for use as a key.
	Failure string
	// ErrorSince is when LastError first occurred without a different error or a session in between, LastErrorAt when it
	// last occurred.
	ErrorSince, LastErrorAt time.Time
	// HeldUntil is the end of the peer's hold-down, for the reason in LastError; zero: it is not held down. Until then
	// nothing is sent to it and nothing accepted from it.
	HeldUntil time.Time
	// Self is this end's address of the session that is established.
	Self netip.Addr
	// OldKeys are the IDs of removed TCP-AO keys that the peer still uses, as SEND/RECEIVE separated by spaces.
	OldKeys string
	// WrongKeys are the key IDs in segments from the peer's address that were signed with other keys; empty while the
	// session is up.
	WrongKeys string
	// BFD is the state of the peer's BFD session; nil: none is configured.
	BFD *bfd.Status
}

// EndOfTable reports whether the peer has marked the end of its table in the present session.
func (p PeerStatus) EndOfTable() bool { return !p.TableEnded.IsZero() }

type (
	// Traffic is the relay's count: it has the connections.
	Traffic = relay.Traffic
	// Totals are the relay's counts.
	Totals = relay.Totals
	// Refusal is a reason for which prefixes of a peer are refused, with their number.
	Refusal = relay.Refusal
)

func (l Local) validate() error {
	if l.ASN == 0 {
		return errors.New("local AS number 0: set it, Calico's default is 64512")
	}
	if !l.RouterID.Is4() || l.RouterID.IsUnspecified() {
		return fmt.Errorf("router ID %s: must be an IPv4 address other than 0.0.0.0", l.RouterID)
	}
	if len(l.Listen) == 0 {
		// GoBGP takes an empty list for 0.0.0.0 and ::.
		return errors.New("no address to listen on: name at least one node address")
	}
	if l.ClusterID.IsValid() && !l.ClusterID.Is4() {
		return fmt.Errorf("cluster ID %s: must have the form of an IPv4 address, or be left out", l.ClusterID)
	}
	for _, addr := range l.Listen {
		if addr.IsUnspecified() {
			continue
		}
		if err := checkAddr(addr); err != nil {
			return fmt.Errorf("listen address: %w", err)
		}
	}
	return nil
}

func (p Peer) withDefaults() Peer {
	if p.Port == 0 {
		p.Port = DefaultPort
	}
	if p.HoldTime == 0 {
		p.HoldTime = DefaultHoldTime
	}
	if p.ConnectRetry == 0 {
		p.ConnectRetry = DefaultConnectRetry
	}
	if p.RestartTime == 0 {
		p.RestartTime = DefaultRestartTime
	}
	if p.MaxPrefixes == 0 {
		p.MaxPrefixes = DefaultMaxPrefixes
	}
	return p
}

// maxRestartTime is the largest value of RFC 4724's 12 bits.
const maxRestartTime = 4095 * time.Second

func (p Peer) validate() error {
	if err := checkAddr(p.Addr); err != nil {
		return fmt.Errorf("peer address: %w", err)
	}
	switch {
	case p.ASN == 0:
		return fmt.Errorf("peer %s: AS number 0", p.Addr)
	case p.From.IsValid() && (checkAddr(p.From) != nil || p.From.Is4() != p.Addr.Is4()):
		return fmt.Errorf("peer %s: own address %s: must be an address of the same family", p.Addr, p.From)
	case p.From.IsValid() && p.Addr.Zone() != "":
		return fmt.Errorf("peer %s: own address %s: a session by link-local addresses has the one of the interface", p.Addr, p.From)
	case p.From == p.Addr:
		return fmt.Errorf("peer %s: is this node's own address", p.Addr)
	case p.HoldTime < 3*time.Second || p.HoldTime > 65535*time.Second:
		return fmt.Errorf("peer %s: hold time %s: must be between 3s and 65535s", p.Addr, p.HoldTime)
	case p.ConnectRetry < time.Second:
		return fmt.Errorf("peer %s: connect retry %s: must be at least 1s", p.Addr, p.ConnectRetry)
	case p.RestartTime < time.Second || p.RestartTime > maxRestartTime:
		return fmt.Errorf("peer %s: restart time %s: must be between 1s and %s", p.Addr, p.RestartTime, maxRestartTime)
	case p.Keepalive != 0 && (p.Keepalive < time.Second || p.Keepalive >= p.HoldTime):
		return fmt.Errorf("peer %s: keepalive time %s: must be between 1s and less than the hold time of %s", p.Addr, p.Keepalive, p.HoldTime)
	case len(p.Password) > maxPassword:
		return fmt.Errorf("peer %s: password of %d bytes: TCP MD5 signatures allow %d at most", p.Addr, len(p.Password), maxPassword)
	case p.Password != "" && p.AO != "":
		return fmt.Errorf("peer %s: it has a password and TCP-AO keys: TCP takes one of both", p.Addr)
	case p.MaxPrefixes < 0:
		return fmt.Errorf("peer %s: maximum of %d prefixes: must be positive, or 0 for the default of %d", p.Addr,
			p.MaxPrefixes, DefaultMaxPrefixes)
	}
	return p.validateOptions()
}

func (p Peer) validateOptions() error {
	switch {
	case p.AllowOwnASN < 0 || p.AllowOwnASN > MaxOwnASN:
		return fmt.Errorf("peer %s: own AS number %d times in an AS path: must be between 0 and %d", p.Addr, p.AllowOwnASN, MaxOwnASN)
	case p.NextHop > NextHopKeep:
		return fmt.Errorf("peer %s: next hop mode %s: must be Auto, Self or Keep", p.Addr, p.NextHop)
	case p.TTLSecurity < 0 || p.TTLSecurity > 255:
		return fmt.Errorf("peer %s: TTL security of %d hops: must be between 1 and 255, or 0 for none", p.Addr, p.TTLSecurity)
	}
	return nil
}

// checkAddr returns an error for an address that cannot be an end of a session. Loopback is GoBGP's own.
func checkAddr(addr netip.Addr) error {
	global := addr.IsGlobalUnicast() && addr.Zone() == ""
	linkLocal := wire.LinkLocal(addr) && addr.Zone() != ""
	if !global && !linkLocal || addr.Is4In6() {
		return fmt.Errorf("%q is not a usable unicast address, or not a link-local one with its interface: fe80::1%%eth0", addr)
	}
	return nil
}

// checkOriginated returns an error for a path that no node may announce.
func checkOriginated(p Path) error {
	if !p.Prefix.IsValid() || p.Prefix != p.Prefix.Masked() || p.Prefix.Addr().Is4In6() {
		return fmt.Errorf("originated prefix %q: must be a prefix without host bits", p.Prefix)
	}
	if p.NextHop.IsValid() && p.NextHop.Is4() != p.Prefix.Addr().Is4() {
		return fmt.Errorf("originated prefix %s: next hop %s is of the other family", p.Prefix, p.NextHop)
	}
	return nil
}
