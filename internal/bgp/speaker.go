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

// Bounds on what a peer may cost. A node of the largest cluster of one mesh announces some hundreds of prefixes, a
// route reflector for such a cluster some thousands.
const (
	DefaultMaxPrefixes = 20000
	// DefaultHoldDown is how long a peer that went beyond its MaxPrefixes is left alone; it doubles with each time.
	DefaultHoldDown = 60 * time.Second
	MaxHoldDown     = 10 * time.Minute
)

// maxPassword is how many bytes the kernel takes as a key of TCP MD5 signatures.
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
	// Start binds local's addresses and starts the speaker. An address that can't be bound now is tried again with backoff
	// until ctx ends, whose error then names address, port, cause and remedy (*ListenError); what will not change by
	// waiting (invalid Local, missing capability) returns at once. After an error Start may be called again, also if it
	// has ended at its deadline and the speaker was started nevertheless, later: then it is SetLocal.
	//
	// With another AS number or router ID it starts a started speaker anew: it breaks all connections without a
	// NOTIFICATION, so that peers with graceful restart keep our paths, and forgets peers, policy, and all paths. These are
	// then to be set as after the first Start; Local.Restarting counts again. After a *ListenError sessions are as before;
	// after another error there may be none, and only Start brings them back.
	Start(ctx context.Context, local Local) error

	// SetLocal changes the addresses and the port that a started speaker listens on, and its cluster ID. Sessions stay;
	// only what reflects under another cluster ID is connected anew, over which both sides keep the other's paths. An
	// address that can't be bound is a *ListenError and leaves all as it was. Local.Restarting is not looked at.
	SetLocal(ctx context.Context, local Local) error

	// SetPeers makes peers the whole set of sessions; nil closes all. A peer is known by its address. Sessions of peers
	// that did not change are not touched. Peers that left, and those that changed in AS number, own address, hold or
	// restart time, get a Cease. Another change breaks the connection and makes a new one, over which both sides keep the
	// other's paths as graceful restart has it: a password is changed without losing a route. BFD changes beside the
	// session. An invalid peer is an error and nothing changes. The next call tries failed operations again.
	SetPeers(ctx context.Context, peers []Peer) error

	// SetPolicy sets the import and export rules of the sessions. No session is closed, and most changes concern only the
	// sessions they are for: the Adj-RIB-In is judged again from memory, the Adj-RIB-Out is corrected. It is to be called
	// before the first SetPeers, and may be called before SetOriginated.
	SetPolicy(ctx context.Context, p Policy) error

	// SetOriginated sets the paths that this node originates: Prefix, Aggregate, and NextHop unless it is this end of each
	// session. Learned paths are announced as Policy says. After a restart it must be called before SetPeers: a peer drops
	// what is not announced again by the time it has seen the end of our table.
	SetOriginated(ctx context.Context, paths []Path) error

	// Snapshot returns what is learned now, ordered by prefix: of each prefix the most preferred path that judge has no
	// objection to (nil has none), and behind it those of the same rank that lead to other next hops, 16 at most: traffic
	// may be shared between them. A prefix that this node originates is never among them, nor a path whose next hop is no
	// unicast address or is our own. Paths of a peer that restarts gracefully stay, marked Stale, until it has sent them
	// again or its restart time is over. It returns the objections to paths that would be among them, too.
	//
	// The rule is applied here, on the way out, and is not an import policy inside of the speaker: a refused path would
	// still hide an acceptable one of lower preference.
	Snapshot(ctx context.Context, judge Judge) ([]Path, []Objection, error)

	// Peers returns the state of each configured session, ordered by address.
	Peers(ctx context.Context) ([]PeerStatus, error)

	// Traffic returns what has passed on the connections of each configured peer, Totals of all together, and Told the
	// prefixes that any peer has been announced, in ascending order, learned ones among them. They do not wait for a
	// speaker that is busy.
	Traffic() map[netip.Addr]Traffic
	Totals() Totals
	Told() []netip.Prefix

	// Ends is what is remembered of how sessions have ended.
	Ends() *Ends

	// Dirty wakes its one reader after a possible change of paths or sessions. Wake-ups are coalesced, may be spurious,
	// and carry nothing: read Snapshot and Peers.
	Dirty() <-chan struct{}

	// Healthy checks that the loop of the speaker runs and that connections are accepted, whatever the state of its
	// sessions and even before Start.
	Healthy(ctx context.Context) error

	// Stop ends the speaker as mode says; all later calls but Healthy return ErrStopped.
	Stop(ctx context.Context, mode Mode) error
}

// Mode is how a speaker ends.
type Mode int

const (
	// Exit sends nothing and leaves the sessions to the end of the process: peers with graceful restart keep our paths.
	Exit Mode = iota
	// Cease tells every peer that this speaker goes away for good: peers drop our paths.
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
	// ClusterID is under which this node reflects routes of its clients (RFC 4456): an IPv4 address by its form, which no
	// other reflector uses that does not serve exactly the same clients. The zero Addr: this node is no reflector,
	// whatever Peer.Client says.
	ClusterID netip.Addr
	// Restarting: an earlier process of this node announced its prefixes within the last restart time and that the kernel
	// still forwards for them (RFC 4724's forwarding state). Peers are then told so (R and F bits). If it is set wrongly,
	// they keep dead paths.
	Restarting bool
}

// Peer is one session. The zero value of a duration means its default. Peers are compared by ==.
type Peer struct {
	Addr netip.Addr // key
	ASN  uint32
	// LocalASN is the AS number that we are in for this peer, Local.ASN if 0.
	LocalASN uint32
	Port     uint16 // of the peer, DefaultPort if 0
	// From is our end's address, of Addr's family. The zero Addr leaves it to the kernel, and a peer may connect to any
	// address of ours.
	From netip.Addr
	// Passive leaves it to the peer to connect, unless that does not for one and a half ConnectRetry.
	Passive      bool
	HoldTime     time.Duration
	Keepalive    time.Duration // between keepalives that we send, a third of the hold time if 0
	ConnectRetry time.Duration
	RestartTime  time.Duration // for how long the peer is asked to keep our paths after the session is lost
	// Password signs the session's TCP segments (RFC 2385); empty: they are not signed. It is never logged or shown.
	Password string
	// AO signs them by TCP-AO instead (RFC 5925); empty: it does not. It is never logged or shown.
	AO tcpao.Keys
	// MaxPrefixes is how many prefixes the peer may announce, DefaultMaxPrefixes if 0. A session on which more come is
	// ended by Cease, maximum number of prefixes reached, and the peer is held down: see PeerStatus.HeldUntil.
	MaxPrefixes int
	// Client: the peer, in our own AS, is a client of ours: what it announces goes to all others, and what others announce
	// to it.
	Client bool
	// AllowOwnASN is how often our own AS number may be in the AS paths of the peer, at most MaxOwnASN.
	AllowOwnASN int
	// NextHop is the next hop of learned paths that are passed on to the peer.
	NextHop NextHopMode
	// TTLSecurity is how many hops away the peer may be (RFC 5082): packets that have come further are not taken. 0: from
	// anywhere.
	TTLSecurity int
	// BFD has the session end when the peer falls silent; without an interval there is none. Its own address is From.
	BFD bfd.Config
}

// MaxOwnASN is Peer.AllowOwnASN's bound, that of other speakers.
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

// String is for errors and logs: it leaves the password out.
func (p Peer) String() string { return fmt.Sprintf("peer %s in AS %d", p.Addr, p.ASN) }

// GoString is String for %#v.
func (p Peer) GoString() string { return p.String() }

// Waits reports whether self is the passive one of two nodes. Of each pair exactly one is, by the rule of Calico's BIRD
// templates, which is a comparison of the addresses as text ("10.0.0.9" is greater than "10.0.0.10"): the node whose
// peer has the greater text waits, see Peer.Passive. Any other rule would leave pairs with a Calico node in which
// neither end connects.
func Waits(self, peer netip.Addr) bool { return peer.String() > self.String() }

// Path is a prefix and where it leads. Paths are compared by ==.
type Path struct {
	Prefix  netip.Prefix
	NextHop netip.Addr
	// Aggregate: this node originates it for those peers that have it among Policy's Aggregates.
	Aggregate bool
	// Learned paths only:
	From   netip.Addr // the peer that sent it
	ASPath string     // AS numbers from the peer to the origin, a set in braces; empty inside one AS
	Stale  bool       // From is restarting and has not confirmed it yet
	// LocalPref is 100 where none was sent, MED 0.
	LocalPref, MED uint32
	// Communities are the standard ones ("64512:100") and after them the large ones ("1:2:3"), each kind in its order,
	// with spaces between; empty: none.
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

// Judge says which learned paths may be used. A path is judged once, and again by a judge that is not deeply equal: what
// Objection returns follows from the path and from what the judge holds, which nothing changes.
type Judge interface {
	// Objection returns why a path must not be used; Why is empty if it may.
	Objection(p Path) Objection
}

// Objection is to a path that must not become a route, and why.
type Objection struct {
	Path Path
	Why  string
	// Pending: it is being found out whether the path may be used.
	Pending bool
	// Usual: no action is needed.
	Usual bool
}

// within reports that a prefix is one of some or inside of one.
func within(p netip.Prefix, some []netip.Prefix) bool {
	return slices.ContainsFunc(some, func(outer netip.Prefix) bool { return outer.Bits() <= p.Bits() && outer.Contains(p.Addr()) })
}

// State is a session's state in the words of RFC 4271.
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
	// Received counts the prefixes that the peer announces, those that are refused among them, Sent those announced to it.
	Received, Sent int
	// Refused are the announced prefixes that are not taken, by reason, ordered by it.
	Refused []Refusal
	// SaysEnd: the peer says when it has sent the whole of its table, RFC 4724. TableEnded is when it did in the present
	// session, zero if it has not yet.
	SaysEnd    bool
	TableEnded time.Time
	// Supports lists the capabilities of the peer in the present or last session, for people; empty if there was none.
	Supports string
	// Restarting: the session is lost and the peer's paths are kept, as it asked for.
	Restarting bool
	// LastError is why the session is not, or last was not, established; empty if it never failed.
	LastError string
	// Failure is LastError without details and without what the peer has said: one of few texts, for what is kept by its
	// text.
	Failure string
	// ErrorSince is when that was first so, without a different error or a session in between; LastErrorAt when it was
	// last.
	ErrorSince, LastErrorAt time.Time
	// HeldUntil is until when the peer is held down for what it did, as LastError says; zero if it is not. Nothing is
	// sent to it and nothing accepted from it until then.
	HeldUntil time.Time
	// Self is this end's address of the session that is established.
	Self netip.Addr
	// OldKeys are the IDs of TCP-AO keys that were removed and that the peer goes on using, as SEND/RECEIVE with spaces
	// between.
	OldKeys string
	// WrongKeys are the IDs of keys that segments from the peer's address have, and that other keys have signed; empty
	// while the session is up.
	WrongKeys string
	// BFD is the state of its BFD session; nil: there is to be none.
	BFD *bfd.Status
}

// EndOfTable reports that the peer has sent the whole of its table in the present session, and said so.
func (p PeerStatus) EndOfTable() bool { return !p.TableEnded.IsZero() }

type (
	// Traffic is the relay's: it has the connections.
	Traffic = relay.Traffic
	// Totals are the relay's, too.
	Totals = relay.Totals
	// Refusal is a reason for which prefixes that a peer announces are not taken.
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

// checkAddr refuses what can't be one end of a session. Loopback is GoBGP's own.
func checkAddr(addr netip.Addr) error {
	global := addr.IsGlobalUnicast() && addr.Zone() == ""
	linkLocal := wire.LinkLocal(addr) && addr.Zone() != ""
	if !global && !linkLocal || addr.Is4In6() {
		return fmt.Errorf("%q is not a usable unicast address, or not a link-local one with its interface: fe80::1%%eth0", addr)
	}
	return nil
}

// checkOriginated refuses what no node may announce.
func checkOriginated(p Path) error {
	if !p.Prefix.IsValid() || p.Prefix != p.Prefix.Masked() || p.Prefix.Addr().Is4In6() {
		return fmt.Errorf("originated prefix %q: must be a prefix without host bits", p.Prefix)
	}
	if p.NextHop.IsValid() && p.NextHop.Is4() != p.Prefix.Addr().Is4() {
		return fmt.Errorf("originated prefix %s: next hop %s is of the other family", p.Prefix, p.NextHop)
	}
	return nil
}
