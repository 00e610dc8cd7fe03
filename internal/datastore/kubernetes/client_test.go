package kubernetes

import (
	"context"
	"crypto/ed25519"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"log"
	"math/big"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tortie-net/tortie/internal/api"
	"github.com/tortie-net/tortie/internal/datastore"
	"github.com/tortie-net/tortie/internal/datastore/dialer"
	"github.com/tortie-net/tortie/internal/testkit/datastoretest"
	"github.com/tortie-net/tortie/internal/testkit/difftest"
	"github.com/tortie-net/tortie/internal/testkit/errtest"
)

// faulty is an API server with the answers that a test sets, which a real one cannot be made to give at will.
type faulty struct {
	*httptest.Server
	*datastoretest.Script
}

// newFaulty returns a server with a script. Its requests are methods.
func newFaulty(t *testing.T, answers ...http.HandlerFunc) *faulty {
	t.Helper()
	f := &faulty{Script: datastoretest.NewScript(func(r *http.Request) string { return r.Method }, answers...)}
	f.Server = httptest.NewUnstartedServer(f)
	f.EnableHTTP2 = true
	f.Config.ErrorLog = log.New(io.Discard, "", 0) // clients hang up on purpose
	f.StartTLS()
	t.Cleanup(f.Close)
	return f
}

func (f *faulty) config() Config {
	ca := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: f.Certificate().Raw})
	return Config{Server: f.URL, CAData: ca, Token: secret}
}

func open(t *testing.T, cfg Config) *Store {
	t.Helper()
	s, err := New(cfg)
	errtest.Must(t, err)
	return s
}

const handleJSON = `{"metadata":{"name":"h","uid":"u","resourceVersion":"7"},"spec":{"handleID":"h","block":{"10.0.0.0/26":1}}}`

func ok(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, handleJSON) }

func status(code int, header ...string) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) {
		for i := 0; i+1 < len(header); i += 2 {
			w.Header().Set(header[i], header[i+1])
		}
		w.WriteHeader(code)
		fmt.Fprintf(w, `{"kind":"Status","message":"the server said %d"}`, code)
	}
}

// says returns a handler that answers with a message.
func says(code int, message string) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(code)
		_ = json.NewEncoder(w).Encode(map[string]string{"kind": "Status", "message": message})
	}
}

// drop ends the connection without an answer, or in the middle of one.
func drop(body string) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) {
		if body != "" {
			w.Header().Set("Content-Length", "1000")
			fmt.Fprint(w, body)
			w.(http.Flusher).Flush()
		}
		panic(http.ErrAbortHandler)
	}
}

func handle() *api.IPAMHandle {
	return &api.IPAMHandle{Meta: api.Meta{Name: "h", UID: "u", ResourceVersion: "6"}, Spec: api.IPAMHandleSpec{HandleID: "h"}}
}

// Which requests are sent again, and how often: never a write that may have landed.
func TestRetries(t *testing.T) {
	const retryAfter = "Retry-After"
	for _, c := range []struct {
		name    string
		answers []http.HandlerFunc
		do      func(context.Context, *Store) error
		want    error
		sent    int
	}{
		{"a read that the server is too busy for", []http.HandlerFunc{status(429, retryAfter, "0"), ok}, get, nil, 2},
		{"a write that the server is too busy for", []http.HandlerFunc{status(429, retryAfter, "0"), status(429), ok}, update, nil, 3},
		{"a write that the server says it did not take", []http.HandlerFunc{status(503, retryAfter, "0"), ok}, update, nil, 2},
		{"a write that something answered 503 to", []http.HandlerFunc{status(503), ok}, update, datastore.ErrUnavailable, 1},
		{"a read that something answered 503 to", []http.HandlerFunc{status(503), ok}, get, nil, 2},
		{"a server that stays busy", []http.HandlerFunc{status(429, retryAfter, "0")}, get, datastore.ErrUnavailable, maxTries},
		{"a read without an answer", []http.HandlerFunc{drop(""), ok}, get, nil, 2},
		{"a deletion without an answer", []http.HandlerFunc{drop(""), ok}, remove, datastore.ErrUnavailable, 1},
		{"a deletion of what went away", []http.HandlerFunc{status(404), ok}, remove, nil, 1},
		{"a read with half an answer", []http.HandlerFunc{drop(`{"metadata":`), ok}, get, nil, 2},
		{"a write without an answer", []http.HandlerFunc{drop(""), ok}, update, datastore.ErrUnavailable, 1},
		{"a write with half an answer", []http.HandlerFunc{drop(`{"metadata":`), ok}, update, datastore.ErrUnavailable, 1},
		{"a creation without an answer", []http.HandlerFunc{drop(""), ok}, create, datastore.ErrUnavailable, 1},
		{"an internal error", []http.HandlerFunc{status(500), ok}, get, datastore.ErrUnavailable, 1},
		{"a time-out of etcd", []http.HandlerFunc{status(504), ok}, update, datastore.ErrUnavailable, 1},
		{"no permission", []http.HandlerFunc{says(403, `ipamhandles.crd.projectcalico.org is forbidden: User "system:x" cannot list resource`)},
			get, datastore.ErrUnauthorized, 1},
		{"a refusal by admission",
			[]http.HandlerFunc{says(403, `ipamhandles.crd.projectcalico.org "h" is forbidden: ValidatingAdmissionPolicy 'a' with `+
				`binding 'a' denied request: User of a node`), ok}, create, datastore.ErrRefused, 1},
		{"a refusal by the lock",
			[]http.HandlerFunc{says(403, `ipamhandles.projectcalico.org "h" is forbidden: ValidatingAdmissionPolicy 'tortie-fence-groups-v3' `+
				`with binding 'tortie-fence-groups-v3' denied request: the datastore is locked`), ok}, create, datastore.ErrLocked, 1},
		{"a refusal by Calico's webhook", []http.HandlerFunc{says(405, `admission webhook "cluster-info.api.projectcalico.org" denied the `+
			`request: ClusterInformation is a read-only resource`), ok}, update, datastore.ErrRefused, 1},
		{"a refusal by a webhook without a status",
			[]http.HandlerFunc{says(400, `admission webhook "a.example.com" denied the request: no`), ok}, create, datastore.ErrRefused, 1},
		{"a webhook that does not answer", []http.HandlerFunc{says(500, `Internal error occurred: failed calling webhook "a.example.com": `+
			`failed to call webhook: Post "https://a.svc:443/?timeout=10s": context deadline exceeded`), ok}, create, unasked{}, 1},
		{"bad credentials", []http.HandlerFunc{status(401), ok}, update, datastore.ErrUnauthenticated, 1},
		{"what went away", []http.HandlerFunc{status(404), ok}, update, datastore.ErrConflict, 1},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			f := newFaulty(t, c.answers...)
			err := c.do(t.Context(), open(t, f.config()))
			if !errors.Is(err, c.want) || err != nil && c.want == nil || errors.Is(err, datastore.ErrLocked) != (c.want == datastore.ErrLocked) ||
				errors.Is(err, datastore.ErrRefused) != errors.Is(c.want, datastore.ErrRefused) {
				t.Errorf("error %v, want %v", err, c.want)
			}
			if got := len(f.Requests()); got != c.sent {
				t.Errorf("%d requests were sent, want %d", got, c.sent)
			}
			if err != nil && strings.Contains(err.Error(), secret) {
				t.Errorf("error %q repeats the token", err)
			}
		})
	}
}

func get(ctx context.Context, s *Store) error    { return s.Get(ctx, handle()) }
func update(ctx context.Context, s *Store) error { return s.Update(ctx, handle()) }
func create(ctx context.Context, s *Store) error { return s.Create(ctx, handle()) }
func remove(ctx context.Context, s *Store) error { return s.Delete(ctx, handle()) }

// inBubble runs do with a client in a bubble, whose server is a function.
func inBubble(t *testing.T, answer func(*http.Request) (*http.Response, error), do func(*testing.T, *Store)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		s := open(t, Config{Server: "https://192.0.2.1", Token: secret})
		s.client.http.Transport = answers(answer)
		do(t, s)
	})
}

type answers func(*http.Request) (*http.Response, error)

func (a answers) RoundTrip(r *http.Request) (*http.Response, error) { return a(r) }

func TestRetryAfterIsWaitedForAndBounded(t *testing.T) {
	var asked []time.Time
	inBubble(t, func(*http.Request) (*http.Response, error) {
		asked = append(asked, time.Now())
		w := httptest.NewRecorder()
		[]http.HandlerFunc{status(429, "Retry-After", "1"), ok}[len(asked)-1](w, nil)
		return w.Result(), nil
	}, func(t *testing.T, s *Store) { errtest.Must(t, get(t.Context(), s)) })
	if len(asked) != 2 || asked[1].Sub(asked[0]) < 500*time.Millisecond {
		t.Errorf("asked at %v, want a second time after half a second at least", asked)
	}
	resp := &http.Response{StatusCode: 429, Header: http.Header{"Retry-After": {"86400"}}}
	if got := retryAfter(http.MethodGet, resp); got != maxRetryAfter {
		t.Errorf("a day is waited for as %v, want %v", got, maxRetryAfter)
	}
}

// An error names the request and the server's message, and wraps what callers branch on.
func TestErrorsSayWhatHappened(t *testing.T) {
	t.Parallel()
	f := newFaulty(t, status(403))
	err := get(t.Context(), open(t, f.config()))
	if !errors.Is(err, datastore.ErrUnauthorized) || !errtest.Names(err, "GET /apis/crd.projectcalico.org/v1/ipamhandles/h 403") {
		t.Errorf("error %v", err)
	}
	f = newFaulty(t, func(w http.ResponseWriter, _ *http.Request) {
		http.Error(w, "<html>proxy "+strings.Repeat("x", 1<<16), http.StatusTeapot)
	})
	err = get(t.Context(), open(t, f.config()))
	if !errtest.Names(err, "GET /apis/crd.projectcalico.org/v1/ipamhandles/h 418") || strings.Contains(err.Error(), "xx") {
		t.Errorf("error %.200v", err)
	}
	f = newFaulty(t, func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, "<html>") })
	err = get(t.Context(), open(t, f.config()))
	if !errtest.Names(err, "GET answer") {
		t.Errorf("error %v", err)
	}
}

// A deadline of the caller ends the tries; so does the client's own when the server accepts connections and sends
// nothing.
func TestSilentServerIsUnavailableInBoundedTime(t *testing.T) {
	silent := func(r *http.Request) (*http.Response, error) { <-r.Context().Done(); return nil, r.Context().Err() }
	for name, do := range map[string]func(context.Context, *Store) error{"get": get, "update": update} {
		inBubble(t, silent, func(t *testing.T, s *Store) {
			ctx, cancel := context.WithTimeout(t.Context(), time.Second)
			defer cancel()
			began := time.Now()
			err, took := do(ctx, s), time.Since(began)
			if !errors.Is(err, datastore.ErrUnavailable) || !errors.Is(err, context.DeadlineExceeded) || took != time.Second {
				t.Errorf("%s with a deadline: error %v after %v", name, err, took)
			}
			began = time.Now()
			err, took = do(t.Context(), s), time.Since(began)
			if !errors.Is(err, datastore.ErrUnavailable) || took != requestTimeout {
				t.Errorf("%s without one: error %v after %v", name, err, took)
			}
		})
	}
}

func TestUnreachableServer(t *testing.T) {
	t.Parallel()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	errtest.Must(t, err)
	url := "https://" + l.Addr().String()
	l.Close()
	err = get(t.Context(), open(t, Config{Server: url, Token: secret}))
	if !errors.Is(err, datastore.ErrUnavailable) || !strings.Contains(err.Error(), url) || strings.Contains(err.Error(), secret) {
		t.Errorf("error %v, want %v that names %s", err, datastore.ErrUnavailable, url)
	}
	refused := func(*http.Request) (*http.Response, error) { return nil, &dialer.Error{Err: syscall.ECONNREFUSED} }
	inBubble(t, refused, func(t *testing.T, s *Store) {
		began := time.Now()
		if err := get(t.Context(), s); !errors.Is(err, datastore.ErrUnavailable) || time.Since(began) > 5*time.Second {
			t.Errorf("error %v after %v", err, time.Since(began))
		}
	})
}

// A write that could not be sent is tried again: an API server that restarts is back in a moment.
func TestWriteIsSentOnceTheServerIsBack(t *testing.T) {
	t.Parallel()
	f := newFaulty(t, ok)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	errtest.Must(t, err)
	addr := l.Addr().String()
	l.Close()
	cfg := f.config()
	cfg.Server, cfg.ServerName = "https://"+addr, "example.com"
	s := open(t, cfg)
	var back sync.Once
	dial := s.client.transport.DialTLSContext
	s.client.transport.DialTLSContext = func(ctx context.Context, network, addr string) (net.Conn, error) {
		conn, err := dial(ctx, network, addr)
		back.Do(func() {
			l, err := net.Listen("tcp", addr)
			if err != nil {
				t.Error(err)
				return
			}
			t.Cleanup(func() { l.Close() })
			go forward(l, f.Listener.Addr().String(), func(c net.Conn) net.Conn { return c })
		})
		return conn, err
	}
	if err := update(t.Context(), s); err != nil || len(f.Requests()) != 1 {
		t.Errorf("error %v, %d requests, want one", err, len(f.Requests()))
	}
}

// A machine that is switched off costs one time-out, however many requests wait for it and however often they are
// tried.
func TestDeadServerIsNoticedOnce(t *testing.T) {
	t.Parallel()
	l, err := net.Listen("tcp", "127.0.0.1:0") // accepts and sends nothing
	errtest.Must(t, err)
	defer l.Close()
	var accepted atomic.Int32
	go func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			defer conn.Close()
			accepted.Add(1)
		}
	}()
	s := open(t, Config{Server: "https://" + l.Addr().String(), Token: secret})
	var wg sync.WaitGroup
	for _, do := range []func(context.Context, *Store) error{get, get, get, update, get, get, get} {
		wg.Go(func() {
			if err := do(t.Context(), s); !errors.Is(err, datastore.ErrUnavailable) {
				t.Errorf("error %v, want %v", err, datastore.ErrUnavailable)
			}
		})
	}
	wg.Wait()
	if n := accepted.Load(); n != 1 {
		t.Errorf("seven requests opened %d connections, want one", n)
	}
}

// The server must be the kubeconfig's, or nothing is sent to it.
func TestWrongServer(t *testing.T) {
	t.Parallel()
	f := newFaulty(t, ok)
	unknown := f.config()
	unknown.CAData = otherCA(t)
	name := f.config()
	name.ServerName = "kubernetes.somewhere-else"
	plain := f.config()
	plain.CAData = nil // the system's authorities have not signed it either
	for what, cfg := range map[string]Config{"unknown authority": unknown, "other name": name, "system's authorities": plain} {
		err := get(t.Context(), open(t, cfg))
		if !errors.Is(err, datastore.ErrUnavailable) || !strings.Contains(err.Error(), "certificate") {
			t.Errorf("%s: error %v, want one about the certificate", what, err)
		}
	}
	if got := f.Requests(); len(got) > 0 {
		t.Errorf("the server was asked %v", got)
	}
	insecure := plain
	insecure.Insecure = true
	if err := get(t.Context(), open(t, insecure)); err != nil {
		t.Errorf("insecure-skip-tls-verify: %v", err)
	}
}

// otherCA returns a certificate that has signed nothing here.
func otherCA(t *testing.T) []byte {
	t.Helper()
	public, private, err := ed25519.GenerateKey(nil)
	errtest.Must(t, err)
	template := &x509.Certificate{SerialNumber: big.NewInt(1), IsCA: true, BasicConstraintsValid: true, NotAfter: time.Now().Add(time.Hour)}
	der, err := x509.CreateCertificate(nil, template, template, public, private)
	errtest.Must(t, err)
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
}

// A redirect is an error: the token goes only to the kubeconfig's server.
func TestRedirectsAreNotFollowed(t *testing.T) {
	t.Parallel()
	thief := newFaulty(t, ok)
	f := newFaulty(t, func(w http.ResponseWriter, r *http.Request) {
		http.Redirect(w, r, thief.URL+r.URL.Path, http.StatusTemporaryRedirect)
	})
	if err := get(t.Context(), open(t, f.config())); !errtest.Names(err, "307") {
		t.Errorf("error %v, want one that tells the redirect", err)
	}
	if got := thief.Requests(); len(got) > 0 {
		t.Errorf("the other server was asked %v", got)
	}
}

// Requests carry token and user agent, and a token file is read again for each: kubelet rotates it.
func TestRequestHeaders(t *testing.T) {
	t.Parallel()
	var got []string
	f := newFaulty(t, func(w http.ResponseWriter, r *http.Request) {
		got = append(got,
			strings.Join([]string{r.Header.Get("Authorization"), r.UserAgent(), r.Header.Get("Content-Type"), r.Header.Get("Accept")}, "|"))
		ok(w, r)
	})
	token := filepath.Join(t.TempDir(), "token")
	cfg := f.config()
	cfg.TokenFile, cfg.UserAgent = token, "tortie-cni/v0"
	s := open(t, cfg)
	if err := get(t.Context(), s); !errtest.Names(err, "open "+token) {
		t.Errorf("without the file: error %v", err)
	}
	for _, text := range []string{"one\n", "two"} {
		errtest.Must(t, os.WriteFile(token, []byte(text), 0o600))
		errtest.Must(t, update(t.Context(), s))
	}
	want := []string{
		"Bearer one|tortie-cni/v0|application/json|" + acceptMeta,
		"Bearer two|tortie-cni/v0|application/json|" + acceptMeta,
	}
	difftest.Want(t, "headers", want, got)
	cfg = f.config()
	cfg.Token = secret + "\nX-Injected: yes"
	if err := get(t.Context(), open(t, cfg)); err == nil || strings.Contains(err.Error(), secret) {
		t.Errorf("a token with a line break: error %v", err)
	}
}

// Requests that run at once share one connection, from the first on.
func TestOneConnection(t *testing.T) {
	t.Parallel()
	var connections atomic.Int32
	const requests = 100 // as many as an API server takes at once
	var came atomic.Int32
	all := make(chan struct{}) // are there at once
	wait := func(w http.ResponseWriter, r *http.Request) {
		if came.Add(1) == requests {
			close(all)
		}
		<-all
		ok(w, r)
	}
	f := &faulty{Server: httptest.NewUnstartedServer(http.HandlerFunc(wait))}
	f.EnableHTTP2 = true
	f.Config.ConnState = func(_ net.Conn, s http.ConnState) {
		if s == http.StateNew {
			connections.Add(1)
		}
	}
	f.StartTLS()
	defer f.Close()
	s := open(t, f.config())
	together(t, requests, func() error { return get(t.Context(), s) })
	if got := connections.Load(); got != 1 {
		t.Errorf("%d connections, want 1", got)
	}
	f.CloseClientConnections() // as when the API server restarts
	together(t, 20, func() error { return get(t.Context(), s) })
}

func together(t *testing.T, n int, do func() error) {
	t.Helper()
	var wg sync.WaitGroup
	for range n {
		wg.Go(func() {
			if err := do(); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
}

// A connection that was cut off silently is found dead and replaced; reads that wait on it go on over a new one.
func TestDeadConnectionIsReplaced(t *testing.T) {
	t.Parallel()
	f := newFaulty(t, ok)
	link := newLink(t, f.Listener.Addr().String())
	cfg := f.config()
	cfg.Server, cfg.ServerName = "https://"+link.Addr().String(), "example.com"
	s := open(t, cfg)
	tr := s.client.http.Transport.(*http.Transport)
	if c := tr.HTTP2; c.SendPingTimeout+c.PingTimeout != dialer.DeadAfter || dialer.DeadAfter >= requestTimeout {
		t.Errorf("a dead connection is found after %v + %v, a request waits %v", c.SendPingTimeout, c.PingTimeout, requestTimeout)
	}
	tr.HTTP2 = &http.HTTP2Config{SendPingTimeout: 200 * time.Millisecond, PingTimeout: 200 * time.Millisecond}
	errtest.Must(t, get(t.Context(), s))
	link.cut()
	errtest.Must(t, get(t.Context(), s))
}

// link forwards connections to a server until they are cut: then they stay open and nothing passes.
type link struct {
	net.Listener
	mu  sync.Mutex // guards all
	all []*gate
}

type gate struct {
	net.Conn
	closed atomic.Bool
}

// Read drops data once the gate is closed.
func (g *gate) Read(p []byte) (int, error) {
	for {
		n, err := g.Conn.Read(p)
		if err != nil || !g.closed.Load() {
			return n, err
		}
	}
}

func newLink(t *testing.T, to string) *link {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	errtest.Must(t, err)
	k := &link{Listener: l}
	t.Cleanup(func() { l.Close() })
	go forward(l, to, func(in net.Conn) net.Conn {
		g := &gate{Conn: in}
		k.mu.Lock()
		defer k.mu.Unlock()
		k.all = append(k.all, g)
		return g
	})
	return k
}

// forward copies data from the connections of l to a server, through wrap.
func forward(l net.Listener, to string, wrap func(net.Conn) net.Conn) {
	for {
		in, err := l.Accept()
		if err != nil {
			return
		}
		out, err := net.Dial("tcp", to)
		if err != nil {
			in.Close()
			continue
		}
		from := wrap(in)
		go func() { io.Copy(out, from); out.Close() }()
		go func() { io.Copy(in, out); in.Close() }()
	}
}

func (k *link) cut() {
	k.mu.Lock()
	defer k.mu.Unlock()
	for _, g := range k.all {
		g.closed.Store(true)
	}
}
