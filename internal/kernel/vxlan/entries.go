package vxlan

import (
	"net/netip"
	"slices"

	"github.com/tortie-net/tortie/internal/kernel/netlinkx"
)

// entries makes the kernel's entries for the peers: the MAC of an inside address, and the node to which frames for a
// MAC are sent. It notes undesired entries in m.
func (s *Syncer) entries(m *Merged, t Tunnel) error {
	family := netlinkx.FamilyOf(t.Local)
	neighbours, err := s.conn.Neighbours(m.Link, family)
	if err != nil {
		return err
	}
	forwarding, err := s.conn.Forwarding(m.Link)
	if err != nil {
		return err
	}
	// A neighbour is of no use without the forwarding entry, so that comes first.
	p := compareForwarding(m.Link, t.Peers, forwarding)
	p = p.and(compareNeighbours(m.Link, t.Peers, neighbours))
	m.stale = p.remove
	var errs []error
	writes, wrote := slices.Concat(p.add, p.replace), map[MAC]bool{}
	for i, err := range append(s.conn.AddNeighbours(p.add), s.conn.ReplaceNeighbours(p.replace)...) {
		switch {
		case err == nil:
			wrote[MAC(writes[i].MAC)] = true
		case netlinkx.IsExist(err): // made meanwhile: the next Merge compares it
		default:
			errs = append(errs, err)
		}
	}
	for _, peer := range t.Peers {
		if wrote[peer.MAC] {
			m.Written = append(m.Written, peer)
		}
	}
	return netlinkx.Summary(errs)
}

// Prune removes the undesired entries that Merge has found.
func (m Merged) Prune() error {
	if len(m.stale) == 0 {
		return nil
	}
	var errs []error
	for _, err := range m.conn.DeleteNeighbours(m.stale) {
		if err != nil && !netlinkx.IsNotExist(err) {
			errs = append(errs, err)
		}
	}
	return netlinkx.Summary(errs)
}

// plan holds the changes of the entries.
type plan struct{ add, replace, remove []netlinkx.Neighbour }

func (p plan) and(q plan) plan {
	return plan{append(p.add, q.add...), append(p.replace, q.replace...), append(p.remove, q.remove...)}
}

// compareNeighbours returns the changes of the neighbour table. Entries that the kernel has learned, or tries to, are
// replaced if a peer has the address; others the kernel drops itself.
func compareNeighbours(link int, peers []Peer, have []netlinkx.Neighbour) (p plan) {
	found := make(map[netip.Addr]netlinkx.Neighbour, len(have))
	for _, n := range have {
		found[n.Addr] = n
	}
	for _, peer := range peers {
		want := netlinkx.Neighbour{Link: link, Addr: peer.Addr, MAC: peer.MAC, Permanent: true}
		n, ok := found[peer.Addr]
		delete(found, peer.Addr)
		switch {
		case !ok:
			p.add = append(p.add, want)
		case n != want:
			p.replace = append(p.replace, want)
		}
	}
	for _, n := range have {
		if _, unwanted := found[n.Addr]; unwanted && n.Permanent {
			p.remove = append(p.remove, n)
		}
	}
	return p
}

// compareForwarding returns the changes of the forwarding database. Frames to a MAC with several entries go to all of
// them: unless one is right, one is replaced; the others are removed.
func compareForwarding(link int, peers []Peer, have []netlinkx.Neighbour) (p plan) {
	found := make(map[[6]byte][]netlinkx.Neighbour, len(have))
	for _, n := range have {
		found[n.MAC] = append(found[n.MAC], n)
	}
	for _, peer := range peers {
		want := netlinkx.Neighbour{Link: link, Forward: true, Addr: peer.Node, MAC: peer.MAC, Permanent: true}
		entries := found[peer.MAC]
		delete(found, peer.MAC)
		right := false
		for _, n := range entries {
			right = right || n == want
		}
		switch {
		case len(entries) == 0:
			p.add = append(p.add, want)
		case right:
			for _, n := range entries {
				if n != want {
					p.remove = append(p.remove, n)
				}
			}
		default: // the kernel replaces the first; the next Merge finds the others
			p.replace = append(p.replace, want)
		}
	}
	for _, n := range have {
		if _, unwanted := found[n.MAC]; unwanted {
			p.remove = append(p.remove, n)
		}
	}
	return p
}
