package serving

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"runtime"
	"sync/atomic"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/tortie-net/tortie/internal/testkit/errtest"
	"github.com/tortie-net/tortie/internal/testkit/waittest"
)

// served returns the address of a program's server, and how many of its connections are open.
func served(t *testing.T, p Program) (addr string, open func() int) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	errtest.Must(t, err)
	counting := &countingListener{Listener: l}
	go func() { _ = Serve(t.Context(), counting, p.Handler()) }()
	return l.Addr().String(), func() int { return int(counting.open.Load()) }
}

type countingListener struct {
	net.Listener
	open atomic.Int64
}

type countingConn struct {
	net.Conn
	closed atomic.Bool
	open   *atomic.Int64
}

func (l *countingListener) Accept() (net.Conn, error) {
	conn, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	l.open.Add(1)
	return &countingConn{Conn: conn, open: &l.open}, nil
}

func (c *countingConn) Close() error {
	if !c.closed.Swap(true) {
		c.open.Add(-1)
	}
	return c.Conn.Close()
}

func healthy() Program {
	well := func(context.Context) error { return nil }
	return Program{Alive: well, Ready: well, Metrics: prometheus.NewRegistry(), Status: func() any { return nil }}
}

// TestFlood holds 4,000 connections of each kind that a client can hold: silent ones, some with half a request, and
// some that have been served and are kept. The kubelet is served meanwhile, and the memory stays at a hundred
// connections.
func TestFlood(t *testing.T) {
	for name, begin := range map[string]string{
		"silent": "", "half a request": "GET /metrics HTTP/1.1\r\nHost: x\r\n", "kept": "GET /livez HTTP/1.1\r\nHost: x\r\n\r\n",
	} {
		t.Run(name, func(t *testing.T) {
			addr, open := served(t, healthy())
			kubelet := &http.Client{Timeout: 5 * time.Second, Transport: &http.Transport{DisableKeepAlives: true}}
			for i := range 4000 {
				conn, err := net.Dial("tcp", addr)
				errtest.Must(t, err)
				defer conn.Close()
				_, _ = io.WriteString(conn, begin) // it may be closed already
				if i%400 == 399 {
					for _, path := range []string{"/livez", "/readyz"} {
						r, err := kubelet.Get("http://" + addr + path)
						if err != nil {
							t.Fatalf("beside %d connections: %v", i+1, err)
						}
						r.Body.Close()
						if r.StatusCode != http.StatusOK {
							t.Errorf("%s beside %d connections: %s", path, i+1, r.Status)
						}
					}
				}
			}
			if n := open(); n > maxConnections+10 {
				t.Errorf("%d connections are open", n)
			}
			waittest.Until(t, 20*time.Second, "few goroutines", func() bool { return runtime.NumGoroutine() <= 3*maxConnections })
		})
	}
}

// TestFloodEndsOldConnections: of idle connections the one is closed that has been idle longest, and not one that has
// just been served.
func TestFloodEndsOldConnections(t *testing.T) {
	addr, open := served(t, healthy())
	var held []net.Conn
	hold := func(n int) {
		for range n {
			conn, err := net.Dial("tcp", addr)
			errtest.Must(t, err)
			t.Cleanup(func() { conn.Close() })
			held = append(held, conn)
		}
	}
	hold(maxConnections)
	waittest.Until(t, 20*time.Second, "all connections are open", func() bool { return open() == maxConnections })
	dials := 0
	transport := &http.Transport{DialContext: func(ctx context.Context, network, addr string) (net.Conn, error) {
		dials++
		return (&net.Dialer{}).DialContext(ctx, network, addr)
	}}
	defer transport.CloseIdleConnections()
	kubelet := &http.Client{Timeout: 20 * time.Second, Transport: transport}
	for range 5 {
		r, err := kubelet.Get("http://" + addr + "/livez")
		errtest.Must(t, err)
		_, _ = io.Copy(io.Discard, r.Body)
		r.Body.Close()
		hold(10)
		for ; len(held) >= maxConnections; held = held[1:] { // the server ends all but these and the client's
			if _, err := held[0].Read(make([]byte, 1)); err == nil {
				t.Error("a connection that has waited long is not ended")
			}
		}
	}
	if dials != 1 {
		t.Errorf("a client that asks again and again had to connect %d times", dials)
	}
}

// TestManyRequests makes more concurrent status requests than allowed: the excess is refused, but probes are not.
func TestManyRequests(t *testing.T) {
	hold, begun := make(chan struct{}), make(chan struct{}, 2*maxAtOnce)
	p := healthy()
	p.Status = func() any {
		begun <- struct{}{}
		<-hold
		return nil
	}
	addr, _ := served(t, p)
	codes := make(chan string, maxAtOnce)
	for range maxAtOnce {
		go func() { codes <- get(t, "http://"+addr+"/status") }()
		<-begun
	}
	if got := get(t, "http://"+addr+"/status"); got[:3] != "503" {
		t.Errorf("one more status: %q", got)
	}
	if got := get(t, "http://"+addr+"/livez"); got != "200 ok\n" {
		t.Errorf("a probe: %q", got)
	}
	close(hold)
	for range maxAtOnce {
		if got := <-codes; got != "200 null\n" {
			t.Errorf("an allowed status: %q", got)
		}
	}
}

// TestLimits: a header that is too long is refused, and no deadline is missing.
func TestLimits(t *testing.T) {
	addr, _ := served(t, healthy())
	r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://"+addr+"/livez", nil)
	errtest.Must(t, err)
	r.Header.Set("X", fmt.Sprintf("%0*d", 2*headerBytes, 0))
	answer, err := http.DefaultClient.Do(r)
	if err == nil {
		answer.Body.Close()
		if answer.StatusCode != http.StatusRequestHeaderFieldsTooLarge {
			t.Errorf("a header of %d bytes: %s", 2*headerBytes, answer.Status)
		}
	}
	s := newServer(http.NotFoundHandler())
	for name, d := range map[string]time.Duration{"header": s.ReadHeaderTimeout, "read": s.ReadTimeout,
		"write": s.WriteTimeout, "idle": s.IdleTimeout} {
		if d <= 0 || d > time.Minute {
			t.Errorf("%s timeout is %v", name, d)
		}
	}
}
