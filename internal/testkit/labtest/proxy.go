package labtest

import (
	"bytes"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"io"
	"net"
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
)

// Proxy stands in front of the API server and counts what passes: requests by verb and resource, and connections.
type Proxy struct {
	kubeconfig string

	mu          sync.Mutex // guards all below
	requests    map[string]int
	connections int
	fault       func(request string) (status int, delay time.Duration)
}

// NewProxy starts a proxy before the server of API. It ends with the test.
func NewProxy(t testing.TB) *Proxy {
	t.Helper()
	return NewProxyTo(t, API(t))
}

// NewProxyTo starts a proxy before the server of an administrator's kubeconfig. It ends with the test.
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
	p := &Proxy{requests: map[string]int{}}
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
		p.count(r)
		if p.refuse(w, r) {
			return
		}
		forward.ServeHTTP(w, r)
	}))
	server.EnableHTTP2 = true
	server.Config.ConnState = p.connState
	server.StartTLS()
	t.Cleanup(server.Close)
	p.kubeconfig = p.write(t, server, kubeconfig, upstream)
	return p
}

// Repeatable lets a proxy's transport send a request again over a new connection, as a client's own would be let: now and then
// the API server ends one (GOAWAY) before it has taken the request. A body whose sender was killed stays as short as it is.
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

// write writes the kubeconfig of a client that comes through the proxy as the administrator.
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
	if err := os.Chmod(path, 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

func (p *Proxy) connState(_ net.Conn, s http.ConnState) {
	if s == http.StateNew {
		p.mu.Lock()
		defer p.mu.Unlock()
		p.connections++
	}
}

func (p *Proxy) count(r *http.Request) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.requests[requestKey(r)]++
}

// Fault has the proxy ask, for each request that is named as in Requests, how it is answered: late, or if status is not 0 with that and
// not by the API server. Watches are left alone. Nil ends it.
func (p *Proxy) Fault(fault func(request string) (status int, delay time.Duration)) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.fault = fault
}

func (p *Proxy) refuse(w http.ResponseWriter, r *http.Request) bool {
	p.mu.Lock()
	fault := p.fault
	p.mu.Unlock()
	if fault == nil || r.URL.Query().Get("watch") != "" {
		return false
	}
	status, delay := fault(requestKey(r))
	time.Sleep(delay)
	if status != 0 {
		w.Header().Set("Retry-After", "1")
		w.WriteHeader(status)
	}
	return status != 0
}

// Resource returns what a request is for, with its subresource if it has one, such as "pods/status", and whether it is for all of
// them. What is not for a resource is returned as its path.
func Resource(r *http.Request) (name string, all bool) {
	// /api/v1/RESOURCE… or /apis/GROUP/VERSION/RESOURCE…, the resource perhaps behind namespaces/NAME.
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

// requestKey names a request as RBAC does, such as "list ippools" or "patch pods/status".
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
	return verb + " " + resource
}

// Kubeconfig returns the path of an administrator's kubeconfig that leads through the proxy.
func (p *Proxy) Kubeconfig() string { return p.kubeconfig }

// Reset forgets what was counted.
func (p *Proxy) Reset() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.requests, p.connections = map[string]int{}, 0
}

// Requests returns how many requests passed since the last Reset, by verb and resource, such as "get ipamblocks".
func (p *Proxy) Requests() map[string]int {
	p.mu.Lock()
	defer p.mu.Unlock()
	out := map[string]int{}
	for k, n := range p.requests {
		out[k] = n
	}
	return out
}

// Connections returns how many connections were opened to the proxy since the last Reset.
func (p *Proxy) Connections() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.connections
}
