package policy

import (
	"math/bits"
	"net/netip"
	"slices"

	"github.com/tortie-net/tortie/internal/bgp/wire"
)

// Base are the rules for every peer, around the operator's rules for it. It is immutable.
type Base struct {
	// Transit are the prefixes inside of which learned paths are passed on, except inside of Hidden. This node's own paths
	// inside of Hidden are not announced either.
	Transit, Hidden []netip.Prefix
	// Served are the ranges of Services: this node serves their addresses itself, and forwards nothing to a node that
	// announces one.
	Served []netip.Prefix
	// Refuse are prefixes that no peer may announce, in whole or in part: this node's own addresses. Nor may they be next
	// hops.
	Refuse []netip.Prefix
	// Own are prefixes that only this node may announce: its blocks. Parts of a block are accepted: addresses that other
	// nodes have borrowed.
	Own []netip.Prefix
	// Tags are added to announcements, all that match, unless a rule of the peer has accepted the path.
	Tags []Tag
	// Links map next hops to interfaces; the longest matching prefix counts.
	Links []Link
	// Normal4 and Normal6 are the default priorities of learned routes; 0 means NormalPriority.
	Normal4, Normal6 uint32
}

// Tag adds communities to announcements inside of a prefix.
type Tag struct {
	Prefix      netip.Prefix
	Communities []Community
}

// Link is the interface through which the next hops inside of a prefix are reached.
type Link struct {
	Prefix    netip.Prefix
	Interface string
}

// Session has the AS numbers of both ends.
type Session struct {
	LocalASN, PeerASN uint32
	// AllowOwnASN is how often LocalASN may be in an AS path from the peer.
	AllowOwnASN int
}

// External reports whether the peer is in another AS.
func (s Session) External() bool { return s.LocalASN != s.PeerASN }

// Reasons of the built-in rules.
const (
	reasonMartian    = "martian"
	reasonOwnAddress = "own address"
	reasonOwn        = "own block"
	// ReasonOwnHop and ReasonNoHop are also used by the relay.
	ReasonOwnHop    = "next hop is this node"
	ReasonNoHop     = "next hop is an address for documents"
	reasonForeign   = "AS path does not begin with the peer's AS"
	reasonLoop      = "own AS in its path"
	reasonCommunity = "community forbids to pass it on"
	reasonServed    = "address of a Service that another node announces"
	reasonHidden    = "in a pool with disableBGPExport"
	reasonTransit   = "not in transit pools"
)

// Martian reports whether a prefix is inside of a range without addresses of other hosts: a route to it can only do
// harm. The default route, and other prefixes around such ranges, are no martians.
func Martian(p netip.Prefix) bool { return containsAny(martians, p) }

var martians = []netip.Prefix{
	netip.MustParsePrefix("0.0.0.0/8"),
	netip.MustParsePrefix("127.0.0.0/8"),
	netip.MustParsePrefix("169.254.0.0/16"),
	netip.MustParsePrefix("224.0.0.0/3"), // multicast, class E, broadcast
	netip.MustParsePrefix("::/96"),       // unspecified, loopback, and deprecated IPv4-compatible addresses
	netip.MustParsePrefix("::ffff:0:0/96"),
	netip.MustParsePrefix("fe80::/10"),
	netip.MustParsePrefix("ff00::/8"),
}

// Import decides on a path that the peer announces. An Editor applies the outcome's Change. No rule of the peer can
// accept a path that the built-in rules refuse.
func (b *Base) Import(s Session, rules *Rules, prefix netip.Prefix, a *wire.Attributes) Outcome {
	if reason := b.refuse(s, prefix, a); reason != "" {
		return reject(reason)
	}
	out := rules.Apply(b.route(s, prefix, a))
	if out.Verdict == Reject {
		return out
	}
	out.Verdict = Accept
	switch c := &out.Change; {
	case c.SetLocalPref:
		c.LocalPref = level(Priority(c.LocalPref), b.normal(prefix))
	case s.External() && a.Communities.Has(wire.GracefulShutdown):
		c.SetLocalPref, c.LocalPref = true, 0
	}
	return out
}

// level returns the LOCAL_PREF of a priority among the paths that this node knows. The default is 100. A priority
// better than normal becomes Calico's LOCAL_PREF, which is far above 100. A worse one becomes less than 100, where
// there are fewer numbers than priorities: the order stays, but two priorities that differ by less than a third may get
// the same.
func level(priority, normal uint32) uint32 {
	switch {
	case priority < normal:
		return max(LocalPref(priority), defaultLocalPref+1)
	case priority == normal:
		return defaultLocalPref
	}
	by := uint64(priority - normal)
	octave := bits.Len64(by) - 1
	third := 3 * (by - 1<<octave) >> octave
	return defaultLocalPref - 1 - uint32(3*octave) - uint32(third)
}

// refuse returns why the built-in rules refuse a path; empty: they do not.
func (b *Base) refuse(s Session, prefix netip.Prefix, a *wire.Attributes) string {
	switch {
	case Martian(prefix):
		return reasonMartian
	case containsAny(b.Refuse, prefix):
		return reasonOwnAddress
	case slices.Contains(b.Own, prefix):
		return reasonOwn
	case slices.ContainsFunc(b.Refuse, func(p netip.Prefix) bool { return p.Contains(a.NextHop) }):
		return ReasonOwnHop
	case s.External() && !a.Path.StartsWith([]uint32{s.PeerASN}):
		return reasonForeign
	case a.Path.Count(s.LocalASN) > s.AllowOwnASN:
		return reasonLoop
	}
	return ""
}

// Offer is a path that would be announced to the peer.
type Offer struct {
	Prefix netip.Prefix
	*wire.Attributes
	Own bool // this node originates it
	// Attracts: the peer would send the packets to this node, because the announcement's next hop is not the learned one.
	Attracts bool
}

// Export decides on an offer. No rule of the peer can accept an offer that withhold refuses. LOCAL_PREF, and so a
// rule's priority, is not sent to another AS.
func (b *Base) Export(s Session, rules *Rules, o Offer) Outcome {
	if reason := b.withhold(s, &o); reason != "" {
		return reject(reason)
	}
	prefix := o.Prefix
	route := b.route(s, prefix, o.Attributes)
	if o.Own {
		route.Own, route.Interface, route.Priority = true, "", b.normal(prefix)
	}
	out := rules.Apply(route)
	if out.Verdict == NoMatch {
		out = b.export(o.Own, prefix)
	}
	if s.External() {
		out.Change.SetLocalPref, out.Change.LocalPref = false, 0
	}
	return out
}

// withhold returns why a path must not be announced, whatever the rules accept; empty: the rules decide, as for this
// node's own paths.
func (b *Base) withhold(s Session, o *Offer) string {
	switch {
	case o.Own:
		return ""
	case forbidden(s, o.Communities):
		return reasonCommunity
	case o.Attracts && o.Prefix.IsSingleIP() && containsAny(b.Served, o.Prefix):
		return reasonServed
	}
	return ""
}

// export decides on paths that no rule of the peer matches.
func (b *Base) export(own bool, prefix netip.Prefix) Outcome {
	switch {
	case containsAny(b.Hidden, prefix):
		return reject(reasonHidden)
	case !own && !containsAny(b.Transit, prefix):
		return reject(reasonTransit)
	}
	return Outcome{Verdict: Accept, Change: wire.Change{Add: b.tags(prefix)}}
}

// tags returns the communities of a prefix.
func (b *Base) tags(prefix netip.Prefix) []Community {
	var all []Community
	for i := range b.Tags {
		tag := &b.Tags[i]
		switch {
		case !contains(tag.Prefix, prefix):
		case all == nil:
			all = tag.Communities
		default:
			all = slices.Concat(all, tag.Communities)
		}
	}
	return all
}

// forbidden applies RFC 1997's rules on well-known communities.
func forbidden(s Session, c wire.Communities) bool {
	if c.Empty() {
		return false
	}
	return c.Has(wire.NoAdvertise) || (s.External() && (c.Has(wire.NoExport) || c.Has(wire.NoExportSubconfed)))
}

// route returns a learned path as rules match it.
func (b *Base) route(s Session, prefix netip.Prefix, a *wire.Attributes) Route {
	r := Route{Prefix: prefix, Attributes: a, External: s.External(), Interface: b.link(a.Via), Priority: b.normal(prefix)}
	if a.HasLocalPref && a.LocalPref != defaultLocalPref {
		r.Priority = Priority(a.LocalPref)
	}
	return r
}

// link returns the interface through which a next hop is reached; empty if none is known.
func (b *Base) link(hop netip.Addr) string {
	best := Link{Interface: hop.Zone()}
	for _, l := range b.Links {
		if l.Prefix.Contains(hop) && (!best.Prefix.IsValid() || l.Prefix.Bits() > best.Prefix.Bits()) {
			best = l
		}
	}
	return best.Interface
}

func (b *Base) normal(prefix netip.Prefix) uint32 {
	n := b.Normal6
	if prefix.Addr().Is4() {
		n = b.Normal4
	}
	if n == 0 {
		n = NormalPriority
	}
	return n
}

// EqualImport reports whether both accept the same paths: no Adj-RIB-In has to be judged again.
func (b *Base) EqualImport(o *Base) bool {
	return slices.Equal(b.Refuse, o.Refuse) && slices.Equal(b.Own, o.Own) && slices.Equal(b.Links, o.Links) &&
		b.Normal4 == o.Normal4 && b.Normal6 == o.Normal6
}

// EqualExport reports whether both announce the same: no announcement has to be repeated.
func (b *Base) EqualExport(o *Base) bool {
	return slices.Equal(b.Transit, o.Transit) && slices.Equal(b.Hidden, o.Hidden) && slices.Equal(b.Served, o.Served) &&
		slices.Equal(b.Links, o.Links) && slices.EqualFunc(b.Tags, o.Tags, Tag.Equal) && b.Normal4 == o.Normal4 && b.Normal6 == o.Normal6
}

// Equal reports whether both have the same prefix and communities.
func (t Tag) Equal(o Tag) bool {
	return t.Prefix == o.Prefix && slices.Equal(t.Communities, o.Communities)
}
