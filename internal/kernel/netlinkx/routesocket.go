package netlinkx

import (
	"errors"
	"fmt"
	"sync"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// routeDoor is a connection's one socket for what concerns many routes at once. It is opened when it is first needed, which for a
// plugin that wires a pod is never.
type routeDoor struct {
	mu     sync.Mutex
	socket *routeSocket
}

// with runs fn alone with the door's socket. A socket that failed is replaced: answers may still be under way on it.
func (d *routeDoor) with(ns *Namespace, fn func(*routeSocket) error) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.socket == nil {
		s, err := openRouteSocket(ns)
		if err != nil {
			return err
		}
		d.socket = s
	}
	err := fn(d.socket)
	if err != nil && d.socket.broken {
		d.socket.close()
		d.socket = nil
	}
	return err
}

func (d *routeDoor) close() {
	if d.socket != nil {
		d.socket.close()
		d.socket = nil
	}
}

// routeSocket is a socket of its own: many answers to one request must not mix with those to others.
type routeSocket struct {
	fd      int
	port    uint32 // by which the kernel names the socket in events
	seq     uint32
	strict  bool // the kernel applies a dump's filter
	broken  bool
	request []byte
	answer  []byte
}

// The kernel fills at most 32 KiB of a dump into one datagram, as long as there is room for it.
const answerSize = 64 << 10

func openRouteSocket(ns *Namespace) (s *routeSocket, err error) {
	s = &routeSocket{answer: make([]byte, answerSize)}
	err = ns.Do(func() (err error) {
		s.fd, err = unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.NETLINK_ROUTE)
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("open netlink socket: %w", err)
	}
	if err := s.setUp(); err != nil {
		s.close()
		return nil, fmt.Errorf("set up netlink socket: %w", err)
	}
	return s, nil
}

func (s *routeSocket) setUp() error {
	timeout := unix.NsecToTimeval(answerTimeout.Nanoseconds())
	err := errors.Join(
		// Without it an answer that says what failed repeats the request.
		unix.SetsockoptInt(s.fd, unix.SOL_NETLINK, unix.NETLINK_CAP_ACK, 1),
		unix.SetsockoptTimeval(s.fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &timeout),
		unix.SetsockoptTimeval(s.fd, unix.SOL_SOCKET, unix.SO_SNDTIMEO, &timeout),
		unix.Bind(s.fd, &unix.SockaddrNetlink{Family: unix.AF_NETLINK}),
	)
	if err != nil {
		return err
	}
	own, err := unix.Getsockname(s.fd)
	if err != nil {
		return err
	}
	if a, ok := own.(*unix.SockaddrNetlink); ok {
		s.port = a.Pid
	}
	// Before Linux 4.20 there is no such option, dumps are of everything, and routes that were not asked for are left out here.
	s.strict = unix.SetsockoptInt(s.fd, unix.SOL_NETLINK, unix.NETLINK_GET_STRICT_CHK, 1) == nil
	return nil
}

func (s *routeSocket) close() { _ = unix.Close(s.fd) }

// send sends s.request.
func (s *routeSocket) send() error {
	if err := unix.Sendto(s.fd, s.request, 0, &unix.SockaddrNetlink{Family: unix.AF_NETLINK}); err != nil {
		s.broken = true
		return fmt.Errorf("send: %w", err)
	}
	return nil
}

// receive hands the messages that answer requests from first on to take, until that says that it has all.
func (s *routeSocket) receive(first uint32, take func(message) (done bool, err error)) error {
	for {
		n, _, err := unix.Recvfrom(s.fd, s.answer, unix.MSG_TRUNC)
		switch {
		case err == unix.EINTR:
			continue
		case err == nil && n > len(s.answer):
			err = fmt.Errorf("%w: datagram of %d bytes", errMalformed, n)
		}
		if err != nil {
			s.broken = true
			return fmt.Errorf("receive: %w", err)
		}
		done, err := s.take(s.answer[:n], first, take)
		if err != nil || done {
			return err
		}
	}
}

// take goes through one datagram.
func (s *routeSocket) take(datagram []byte, first uint32, take func(message) (done bool, err error)) (bool, error) {
	for len(datagram) > 0 {
		m, rest, err := nextMessage(datagram)
		if err != nil {
			s.broken = true
			return false, err
		}
		datagram = rest
		if m.seq-first > s.seq-first { // of an earlier request
			continue
		}
		done, err := take(m)
		if err != nil {
			s.broken = true // what is left of the answer is still to come
		}
		if err != nil || done {
			return done, err
		}
	}
	return false, nil
}

// dump lists routes of one family; each is handed to add as it comes.
func (s *routeSocket) dump(f RouteFilter, family Family, add func(Route)) error {
	s.seq++
	s.request = f.appendDumpRequest(s.request[:0], family, s.seq)
	return absentTable(s.collect(unix.RTM_NEWROUTE, func(body []byte) error {
		r, ok, err := parseRoute(body)
		if ok && f.selects(r) {
			add(r)
		}
		return err
	}))
}

// collect sends the request of a dump and hands on what of one kind comes. The error is netlink.ErrDumpInterrupted if the table changed
// so that the list may be wrong.
func (s *routeSocket) collect(kind uint16, take func(body []byte) error) error {
	if err := s.send(); err != nil {
		return err
	}
	interrupted := false
	err := s.receive(s.seq, func(m message) (bool, error) {
		interrupted = interrupted || m.flags&unix.NLM_F_DUMP_INTR != 0
		switch m.kind {
		case unix.NLMSG_ERROR, unix.NLMSG_DONE:
			return true, m.status()
		case kind:
			return false, take(m.body)
		}
		return false, nil
	})
	if err == nil && interrupted {
		return netlink.ErrDumpInterrupted
	}
	return err
}

// absentTable forgives a table that is not there: the kernel makes one with its first route.
func absentTable(err error) error {
	if err == unix.ENOENT {
		return nil
	}
	return err
}
