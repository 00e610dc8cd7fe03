package bgp

import (
	"net/netip"
	"sync"

	api "github.com/osrg/gobgp/v3/api"
)

// Addresses inside of this process. GoBGP listens on gobgpAddr and knows each peer by an address of its own, from which
// the relay connects on the peer's behalf. A peer that comes again gets a new one, so that what GoBGP still says about
// the earlier one is dropped.
var (
	loopback   = netip.MustParsePrefix("127.0.0.0/8")
	gobgpAddr  = netip.MustParseAddr("127.179.0.1")
	firstAlias = netip.MustParseAddr("127.179.1.0")
)

// neighbours translates between peers and what GoBGP calls them, and has the state of GoBGP's session with each.
type neighbours struct {
	mu     sync.Mutex // guards the rest
	last   netip.Addr
	all    map[netip.Addr]netip.Addr // by alias
	states map[netip.Addr]api.PeerState_SessionState
}

// neighbour is a peer as GoBGP knows it.
type neighbour struct{ peer, alias netip.Addr }

func newNeighbours() *neighbours {
	return &neighbours{last: firstAlias.Prev(), all: make(map[netip.Addr]netip.Addr),
		states: make(map[netip.Addr]api.PeerState_SessionState)}
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
	delete(n.states, gone.alias)
}

// get returns the peer with an alias; invalid: there is none.
func (n *neighbours) get(alias netip.Addr) netip.Addr {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.all[alias]
}

// note takes GoBGP's word for the state of a session.
func (n *neighbours) note(p *api.Peer) {
	alias, err := netip.ParseAddr(p.GetState().GetNeighborAddress())
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.all[alias].IsValid() && err == nil {
		n.states[alias] = p.GetState().GetSessionState()
	}
}

// state is GoBGP's for the peer that has an alias.
func (n *neighbours) state(alias netip.Addr) api.PeerState_SessionState {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.states[alias]
}
