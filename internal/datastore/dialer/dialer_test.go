package dialer

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tortie-net/tortie/internal/testkit/errtest"
	"github.com/tortie-net/tortie/internal/testkit/waittest"
)

// shortTimeout stands for the seconds that a real set-up may take.
const shortTimeout = 300 * time.Millisecond

// deaf returns the address of a server that never answers a SYN: its queue is full, so the kernel drops them, as a
// switched-off machine does.
func deaf(t *testing.T) string {
	t.Helper()
	fd, err := syscall.Socket(syscall.AF_INET, syscall.SOCK_STREAM|syscall.SOCK_CLOEXEC, 0)
	errtest.Must(t, err)
	t.Cleanup(func() { syscall.Close(fd) })
	errtest.Must(t, syscall.Bind(fd, &syscall.SockaddrInet4{Addr: [4]byte{127, 0, 0, 1}}))
	errtest.Must(t, syscall.Listen(fd, 0))
	sa, err := syscall.Getsockname(fd)
	errtest.Must(t, err)
	addr := fmt.Sprintf("127.0.0.1:%d", sa.(*syscall.SockaddrInet4).Port)
	for { // until the queue is full
		c, err := net.DialTimeout("tcp", addr, 100*time.Millisecond)
		if err != nil {
			return addr
		}
		t.Cleanup(func() { c.Close() })
	}
}

// mute returns the address of a server that accepts connections and sends nothing.
func mute(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	errtest.Must(t, err)
	t.Cleanup(func() { l.Close() })
	return l.Addr().String()
}

// Six requests to a silent server fail together, after one time-out, and their errors name it.
func TestSilentServerFailsAllTogether(t *testing.T) {
	for name, addr := range map[string]string{"no answer to SYN": deaf(t), "no answer to TLS": mute(t)} {
		t.Run(name, func(t *testing.T) {
			d := newDialer(&tls.Config{MinVersion: tls.VersionTLS12})
			d.timeout = shortTimeout
			client := &http.Client{Transport: &http.Transport{DialTLSContext: d.secure, ForceAttemptHTTP2: true, MaxConnsPerHost: 1}}
			var errs [6]error
			var wg sync.WaitGroup
			for i := range errs {
				wg.Go(func() { _, errs[i] = client.Get("https://" + addr) })
			}
			wg.Wait()
			for _, err := range errs {
				if !errors.Is(err, d.silent[addr].err) || !errtest.Names(err, addr+" silent") {
					t.Errorf("error %v, want the one of the only attempt, %v", err, d.silent[addr].err)
				}
			}
		})
	}
}

// A failure that took its time shows that nobody has the address: the next attempt fails at once.
func TestAbsenceIsRemembered(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := newDialer(nil)
		asked := 0
		absent := func(context.Context, string) (net.Conn, error) {
			asked++
			waittest.Advance(slow)
			return nil, syscall.EHOSTUNREACH
		}
		for range 3 {
			if _, err := d.dial(t.Context(), "192.0.2.1:6443", absent); !errors.Is(err, syscall.EHOSTUNREACH) ||
				!errtest.Names(err, "192.0.2.1:6443 500ms") {
				t.Errorf("error %v", err)
			}
		}
		if asked != 1 {
			t.Errorf("the address was dialled %d times, want once", asked)
		}
	})
}

// A server that refuses is there, or will be in a moment: nothing is remembered of it.
func TestRefusalIsNotRemembered(t *testing.T) {
	addr := mute(t)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	errtest.Must(t, err)
	refusing := l.Addr().String()
	l.Close()
	d := newDialer(nil)
	if _, err := d.plain(t.Context(), "tcp", refusing); err == nil {
		t.Fatal("connected to a closed port")
	}
	if len(d.silent) > 0 {
		t.Errorf("remembered: %v", d.silent)
	}
	// Nor of a caller that lost patience.
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	d = newDialer(&tls.Config{MinVersion: tls.VersionTLS12})
	if _, err := d.secure(ctx, "tcp", addr); err == nil || len(d.silent) > 0 {
		t.Errorf("error %v, remembered: %v", err, d.silent)
	}
}

// Without TLS, HTTP/2 is spoken from the first byte, and requests share one connection.
func TestPlainHTTP2(t *testing.T) {
	const requests = 20
	var connections atomic.Int32
	var all sync.WaitGroup // are there at once
	all.Add(requests)
	server := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		all.Done()
		all.Wait()
		fmt.Fprint(w, r.Proto)
	}))
	server.Config.Protocols = new(http.Protocols)
	server.Config.Protocols.SetUnencryptedHTTP2(true)
	server.Config.ConnState = func(_ net.Conn, s http.ConnState) {
		if s == http.StateNew {
			connections.Add(1)
		}
	}
	server.Start()
	t.Cleanup(server.Close)
	client := &http.Client{Transport: Transport(nil)}
	var wg sync.WaitGroup
	for range requests {
		wg.Go(func() {
			resp, err := client.Get(server.URL)
			if err != nil {
				t.Error(err)
				return
			}
			defer resp.Body.Close()
			if text, err := io.ReadAll(resp.Body); err != nil || string(text) != "HTTP/2.0" {
				t.Errorf("answer %q, %v", text, err)
			}
		})
	}
	wg.Wait()
	if n := connections.Load(); n != 1 {
		t.Errorf("%d connections, want 1", n)
	}
}

// Of several servers the first that answers is taken: a refusal is passed over at once, silence after a moment.
func TestRace(t *testing.T) {
	const good, refusing, silent = "good", "refusing", "silent"
	here, _ := net.Pipe()
	open := func(ctx context.Context, addr string) (net.Conn, error) {
		switch addr {
		case good:
			return here, nil
		case refusing:
			return nil, syscall.ECONNREFUSED
		}
		<-ctx.Done()
		return nil, ctx.Err()
	}
	for name, c := range map[string]struct {
		servers []string
		after   time.Duration
	}{
		"the first":       {[]string{good, silent}, 0},
		"after a refusal": {[]string{refusing, refusing, good}, 0},
		"after silence":   {[]string{silent, good}, stagger},
		"after both":      {[]string{silent, refusing, good}, stagger},
	} {
		synctest.Test(t, func(t *testing.T) {
			began := time.Now()
			if conn, err := newDialer(nil).race(t.Context(), c.servers, open); err != nil || conn != here || time.Since(began) != c.after {
				t.Errorf("%s: %v, %v after %v, want a connection after %v", name, conn, err, time.Since(began), c.after)
			}
		})
	}
}

func TestNoServerAnswers(t *testing.T) {
	gone, err := net.Listen("tcp", "127.0.0.1:0")
	errtest.Must(t, err)
	gone.Close()
	refusing, silent := gone.Addr().String(), deaf(t)
	d := newDialer(nil)
	d.timeout, d.servers = shortTimeout, []string{silent, refusing}
	_, err = d.plain(t.Context(), "tcp", "nowhere:1")
	var failed *Error
	if !errors.As(err, &failed) || !strings.Contains(err.Error(), silent) || !strings.Contains(err.Error(), refusing) {
		t.Errorf("error %v, want an Error that names both servers", err)
	}
}

// Memory is short, as servers come back, and of one server only.
func TestMemoryEnds(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	errtest.Must(t, err)
	defer l.Close()
	d := newDialer(nil)
	addr := l.Addr().String()
	d.silent["other"] = silence{err: net.ErrClosed, until: time.Now().Add(time.Hour)}
	d.silent[addr] = silence{err: net.ErrClosed, until: time.Now().Add(time.Hour)}
	if _, err := d.plain(t.Context(), "tcp", addr); err == nil {
		t.Error("a server that was silent just now is asked again")
	}
	d.silent[addr] = silence{err: net.ErrClosed, until: time.Now()}
	conn, err := d.plain(t.Context(), "tcp", addr)
	errtest.Must(t, err)
	conn.Close()
}

// A connection that is opened ahead serves the first requests; the next one is opened as any.
func TestAhead(t *testing.T) {
	server := httptest.NewUnstartedServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		if r.ProtoMajor != 2 {
			t.Errorf("a request by %s", r.Proto)
		}
	}))
	server.EnableHTTP2 = true
	var opened atomic.Int32
	first := make(chan struct{}, 10)
	server.Config.ConnState = func(_ net.Conn, state http.ConnState) {
		if state == http.StateNew {
			opened.Add(1)
			first <- struct{}{}
		}
	}
	server.StartTLS()
	t.Cleanup(server.Close)
	tr := Transport(&tls.Config{RootCAs: server.Client().Transport.(*http.Transport).TLSClientConfig.RootCAs})
	Ahead(tr, server.Listener.Addr().String())
	select {
	case <-first:
	case <-time.After(10 * time.Second):
		t.Fatal("no connection before the first request")
	}
	client := &http.Client{Transport: tr}
	get := func() {
		resp, err := client.Get(server.URL)
		if err != nil {
			t.Error(err)
			return
		}
		resp.Body.Close()
	}
	var wg sync.WaitGroup
	for range 5 {
		wg.Go(get)
	}
	wg.Wait()
	if n := opened.Load(); n != 1 {
		t.Errorf("%d connections", n)
	}
	client.CloseIdleConnections()
	get()
	if n := opened.Load(); n != 2 {
		t.Errorf("%d connections after the first was closed", n)
	}
}

// The first request fails with the reason why there is no connection, as an Error.
func TestAheadOfRefusal(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	errtest.Must(t, err)
	addr := l.Addr().String()
	l.Close()
	tr := Transport(&tls.Config{MinVersion: tls.VersionTLS12})
	Ahead(tr, addr)
	_, err = (&http.Client{Transport: tr}).Get("https://" + addr)
	if unsent := (*Error)(nil); !errors.As(err, &unsent) || !errors.Is(err, syscall.ECONNREFUSED) {
		t.Errorf("error %v", err)
	}
}
