package nodestatus

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
)

// PickPeers keeps the sessions with one peer, named by its address, its node or its BGPPeer; an error if there are
// none.
func (r *Report) PickPeers(named string) error {
	if a, err := netip.ParseAddr(named); err == nil {
		named = a.Unmap().String()
	}
	r.Peers = slices.DeleteFunc(r.Peers, func(p Peer) bool { return p.Address != named && p.Node != named && p.Object != named })
	if len(r.Peers) == 0 {
		return fmt.Errorf("no BGP session of this node is with %q: name a peer's address, its node or its BGPPeer (node peers lists them)", named)
	}
	return nil
}

// PickRoutes keeps what overlaps one address or range: routes, announced (with passed-on), learned and refused
// prefixes, the longest first, as in the kernel. The counts still are of all routes.
func (r *Report) PickRoutes(named string) error {
	about, err := netip.ParsePrefix(named)
	if a, single := netip.ParseAddr(named); single == nil {
		about, err = netip.PrefixFrom(a.Unmap(), a.Unmap().BitLen()), nil
	}
	if err != nil {
		return fmt.Errorf("%q is neither an address nor a range: name one such as 10.1.2.3 or 10.1.2.0/26", named)
	}
	about = about.Masked()
	r.Routes.List = touching(about, r.Routes.List, func(x Route) string { return x.Destination })
	r.Routes.Refusals = touching(about, r.Routes.Refusals, func(x Refusal) string { return x.Prefix })
	r.Routes.LeftToNetwork = touching(about, r.Routes.LeftToNetwork, func(x Refusal) string { return x.Prefix })
	r.Announced = touching(about, append(r.Announced, r.PassedOn...), func(x Announced) string { return x.Prefix })
	r.Learned = touching(about, r.Learned, func(x Path) string { return x.Prefix })
	if len(r.Routes.List)+len(r.Routes.Refusals)+len(r.Routes.LeftToNetwork)+len(r.Announced) == 0 {
		return fmt.Errorf("the agent has no route for %s, announces none and has refused none: its packets go where the host's other routes "+
			"lead (ip route get %s)", named, about.Addr())
	}
	return nil
}

// touching returns the elements with a prefix that overlaps about, the longest first.
func touching[T any](about netip.Prefix, all []T, text func(T) string) []T {
	length := func(x T) int {
		p, err := netip.ParsePrefix(text(x))
		if err != nil || !p.Overlaps(about) {
			return -1
		}
		return p.Bits()
	}
	out := slices.DeleteFunc(all, func(x T) bool { return length(x) < 0 })
	slices.SortStableFunc(out, func(a, b T) int { return cmp.Compare(length(b), length(a)) })
	return out
}
