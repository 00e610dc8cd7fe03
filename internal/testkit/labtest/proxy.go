package labtest

import (
	"bytes"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"io"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/tortie-net/tortie/internal/api/groups"
	"github.com/tortie-net/tortie/internal/testkit/errtest"
)

// Proxy is a reverse proxy in front of the API server that counts requests by verb and resource.
type Proxy struct {
	kubeconfig string

	mu       sync.Mutex // guards all below
	requests map[string]int
	open     map[string]int
	fault    func(request string) (status int, delay time.Duration)
}

// NewProxy starts a proxy to the server of API. It ends with the test.
func NewProxy(t testing.TB) *Proxy {
	t.Helper()
	return NewProxyTo(t, API(t))
}

// NewProxyTo starts a proxy to the server of an administrator's kubeconfig. It ends with the test.
func NewProxyTo(t testing.TB, kubeconfig string) *Proxy {
	t.Helper()
	upstream, err := clientcmd.BuildConfigFromFlags("", kubeconfig)
	if err != nil {
		t.Fatalf("read the lab's kubeconfig: %v", err)
	}
	target, err := url.Parse(upstream.Host)
	if err != nil {
		t.Fatalf("the lab's API server: %v", err)
	}
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(upstream.CAData)
	p := &Proxy{requests: map[string]int{}, open: map[string]int{}}
	forward := &httputil.ReverseProxy{
		Rewrite: func(r *httputil.ProxyRequest) {
			r.SetURL(target)
			Repeatable(r.Out)
		},
		Transport: &http.Transport{
			TLSClientConfig: &tls.Config{RootCAs: roots, MinVersion: tls.VersionTLS12}, ForceAttemptHTTP2: true,
		},
	}
	server := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		defer p.count(r)()
		switch p.decide(w, r) {
		case 0:
			forward.ServeHTTP(w, r)
		case Lost:
			forward.ServeHTTP(httptest.NewRecorder(), r)
			panic(http.ErrAbortHandler)
		}
	}))
	server.EnableHTTP2 = true
	server.StartTLS()
	t.Cleanup(server.Close)
	p.kubeconfig = p.write(t, server, kubeconfig, upstream)
	return p
}

// Repeatable lets a proxy's transport retry a request on a new connection, as a client's transport may: the API server
// sometimes closes a connection (GOAWAY) before it has processed a request. A body from a killed sender stays
// truncated.
func Repeatable(r *http.Request) {
	if r.Body == nil {
		return
	}
	body, err := io.ReadAll(r.Body)
	r.Body = io.NopCloser(bytes.NewReader(body))
	if err == nil {
		r.GetBody = func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(body)), nil }
	}
}

// write writes the administrator's kubeconfig for access through the proxy.
func (p *Proxy) write(t testing.TB, server *httptest.Server, kubeconfig string, upstream *rest.Config) string {
	t.Helper()
	cfg, err := clientcmd.LoadFromFile(kubeconfig)
	if err != nil {
		t.Fatalf("read the lab's kubeconfig: %v", err)
	}
	for _, cluster := range cfg.Clusters {
		cluster.Server = server.URL
		cluster.CertificateAuthorityData = pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: server.Certificate().Raw})
		cluster.TLSServerName = ""
	}
	for _, user := range cfg.AuthInfos {
		user.Token, user.TokenFile = upstream.BearerToken, ""
	}
	path := filepath.Join(t.TempDir(), "kubeconfig")
	if err := clientcmd.WriteToFile(*cfg, path); err != nil {
		t.Fatalf("write the proxy's kubeconfig: %v", err)
	}
	errtest.Must(t, os.Chmod(path, 0o600))
	return path
}

// count counts a request, which is open until the returned function is called.
func (p *Proxy) count(r *http.Request) (end func()) {
	key := requestKey(r)
	p.mu.Lock()
	defer p.mu.Unlock()
	p.requests[key]++
	p.open[key]++
	return func() {
		p.mu.Lock()
		defer p.mu.Unlock()
		p.open[key]--
	}
}

// Open returns how many requests of a name, as in Requests, have not ended: watches, for the most part.
func (p *Proxy) Open(request string) int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.open[request]
}

// Lost is a status of Fault: the API server carries out the request, and its answer does not arrive.
const Lost = -1

// Fault sets a function that decides, for each request as named by Requests, about a delay, and a status other than 0
// that the proxy returns instead of forwarding the request, or Lost. Watches are not affected. Nil removes it.
func (p *Proxy) Fault(fault func(request string) (status int, delay time.Duration)) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.fault = fault
}

// decide returns the status of Fault, which it has answered if it is above 0.
func (p *Proxy) decide(w http.ResponseWriter, r *http.Request) int {
	p.mu.Lock()
	fault := p.fault
	p.mu.Unlock()
	if fault == nil || r.URL.Query().Get("watch") != "" {
		return 0
	}
	status, delay := fault(requestKey(r))
	select {
	case <-time.After(delay):
	case <-r.Context().Done():
	}
	if status > 0 {
		w.Header().Set("Retry-After", "1")
		w.WriteHeader(status)
	}
	return status
}

// Resource returns the resource of a request, with its subresource such as "pods/status", and whether the request is
// for the collection. For a request without a resource it returns the path.
func Resource(r *http.Request) (name string, all bool) {
	// /api/v1/RESOURCE… or /apis/GROUP/VERSION/RESOURCE…, with an optional namespaces/NAME before the resource.
	parts := strings.Split(strings.Trim(r.URL.Path, "/"), "/")
	skip := 3
	if parts[0] == "api" {
		skip = 2
	}
	if len(parts) <= skip {
		return r.URL.Path, false
	}
	parts = parts[skip:]
	if parts[0] == "namespaces" && len(parts) > 2 {
		parts = parts[2:]
	}
	name = parts[0]
	if len(parts) > 2 {
		name += "/" + parts[2]
	}
	return name, len(parts) == 1
}

// requestKey returns verb and resource as in RBAC, such as "list ippools" or "patch pods/status". A kind of Calico's
// has its plural in crd.projectcalico.org/v1, in both groups. A dry run is such as "create ippools (dry run)".
func requestKey(r *http.Request) string {
	resource, all := Resource(r)
	verb := strings.ToLower(r.Method)
	switch {
	case r.Method == http.MethodPost:
		verb = "create"
	case r.Method == http.MethodPut:
		verb = "update"
	case r.Method == http.MethodGet && all:
		verb = "list"
	}
	if r.URL.Query().Has("dryRun") {
		return verb + " " + groups.V3.Plural(resource) + " (dry run)"
	}
	return verb + " " + groups.V3.Plural(resource)
}

// Kubeconfig returns the path of an administrator's kubeconfig for access through the proxy.
func (p *Proxy) Kubeconfig() string { return p.kubeconfig }

// Reset sets the counts to zero.
func (p *Proxy) Reset() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.requests = map[string]int{}
}

// Requests returns the number of requests since the last Reset, by verb and resource, such as "get ipamblocks".
func (p *Proxy) Requests() map[string]int {
	p.mu.Lock()
	defer p.mu.Unlock()
	out := map[string]int{}
	for k, n := range p.requests {
		out[k] = n
	}
	return out
}
