package netlinkx

import (
	"fmt"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/tortie-net/tortie/internal/kernel/nlmsg"
)

// batchSize is the number of requests in one system call. If all fail, their answers have to fit into the socket's
// receive buffer: the default one holds about 250, and the kernel drops the rest.
const batchSize = 128

// AddRoutes is AddRoute for many routes. It returns one error for each route, in their order, nil if it was added. The
// kernel works through them in order. None may have a next hop Object or More. 10,000 routes take a third of the time
// of as many calls of AddRoute, as a batch costs one system call and one change of the thread.
func (c *Conn) AddRoutes(routes []Route) []error {
	return c.changeRoutes("add", unix.RTM_NEWROUTE, unix.NLM_F_CREATE|unix.NLM_F_EXCL, routes)
}

// ReplaceRoutes is ReplaceRoute for many routes: see AddRoutes.
func (c *Conn) ReplaceRoutes(routes []Route) []error {
	return c.changeRoutes("replace", unix.RTM_NEWROUTE, unix.NLM_F_CREATE|unix.NLM_F_REPLACE, routes)
}

// DeleteRoutes is DeleteRoute for many routes: see AddRoutes. Here they may be of any kind.
func (c *Conn) DeleteRoutes(routes []Route) []error {
	return c.changeRoutes("delete", unix.RTM_DELROUTE, 0, routes)
}

func (c *Conn) changeRoutes(verb string, kind, flags uint16, routes []Route) []error {
	if kind == unix.RTM_NEWROUTE && slices.ContainsFunc(routes, func(r Route) bool { return r.Object }) {
		return refuseObjects(verb, routes)
	}
	return change(c, verb+" route", kind, flags, routes)
}

// refuseObjects returns an error for each route of a request with next hop objects.
func refuseObjects(verb string, routes []Route) []error {
	errs := make([]error, len(routes))
	for i, r := range routes {
		errs[i] = fmt.Errorf("%s route %s: routes by way of next hop objects are not supported", verb, r)
	}
	return errs
}

// entry is a kernel object that exists in large numbers, such as a route or neighbour.
type entry interface {
	fmt.Stringer
	// appendRequest encodes a request to make, replace or delete the entry.
	appendRequest(b []byte, kind, flags uint16, seq uint32) []byte
}

// change makes a request for each entry, in batches. It returns one error for each, nil if it succeeded.
func change[E entry](c *Conn, doing string, kind, flags uint16, entries []E) []error {
	errs := make([]error, len(entries))
	from := 0
	err := c.direct.with(c.ns, func(s *nlmsg.Socket) error {
		for ; from < len(entries); from += batchSize {
			part := entries[from:min(from+batchSize, len(entries))]
			err := changeBatch(s, kind, flags, part, func(i int, err error) {
				errs[from+i] = fmt.Errorf("%s %s: %w", doing, part[i], err)
			})
			if err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil { // it is not known how many of these arrived; the next Sync reads the kernel's state
		err = fmt.Errorf("%s %s and %d more: %w", doing, entries[from], len(entries)-from-1, err)
		for i := from; i < len(errs); i++ {
			errs[i] = err
		}
	}
	return errs
}

// changeBatch sends the requests at once and calls failed for each that fails. The kernel works through them in order,
// reports each failure, and acknowledges the last one, after the answers to all before.
func changeBatch[E entry](s *nlmsg.Socket, kind, flags uint16, entries []E, failed func(i int, err error)) error {
	first, b := s.Seq+1, s.Request()
	for i, e := range entries {
		s.Seq++
		if i == len(entries)-1 {
			flags |= unix.NLM_F_ACK
		}
		b = e.appendRequest(b, kind, flags, s.Seq)
	}
	if err := s.Send(b); err != nil {
		return err
	}
	return s.Receive(first, func(m nlmsg.Message) (bool, error) {
		if m.Kind != unix.NLMSG_ERROR {
			return false, nil
		}
		if err := m.Err(); err != nil {
			failed(int(m.Seq-first), err)
		}
		return m.Seq == s.Seq, nil
	})
}
