package main

import (
	"encoding/pem"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"strings"
	"sync"
	"time"

	"github.com/tortie-net/tortie/internal/testkit/labtest"
)

// proxyDelay is the delay of every request, by which sequential and concurrent requests are distinguished.
const proxyDelay = 40 * time.Millisecond

// proxy is a proxy between a node's plugins and the API server that records requests.
type proxy struct {
	*httptest.Server
	mu          sync.Mutex // guards the rest
	start       time.Time
	requests    []string
	times       []interval
	connections int
}

func newProxy(c *cluster) (*proxy, error) {
	upstream, err := url.Parse(c.client.server)
	if err != nil {
		return nil, err
	}
	var listener net.Listener
	err = c.underlay.Do(func() (err error) {
		listener, err = net.Listen("tcp", apiAddress+":0")
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("listen for a proxy: %w", err)
	}
	p := &proxy{start: time.Now()}
	pass := &httputil.ReverseProxy{
		Transport: c.http.Transport,
		Rewrite:   func(r *httputil.ProxyRequest) { r.SetURL(upstream) },
		ErrorLog:  log.New(io.Discard, "", 0), // a failed request is the plugin's error
	}
	p.Server = httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		began := time.Since(p.start)
		time.Sleep(proxyDelay)
		pass.ServeHTTP(w, r)
		p.mu.Lock()
		defer p.mu.Unlock()
		p.requests = append(p.requests, requestName(r))
		p.times = append(p.times, interval{began, time.Since(p.start)})
	}))
	p.Listener.Close()
	p.Listener = listener
	p.EnableHTTP2 = true
	p.Config.ConnState = func(_ net.Conn, state http.ConnState) {
		if state == http.StateNew {
			p.mu.Lock()
			defer p.mu.Unlock()
			p.connections++
		}
	}
	p.StartTLS()
	return p, nil
}

// kubeconfig returns the kubeconfig for access through the proxy. Its certificate is httptest's, for example.com.
func (p *proxy) kubeconfig(token string) string {
	ca := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: p.Certificate().Raw})
	text := labtest.PluginKubeconfig("https://"+p.Listener.Addr().String(), ca, token)
	return strings.Replace(text, "cluster: {server", "cluster: {tls-server-name: example.com, server", 1)
}

// take returns the requests since the last take, by round, and the number of connections.
func (p *proxy) take() (requests [][]string, connections int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for i, round := range rounds(p.times) {
		for len(requests) < round {
			requests = append(requests, nil)
		}
		requests[round-1] = append(requests[round-1], p.requests[i])
	}
	connections = p.connections
	p.requests, p.times, p.connections = nil, nil, 0
	return requests, connections
}

// requestName names a request by verb and resource, such as "PATCH pods/status".
func requestName(r *http.Request) string {
	parts := strings.Split(strings.Trim(r.URL.Path, "/"), "/")
	skip := 3 // apis, group, version
	if parts[0] == "api" {
		skip = 2
	}
	if len(parts) <= skip {
		return r.Method + " " + r.URL.Path
	}
	parts = parts[skip:]
	if parts[0] == "namespaces" && len(parts) > 2 {
		parts = parts[2:]
	}
	verb, resource := r.Method, parts[0]
	if verb == http.MethodGet && len(parts) == 1 {
		verb = "LIST"
	}
	if len(parts) > 2 {
		resource += "/" + parts[2]
	}
	return verb + " " + resource
}
