package bgp

import (
	"context"
	"net/netip"
	"sync"
)

// Addresses inside of this process. GoBGP listens on gobgpAddr and knows each peer by an address of its own, from which
// the relay connects on the peer's behalf. A peer that comes again gets a new one, so that what GoBGP still says about the
// earlier one is dropped.
var (
	loopback   = netip.MustParsePrefix("127.0.0.0/8")
	gobgpAddr  = netip.MustParseAddr("127.179.0.1")
	firstAlias = netip.MustParseAddr("127.179.1.0")
)

// neighbours translates between peers and what GoBGP calls them.
type neighbours struct {
	mu   sync.Mutex // guards the rest
	last netip.Addr
	all  map[netip.Addr]*neighbour // by alias
}

// neighbour is a peer as GoBGP knows it.
type neighbour struct {
	peer, alias netip.Addr

	mu      sync.Mutex // guards the rest
	active  bool       // GoBGP takes a connection for it
	fading  bool       // the peer has another alias now
	ended   int        // sessions that are over
	kept    bool       // GoBGP may have something of one of these
	changed chan struct{}
}

func newNeighbours() *neighbours {
	return &neighbours{last: firstAlias.Prev(), all: make(map[netip.Addr]*neighbour)}
}

// add gives peer an alias that is not in use.
func (n *neighbours) add(peer netip.Addr) *neighbour {
	n.mu.Lock()
	defer n.mu.Unlock()
	for {
		n.last = n.last.Next()
		if !loopback.Contains(n.last) {
			n.last = firstAlias
		}
		if n.all[n.last] == nil {
			break
		}
	}
	added := &neighbour{peer: peer, alias: n.last, changed: make(chan struct{})}
	n.all[n.last] = added
	return added
}

func (n *neighbours) remove(gone *neighbour) {
	n.mu.Lock()
	defer n.mu.Unlock()
	delete(n.all, gone.alias)
}

// get returns the neighbour with an alias, nil if there is none.
func (n *neighbours) get(alias netip.Addr) *neighbour {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.all[alias]
}

// peers returns all peers by alias.
func (n *neighbours) peers() map[netip.Addr]netip.Addr {
	n.mu.Lock()
	defer n.mu.Unlock()
	peers := make(map[netip.Addr]netip.Addr, len(n.all))
	for alias, known := range n.all {
		peers[alias] = known.peer
	}
	return peers
}

func (n *neighbour) setActive(active bool) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.active != active {
		n.active = active
		close(n.changed)
		n.changed = make(chan struct{})
	}
}

// fade: what GoBGP says of it from now on is not about the peer's session.
func (n *neighbour) fade() {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.fading = true
}

func (n *neighbour) fades() bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.fading
}

// ending: a session is over, of which GoBGP may keep something.
func (n *neighbour) ending() {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.ended++
	n.kept = true
}

// proved: when just so many sessions were over, GoBGP had kept nothing of them.
func (n *neighbour) proved(ended int) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.kept = n.kept && n.ended != ended
}

// exact reports whether GoBGP has of the peer what the relay has passed on in the session that is, and nothing else.
func (n *neighbour) exact() bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	return !n.kept && !n.fading
}

// inexact reports whether GoBGP may have something of a peer that the relay does not know.
func (n *neighbours) inexact() bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	for _, known := range n.all {
		if !known.exact() {
			return true
		}
	}
	return false
}

// endings is how many sessions of each neighbour are over, by alias.
func (n *neighbours) endings() map[netip.Addr]int {
	n.mu.Lock()
	defer n.mu.Unlock()
	endings := make(map[netip.Addr]int, len(n.all))
	for alias, known := range n.all {
		known.mu.Lock()
		endings[alias] = known.ended
		known.mu.Unlock()
	}
	return endings
}

// awaitActive returns when GoBGP takes a connection for the neighbour.
func (n *neighbour) awaitActive(ctx context.Context) error {
	for {
		n.mu.Lock()
		active, changed := n.active, n.changed
		n.mu.Unlock()
		if active {
			return nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}
