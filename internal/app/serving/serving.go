// Package serving is the HTTP server of the programs that keep running: probes, metrics and a status.
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

// Program holds the endpoints of a program.
type Program struct {
	// Alive and Ready return nil while the program is alive, or ready.
	Alive, Ready func(context.Context) error
	Metrics      prometheus.Gatherer
	// Status returns the status, served as JSON.
	Status func() any
	// Local are more pages, by path, for clients on the same host.
	Local map[string]http.HandlerFunc
}

// Handler serves /livez, /readyz, /metrics, /status and the Local pages.
func (p Program) Handler() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /livez", probe(p.Alive))
	mux.HandleFunc("GET /readyz", probe(p.Ready))
	mux.Handle("GET /metrics", metrics(p.Metrics))
	mux.HandleFunc("GET /status", atMost(maxAtOnce, func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		enc := json.NewEncoder(w)
		enc.SetIndent("", "  ")
		_ = enc.Encode(p.Status()) // an error means that the client went away
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

// Metrics serves only /metrics, for scrapers that need no more.
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

// Run serves on addr until ctx ends. If it cannot listen there, the error names the settings of the address.
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
