package plugin_test

import (
	"log"
	"maps"
	"net"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"k8s.io/client-go/rest"

	"github.com/tortie-net/tortie/internal/api/groups"
	"github.com/tortie-net/tortie/internal/testkit/errtest"
	"github.com/tortie-net/tortie/internal/testkit/labtest"
)

// proxy stands between a node's plugins and the API server, which is in another network namespace. It passes on
// requests with their credentials, records them, and fails those that a test chooses.
type proxy struct {
	*httptest.Server
	mu          sync.Mutex // guards what follows
	seen        []string
	connections int
	rule        rule
}

// rule decides on one request, named as in the proxy's record. It may serve it by next, instead of it, or both.
type rule func(request string, w http.ResponseWriter, r *http.Request, next http.Handler)

func newProxy(t testing.TB, h *host) *proxy {
	t.Helper()
	cfg := rest.AnonymousClientConfig(labtest.RESTConfig(t))
	upstream, err := url.Parse(cfg.Host)
	errtest.Must(t, err)
	transport, err := rest.TransportFor(cfg)
	errtest.Must(t, err)
	p := &proxy{}
	pass := &httputil.ReverseProxy{
		Transport: transport,
		Rewrite: func(r *httputil.ProxyRequest) {
			r.SetURL(upstream)
			labtest.Repeatable(r.Out)
		},
		ErrorLog: log.New(t.Output(), "proxy: ", 0),
	}
	p.Server = httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { p.serve(w, r, pass) }))
	p.Listener.Close()
	p.Listener = h.Listen(t)
	p.EnableHTTP2 = true
	p.Config.ConnState = func(_ net.Conn, state http.ConnState) {
		if state == http.StateNew {
			p.mu.Lock()
			defer p.mu.Unlock()
			p.connections++
		}
	}
	p.StartTLS()
	t.Cleanup(p.Close)
	return p
}

func (p *proxy) serve(w http.ResponseWriter, r *http.Request, next http.Handler) {
	request := describe(r)
	p.mu.Lock()
	p.seen = append(p.seen, request)
	rule := p.rule
	p.mu.Unlock()
	if rule == nil {
		next.ServeHTTP(w, r)
		return
	}
	rule(request, w, r, next)
}

// setRule makes the proxy follow the rule, or none, from the next request on.
func (p *proxy) setRule(r rule) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.rule = r
}

// take returns the requests since the last take, sorted, since parallel requests of a process have no order.
func (p *proxy) take() []string {
	p.mu.Lock()
	defer p.mu.Unlock()
	seen := p.seen
	p.seen = nil
	slices.Sort(seen)
	return seen
}

// mostTries is how often a plugin sends one request, if it may repeat it at all.
const mostTries = 4

// wantFewTries fails the test if one of the requests since the last take was sent more often than a plugin tries.
func (p *proxy) wantFewTries(t testing.TB) {
	t.Helper()
	tries := map[string]int{}
	for _, request := range p.take() {
		if tries[request]++; tries[request] == mostTries+1 {
			t.Errorf("%s was sent more than %d times", request, mostTries)
		}
	}
}

// takeConnections returns how many connections were made since the last call.
func (p *proxy) takeConnections() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	n := p.connections
	p.connections = 0
	return n
}

// describe names a request by program, verb and resource, such as "calico-ipam LIST ippools". A kind of Calico's has
// the same name in both API groups.
func describe(r *http.Request) string {
	verb := r.Method
	resource, all := labtest.Resource(r)
	if verb == http.MethodGet && all {
		verb = "LIST"
	}
	return strings.TrimPrefix(r.UserAgent(), "tortie-") + " " + verb + " " + groups.V3.Plural(resource)
}

// refuse answers requests of one name with a status and an object of kind Status, and passes on all others.
func refuse(name string, code int) rule {
	return func(request string, w http.ResponseWriter, r *http.Request, next http.Handler) {
		if request != name {
			next.ServeHTTP(w, r)
			return
		}
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(code)
		_, _ = w.Write(
			[]byte(`{"kind":"Status","apiVersion":"v1","status":"Failure","reason":"Refused","message":"User \"test\" cannot do this"}`))
	}
}

// loseAnswer lets requests of one name reach the API server and drops its answer.
func loseAnswer(name string) rule {
	return func(request string, w http.ResponseWriter, r *http.Request, next http.Handler) {
		if request != name {
			next.ServeHTTP(w, r)
			return
		}
		next.ServeHTTP(httptest.NewRecorder(), r)
		panic(http.ErrAbortHandler)
	}
}

// dieAt drops the first request of one name and everything after it, as an API server that stops.
func dieAt(name string) rule {
	var mu sync.Mutex
	dead := false
	return func(request string, w http.ResponseWriter, r *http.Request, next http.Handler) {
		mu.Lock()
		dead = dead || request == name
		now := dead
		mu.Unlock()
		if now {
			panic(http.ErrAbortHandler)
		}
		next.ServeHTTP(w, r)
	}
}

// rounds is a rule that holds the answers to a round of requests back until the whole round has come, and so shows
// which requests wait for the answers of which others.
type rounds struct {
	mu   sync.Mutex // guards what follows
	want [][]string // the rounds to come
	now  []string   // the round under way
	over chan struct{}
	past [][]string
}

// mostOfRound bounds a round that misses a request which waits for an answer.
const mostOfRound = 30 * time.Second

func (r *rounds) rule(request string, w http.ResponseWriter, req *http.Request, next http.Handler) {
	over := r.join(request)
	answer := httptest.NewRecorder()
	next.ServeHTTP(answer, req)
	select {
	case <-over:
	case <-req.Context().Done():
	case <-time.After(mostOfRound):
		r.end(over)
	}
	maps.Copy(w.Header(), answer.Header())
	w.WriteHeader(answer.Code)
	_, _ = answer.Body.WriteTo(w)
}

// join adds a request to the round under way, and returns a channel that is closed at its end.
func (r *rounds) join(request string) <-chan struct{} {
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.now) == 0 {
		r.over = make(chan struct{})
	}
	over := r.over
	if r.now = append(r.now, request); len(r.want) == 0 || len(r.now) == len(r.want[0]) {
		r.endLocked()
	}
	return over
}

// end ends a round unless it has ended.
func (r *rounds) end(over <-chan struct{}) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if over == r.over && len(r.now) > 0 {
		r.endLocked()
	}
}

func (r *rounds) endLocked() {
	slices.Sort(r.now)
	r.past, r.now = append(r.past, r.now), nil
	r.want = r.want[min(1, len(r.want)):]
	close(r.over)
}

// expect forgets the past rounds, and sets the ones to come.
func (r *rounds) expect(want [][]string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.want, r.now, r.past = want, nil, nil
}

// took returns the rounds since expect.
func (r *rounds) took() [][]string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.past
}
