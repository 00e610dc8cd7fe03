package netlinkx

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"net/netip"
	"sync"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/tortie-net/tortie/internal/kernel/nlmsg"
)

const (
	// answerTimeout bounds one request. The kernel works through requests under one lock, and taking down a link holds
	// that lock for tens of milliseconds: a node that loses its pods all at once keeps others waiting for seconds.
	answerTimeout = 20 * time.Second

	// A dump is inconsistent if the table changed meanwhile; the kernel marks it. On a node that starts many pods this
	// happens often, several times in a row.
	dumpAttempts = 20
	dumpBackoff  = 2 * time.Millisecond
)

// Conn is an rtnetlink connection into one network namespace. It is safe for concurrent use; requests are answered one
// at a time.
type Conn struct {
	// Replaced, if set, is called after Evict has deleted a link, with the link's name and description. It must be set
	// before the first Own, and must not wait.
	Replaced func(name, was string)

	ns *Namespace

	// requests is for links, addresses and policy rules.
	requests *netlink.Handle

	// direct is for routes and neighbours, and for requests that the library does not support.
	direct directSocket

	// generic is for WireGuard, and wgFamily is its generic netlink family; 0: not known yet.
	generic  directSocket
	wgFamily uint16
}

// directSocket is a socket that is opened at its first use. It is not the library's, as the many answers to one request
// must not mix with answers to others.
type directSocket struct {
	protocol int
	mu       sync.Mutex
	socket   *nlmsg.Socket
}

// with runs fn with exclusive use of the socket. A failed socket is replaced: answers may still be under way on it.
func (d *directSocket) with(ns *Namespace, fn func(*nlmsg.Socket) error) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.socket == nil {
		err := ns.Do(func() (err error) {
			d.socket, err = nlmsg.Open(d.protocol, answerTimeout)
			return err
		})
		if err != nil {
			return err
		}
	}
	err := fn(d.socket)
	if err != nil && d.socket.Broken {
		d.close()
	}
	return err
}

// execute makes one request and reads only its acknowledgement.
func (c *Conn) execute(m nlmsg.Message) error {
	return c.direct.with(c.ns, func(s *nlmsg.Socket) error {
		return s.Execute(m, func(nlmsg.Message) error { return nil })
	})
}

func (d *directSocket) close() {
	if d.socket != nil {
		d.socket.Close()
		d.socket = nil
	}
}

// Open connects to the network namespace of the calling thread.
func Open() (*Conn, error) {
	ns, err := CurrentNamespace()
	if err != nil {
		return nil, err
	}
	return open(ns)
}

// OpenAt connects to ns. The connection keeps a reference of its own, so the caller may close ns.
func OpenAt(ns *Namespace) (*Conn, error) {
	own, err := ns.duplicate()
	if err != nil {
		return nil, err
	}
	return open(own)
}

func open(ns *Namespace) (*Conn, error) {
	c := &Conn{ns: ns, direct: directSocket{protocol: unix.NETLINK_ROUTE}, generic: directSocket{protocol: unix.NETLINK_GENERIC}}
	err := ns.Do(func() (err error) {
		c.requests, err = newHandle()
		return err
	})
	if err != nil {
		ns.Close()
		return nil, err
	}
	return c, nil
}

func newHandle() (*netlink.Handle, error) {
	h, err := netlink.NewHandle(unix.NETLINK_ROUTE)
	if err != nil {
		return nil, fmt.Errorf("open netlink socket: %w", err)
	}
	if err := h.SetSocketTimeout(answerTimeout); err != nil {
		h.Close()
		return nil, fmt.Errorf("set timeout on netlink socket: %w", err)
	}
	return h, nil
}

// Close releases the sockets. The connection must not be in use.
func (c *Conn) Close() {
	c.requests.Close()
	c.direct.close()
	c.generic.close()
	c.ns.Close()
}

// Namespace is the namespace that the connection is in; it is closed with the connection.
func (c *Conn) Namespace() *Namespace { return c.ns }

// retryDump calls list until the kernel gives a consistent answer.
func retryDump[T any](what string, list func() ([]T, error)) ([]T, error) {
	for attempt := 1; ; attempt++ {
		got, err := list()
		switch {
		case err == nil:
			return got, nil
		case !errors.Is(err, netlink.ErrDumpInterrupted) && !errors.Is(err, nlmsg.ErrInterrupted) && !errors.Is(err, unix.EINTR):
			return nil, fmt.Errorf("list %s: %w", what, err)
		case attempt == dumpAttempts:
			return nil, fmt.Errorf("list %s: %d attempts: %w", what, attempt, err)
		}
		time.Sleep(dumpBackoff + rand.N(dumpBackoff*time.Duration(attempt)))
	}
}

// addrFromIP returns the zero Addr for a nil or malformed ip.
func addrFromIP(ip net.IP) netip.Addr {
	a, _ := netip.AddrFromSlice(ip)
	return a
}

// prefixFromIPNet keeps host bits; it returns the zero Prefix for nil.
func prefixFromIPNet(n *net.IPNet) netip.Prefix {
	if n == nil {
		return netip.Prefix{}
	}
	ones, bits := n.Mask.Size()
	addr := addrFromIP(n.IP)
	// The library's own 0.0.0.0, for a route without a destination, comes in sixteen bytes.
	if bits == 32 {
		addr = addr.Unmap()
	}
	return netip.PrefixFrom(addr, ones)
}

func ipNet(p netip.Prefix) *net.IPNet {
	return &net.IPNet{IP: p.Addr().AsSlice(), Mask: net.CIDRMask(p.Bits(), p.Addr().BitLen())}
}
