package plugin

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/containernetworking/cni/pkg/types"
)

var fast = pace{limit: 300 * time.Millisecond, first: time.Millisecond, most: 10 * time.Millisecond}

// gate starts a server with the given answers, the last one for ever.
func gate(t *testing.T, start func(http.Handler) *httptest.Server, statuses ...int) (url string, asked *atomic.Int32) {
	t.Helper()
	asked = &atomic.Int32{}
	server := start(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		n := int(asked.Add(1))
		w.Header().Set("Location", "/elsewhere")
		w.WriteHeader(statuses[min(n, len(statuses))-1])
	}))
	t.Cleanup(server.Close)
	return server.URL + "/ready", asked
}

func TestGates(t *testing.T) {
	for _, tt := range []struct {
		name     string
		start    func(http.Handler) *httptest.Server
		statuses []int
		asked    int32 // 0 any number
		want     string
	}{
		{"open", httptest.NewServer, []int{200}, 1, ""},
		{"redirect counts, and is not followed", httptest.NewServer, []int{302}, 1, ""},
		{"opens late", httptest.NewServer, []int{503, 404, 399}, 3, ""},
		{"with a certificate of its own", httptest.NewTLSServer, []int{200}, 1, ""},
		{"closed", httptest.NewServer, []int{400}, 0, "HTTP 400"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			url, asked := gate(t, tt.start, tt.statuses...)
			open, _ := gate(t, httptest.NewServer, 204)
			pace := fast
			if tt.want == "" {
				pace.limit = time.Minute // it is not what ends the wait
			}
			err := awaitGates(t.Context(), []string{open, url}, pace)
			if tt.want == "" && (err != nil || asked.Load() != tt.asked) {
				t.Errorf("%v after %d requests", err, asked.Load())
			}
			if tt.want == "" {
				return
			}
			if code(t, err) != types.ErrTryAgainLater || !strings.Contains(err.Error(), tt.want) || !strings.Contains(err.Error(), url) ||
				!strings.Contains(err.Error(), "readiness_gates") {
				t.Errorf("error %v", err)
			}
		})
	}
	if err := awaitGates(t.Context(), []string{"http://127.0.0.1:1/"}, fast); err == nil ||
		!strings.Contains(err.Error(), "connection refused") {
		t.Errorf("nobody listens: %v", err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	url, asked := gate(t, httptest.NewServer, 200)
	if err := awaitGates(ctx, []string{url}, gatePace); err == nil || asked.Load() > 0 {
		t.Errorf("a verb that has ended: %v after %d requests", err, asked.Load())
	}
}

func TestPace(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		began, looks := time.Now(), 0
		p := pace{limit: 3 * time.Second, first: 100 * time.Millisecond, most: time.Second}
		err := p.until(t.Context(), func(context.Context) error { looks++; return errNotInForce })
		if took := time.Since(began); !errors.Is(err, errNotInForce) || took != p.limit || looks < 5 || looks > 10 {
			t.Errorf("%v after %d looks in %v", err, looks, took)
		}
	})
}

func TestAwaitPolicy(t *testing.T) { synctest.Test(t, awaitsPolicy) }

func awaitsPolicy(t *testing.T) {
	dir := t.TempDir()
	var log bytes.Buffer
	s := &session{
		namespace: "default", pod: "web-0", ifName: "eth0", conf: netConf{EndpointStatusDir: dir, PolicySetupTimeout: 1},
		log: slog.New(slog.NewTextHandler(&log, nil)),
	}
	const name = "k8s default%2Fweb-0 eth0"
	timer := time.AfterFunc(100*time.Millisecond, func() {
		if err := os.WriteFile(filepath.Join(dir, name), []byte("{}"), 0o600); err != nil {
			t.Error(err)
		}
	})
	defer timer.Stop()
	start := time.Now()
	s.awaitPolicy(t.Context(), notPoliced, "")
	if took := time.Since(start); took < 100*time.Millisecond || took > 100*time.Millisecond+policyPace.most || log.Len() != 0 {
		t.Errorf("it waited for %v: %s", took, &log)
	}
	s.pod = "other"
	start = time.Now()
	s.awaitPolicy(t.Context(), notPoliced, "")
	if took := time.Since(start); took != time.Second || !strings.Contains(log.String(), "policy_setup_timeout_seconds=1") ||
		!strings.Contains(log.String(), "default%2Fother") {
		t.Errorf("without the file: %v, %s", took, &log)
	}
	s.conf.PolicySetupTimeout = 0
	start = time.Now()
	s.awaitPolicy(t.Context(), notPoliced, "")
	if took := time.Since(start); took != 0 {
		t.Errorf("without a timeout it waited for %v", took)
	}
	if got := (&session{containerID: "c1", ifName: "net 1"}).statusFile(); got != "cni c1 net%201" {
		t.Errorf("file of a container that is no pod's: %q", got)
	}
}
