package netlinkx

import "github.com/tortie-net/tortie/internal/kernel/nlmsg"

// ListenToOthers returns the socket of a SubscribeToOthers.
func (c *Conn) ListenToOthers(events Events, protocols ...Protocol) (*nlmsg.Events, error) {
	filter, err := c.othersFilter(protocols)
	if err != nil {
		return nil, err
	}
	return c.listen(events, filter)
}
