package bgp

import (
	"net/netip"
	"sync"
)

// Addresses inside of this process. GoBGP listens on gobgpAddr and knows each peer by an address of its own, from which
// the relay connects on the peer's behalf. A peer that comes again gets a new one, so that what GoBGP still says about
// the earlier one is dropped.
var (
	loopback   = netip.MustParsePrefix("127.0.0.0/8")
	gobgpAddr  = netip.MustParseAddr("127.179.0.1")
	firstAlias = netip.MustParseAddr("127.179.1.0")
)

// neighbours translates between peers and what GoBGP calls them.
type neighbours struct {
	mu   sync.Mutex // guards the rest
	last netip.Addr
	all  map[netip.Addr]netip.Addr // by alias
}

// neighbour is a peer as GoBGP knows it.
type neighbour struct{ peer, alias netip.Addr }

func newNeighbours() *neighbours {
	return &neighbours{last: firstAlias.Prev(), all: make(map[netip.Addr]netip.Addr)}
}

// add gives peer an alias that is not in use.
func (n *neighbours) add(peer netip.Addr) neighbour {
	n.mu.Lock()
	defer n.mu.Unlock()
	for {
		n.last = n.last.Next()
		if !loopback.Contains(n.last) {
			n.last = firstAlias
		}
		if !n.all[n.last].IsValid() {
			break
		}
	}
	n.all[n.last] = peer
	return neighbour{peer: peer, alias: n.last}
}

func (n *neighbours) remove(gone neighbour) {
	n.mu.Lock()
	defer n.mu.Unlock()
	delete(n.all, gone.alias)
}

// get returns the peer with an alias; invalid: there is none.
func (n *neighbours) get(alias netip.Addr) netip.Addr {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.all[alias]
}
