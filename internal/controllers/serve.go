package controllers

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/tortie-net/tortie/internal/gc"
)

// Status is what the controllers say of themselves at /status.
type Status struct {
	Leading  bool      `json:"leading"`
	Identity string    `json:"identity"`
	Started  time.Time `json:"started"`
	// Synced: everything has been listed once. Known is until when nothing is missing.
	Synced bool      `json:"synced"`
	Known  time.Time `json:"known"`
	// LastPass is when everything was looked at last, Next when it will be at the latest. Passes counts.
	LastPass time.Time `json:"lastPass"`
	Next     time.Time `json:"next"`
	Passes   int       `json:"passes"`
	// Locked: ClusterInformation says that the datastore is not ready. Nothing is collected.
	Locked bool `json:"locked"`
	// Candidates are addresses in their grace period by node, Waiting all other things in theirs.
	Candidates map[string]int `json:"candidates,omitempty"`
	Waiting    int            `json:"waiting"`
	// Freed and Removed are since the start.
	Freed   int    `json:"freed"`
	Removed int    `json:"removed"`
	Error   string `json:"error,omitempty"`
	Grace   string `json:"leakGracePeriod"`
	Period  string `json:"reconcilerPeriod"`
}

// stuckAfter is how long after a pass began the process is not alive any more: longer than a sweep may take.
const stuckAfter = sweepTime + 10*time.Minute

// board keeps the Status for those who ask.
type board struct {
	metrics *metrics

	mu     sync.Mutex // guards the rest
	status Status
	turned time.Time // when the loop went round last
}

func (b *board) change(f func(*Status)) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.turned = time.Now()
	f(&b.status)
}

func (b *board) read() Status {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.status
}

func (s *Status) did(r *gc.Report) {
	s.Freed += r.Addresses()
	s.Removed += r.Handles + r.Blocks + r.Affinities
}

// alive is that the loop turns. An API server that is away makes nobody dead.
func (b *board) alive() error {
	b.mu.Lock()
	defer b.mu.Unlock()
	if !b.status.Synced || time.Since(b.turned) < stuckAfter {
		return nil
	}
	return fmt.Errorf("nothing has happened since %s", b.turned.Format(time.RFC3339))
}

// ready is that the cluster was seen whole and looked at, whether this process leads or not.
func (b *board) ready() error {
	s := b.read()
	switch {
	case !s.Synced:
		return errors.New("the first complete list of the cluster has not come yet")
	case s.Passes == 0:
		return errors.New("the first pass has not ended yet")
	}
	return nil
}

func (b *board) handler() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /livez", probe(b.alive))
	mux.HandleFunc("GET /readyz", probe(b.ready))
	mux.Handle("GET /metrics", b.metricsHandler())
	mux.HandleFunc("GET /status", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		enc := json.NewEncoder(w)
		enc.SetIndent("", "  ")
		_ = enc.Encode(b.read()) // a reader that went away is its own loss
	})
	return mux
}

func (b *board) metricsHandler() http.Handler {
	return promhttp.HandlerFor(b.metrics.registry, promhttp.HandlerOpts{})
}

func probe(check func() error) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) {
		if err := check(); err != nil {
			http.Error(w, err.Error(), http.StatusServiceUnavailable)
			return
		}
		fmt.Fprintln(w, "ok")
	}
}

// serve serves until ctx ends.
func serve(ctx context.Context, addr string, handler http.Handler, log *slog.Logger, setting string) error {
	l, err := new(net.ListenConfig).Listen(ctx, "tcp", addr)
	if err != nil {
		return fmt.Errorf("serve HTTP (%s): %w", setting, err)
	}
	server := &http.Server{Handler: handler, ReadHeaderTimeout: 5 * time.Second}
	stop := context.AfterFunc(ctx, func() { _ = server.Close() })
	defer stop()
	log.Info("serving HTTP", "address", l.Addr())
	if err := server.Serve(l); !errors.Is(err, http.ErrServerClosed) {
		return err
	}
	return nil
}
