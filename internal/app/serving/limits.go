package serving

import (
	"context"
	"net"
	"net/http"
	"sync"
	"time"
)

// Limits of a server. A kubelet, a Prometheus and a person need a handful of connections, and a request takes
// milliseconds.
const (
	maxConnections = 100
	// maxAtOnce is for how many requests at once a status, or all metrics, are put together. Probes have no limit: they
	// cost nothing.
	maxAtOnce   = 4
	headerTime  = 5 * time.Second
	readTime    = 10 * time.Second
	writeTime   = 30 * time.Second
	idleTime    = 60 * time.Second
	headerBytes = 16 << 10
)

func newServer(handler http.Handler) *http.Server {
	conns := &connections{open: map[net.Conn]*connection{}}
	return &http.Server{
		Handler: conns.around(handler), ConnContext: conns.add, ConnState: conns.state,
		ReadHeaderTimeout: headerTime, ReadTimeout: readTime, WriteTimeout: writeTime, IdleTimeout: idleTime, MaxHeaderBytes: headerBytes,
	}
}

// connections bounds how many there are by closing the one that has waited longest. To wait for a free one instead
// would let a client that holds all of them keep the kubelet's probes out.
type connections struct {
	mu   sync.Mutex
	open map[net.Conn]*connection
}

// connection is one with a client. While a request of it is served it is not closed: it ends by itself, at the latest
// when writing takes too long.
type connection struct {
	serving bool
	since   time.Time // it is not
}

type connectionKey struct{}

// add is called with each new connection.
func (c *connections) add(ctx context.Context, conn net.Conn) context.Context {
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.open) >= maxConnections {
		c.closeOne()
	}
	added := &connection{since: time.Now()}
	c.open[conn] = added
	return context.WithValue(ctx, connectionKey{}, added)
}

func (c *connections) closeOne() {
	var oldest net.Conn
	for conn, is := range c.open {
		if !is.serving && (oldest == nil || is.since.Before(c.open[oldest].since)) {
			oldest = conn
		}
	}
	if oldest != nil {
		delete(c.open, oldest)
		_ = oldest.Close()
	}
}

func (c *connections) state(conn net.Conn, state http.ConnState) {
	if state == http.StateClosed || state == http.StateHijacked {
		c.mu.Lock()
		defer c.mu.Unlock()
		delete(c.open, conn)
	}
}

// around notes of which connections requests are served.
func (c *connections) around(handler http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		conn, ok := r.Context().Value(connectionKey{}).(*connection)
		if ok {
			c.note(conn, true)
			defer c.note(conn, false)
		}
		handler.ServeHTTP(w, r)
	})
}

func (c *connections) note(conn *connection, serving bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	conn.serving, conn.since = serving, time.Now()
}

// atMost refuses requests while as many are served.
func atMost(limit int, handler http.HandlerFunc) http.HandlerFunc {
	free := make(chan struct{}, limit)
	return func(w http.ResponseWriter, r *http.Request) {
		select {
		case free <- struct{}{}:
			defer func() { <-free }()
			handler(w, r)
		default:
			http.Error(w, "too many requests at once", http.StatusServiceUnavailable)
		}
	}
}
