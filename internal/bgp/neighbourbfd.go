package bgp

import (
	"net/netip"

	"github.com/tortie-net/tortie/internal/bgp/bfd"
	"github.com/tortie-net/tortie/internal/bgp/relay"
)

// setBFD starts BFD for the peers that are configured with an interval.
func (s *Server) setBFD(peers map[netip.Addr]Peer) {
	want := map[netip.Addr]bfd.Config{}
	for addr, p := range peers {
		if c := p.BFD; c.Interval > 0 {
			c.From = p.From
			want[addr] = c
		}
	}
	s.bfd.Set(want)
}

// bfdWatcher passes BFD's events on to the relay.
type bfdWatcher struct{ *Server }

// Changed implements bfd.Watcher.
func (w bfdWatcher) Changed() { w.wake() }

// Lost implements bfd.Watcher. AdminDown of the peer does not mean that it has failed (RFC 5882 section 3.2).
func (w bfdWatcher) Lost(peer netip.Addr, loss bfd.Loss) {
	if !loss.Admin {
		w.relay.Lost(peer,
			relay.Loss{Begun: loss.Begun, Alive: loss.Alive, Independent: loss.Independent, Reason: "BFD is down: " + loss.Diag.String()})
	}
}
