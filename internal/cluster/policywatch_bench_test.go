package cluster

import (
	"bufio"
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"k8s.io/client-go/rest"

	"github.com/tortie-net/tortie/internal/testkit/errtest"
	"github.com/tortie-net/tortie/internal/testkit/labtest"
)

// What an event of a pod costs an API server that so many agents watch pods at, beyond the write itself:
// docs/design/policy.md.
//
//	go test -run xxx -bench PodEvents -benchtime 1x ./internal/cluster
func BenchmarkPodEvents(b *testing.B) {
	for _, agents := range []int{100, 1000} {
		for _, w := range podWatchers {
			b.Run(fmt.Sprintf("%s/%d", w.name, agents), func(b *testing.B) { podEvents(b, agents, w) })
		}
	}
}

// podWatcher is an agent's watch, by the agent's number.
type podWatcher struct {
	name   string
	accept string
	paths  func(agent int) []string
}

const (
	benchNamespaces = 50
	wantedByOne     = 5 // so that a tenth of all agents see an event
)

var podWatchers = []podWatcher{
	{"own", "application/json", func(agent int) []string {
		return []string{watchOf("/api/v1/pods", fmt.Sprintf("spec.nodeName=node-%d", agent))}
	}},
	{"namespaces", asPartial, func(agent int) (paths []string) {
		for i := range wantedByOne {
			paths = append(paths, watchOf(fmt.Sprintf(podPath, fmt.Sprintf("bench-%d", (agent*wantedByOne+i)%benchNamespaces)), running))
		}
		return paths
	}},
	{"all", asPartial, func(int) []string { return []string{watchOf("/api/v1/pods", running)} }},
	{"all-full", "application/json", func(int) []string { return []string{watchOf("/api/v1/pods", running)} }},
	{"all-protobuf", "application/vnd.kubernetes.protobuf;as=PartialObjectMetadata;g=meta.k8s.io;v=v1",
		func(int) []string { return []string{watchOf("/api/v1/pods", running)} }},
}

func watchOf(path, fields string) string {
	return path + "?watch=1&allowWatchBookmarks=true&fieldSelector=" + url.QueryEscape(fields)
}

func podEvents(b *testing.B, agents int, w podWatcher) {
	server := labtest.NewServer(b)
	cfg, err := Connect(server.Kubeconfig(), "bench")
	errtest.Must(b, err)
	pid := serverProcess(b)
	bench := &podBench{cfg: cfg, writer: benchClient(b, cfg)}
	bench.prepare(b)
	alone := bench.cost(b, pid)
	for agent := range agents {
		bench.open(b, w, agent)
	}
	time.Sleep(3 * time.Second)
	bench.received.Store(0)
	watched := bench.cost(b, pid)
	b.ReportMetric(0, "ns/op")
	b.ReportMetric(float64(alone.Microseconds())/1000, "write-ms")
	b.ReportMetric(float64((watched-alone).Microseconds())/1000, "watchers-ms/event")
	b.ReportMetric(float64(bench.received.Load())/benchEvents/1000, "kB/event")
}

// benchEvents is how many events a measurement has.
const benchEvents = 100

type podBench struct {
	cfg      *rest.Config
	writer   *http.Client
	received atomic.Int64
	n        int
}

// benchClient is a client with a connection of its own, as each agent is.
func benchClient(b *testing.B, cfg *rest.Config) *http.Client {
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(cfg.CAData)
	t := &http.Transport{TLSClientConfig: &tls.Config{RootCAs: roots, MinVersion: tls.VersionTLS12}, ForceAttemptHTTP2: true}
	b.Cleanup(t.CloseIdleConnections)
	return &http.Client{Transport: t}
}

func (p *podBench) request(b *testing.B, ctx context.Context, method, path, accept, body string) *http.Request {
	r, err := http.NewRequestWithContext(ctx, method, p.cfg.Host+path, bytes.NewReader([]byte(body)))
	errtest.Must(b, err)
	r.Header.Set("Authorization", "Bearer "+p.cfg.BearerToken)
	r.Header.Set("Accept", accept)
	r.Header.Set("Content-Type", "application/json")
	if method == http.MethodPatch {
		r.Header.Set("Content-Type", "application/merge-patch+json")
	}
	return r
}

func (p *podBench) do(b *testing.B, method, path, body string) {
	answer, err := p.writer.Do(p.request(b, b.Context(), method, path, "application/json", body))
	errtest.Must(b, err)
	defer answer.Body.Close()
	text, _ := io.ReadAll(answer.Body)
	if answer.StatusCode >= 300 {
		b.Fatalf("%s %s: %s", method, path, text)
	}
}

// BenchmarkPodLists is what it costs an API server to send an agent all pods once, as it does when the agent opens a
// watch of them.
func BenchmarkPodLists(b *testing.B) {
	const pods, lists = 1000, 20
	cfg, err := Connect(labtest.NewServer(b).Kubeconfig(), "bench")
	errtest.Must(b, err)
	bench := &podBench{cfg: cfg, writer: benchClient(b, cfg)}
	bench.prepare(b)
	for i := range pods {
		bench.pod(b, fmt.Sprintf("web-%d", i))
	}
	pid := serverProcess(b)
	for name, r := range map[string]struct{ path, accept string }{
		"stream": {watchOf("/api/v1/pods", running) + "&sendInitialEvents=true&resourceVersionMatch=NotOlderThan", asPartial},
		"list":   {"/api/v1/pods?resourceVersion=0&fieldSelector=" + url.QueryEscape(running), asPartialList},
	} {
		b.Run(name, func(b *testing.B) {
			bench.received.Store(0)
			before := processorTime(b, pid)
			for range lists {
				bench.list(b, r.path, r.accept)
			}
			b.ReportMetric(0, "ns/op")
			b.ReportMetric(float64((processorTime(b, pid)-before).Microseconds())/lists/pods, "us/pod")
			b.ReportMetric(float64(bench.received.Load())/1000/lists/pods, "kB/pod")
		})
	}
}

// list reads a list, or a watch until the end of the list that it begins with.
func (p *podBench) list(b *testing.B, path, accept string) {
	answer, err := p.writer.Do(p.request(b, b.Context(), http.MethodGet, path, accept, ""))
	if err != nil || answer.StatusCode != http.StatusOK {
		b.Fatalf("%s: %v", path, err)
	}
	defer answer.Body.Close()
	lines := bufio.NewScanner(answer.Body)
	for lines.Buffer(nil, 64<<20); lines.Scan(); {
		p.received.Add(int64(len(lines.Bytes())))
		if bytes.Contains(lines.Bytes(), []byte("initial-events-end")) {
			return
		}
	}
}

// prepare makes the pod whose events are measured, of the size that pods of a Deployment have.
func (p *podBench) prepare(b *testing.B) {
	p.do(b, http.MethodPost, nsPath, `{"apiVersion":"v1","kind":"Namespace","metadata":{"name":"bench-0"}}`)
	p.pod(b, "web")
}

func (p *podBench) pod(b *testing.B, name string) {
	var env []string
	for i := range 20 {
		env = append(env, fmt.Sprintf(`{"name":"SETTING_%d","value":"a value of an ordinary length, number %d"}`, i, i))
	}
	probe := `{"httpGet":{"path":"/healthz","port":8080},"periodSeconds":10}`
	p.do(b, http.MethodPost, fmt.Sprintf(podPath, "bench-0"), fmt.Sprintf(`{"apiVersion":"v1","kind":"Pod","metadata":{"name":%q,
		"labels":{"app.kubernetes.io/name":"web","app.kubernetes.io/part-of":"shop","pod-template-hash":"6d4b75cb6d","tier":"backend"}},
		"spec":{"nodeName":"node-0","containers":[{"name":"web","image":"registry.example/shop/web:1.2.3",
			"ports":[{"name":"http","containerPort":8080}],
		"env":[%s],"livenessProbe":%s,"readinessProbe":%s,"resources":{"requests":{"cpu":"100m","memory":"128Mi"}}}]}}`, name,
		strings.Join(env, ","), probe, probe))
}

// open begins one agent's watches, and counts what they bring.
func (p *podBench) open(b *testing.B, w podWatcher, agent int) {
	client := benchClient(b, p.cfg)
	ctx, stop := context.WithCancel(b.Context())
	var open sync.WaitGroup
	b.Cleanup(func() { stop(); open.Wait() })
	for _, path := range w.paths(agent) {
		answer, err := client.Do(p.request(b, ctx, http.MethodGet, path, w.accept, ""))
		if err != nil || answer.StatusCode != http.StatusOK {
			b.Fatalf("%s: %v", path, err)
		}
		open.Go(func() {
			defer answer.Body.Close()
			buffer := make([]byte, 16<<10)
			for {
				n, err := answer.Body.Read(buffer)
				if p.received.Add(int64(n)); err != nil {
					return
				}
			}
		})
	}
}

// cost returns what an event takes of the server's processors, without what it does anyway.
func (p *podBench) cost(b *testing.B, pid int) time.Duration {
	const rest = 5 * time.Second
	for range 10 { // warm
		p.write(b)
	}
	time.Sleep(time.Second)
	before := processorTime(b, pid)
	time.Sleep(rest)
	idle := processorTime(b, pid) - before
	p.received.Store(0)
	start, before := time.Now(), processorTime(b, pid)
	for range benchEvents {
		p.write(b)
		time.Sleep(20 * time.Millisecond)
	}
	for last := int64(-1); last != p.received.Load(); time.Sleep(time.Second) { // until all have it
		last = p.received.Load()
	}
	took := processorTime(b, pid) - before
	return (took - time.Duration(float64(idle)*float64(time.Since(start))/float64(rest))) / benchEvents
}

func (p *podBench) write(b *testing.B) {
	p.n++
	p.do(b, http.MethodPatch, fmt.Sprintf(podPath, "bench-0")+"/web/status", fmt.Sprintf(
		`{"metadata":{"annotations":{"cni.projectcalico.org/podIP":"10.0.%d.%d/32"}}}`, p.n>>8, p.n&255))
}

// serverProcess finds the kube-apiserver that this test has started last.
func serverProcess(b *testing.B) (found int) {
	names, err := filepath.Glob("/proc/[0-9]*/cmdline")
	errtest.Must(b, err)
	for _, name := range names {
		text, _ := os.ReadFile(name)
		pid, err := strconv.Atoi(filepath.Base(filepath.Dir(name)))
		if err == nil && pid > found && bytes.Contains(text, []byte("kube-apiserver\x00")) && descends(pid, os.Getpid()) {
			found = pid
		}
	}
	if found == 0 {
		b.Fatal("no kube-apiserver is found")
	}
	return found
}

func descends(pid, from int) bool {
	for pid > 1 && pid != from {
		fields := processFields(pid)
		if len(fields) < 2 {
			return false
		}
		pid, _ = strconv.Atoi(fields[1])
	}
	return pid == from
}

// processFields returns the fields of /proc/PID/stat that follow the name: state, parent and so on.
func processFields(pid int) []string {
	text, _ := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	return strings.Fields(string(text[bytes.LastIndexByte(text, ')')+1:]))
}

func processorTime(b *testing.B, pid int) time.Duration {
	fields := processFields(pid)
	if len(fields) < 13 {
		b.Fatalf("process %d has ended", pid)
	}
	user, _ := strconv.Atoi(fields[11])
	system, _ := strconv.Atoi(fields[12])
	return time.Duration(user+system) * 10 * time.Millisecond
}
