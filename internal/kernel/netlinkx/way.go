package netlinkx

import (
	"fmt"
	"net/netip"
)

// LinkTo returns the index of the link by which a packet to dst leaves now, the zone's link if dst has a zone. It fails
// if there is no route.
func (c *Conn) LinkTo(dst netip.Addr) (index int, err error) {
	if zone := dst.Zone(); zone != "" {
		link, err := c.LinkByName(zone)
		return link.Index, err
	}
	routes, err := c.requests.RouteGet(dst.AsSlice())
	if err != nil {
		return 0, fmt.Errorf("ask for the route to %s: %w", dst, err)
	}
	if len(routes) == 0 {
		return 0, fmt.Errorf("ask for the route to %s: no answer", dst)
	}
	return routes[0].LinkIndex, nil
}
