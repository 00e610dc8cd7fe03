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
	// maxAtOnce bounds the concurrent requests of a status page, or of metrics. Probes have no limit: they cost nothing.
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

// connections bounds the open connections by closing the longest idle one. If new connections had to wait instead, a
// client with all connections could block the kubelet's probes.
type connections struct {
	mu   sync.Mutex
	open map[net.Conn]*connection
}

// connection is a client's connection. It is not closed while it serves a request, which ends by itself, at the latest
// by writeTime.
type connection struct {
	serving bool
	since   time.Time // of the last change of serving
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

// around marks the connections that serve requests.
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

// atMost refuses requests while limit others are served.
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
