// Package dialer opens connections to a datastore within bounded time. It owns no connection and knows no protocol
// above TLS.
package dialer

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/http"
	"sync"
	"sync/atomic"
	"time"
)

const (
	// timeout bounds a connection's set-up, TLS included. Linux repeats a SYN that got no answer after 1 and after 3 s:
	// two may be lost before a server is taken for dead.
	timeout = 5 * time.Second
	// slow distinguishes an absent server, for which the kernel's neighbour resolution fails after some seconds, from one
	// that refuses because it is being restarted.
	slow = 500 * time.Millisecond
	// memory is how long a silent server is considered dead without another attempt. It covers the pauses between the
	// tries of the requests that waited for the same connection.
	memory = 2 * time.Second
	// A connection on which nothing was received for pingAfter is pinged, and closed after pingTimeout without an answer.
	pingAfter, pingTimeout = 4 * time.Second, 3 * time.Second
)

// DeadAfter is how long a connection can be dead before the requests on it fail.
const DeadAfter = pingAfter + pingTimeout

// stagger is the pause before the next of several servers is tried (RFC 8305).
const stagger = 250 * time.Millisecond

// Error means that no connection was established, so the request was not sent.
type Error struct{ Err error }

func (e *Error) Error() string { return e.Err.Error() }

// Unwrap returns the cause.
func (e *Error) Unwrap() error { return e.Err }

// Transport returns an HTTP/2 transport that has one connection per server, over TLS with configuration t. Without t it
// uses HTTP/2 in the clear from the first byte. If servers are given, each a host:port, it connects to one of them
// whatever the URL: to the first, or if that does not answer at once, to the fastest.
//
// Requests that run at the same time share that connection. If the server is silent while it is set up, the requests
// that wait for it share the failure: otherwise each would wait for its own time-out, one after the other. A request
// that was not sent fails with an Error.
func Transport(t *tls.Config, servers ...string) *http.Transport {
	d := newDialer(t)
	d.servers = servers
	tr := &http.Transport{
		DialContext:       d.plain,
		DialTLSContext:    d.secure,
		ForceAttemptHTTP2: true,
		HTTP2:             &http.HTTP2Config{SendPingTimeout: pingAfter, PingTimeout: pingTimeout},
		// The first requests of a process start at once: without this each would dial for itself.
		MaxConnsPerHost: 1,
	}
	if t == nil {
		tr.Protocols = new(http.Protocols)
		tr.Protocols.SetUnencryptedHTTP2(true)
	}
	return tr
}

// freshTime is how old a connection may be when its first request is sent: Go's servers close one without a request
// after 10 s.
const freshTime = 5 * time.Second

// Ahead begins to open the TLS connection of a transport's first request, which need not follow at once. It must be
// called before any request.
func Ahead(tr *http.Transport, addr string) {
	open, began, ready := tr.DialTLSContext, time.Now(), make(chan attempt, 1)
	go func() {
		conn, err := open(context.Background(), "tcp", addr)
		ready <- attempt{conn, err}
	}()
	var taken atomic.Bool
	tr.DialTLSContext = func(ctx context.Context, network, addr string) (net.Conn, error) {
		if taken.Swap(true) {
			return open(ctx, network, addr)
		}
		if time.Since(began) < freshTime {
			select {
			case a := <-ready:
				return a.conn, a.err
			case <-ctx.Done():
			}
		}
		go func() {
			if a := <-ready; a.err == nil {
				_ = a.conn.Close()
			}
		}()
		return open(ctx, network, addr)
	}
}

// dialer opens connections, and remembers which servers were silent.
type dialer struct {
	tls     *tls.Config
	servers []string
	timeout time.Duration

	mu     sync.Mutex // guards silent
	silent map[string]silence
}

type silence struct {
	err   error
	until time.Time
}

func newDialer(t *tls.Config) *dialer {
	if t != nil {
		t = t.Clone()
		t.NextProtos = []string{"h2", "http/1.1"}
	}
	return &dialer{tls: t, timeout: timeout, silent: map[string]silence{}}
}

// opener opens a connection to a server.
type opener func(ctx context.Context, addr string) (net.Conn, error)

// plain opens a TCP connection.
func (d *dialer) plain(ctx context.Context, network, addr string) (net.Conn, error) {
	return d.connect(ctx, addr, func(ctx context.Context, addr string) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, network, addr)
	})
}

// secure opens a TLS connection.
func (d *dialer) secure(ctx context.Context, network, addr string) (net.Conn, error) {
	return d.connect(ctx, addr, func(ctx context.Context, addr string) (net.Conn, error) {
		return (&tls.Dialer{NetDialer: &net.Dialer{}, Config: d.tls}).DialContext(ctx, network, addr)
	})
}

func (d *dialer) connect(ctx context.Context, addr string, open opener) (net.Conn, error) {
	servers := d.servers
	if len(servers) == 0 {
		servers = []string{addr}
	}
	conn, err := d.race(ctx, servers, open)
	if err != nil {
		return nil, &Error{err}
	}
	return conn, nil
}

// attempt is the result of one server's part in a race.
type attempt struct {
	conn net.Conn
	err  error
}

// race returns the first connection that is ready. The servers start in their order, each a little after the one before
// it, or as soon as one has failed.
func (d *dialer) race(ctx context.Context, servers []string, open opener) (net.Conn, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel() // the others give up
	ended := make(chan attempt)
	turn := time.NewTimer(0)
	defer turn.Stop()
	var errs []error
	for started := 0; ; {
		select {
		case <-turn.C:
			if started == len(servers) {
				continue
			}
			addr := servers[started]
			started++
			go func() {
				conn, err := d.dial(ctx, addr, open)
				ended <- attempt{conn, err}
			}()
			turn.Reset(stagger)
		case a := <-ended:
			if a.err == nil {
				go closeLosers(ended, started-len(errs)-1)
				return a.conn, nil
			}
			if errs = append(errs, a.err); len(errs) == len(servers) {
				return nil, errors.Join(errs...)
			}
			turn.Reset(0)
		}
	}
}

func closeLosers(ended <-chan attempt, n int) {
	for range n {
		if a := <-ended; a.err == nil {
			a.conn.Close()
		}
	}
}

// dial opens a connection within the dialer's timeout, or fails at once if the server was silent a moment ago.
func (d *dialer) dial(ctx context.Context, addr string, open opener) (net.Conn, error) {
	d.mu.Lock()
	s := d.silent[addr]
	d.mu.Unlock()
	if time.Now().Before(s.until) {
		return nil, s.err
	}
	began := time.Now()
	limited, cancel := context.WithTimeout(ctx, d.timeout)
	defer cancel()
	conn, err := open(limited, addr)
	took := time.Since(began)
	if err != nil && (isTimeout(err) || took >= slow) && !endsBefore(ctx, began.Add(d.timeout)) {
		err = fmt.Errorf("%s was silent for %v: %w", addr, took.Round(100*time.Millisecond), err)
		d.mu.Lock()
		d.silent[addr] = silence{err: err, until: time.Now().Add(memory)}
		d.mu.Unlock()
	}
	return conn, err
}

func isTimeout(err error) bool {
	var t net.Error
	return errors.As(err, &t) && t.Timeout()
}

// endsBefore reports whether the caller's context ends before limit: then a time-out proves nothing about the server.
func endsBefore(ctx context.Context, limit time.Time) bool {
	deadline, ok := ctx.Deadline()
	return ctx.Err() != nil || ok && deadline.Before(limit)
}
