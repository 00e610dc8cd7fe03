package netlinkx

import (
	"golang.org/x/sys/unix"

	"github.com/tortie-net/tortie/internal/kernel/nlmsg"
)

// ListenToOthers returns the socket of a SubscribeToOthers.
func (c *Conn) ListenToOthers(events Events, protocols ...Protocol) (*nlmsg.Events, error) {
	filter, err := c.othersFilter(protocols)
	if err != nil {
		return nil, err
	}
	return c.listen(events, filter)
}

// Listen returns the socket of a Subscribe.
func (c *Conn) Listen(events Events) (*nlmsg.Events, error) { return c.listen(events, nil) }

// ListenToNeighbours returns the socket of a SubscribeToNeighbours.
func (c *Conn) ListenToNeighbours(links []int) (*nlmsg.Events, error) {
	var filter []unix.SockFilter
	err := c.direct.with(c.ns, func(s *nlmsg.Socket) error {
		filter = neighbourFilter(s.Port, links)
		return nil
	})
	if err != nil {
		return nil, err
	}
	return c.listen(neighbourEvents, filter)
}
