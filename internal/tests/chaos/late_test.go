package chaos

import (
	"bytes"
	"context"
	"encoding/pem"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"sync"
	"testing"
	"time"

	"k8s.io/client-go/rest"

	"github.com/tortie-net/tortie/internal/api"
	"github.com/tortie-net/tortie/internal/testkit/errtest"
	"github.com/tortie-net/tortie/internal/testkit/tier"
)

// lateWrite is a write that is in flight when its process is killed, and is applied after the runtime has handled the
// failure. Random kills hit that moment too rarely.
type lateWrite struct {
	verb  string // of the killed process
	write string
	first bool // the node has no block yet
	// orphan is set if the write creates an object that no write of a DEL can conflict with: GC releases it.
	orphan bool
	// idle is set if the write creates an empty handle, or is sent together with the one that does, which may be late,
	// too. Such a handle is harmless, and GC removes it after the grace period.
	idle bool
}

func TestLateWrites(t *testing.T) {
	tier.All(t)
	n := 0
	for _, l := range []lateWrite{
		{verb: "ADD", first: true, write: "POST blockaffinities", idle: true},
		{verb: "ADD", first: true, write: "POST ipamhandles", idle: true},
		{verb: "ADD", first: true, write: "POST ipamblocks", orphan: true},
		{verb: "ADD", first: true, write: "PUT blockaffinities"},
		{verb: "ADD", write: "POST ipamhandles", idle: true},
		{verb: "ADD", write: "PUT ipamblocks"},
		{verb: "ADD", write: "PATCH pods"},
		{verb: "DEL", write: "PATCH pods"},
		{verb: "DEL", write: "PUT ipamblocks"},
		{verb: "DEL", write: "DELETE ipamhandles"},
	} {
		for _, then := range []string{"DEL", "DEL and other pods", "ADD"} {
			if then == "ADD" && l.verb == "DEL" {
				continue // no runtime does this
			}
			name := fmt.Sprintf("%s of %s, after a %s", l.write, l.verb, then)
			if l.first {
				name = "first " + name
			}
			n++
			t.Run(name, func(t *testing.T) { l.test(t, n, then) })
		}
	}
}

// test handles a pod as a runtime does after its process was killed, and then delivers the write.
func (l lateWrite) test(t *testing.T, number int, then string) {
	c := shared(t)
	p := &api.IPPool{Meta: api.Meta{Name: fmt.Sprintf("late-%d", number)}}
	p.Spec.CIDR, p.Spec.BlockSize = fmt.Sprintf("10.67.%d.0/28", number), 30
	c.create(t, p)
	n := c.newNode(t, fmt.Sprintf("late-%d", number), shape{pods: 6, ipam: "calico-ipam"})
	m := newInterceptor(t, n)
	st := newChurn(c, []*node{n}, 0)
	defer st.report(t)
	if !l.first {
		st.start(t, n.pods[1])
	}
	victim := st.killAt(t, n.pods[0], l, m)
	switch then {
	case "ADD":
		st.startIn(t, victim)
	case "DEL":
		st.stop(t, victim)
	default:
		st.stop(t, victim)
		for _, p := range n.pods[2:] { // they fill a block: one of them gets the victim's address
			st.start(t, p)
		}
	}
	t.Logf("response to the late %s: %s", l.write, m.deliver(t))
	for _, wrong := range st.faults(t) {
		if !l.expected(wrong, victim) {
			t.Errorf("after the late write: %s", wrong)
		}
	}
	errtest.Must(t, st.drain(t.Context()))
	collected := operation{kind: release, handle: victim.handle(), called: st.now()}
	errtest.Must(t, n.collect())
	collected.completed = st.now()
	st.history.add(collected)
	l.orphan = false
	for _, wrong := range st.faults(t) {
		if !l.expected(wrong, victim) {
			t.Errorf("after GC: %s", wrong)
		}
	}
	for _, w := range st.check() {
		t.Errorf("these operations are not linearizable:\n%s", w)
	}
}

// expected reports whether a violation is a known result of the late write.
func (l lateWrite) expected(fault string, victim *sandbox) bool {
	idle := strings.HasPrefix(fault, "handle "+victim.handle()+" counts ") && strings.HasSuffix(fault, "the blocks count map[]")
	return l.idle && idle || l.orphan && strings.Contains(fault, victim.handle())
}

// start starts a sandbox for a pod.
func (st *churn) start(t *testing.T, p *pod) {
	t.Helper()
	s, err := p.newSandbox()
	errtest.Must(t, err)
	st.startIn(t, s)
}

func (st *churn) startIn(t *testing.T, s *sandbox) {
	t.Helper()
	if ok, err := st.gentle().add(s); err != nil || !ok {
		t.Fatalf("ADD: %v, %v", ok, err)
	}
	s.pod.sandbox = s
}

func (st *churn) stop(t *testing.T, s *sandbox) {
	t.Helper()
	errtest.Must(t, st.gentle().finish(t.Context(), s))
}

// faults returns the violations in the datastore.
func (st *churn) faults(t *testing.T) []string {
	t.Helper()
	errtest.Must(t, st.look(t.Context()))
	all, err := st.contents(t.Context())
	errtest.Must(t, err)
	return all.audit(st.live())
}

// killAt kills a process of the pod while the write is in flight.
func (st *churn) killAt(t *testing.T, p *pod, l lateWrite, m *interceptor) *sandbox {
	t.Helper()
	s, err := p.newSandbox()
	errtest.Must(t, err)
	op := operation{kind: assign, handle: s.handle(), unknown: true}
	if l.verb == "DEL" {
		st.startIn(t, s)
		op.kind = release
	}
	a, err := s.call(l.verb, st.history, m.hold(l.write))
	errtest.Must(t, err)
	if !a.killed {
		t.Fatalf("%s did not send %s: %v", l.verb, l.write, a)
	}
	op.called, op.completed = a.called, a.completed
	st.history.add(op)
	return s
}

// interceptor is a proxy between a node's plugins and the API server that holds back one write.
type interceptor struct {
	upstream  http.RoundTripper
	target    *url.URL
	mu        sync.Mutex // guards wanted
	wanted    string     // "VERB resource"; empty: nothing is held back
	held      chan time.Time
	letGo     chan struct{}
	delivered chan string
}

// newInterceptor routes the node's plugins through an interceptor.
func newInterceptor(t *testing.T, n *node) *interceptor {
	t.Helper()
	k := n.datastore.(*kube)
	cfg := rest.AnonymousClientConfig(k.admin)
	target, err := url.Parse(cfg.Host)
	errtest.Must(t, err)
	m := &interceptor{target: target, held: make(chan time.Time, 1), letGo: make(chan struct{}), delivered: make(chan string, 1)}
	if m.upstream, err = rest.TransportFor(cfg); err != nil {
		t.Fatal(err)
	}
	server := httptest.NewUnstartedServer(m)
	server.Listener.Close()
	server.Listener = n.Listen(t)
	server.EnableHTTP2 = true
	server.StartTLS()
	t.Cleanup(server.Close)
	ca := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: server.Certificate().Raw})
	n.Write(t, kubeconfigPath, k.kubeconfig(server.Listener.Addr().String(), ca, k.token(t, n)))
	return m
}

// hold holds back the next write of this name; the channel receives when it has arrived.
func (m *interceptor) hold(write string) <-chan time.Time {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.wanted = write
	return m.held
}

// deliver forwards the write that is held back, and returns the API server's response.
func (m *interceptor) deliver(t *testing.T) string {
	t.Helper()
	close(m.letGo)
	select {
	case answer := <-m.delivered:
		return answer
	case <-time.After(30 * time.Second):
		t.Fatal("no response from the API server")
		return ""
	}
}

// take reports whether to hold back a request; it does so once.
func (m *interceptor) take(r *http.Request) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	verb, resource, _ := strings.Cut(m.wanted, " ")
	if verb != r.Method || !strings.Contains(r.URL.Path, "/"+resource) {
		return false
	}
	m.wanted = ""
	return true
}

func (m *interceptor) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(r.Body)
	if err != nil {
		return
	}
	out := r.Clone(context.WithoutCancel(r.Context())) // it outlives its client
	out.URL.Scheme, out.URL.Host, out.Host, out.RequestURI = m.target.Scheme, m.target.Host, "", ""
	out.Body = io.NopCloser(bytes.NewReader(body))
	late := m.take(r)
	if late {
		m.held <- time.Now()
		<-m.letGo
	}
	resp, err := m.upstream.RoundTrip(out)
	if err != nil {
		panic(http.ErrAbortHandler)
	}
	defer resp.Body.Close()
	if late {
		m.delivered <- resp.Status
	}
	for key, values := range resp.Header {
		w.Header()[key] = values
	}
	w.WriteHeader(resp.StatusCode)
	_, _ = io.Copy(w, resp.Body)
}
