package radv

import (
	"fmt"
	"log/slog"
	"net/netip"
	"sync"

	"golang.org/x/net/ipv6"
	"golang.org/x/time/rate"

	"github.com/tortie-net/tortie/internal/kernel/netlinkx"
)

// Link is the current state of an interface.
type Link struct {
	Index int
	// Addrs are its usable link-local addresses, without zone: none while it is down. Advertisements come from the first.
	Addrs []netip.Addr
}

// Engine finds the routers of links. Its methods may be called from any goroutine.
type Engine struct {
	log   *slog.Logger
	ns    *netlinkx.Namespace
	dirty chan struct{}

	mu     sync.Mutex // guards the rest
	links  map[string]*link
	failed map[string]error // why there is no socket for an interface
}

// New returns an engine for a network namespace. Without links it has neither sockets nor goroutines.
func New(log *slog.Logger, ns *netlinkx.Namespace) *Engine {
	return &Engine{log: log, ns: ns, dirty: make(chan struct{}, 1), links: map[string]*link{}}
}

// Changed wakes its one reader after Router may have another result. Wake-ups are coalesced.
func (e *Engine) Changed() <-chan struct{} { return e.dirty }

// Set makes want, by name, the whole set of interfaces. The router of an interface stays known until the interface is
// removed, or replaced by one with another index. The next Set retries an interface whose socket cannot be opened.
func (e *Engine) Set(want map[string]Link) {
	e.mu.Lock()
	defer e.mu.Unlock()
	for name, l := range e.links {
		if at, stays := want[name]; !stays || at.Index != l.at.Index {
			_ = l.conn.Close() // ends run
			delete(e.links, name)
		}
	}
	e.failed = map[string]error{}
	for name, at := range want {
		if e.links[name] == nil {
			e.open(name, at.Index)
		}
		if l := e.links[name]; l != nil {
			l.set(at)
		}
	}
}

func (e *Engine) open(name string, index int) {
	var conn *ipv6.PacketConn
	err := e.ns.Do(func() (err error) {
		conn, err = open(index)
		return err
	})
	if err != nil {
		e.failed[name] = fmt.Errorf("listen for router advertisements on %s: %w", name, err)
		return
	}
	l := &link{name: name, log: e.log, conn: conn, changed: e.wake, limit: rate.NewLimiter(packetRate, packetRate), at: Link{Index: index}}
	e.links[name] = l
	go l.run()
}

// wake never waits: it is called under a link's lock.
func (e *Engine) wake() {
	select {
	case e.dirty <- struct{}{}:
	default:
	}
}

// Router returns the address, with its zone, of the router that advertises itself on an interface, or why there is
// none. If a second router advertises itself it returns both the first one's address and an error.
func (e *Engine) Router(name string) (netip.Addr, error) {
	e.mu.Lock()
	l, err := e.links[name], e.failed[name]
	e.mu.Unlock()
	switch {
	case l != nil:
		return l.router()
	case err != nil:
		return netip.Addr{}, err
	}
	return netip.Addr{}, fmt.Errorf("there is no interface %s", name)
}

// Close closes all sockets and ends their goroutines.
func (e *Engine) Close() { e.Set(nil) }
