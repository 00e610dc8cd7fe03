package radv

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net"
	"net/netip"
	"slices"
	"sync"
	"syscall"
	"time"

	"golang.org/x/net/ipv6"
	"golang.org/x/sys/unix"
	"golang.org/x/time/rate"

	"github.com/tortie-net/tortie/internal/app/progress"
)

const (
	// packetRate is how many messages per second are read from a link, and the burst: the kernel drops the rest of a
	// flood.
	packetRate = 50
	// readPause is the pause after an error of the socket.
	readPause = time.Second
)

var allNodes, allRouters = net.ParseIP("ff02::1"), net.ParseIP("ff02::2")

// link is an interface whose router is sought.
type link struct {
	name    string
	log     *slog.Logger
	conn    *ipv6.PacketConn
	changed func()
	limit   *rate.Limiter

	mu       sync.Mutex // guards the rest
	at       Link
	routers  table
	schedule schedule
	found    finding
	unsent   progress.Changes
}

// open opens a socket that receives from one interface.
func open(index int) (*ipv6.PacketConn, error) {
	bind := net.ListenConfig{Control: func(_, _ string, raw syscall.RawConn) (err error) {
		failed := raw.Control(func(fd uintptr) { err = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_BINDTOIFINDEX, index) })
		return errors.Join(failed, err)
	}}
	raw, err := bind.ListenPacket(context.Background(), "ip6:58", "::")
	if err != nil {
		return nil, err
	}
	conn := ipv6.NewPacketConn(raw)
	var wanted ipv6.ICMPFilter
	wanted.SetAll(true)
	wanted.Accept(ipv6.ICMPTypeRouterAdvertisement)
	wanted.Accept(ipv6.ICMPTypeRouterSolicitation)
	err = errors.Join(
		conn.SetICMPFilter(&wanted), conn.SetControlMessage(ipv6.FlagHopLimit, true), conn.SetMulticastHopLimit(maxHops),
		conn.SetMulticastLoopback(false), conn.JoinGroup(&net.Interface{Index: index}, &net.IPAddr{IP: allRouters}),
	)
	if err != nil {
		return nil, errors.Join(err, conn.Close())
	}
	return conn, nil
}

// set changes the addresses of the link.
func (l *link) set(at Link) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if slices.Equal(at.Addrs, l.at.Addrs) {
		return
	}
	l.at = at
	l.schedule.begin(time.Now())
	_ = l.conn.SetReadDeadline(time.Now()) // wakes run
}

// run sends and receives until the socket is closed.
func (l *link) run() {
	for b := make([]byte, 1<<16); ; {
		l.tick(time.Now())
		n, control, from, err := l.conn.ReadFrom(b)
		var timeout net.Error
		switch {
		case err == nil && control != nil:
			l.take(b[:n], control.HopLimit, from, time.Now())
			time.Sleep(l.limit.Reserve().Delay())
		case errors.Is(err, net.ErrClosed):
			return
		case errors.As(err, &timeout) && timeout.Timeout():
		default:
			time.Sleep(readPause)
		}
	}
}

// tick sends due messages, updates the router, and sets the read deadline to the next due time.
func (l *link) tick(now time.Time) {
	l.mu.Lock()
	defer l.mu.Unlock()
	next := now.Add(maxInterval)
	if len(l.at.Addrs) > 0 {
		if !now.Before(l.schedule.due) {
			l.advertise(now)
		}
		next = l.schedule.due
	}
	l.find(now)
	_ = l.conn.SetReadDeadline(next)
}

// advertise sends an advertisement. The first ones come with solicitations while no router is known.
func (l *link) advertise(now time.Time) {
	err := l.send(advertisement, allNodes)
	if l.schedule.left > 0 && len(l.routers) == 0 {
		err = errors.Join(err, l.send(solicitation, allRouters))
	}
	l.schedule.advertised(now, rand.Float64())
	if l.unsent.New(err) {
		l.log.Warn("router advertisements cannot be sent: the router on the link does not find this node", "interface", l.name, "err", err)
	}
}

func (l *link) send(message []byte, to net.IP) error {
	_, err := l.conn.WriteTo(message, &ipv6.ControlMessage{Src: l.at.Addrs[0].AsSlice(), IfIndex: l.at.Index}, &net.IPAddr{IP: to})
	return err
}

// take processes a received message.
func (l *link) take(b []byte, hops int, from net.Addr, now time.Time) {
	at, ok := from.(*net.IPAddr)
	if !ok {
		return
	}
	source, _ := netip.AddrFromSlice(at.IP)
	k, err := parse(b, hops, source)
	l.mu.Lock()
	defer l.mu.Unlock()
	switch {
	case err != nil || slices.Contains(l.at.Addrs, source): // or sent by another program of this host
	case k == solicitationKind:
		l.schedule.solicited(now, rand.Float64())
	default:
		l.routers.hear(source, now)
	}
}

// find notifies the engine's user if the known router has changed.
func (l *link) find(now time.Time) {
	if f := l.routers.find(now); f != l.found {
		l.found = f
		l.changed()
	}
}

// router returns the router of the link with its zone, or why there is none. Of two routers it returns the one that
// advertised first, so that a host which begins to send advertisements ends no session; the error names both.
func (l *link) router() (netip.Addr, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	switch f := l.found; {
	case f.other.IsValid():
		return f.router.WithZone(l.name), fmt.Errorf("%s sends router advertisements on %s, too, and %s, which was heard first, counts: have "+
			"two routers only on the link, this node and its peer, or name the peer's address, such as %s%%%s", f.other, l.name,
			f.router, f.router, l.name)
	case f.router.IsValid():
		return f.router.WithZone(l.name), nil
	case len(l.at.Addrs) == 0:
		return netip.Addr{}, fmt.Errorf(
			"%s has no link-local address: set it up, and do not disable IPv6 on it (sysctl net.ipv6.conf.%s.disable_ipv6)", l.name, l.name)
	}
	return netip.Addr{}, fmt.Errorf("no router advertisement was received on %s: have the router at the other end send them (FRR: neighbor "+
		"INTERFACE interface), and no firewall drop ICMPv6 type 134", l.name)
}
