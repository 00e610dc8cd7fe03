package netlinkx

import (
	"fmt"
	"net/netip"
)

// Way is how the kernel would send a packet.
type Way struct {
	Dev    int // index of the output link
	Via    netip.Addr
	Source netip.Addr
}

// WayTo returns how a packet to dst leaves now; an error says that it does not.
func (c *Conn) WayTo(dst netip.Addr) (Way, error) {
	routes, err := c.requests.RouteGet(dst.AsSlice())
	if err != nil {
		return Way{}, fmt.Errorf("ask for the route to %s: %w", dst, err)
	}
	if len(routes) == 0 {
		return Way{}, fmt.Errorf("ask for the route to %s: no answer", dst)
	}
	r := routes[0]
	return Way{Dev: r.LinkIndex, Via: addrFromIP(r.Gw), Source: addrFromIP(r.Src)}, nil
}
