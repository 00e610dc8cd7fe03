package bfd

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"net/netip"

	"golang.org/x/sys/unix"
)

const (
	// Range of source ports (RFC 5881 section 4).
	firstSource = 49152
	lastSource  = 65535
	// bindTries bounds the attempts to find a free source port.
	bindTries = 16
	// internetControl is the traffic class with priority over packets of pods (CS6, RFC 4594).
	internetControl = 0xc0
)

// sender sends the packets of one session, from a port of its own (RFC 5881 section 4). Its socket is connected: the
// kernel keeps the route to the neighbour, instead of looking it up for each packet, and an error always concerns this
// neighbour.
type sender struct {
	// from is the zero Addr if the kernel chooses; to has the name of a link as its zone if it is link-local.
	from, to  netip.Addr
	fd        int // valid if open
	open      bool
	connected bool
}

// set sets the addresses. It opens the socket in the network namespace of the caller's thread. After a failure, send
// tries again and returns the error.
func (s *sender) set(from, to netip.Addr) {
	if s.from != from || s.to != to {
		s.close()
		s.from, s.to = from, to
	}
	_ = s.prepare()
}

// prepare opens the socket.
func (s *sender) prepare() error {
	if s.open {
		return nil
	}
	fd, err := newUDP(s.to.Is4())
	if err != nil {
		return fmt.Errorf("open a socket: %w", err)
	}
	level, hops, class := unix.IPPROTO_IPV6, unix.IPV6_UNICAST_HOPS, unix.IPV6_TCLASS
	if s.to.Is4() {
		level, hops, class = unix.IPPROTO_IP, unix.IP_TTL, unix.IP_TOS
	}
	err = errors.Join(
		unix.SetsockoptInt(fd, level, hops, ttl), unix.SetsockoptInt(fd, level, class, internetControl),
		unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUF, 0), // the least: nothing is read here, and others may send
	)
	if err == nil {
		err = s.bind(fd)
	}
	if err != nil {
		_ = unix.Close(fd)
		return err
	}
	s.fd, s.open, s.connected = fd, true, false
	return nil
}

// bind binds the socket to its address, and to a free source port.
func (s *sender) bind(fd int) error {
	from, link := s.from, ""
	if !from.IsValid() {
		from = unspecified(s.to.Is4())
	}
	if from.IsLinkLocalUnicast() {
		link = s.to.Zone()
	}
	zone, err := linkIndex(fd, link)
	for range bindTries {
		if err != nil && !errors.Is(err, unix.EADDRINUSE) {
			break
		}
		if err = unix.Bind(fd, sockaddr(from, zone, firstSource+rand.IntN(lastSource-firstSource+1))); err == nil {
			return nil
		}
	}
	return fmt.Errorf("bind to %s: %w", from, err)
}

// connect makes the kernel look up source, link and route anew. A link that was made anew has another index.
func (s *sender) connect() error {
	zone, err := linkIndex(s.fd, s.to.Zone())
	if err == nil {
		err = disconnect(s.fd)
	}
	if err == nil {
		err = unix.Connect(s.fd, sockaddr(s.to, zone, Port))
	}
	s.connected = err == nil
	return err
}

// send sends a packet. It keeps the connection only while the session is up: a fault of the connection, such as a
// removed source address, ends the session first.
func (s *sender) send(b []byte, up bool) error {
	err := s.prepare()
	if err == nil && !(up && s.connected) {
		err = s.connect()
	}
	if err != nil {
		return err
	}
	if err = write(s.fd, b); err != nil {
		// The error may be an ICMP error caused by an earlier packet, or by an attacker, or the connection's address or link
		// is gone: this packet was not sent.
		if err = s.connect(); err == nil {
			err = write(s.fd, b)
		}
	}
	s.connected = err == nil
	return err
}

func (s *sender) close() {
	if s.open {
		_ = unix.Close(s.fd)
	}
	s.open = false
}
