// Package serving is the HTTP side of the programs that stay: probes, metrics and a status, on an address of the node.
package serving

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/netip"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
)

// Program has the endpoints of a program.
type Program struct {
	// Alive and Ready are nil while that is so.
	Alive, Ready func(context.Context) error
	Metrics      prometheus.Gatherer
	// Status is shown as JSON.
	Status func() any
	// Local are more pages, by path, for clients on the same host.
	Local map[string]http.HandlerFunc
}

// Handler serves /livez, /readyz, /metrics, /status and what is Local.
func (p Program) Handler() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /livez", probe(p.Alive))
	mux.HandleFunc("GET /readyz", probe(p.Ready))
	mux.Handle("GET /metrics", metrics(p.Metrics))
	mux.HandleFunc("GET /status", atMost(maxAtOnce, func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		enc := json.NewEncoder(w)
		enc.SetIndent("", "  ")
		_ = enc.Encode(p.Status()) // a reader that went away is its own loss
	}))
	for path, page := range p.Local {
		mux.HandleFunc("GET "+path, local(atMost(maxAtOnce, page)))
	}
	return mux
}

// local refuses clients of other hosts, and of pods.
func local(page http.HandlerFunc) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		from, err := netip.ParseAddrPort(r.RemoteAddr)
		at, known := r.Context().Value(http.LocalAddrContextKey).(*net.TCPAddr)
		if err != nil || !from.Addr().Unmap().IsLoopback() && !(known && at.AddrPort().Addr().Unmap() == from.Addr().Unmap()) {
			http.Error(w, "only for clients on this host: ask there", http.StatusForbidden)
			return
		}
		page(w, r)
	}
}

// Metrics serves /metrics alone: what scrapes them need not see the rest.
func Metrics(of prometheus.Gatherer) http.Handler {
	mux := http.NewServeMux()
	mux.Handle("GET /metrics", metrics(of))
	return mux
}

func metrics(of prometheus.Gatherer) http.Handler {
	return promhttp.HandlerFor(of, promhttp.HandlerOpts{MaxRequestsInFlight: maxAtOnce})
}

func probe(check func(context.Context) error) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		if err := check(r.Context()); err != nil {
			http.Error(w, err.Error(), http.StatusServiceUnavailable)
			return
		}
		fmt.Fprintln(w, "ok")
	}
}

// Run serves until ctx ends. An address that cannot be had is an error that names the settings it comes from.
func Run(ctx context.Context, addr string, handler http.Handler, log *slog.Logger, settings string) error {
	l, err := new(net.ListenConfig).Listen(ctx, "tcp", addr)
	if err != nil {
		return fmt.Errorf("serve HTTP (%s): %w", settings, err)
	}
	log.Info("serving HTTP", "address", l.Addr())
	return Serve(ctx, l, handler)
}

// Serve serves on a listener until ctx ends, within the limits of this package.
func Serve(ctx context.Context, l net.Listener, handler http.Handler) error {
	server := newServer(handler)
	stop := context.AfterFunc(ctx, func() { _ = server.Close() })
	defer stop()
	if err := server.Serve(l); !errors.Is(err, http.ErrServerClosed) {
		return err
	}
	return nil
}
