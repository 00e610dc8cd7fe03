package serving

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/tortie-net/tortie/internal/testkit/errtest"
)

func TestHandler(t *testing.T) {
	registry := prometheus.NewRegistry()
	count := prometheus.NewCounter(prometheus.CounterOpts{Name: "things_total", Help: "Things."})
	registry.MustRegister(count)
	count.Inc()
	ready := errors.New("not yet")
	server := httptest.NewServer(Program{
		Alive: func(context.Context) error { return nil }, Ready: func(context.Context) error { return ready },
		Metrics: registry, Status: func() any { return map[string]int{"passes": 3} },
	}.Handler())
	defer server.Close()
	for path, want := range map[string]string{
		"/livez": "200 ok\n", "/readyz": "503 not yet\n", "/metrics": "\nthings_total 1\n",
		"/status": "200 {\n  \"passes\": 3\n}\n", "/else": "404 ",
	} {
		if got := get(t, server.URL+path); !strings.Contains(got, want) {
			t.Errorf("%s: %q, want %q", path, got, want)
		}
	}
	if got := get(t, server.URL+"/readyz"); !strings.HasPrefix(got, "503") {
		t.Errorf("not ready: %q", got)
	}
	alone := httptest.NewServer(Metrics(registry))
	defer alone.Close()
	if got := get(t, alone.URL+"/status"); !strings.HasPrefix(got, "404") {
		t.Errorf("metrics alone: %q", got)
	}
}

func get(t *testing.T, url string) string {
	t.Helper()
	r, err := http.Get(url)
	errtest.Must(t, err)
	defer r.Body.Close()
	body, err := io.ReadAll(r.Body)
	errtest.Must(t, err)
	return r.Status[:3] + " " + string(body)
}

// For an address in use the error names the settings to change; serving ends with the context.
func TestRun(t *testing.T) {
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	errtest.Must(t, err)
	defer taken.Close()
	log := slog.New(slog.DiscardHandler)
	err = Run(t.Context(), taken.Addr().String(), http.NotFoundHandler(), log, "SOME_HOST, SOME_PORT")
	if !errtest.Names(err, "SOME_HOST SOME_PORT") {
		t.Errorf("%v", err)
	}
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- Run(ctx, "127.0.0.1:0", http.NotFoundHandler(), log, "") }()
	stop()
	if err := <-ended; err != nil && !errors.Is(err, context.Canceled) {
		t.Errorf("%v", err)
	}
}

// Local pages answer no other host.
func TestLocalPages(t *testing.T) {
	handler := Program{
		Local: map[string]http.HandlerFunc{"/own": func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusNoContent) }},
	}.Handler()
	for remote, want := range map[string]int{
		"127.0.0.1:1": http.StatusNoContent, "[::1]:1": http.StatusNoContent, "192.0.2.1:1": http.StatusNoContent,
		"[::ffff:192.0.2.1]:1": http.StatusNoContent,
		"192.0.2.2:1":          http.StatusForbidden, "nonsense": http.StatusForbidden,
	} {
		at := context.WithValue(t.Context(), http.LocalAddrContextKey, &net.TCPAddr{IP: net.ParseIP("192.0.2.1"), Port: 9099})
		q := httptest.NewRequest(http.MethodGet, "/own", nil).WithContext(at)
		q.RemoteAddr = remote
		w := httptest.NewRecorder()
		if handler.ServeHTTP(w, q); w.Code != want {
			t.Errorf("%s: %d", remote, w.Code)
		}
	}
}
