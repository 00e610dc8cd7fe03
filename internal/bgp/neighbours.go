package bgp

import (
	"net/netip"
	"sync"

	api "github.com/osrg/gobgp/v3/api"
)

// Addresses inside of this process. GoBGP listens on gobgpAddr and knows each peer by an alias, from which the relay
// connects on the peer's behalf. A peer that is configured again gets a new alias, so that GoBGP's late reports on the
// earlier one are dropped.
var (
	loopback   = netip.MustParsePrefix("127.0.0.0/8")
	gobgpAddr  = netip.MustParseAddr("127.179.0.1")
	firstAlias = netip.MustParseAddr("127.179.1.0")
)

// neighbours translates between peers and their aliases in GoBGP, and has the state of GoBGP's session with each.
type neighbours struct {
	mu     sync.Mutex // guards the rest
	last   netip.Addr
	all    map[netip.Addr]netip.Addr // by alias
	states map[netip.Addr]api.PeerState_SessionState
}

// neighbour is a peer with its alias in GoBGP.
type neighbour struct{ peer, alias netip.Addr }

func newNeighbours() *neighbours {
	return &neighbours{last: firstAlias.Prev(), all: make(map[netip.Addr]netip.Addr),
		states: make(map[netip.Addr]api.PeerState_SessionState)}
}

// add assigns a free alias to peer.
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

// get returns the peer with an alias; invalid if there is none.
func (n *neighbours) get(alias netip.Addr) netip.Addr {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.all[alias]
}

// note records the state of a session from GoBGP's event.
func (n *neighbours) note(p *api.Peer) {
	alias, err := netip.ParseAddr(p.GetState().GetNeighborAddress())
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.all[alias].IsValid() && err == nil {
		n.states[alias] = p.GetState().GetSessionState()
	}
}

// state returns the last recorded state of an alias's session.
func (n *neighbours) state(alias netip.Addr) api.PeerState_SessionState {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.states[alias]
}
