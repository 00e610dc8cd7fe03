package labtest

import (
	"io"
	"net"
	"net/url"
	"slices"
	"sync"
	"testing"

	"k8s.io/client-go/rest"

	"github.com/tortie-net/tortie/internal/testkit/errtest"
)

// Forward forwards connections from l, which may be in another network namespace, to an address in the namespace of
// this process. It returns when l is closed.
func Forward(l net.Listener, to string) {
	forward(l, func() (net.Conn, error) { return net.Dial("tcp", to) })
}

func forward(l net.Listener, dial func() (net.Conn, error)) {
	for {
		in, err := l.Accept()
		if err != nil {
			return
		}
		go func() {
			defer in.Close()
			out, err := dial()
			if err != nil {
				if tcp, ok := in.(*net.TCPConn); ok {
					_ = tcp.SetLinger(0) // a reset, as from a host without a listener
				}
				return
			}
			defer out.Close()
			go func() { _, _ = io.Copy(out, in); out.Close() }()
			_, _ = io.Copy(in, out)
		}()
	}
}

// Wire is the network between one client and the API server. A test can interrupt it in the two ways in which networks
// fail: packets are dropped, or all connections are reset.
type Wire struct {
	upstream string

	mu    sync.Mutex
	cond  *sync.Cond
	cut   bool
	conns []net.Conn
}

// NewWire returns a Wire, and a configuration that reaches the API server through it. It is closed with the test.
func NewWire(t testing.TB, cfg *rest.Config) (*Wire, *rest.Config) {
	t.Helper()
	u, err := url.Parse(cfg.Host)
	errtest.Must(t, err)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	errtest.Must(t, err)
	w := &Wire{upstream: u.Host}
	w.cond = sync.NewCond(&w.mu)
	go w.serve(l)
	t.Cleanup(func() { l.Close(); w.Resume(); w.Reset() })
	wired := rest.CopyConfig(cfg)
	u.Host = l.Addr().String()
	wired.Host = u.String()
	return w, wired
}

// Stall holds back all data, without an error at either end.
func (w *Wire) Stall() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.cut = true
}

// Resume forwards the data that was held back, and all that follows.
func (w *Wire) Resume() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.cut = false
	w.cond.Broadcast()
}

// Connections returns the number of open connections.
func (w *Wire) Connections() int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return len(w.conns) / 2
}

func (w *Wire) forget(a, b net.Conn) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.conns = slices.DeleteFunc(w.conns, func(c net.Conn) bool { return c == a || c == b })
}

// Reset resets all connections.
func (w *Wire) Reset() {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, c := range w.conns {
		c.Close()
	}
	w.conns = nil
}

func (w *Wire) serve(l net.Listener) {
	for {
		down, err := l.Accept()
		if err != nil {
			return
		}
		up, err := net.Dial("tcp", w.upstream)
		if err != nil {
			down.Close()
			continue
		}
		w.mu.Lock()
		w.conns = append(w.conns, down, up)
		w.mu.Unlock()
		go w.copy(up, down)
		go w.copy(down, up)
	}
}

func (w *Wire) copy(to, from net.Conn) {
	defer w.forget(to, from)
	defer to.Close()
	buf := make([]byte, 32<<10)
	for {
		n, readErr := from.Read(buf)
		w.await()
		if _, err := to.Write(buf[:n]); err != nil || readErr != nil {
			return
		}
	}
}

// await blocks while the wire is stalled.
func (w *Wire) await() {
	w.mu.Lock()
	defer w.mu.Unlock()
	for w.cut {
		w.cond.Wait()
	}
}
