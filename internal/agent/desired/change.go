package desired

import (
	"net/netip"
	"time"

	"github.com/tortie-net/tortie/internal/api"
)

// modes is how a pool's packets are encapsulated. At most one mode differs from Never; empty means Never.
type modes struct{ ipip, vxlan api.Encapsulation }

func (m modes) none() bool { return !encapsulates(m.ipip) && !encapsulates(m.vxlan) }

// encapsulates reports whether a mode ever encapsulates packets.
func encapsulates(e api.Encapsulation) bool { return e == api.EncapAlways || e == api.EncapCrossSubnet }

// wraps reports whether a packet to a node is encapsulated.
func wraps(e api.Encapsulation, sameSubnet bool) bool {
	return e == api.EncapAlways || e == api.EncapCrossSubnet && !sameSubnet
}

// Nodes learn of a change of a pool's encapsulation at different times; an agent that restarts, after some seconds.
const (
	// followTime is how long the old encapsulation is sent to nodes that have not announced the new one.
	followTime = 30 * time.Second
	// keepTime is how long the old encapsulation is received. It is longer, as another node may learn of the change late,
	// after a pass without an answer from the API server.
	keepTime = 4 * followTime
)

// former is a pool's encapsulation before a change.
type former struct {
	modes
	// fresh: changed less than followTime ago; other nodes may still expect the old encapsulation.
	fresh bool
}

// Changes remembers how pools were encapsulated before. Nodes change one by one: as long as there is another way, a
// node does not send an encapsulation that the receiver has not announced.
type Changes struct {
	current map[netip.Prefix]modes
	before  map[netip.Prefix]change
}

type change struct {
	from modes
	at   time.Time
}

// Follow compares the pools with the last call, sets Former in each changed pool, and returns when to look again; 0
// means never. A pool that is seen for the first time has no former encapsulation. standing has this node's tunnels: if
// the kernel could not make the device of a former encapsulation, nothing was received. It is not kept, or the node
// would go on failing over it.
func (c *Changes) Follow(s *Snapshot, standing Standing, now time.Time) (again time.Duration) {
	if c.before == nil {
		c.current, c.before = map[netip.Prefix]modes{}, map[netip.Prefix]change{}
	}
	current := make(map[netip.Prefix]modes, len(s.Pools))
	for _, p := range s.Pools {
		is := p.modes()
		current[p.CIDR] = is
		if was, known := c.current[p.CIDR]; known && was != is && (was.none() || standing.has(p, was)) {
			c.before[p.CIDR] = change{from: was, at: now}
		}
	}
	c.current = current
	for cidr, ch := range c.before {
		age := now.Sub(ch.at)
		is, there := current[cidr]
		if !there || age >= keepTime && !s.lags(cidr, is) {
			delete(c.before, cidr)
			continue
		}
		for _, limit := range []time.Duration{keepTime, followTime} {
			if age < limit && (again == 0 || limit-age < again) {
				again = limit - age
			}
		}
	}
	c.mark(s, now)
	return again
}

// mark sets Former in the pools. They belong to the view, so they are copied if there is something to set.
func (c *Changes) mark(s *Snapshot, now time.Time) {
	if len(c.before) == 0 {
		return
	}
	pools := make([]Pool, len(s.Pools))
	for i, p := range s.Pools {
		if ch, ok := c.before[p.CIDR]; ok {
			p.Former = former{modes: ch.from, fresh: now.Sub(ch.at) < followTime}
		}
		pools[i] = p
	}
	s.Pools = pools
}

// lags reports whether a node that owns a block of a pool has not announced that it can receive the pool's present
// mode. While its agent is down or older, it can receive the former mode only.
func (s *Snapshot) lags(pool netip.Prefix, is modes) bool {
	if !encapsulates(is.vxlan) {
		return false
	}
	for block, owner := range s.Owners {
		if !pool.Contains(block.Addr()) {
			continue
		}
		if m, ok := s.Member(owner.Node); ok && m.In(block.Addr()).IsValid() && !m.vtepIn(block.Addr()).Addr.IsValid() {
			return true
		}
	}
	return false
}
