package main

import (
	"bytes"
	"encoding/binary"
	"encoding/csv"
	"errors"
	"fmt"
	"math"
	"net/http"
	"net/netip"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/tortie-net/tortie/internal/testkit/difftest"
	"github.com/tortie-net/tortie/internal/testkit/errtest"
	"github.com/tortie-net/tortie/internal/testkit/thread"
)

func TestQuantiles(t *testing.T) {
	var hundred durations
	for i := 100; i > 0; i-- {
		hundred = append(hundred, time.Duration(i))
	}
	for _, c := range []struct {
		of   durations
		q    float64
		want time.Duration
	}{
		{nil, 0.5, 0},
		{durations{7}, 0, 7},
		{durations{7}, 0.99, 7},
		{durations{3, 1, 2}, 0.5, 2},
		{durations{4, 1, 3, 2}, 0.5, 2}, // the lower of the two in the middle
		{hundred, 0, 1},
		{hundred, 0.5, 50},
		{hundred, 0.99, 99},
		{hundred, 1, 100},
	} {
		if got := c.of.quantile(c.q); got != c.want {
			t.Errorf("quantile %g of %d values: %d, want %d", c.q, len(c.of), got, c.want)
		}
	}
	if hundred[0] != 100 {
		t.Error("quantile has sorted what it was given")
	}
}

func TestMedianRange(t *testing.T) {
	var all durations
	for i := range 100 {
		all = append(all, time.Duration(i+1))
	}
	// Of 100 throws of a coin 40 to 60 are heads, at 95 %.
	if low, high := all.medianRange(); low != 40 || high != 61 {
		t.Errorf("%d to %d", low, high)
	}
	if v := judgeMore("time", all); len(v) != 1 || !v[0].met || v[0].measured != "0.05 µs (0 to 0)" {
		t.Errorf("%+v", v)
	}
	if v := judgeMore("time", durations{time.Second, time.Second}); len(v) != 1 || v[0].met {
		t.Errorf("%+v", v)
	}
	if v := judgeMore("time", durations{0, time.Second}); len(v) > 0 {
		t.Errorf("the bound lies within the range of the median, and is judged: %+v", v)
	}
}

func TestSpreadIsThatOfTheRounds(t *testing.T) {
	c := costs{{{wall: 1}, {wall: 100}, {wall: 2}}, {{wall: 5}, {wall: 4}, {wall: 6}}}
	if low, high := c.spread(); low != 2 || high != 5 {
		t.Errorf("medians of the rounds from %d to %d, want 2 to 5", low, high)
	}
	if got := c.all(wall).median(); got != 4 {
		t.Errorf("median of all is %d, want 4", got)
	}
}

func TestRounds(t *testing.T) {
	for _, c := range []struct {
		name string
		of   []interval
		want []int
	}{
		{"nothing", nil, []int{}},
		{"all at once", []interval{{0, 40}, {1, 41}, {2, 45}}, []int{1, 1, 1}},
		{"one after another", []interval{{0, 40}, {41, 80}, {80, 120}}, []int{1, 2, 3}},
		{"one that starts with the first and outlasts the second", []interval{{0, 40}, {1, 90}, {41, 80}}, []int{1, 1, 2}},
		{"in the order in which they ended", []interval{{41, 80}, {0, 40}, {42, 81}}, []int{2, 1, 2}},
		{"by the longest way", []interval{{0, 10}, {20, 30}, {0, 35}, {40, 50}}, []int{1, 2, 1, 3}},
	} {
		if got := rounds(c.of); !slices.Equal(got, c.want) {
			t.Errorf("%s: rounds %v, want %v", c.name, got, c.want)
		}
	}
}

func TestRequestNames(t *testing.T) {
	for path, want := range map[string]string{
		"GET /api/v1/namespaces/bench":                                "GET namespaces",
		"GET /api/v1/namespaces/bench/pods/web":                       "GET pods",
		"PATCH /api/v1/namespaces/bench/pods/web/status":              "PATCH pods/status",
		"GET /apis/crd.projectcalico.org/v1/ippools":                  "LIST ippools",
		"DELETE /apis/crd.projectcalico.org/v1/ipamhandles/k8s-pod.1": "DELETE ipamhandles",
		"GET /version": "GET /version",
	} {
		verb, path, _ := strings.Cut(path, " ")
		if got := requestName(&http.Request{Method: verb, URL: &url.URL{Path: path}}); got != want {
			t.Errorf("%s %s is %q, want %q", verb, path, got, want)
		}
	}
	if got := summary([][]string{{"GET pods", "GET nodes", "GET pods"}, {"PUT ipamblocks"}}); got != "1: GET nodes, GET pods ×2; 2: PUT ipamblocks" {
		t.Errorf("summary %q", got)
	}
}

func TestConflictsAreThoseOfIPAM(t *testing.T) {
	const text = `# TYPE apiserver_request_total counter
apiserver_request_total{code="200",component="apiserver",dry_run="",group="crd.projectcalico.org",resource="ipamblocks",scope="resource",subresource="",verb="PUT",version="v1"} 17
apiserver_request_total{code="409",component="apiserver",dry_run="",group="crd.projectcalico.org",resource="ipamblocks",scope="resource",subresource="",verb="PUT",version="v1"} 3
apiserver_request_total{code="409",component="apiserver",dry_run="",group="crd.projectcalico.org",resource="blockaffinities",scope="cluster",subresource="",verb="POST",version="v1"} 1
apiserver_request_total{code="409",component="apiserver",dry_run="",group="",resource="namespaces",scope="cluster",subresource="",verb="POST",version="v1"} 9
`
	if got, err := sumMetric(text, conflictMetric); got != 4 || err != nil {
		t.Errorf("%d conflicts, %v; want 4", got, err)
	}
}

func TestDistinct(t *testing.T) {
	if err := distinct([]string{"10.0.0.1/32", "10.0.0.2/32"}); err != nil {
		t.Error(err)
	}
	if err := distinct([]string{"10.0.0.1/32", "10.0.0.2/32", "10.0.0.1/32"}); err == nil || !strings.Contains(err.Error(), "10.0.0.1/32") {
		t.Errorf("an address twice: %v", err)
	}
}

func TestFindsGoBenchmarks(t *testing.T) {
	found, err := benchmarked(filepath.Join("..", ".."))
	if err != nil || !slices.Contains(found, "./internal/kernel/podnet") || slices.Contains(found, "./internal/api/names") {
		t.Errorf("packages with benchmarks: %v, %v", found, err)
	}
}

func TestParseGoBenchmarks(t *testing.T) {
	const text = `goos: linux
pkg: github.com/tortie-net/tortie/internal/ipam
BenchmarkPlan/1000_blocks-2         	    5000	      2345 ns/op	     128 B/op	       3 allocs/op
PASS
pkg: github.com/tortie-net/tortie/internal/kernel/podnet
BenchmarkSetup 	 100	 1 ns/op
`
	want := []goBenchmark{
		{"internal/ipam", "Plan/1000_blocks", "2345 ns/op 128 B/op 3 allocs/op"},
		{"internal/kernel/podnet", "Setup", "1 ns/op"},
	}
	if got := parseGoBenchmarks(text); !slices.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
}

func wantVerdicts(t *testing.T, verdicts []verdict, want ...string) {
	t.Helper()
	var got []string
	for _, v := range verdicts {
		got = append(got, fmt.Sprintf("%s: %s, %s: %t", v.what, v.measured, v.limit, v.met))
	}
	difftest.Want(t, "verdicts", want, got)
}

func TestJudgeServices(t *testing.T) {
	for figures, want := range map[string]string{"1 ns/op 60.0 s/10000": "60 s, ≤ 60 s: true", "1 ns/op 60.1 s/10000": "60.1 s, ≤ 60 s: false"} {
		r := &results{goBench: []goBenchmark{{netpolPackage, "Services", "1 s/10000"}, {controllersPackage, "Services", figures}}}
		wantVerdicts(t, r.judge(), "10,000 Services of one family, until each has its address: "+want)
	}
}

func TestJudgeBFD(t *testing.T) {
	r := &results{goBench: []goBenchmark{
		{"internal/other", "Sessions", "3 %cpu/end 512.0 KiB/end"},
		{bfdPackage, "Sessions", "5000000000 ns/op 1.25 %cpu/end 512.0 KiB/end"},
		{bfdPackage, "Packets", "5000000000 ns/op 1.125 %cpu/end"},
	}}
	wantVerdicts(t, r.judge(),
		"500 BFD sessions at 3 × 300 ms, CPU: 1.25 % of a core, bare system calls 1.12 %, ≤ 1 %: false",
		"500 BFD sessions at 3 × 300 ms, memory of Go: 0.5 MiB, ≤ 5 MiB: true",
	)
}

func TestJudgePolicy(t *testing.T) {
	ms := func(n int) cost { return cost{wall: time.Duration(n) * time.Millisecond} }
	r := &results{goBench: []goBenchmark{
		{netpolPackage, "FirstPacket/ports", "0 ns/op 5113 ns-with-1 1.1 x-with-10 2.1 x-with-1000 1.2 x-crowded"},
		{netpolPackage, "EstablishedPacket", "300 ns-more-than-tracked"},
		{"internal/other", "OneMorePod", "7 µs-kernel/pod"},
		{netpolPackage, "FromEmpty/dense", "1001 CPU-ms 3 kernel-CPU-ms"},
		{netpolPackage, "Plugin", "60000 ns/op"},
		{flowsPackage, "Flood", "3 processors 21 MB"},
	}, policy: policyFigures{
		load:   []figure{{"a policy applied", "ms", []float64{90, 80, 600}}, {"pods that come and go", "per second", []float64{20}}},
		adds:   policyADDs{pairs: []addPair{{ms(20), ms(19)}, {ms(30), ms(31)}, {ms(21), ms(20)}}, requests: [2]int{6, 5}},
		agents: []policyAgent{{what: "few", perPod: 3 * time.Millisecond, writes: 1, size: memory{peak: 97_000}}},
	}}
	wantVerdicts(t, r.judgePolicy(),
		"first packet, 10 policies by ports: 1.10×, ≤ 1.2× one policy: true",
		"first packet, 1,000 policies by ports: 2.10×, ≤ 2× one policy: false",
		"first packet, 10 policies among 1,000 others and 10,000 peers by ports: 1.20×, ≤ 1.1× 10 policies alone: false",
		"packet of a connection, beyond connection tracking: 300 ns, ≤ 600 ns: true",
		"1,000 policies on each of 100 pods from nothing, CPU: 1001 ms, ≤ 1000 ms: false",
		"what ADD asks the kernel, all that it does more: 60 µs, ≤ 100 µs: true",
		"flow records while pods flood connections, memory: 21 MB, ≤ 20 MB: false",
		"ADD, more CPU where policies are enforced: 0 µs (0 to 0), ≤ 100 µs: true",
		"ADD, requests to the API server where policies are enforced: 6, ≤ 5, as without: false",
		"one more pod under 20 selectors, the agent's CPU, few: 3 ms, ≤ 2 ms: false",
		"the agent's memory at its peak, few: 99.33 MB, ≤ 100 MB: true",
		"writes of the kernel by changes of pods of no effect, few: 1, 0: false",
		"a policy applied, median: 90 ms, ≤ 100 ms: true",
		"a policy applied, 99th percentile: 90 ms, ≤ 500 ms: true",
	)
	if text := r.markdown(); !strings.Contains(text, "network policy, requirements met: 7 (14, ") || !strings.Contains(text, "| **not met** |") {
		t.Errorf("the report does not say it:\n%s", text)
	}
}

// Limits are ratios within the run, and violations are reported.
func TestVerdicts(t *testing.T) {
	there, err := loadElsewhere()
	errtest.Must(t, err)
	one := func(wall, cpu int) costs {
		return costs{{{time.Duration(wall) * time.Millisecond, time.Duration(cpu) * time.Millisecond}}}
	}
	r := &results{elsewhere: there, sequences: []sequence{
		{subject: subject{name: nameGet}, add: one(10, 4), serverAdd: 2500 * time.Microsecond},
		{subject: subject{name: nameVeth}, add: one(3, 3), del: one(20, 4)},
		{subject: subject{name: namePtp}, add: one(9, 8), del: one(23, 8)},
		{subject: subject{name: nameCalico}, add: one(40, 13), del: one(46, 9), addSize: footprint{peak: 16<<10 + 1}, serverAdd: 15 * time.Millisecond},
	}}
	wantVerdicts(t, r.judge(),
		"ADD, time: 4.00×, ≤ 4× one GET: true",
		"ADD, CPU: 3.25×, ≤ 4× one GET: true",
		"ADD, CPU: 1.62×, ≤ 1.5× `ptp` + `host-local`: false",
		"ADD and DEL, largest process: 16.0 MiB, ≤ 16 MiB: false",
		"ADD, the API server's CPU: 6.00×, ≤ 6.3× one GET's: true",
		"DEL, time: 1.53×, ≤ 1.5× (veth floor + one GET): false",
	)
	text := r.markdown()
	for _, want := range []string{"3 of 6 requirements are met", "\n- DEL, time: 1.53× (≤ 1.5× (veth floor + one GET))\n", "Calico, combined"} {
		if !strings.Contains(text, want) {
			t.Errorf("the report does not say %q:\n%s", want, text)
		}
	}
	if rows, err := r.requirements(); err != nil || strings.Count(string(rows), ",true\n") != 3 || strings.Count(string(rows), ",false\n") != 3 {
		t.Errorf("the verdicts as values: %v\n%s", err, rows)
	}
}

// An ADD has three requests in two rounds, and 10,000 routes 1.2 times BIRD's time.
func TestRequestsAndRoutesVerdicts(t *testing.T) {
	routes := func(name string, took time.Duration) *learner { return &learner{name: name, start: durations{took}} }
	r := &results{routeCount: 10000, routes: []*learner{routes(nameBird, 100), routes(nameAgent, 121)}, asked: []asked{
		{subject: nameCalico, operation: nthAdd, requests: [][]string{{"POST ipamhandles"}, {"PUT ipamblocks"}, {"PATCH pods/status"}}},
		{subject: nameCalico, operation: oneDel, requests: [][]string{{"GET ipamhandles", "PATCH pods/status"}, {"PUT ipamblocks"}, {"DELETE ipamhandles"}}},
	}}
	wantVerdicts(t, r.judge(),
		"ADD of `calico`, requests: 3 in 3 rounds, ≤ 3 in ≤ 2: false",
		"DEL of `calico`, requests: 4 in 3 rounds, ≤ 4 in ≤ 3: true",
		"10000 learned routes in the kernel, time: 1.21×, ≤ 1.2× BIRD 2: false",
	)
}

// A requirement that is not met has its reason below it, or the words that there is none; consecutive ones share a reason.
func TestUnmetHaveReasons(t *testing.T) {
	const (
		tiers        = "a pod that appears, until all other nodes let it through, with 500 GlobalNetworkPolicies in three tiers, median"
		tiersApplied = "a policy applied, until it denies on all nodes, with 500 GlobalNetworkPolicies in three tiers, median"
	)
	bfd := reasons["500 BFD sessions at 3 × 300 ms, CPU"]
	var w bytes.Buffer
	writeUnmet(&w, []verdict{
		{"500 BFD sessions at 3 × 300 ms, CPU", "2 %", "≤ 1 %", false},
		{tiers, "120 ms", "≤ 100 ms", false},
		{"DEL, time", "1.2×", "≤ 1.5×", true},
		{tiersApplied, "130 ms", "≤ 100 ms", false},
		{policyTotal, "1", "2", false},
		{"DEL, time", "2×", "≤ 1.5×", false},
	})
	difftest.Want(t, "list", "- 500 BFD sessions at 3 × 300 ms, CPU: 2 % (≤ 1 %)\n  - why: "+bfd.why+"\n  - tried: "+bfd.tried+"\n"+
		"- "+tiers+": 120 ms (≤ 100 ms)\n  - why: "+reasonTiers.why+"\n  - tried: "+reasonTiers.tried+"\n"+
		"- "+tiersApplied+": 130 ms (≤ 100 ms)\n  - why, tried: as above\n"+
		"- network policy, requirements met: 1 (2)\n"+
		"- DEL, time: 2× (≤ 1.5×)\n  - why: not found out\n  - tried: not found out\n\n", w.String())
}

// A reason whose requirement has another name by now is never shown. The page has all names, as the programs of a whole run write it.
func TestReasonsAreOfRequirements(t *testing.T) {
	text, err := os.ReadFile("../../docs/benchmarks-required.csv")
	errtest.Must(t, err)
	rows, err := csv.NewReader(bytes.NewReader(text)).ReadAll()
	errtest.Must(t, err)
	page, err := os.ReadFile("../../docs/benchmarks.md")
	errtest.Must(t, err)
	for what := range reasons {
		required := slices.ContainsFunc(rows, func(row []string) bool { return row[0] == what })
		if !required && !strings.Contains(string(page), "\n| "+what+" ") {
			t.Errorf("docs/benchmarks.md and benchmarks-required.csv have no requirement %q", what)
		}
	}
	for _, row := range rows {
		if _, ok := reasons[row[0]]; !ok && row[3] == "false" && row[0] != policyTotal {
			t.Errorf("requirement %q is not met, and has no reason", row[0])
		}
	}
}

// Each kernel's paths are shown, by the first one, or by the tunnel by hand.
func TestThroughput(t *testing.T) {
	path := func(name string, bits ...float64) carried {
		return carried{Name: name, Single: bits, Many: bits, RTT: bits}
	}
	r := &results{throughput: []throughput{
		{where: "here", paths: []carried{path(pathHosts, 100, 50, 200), path(pathRoutes, 95, 45, 100)}},
		{where: "there", paths: []carried{path(pathHosts, 10, 10, 10), path(pathRoutes, 1, 1, 1), path(pathTunnel, 9, 8, 7), path(pathByHand, 10, 8, 8)}},
	}}
	text := r.markdown()
	if strings.Count(text, "\n| here") != 2 || strings.Count(text, "\n| there") != 4 {
		t.Errorf("the report has not all paths:\n%s", text)
	}
	for _, want := range []string{"| here | pod to pod by routes | 0.00 (0.00–0.00) | 0.90 |", "| there | pod to pod through `tunl0` | 0.00 (0.00–0.00) | 0.90 |"} {
		if !strings.Contains(strings.Join(strings.Fields(text), " "), want) {
			t.Errorf("the report has no %q:\n%s", want, text)
		}
	}
}

// An UPDATE and a KEEPALIVE from the link, and route notifications of the kernel.
func TestObserver(t *testing.T) {
	packet := func(data int, port uint16) []byte {
		b := make([]byte, 40)
		b[0], b[9], b[32] = 0x45, 6, 5<<4
		binary.BigEndian.PutUint16(b[2:], uint16(40+data))
		binary.BigEndian.PutUint16(b[20:], port)
		return b
	}
	o := &observer{}
	for _, b := range [][]byte{packet(19, bgpPort), packet(0, bgpPort), packet(100, 80), nil, packet(100, bgpPort)[:30]} {
		if o.packet(b); !o.update.IsZero() {
			t.Errorf("%v was taken for an UPDATE", b)
		}
	}
	if o.packet(packet(23, bgpPort)); o.update.IsZero() {
		t.Error("an UPDATE was not seen")
	}
	event := func(kind uint16, protocol byte) []byte {
		b := make([]byte, 28)
		binary.NativeEndian.PutUint16(b[4:], kind)
		b[21] = protocol
		return b
	}
	o.protocols[84] = true
	for _, b := range [][]byte{event(24, 84), event(25, 84), event(24, 12), event(24, 84), event(26, 84), nil} {
		o.route(b)
	}
	if o.added != 2 || o.deleted != 1 || o.last.IsZero() {
		t.Errorf("added %d, deleted %d", o.added, o.deleted)
	}
}

func TestBlocks(t *testing.T) {
	var got []string
	for b := range blocksOf(netip.MustParsePrefix("10.160.0.0/12"), 26, 5) {
		got = append(got, b.String())
	}
	if want := "10.160.0.0/26 10.160.0.64/26 10.160.0.128/26 10.160.0.192/26 10.160.1.0/26"; strings.Join(got, " ") != want {
		t.Errorf("got %v", got)
	}
}

func TestElsewhereHasWhatTheLimitsNeed(t *testing.T) {
	e, err := loadElsewhere()
	errtest.Must(t, err)
	for _, f := range []float64{e.addRate(namePtp), e.addRate(nameCalicoThere)} {
		if f <= 0 || math.IsNaN(f) {
			t.Errorf("a figure is missing: %g", f)
		}
	}
	if e.Sequence[0].Name != nameGet {
		t.Errorf("the first row is %q: the ratios are to %q", e.Sequence[0].Name, nameGet)
	}
}

func TestFlags(t *testing.T) {
	o, err := parse([]string{"-root", "..", "-only", "add,go", "-quick"})
	if err != nil || !slices.Equal(o.only, []string{"add", "go"}) || o.size.rounds != quick.rounds || filepath.Base(o.bin) != "bin" {
		t.Errorf("%+v, %v", o, err)
	}
	if o, err := parse([]string{"-only", "add,policy"}); err != nil || !slices.Equal(o.only, []string{"add", "policy-agent", "policy-load"}) {
		t.Errorf("-only policy: %v, %v", o.only, err)
	}
	for _, c := range []struct {
		args []string
		want string
	}{
		{[]string{"-only", "all"}, `no part "all"`},
		{[]string{"-rounds", "5"}, "-rounds"},
	} {
		if _, err := parse(c.args); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%v: error %v, want one with %s", c.args, err, c.want)
		}
	}
}

func TestForeignPlugin(t *testing.T) {
	file := filepath.Join(t.TempDir(), "conf")
	write := func(text string) string {
		errtest.Must(t, os.WriteFile(file, []byte(text), 0o600))
		return file
	}
	s, err := foreign(write(`{"type":"other","kubeconfig":"__KUBECONFIG_FILEPATH__","node":"__KUBERNETES_NODE_NAME__"}`))
	if err != nil || s.program != "other" {
		t.Fatalf("%+v, %v", s, err)
	}
	conf, err := s.conf(nil, &node{name: "bench-7"}, slot{})
	if want := `{"type":"other","kubeconfig":"` + kubeconfigPath + `","node":"bench-7"}`; err != nil || string(conf) != want {
		t.Errorf("configuration %s, %v; want %s", conf, err, want)
	}
	if _, err := foreign(write(`{"plugins":[]}`)); err == nil || !strings.Contains(err.Error(), file) {
		t.Errorf("a list of plugins: %v", err)
	}
}

// The memory of a process is its own, not that of its large parent, this test.
func TestTrace(t *testing.T) {
	ballast := make([]byte, 64<<20)
	for i := range ballast {
		ballast[i] = 1
	}
	here, err := thread.New(func() error { return nil })
	errtest.Must(t, err)
	defer here.Close()
	n := &node{Thread: here}
	one, err := n.trace(execution{program: "/bin/sh", args: []string{"-c", "exit 0"}})
	if err != nil || one.processes != 1 || one.peak < 500 || one.peak > 32<<10 {
		t.Errorf("a shell: %+v, %v", one, err)
	}
	three, err := n.trace(execution{program: "/bin/sh", args: []string{"-c", "cat | cat >/dev/null; true"}, stdin: []byte("text")})
	if err != nil || three.processes != 3 {
		t.Errorf("a shell and two programs: %+v, %v", three, err)
	}
	if _, err := n.trace(execution{program: "/bin/sh", args: []string{"-c", "exit 3"}}); err == nil || !strings.Contains(err.Error(), "exit status 3") {
		t.Errorf("a program that fails: %v", err)
	}
	ballast[0]++
}

// A minimal run: every part runs, every plugin succeeds, and nothing is left behind.
func TestSmallestRun(t *testing.T) {
	if os.Getuid() != 0 {
		t.Fatal("bench needs root")
	}
	o, err := parse([]string{"-root", filepath.Join("..", "..")})
	errtest.Must(t, err)
	o.size = sizes{rounds: 2, perRound: 2, bursts: []int{3}, repeats: 1, nodes: 2, podsPerNode: 2, starts: 3, routes: 100, routeRounds: 2, streamSeconds: 1, streamRounds: 1, largeCluster: 3, settle: time.Second, pods: 200, morePods: 3, benchTime: "1x"}
	// These parts run go test, which the suite of units has done already.
	o.only = slices.DeleteFunc(slices.Clone(parts), func(part string) bool {
		return slices.Contains([]string{"go", "mesh", "install", "services", "policy-load"}, part)
	})
	t.Setenv("TMPDIR", t.TempDir())
	before := leftovers(t)
	r, err := measure(t.Context(), o)
	errtest.Must(t, err)
	errtest.Must(t, r.failed)
	text := r.markdown()
	for _, heading := range []string{"What is required", "One after another", "At once on one node", "2 nodes, 2 pods each", "Requests to the API server", "100 learned routes", "Throughput", "What the agent holds", "Network policy", "Start of a program"} {
		if !strings.Contains(text, "\n### "+heading) {
			t.Errorf("the report has no section %q", heading)
		}
	}
	for _, a := range r.asked {
		if a.count() < 3 || len(a.requests) < 2 || a.connections == 0 {
			t.Errorf("%s of %s: %d requests over %d connections: %s", a.operation, a.subject, a.count(), a.connections, summary(a.requests))
		}
	}
	if after := leftovers(t); !slices.Equal(before, after) {
		t.Errorf("left behind: before %v, after %v", before, after)
	}
}

// The report has what make perf has counted, where make generate keeps it up to date.
func TestReportHasInstructions(t *testing.T) {
	r := results{counted: "| routes | 1.06 |\n"}
	if text := r.markdown(); !strings.Contains(text, "## Instructions\n") || !strings.Contains(text, "<!-- generated: instructions -->\n| routes | 1.06 |\n<!-- end -->\n\n## Times\n") {
		t.Errorf("report:\n%s", text)
	}
}

// A part that fails is named in the report, which has the others.
func TestFailedPartIsNamed(t *testing.T) {
	r := results{starts: []start{{}}, failed: errors.New("part mesh: no peer answers")}
	if text := r.markdown(); !strings.Contains(text, "part mesh: no peer answers") || !strings.Contains(text, "\n### Start of a program") {
		t.Errorf("report:\n%s", text)
	}
}

// leftovers returns what a run may leave behind: children, mounts, temporary files.
func leftovers(t *testing.T) []string {
	t.Helper()
	var all []string
	for _, pid := range descendants(os.Getpid()) {
		name, _ := os.ReadFile(fmt.Sprintf("/proc/%d/comm", pid)) // empty if it has exited
		all = append(all, "process "+strings.TrimSpace(string(name)))
	}
	files, err := os.ReadDir(os.TempDir())
	errtest.Must(t, err)
	for _, f := range files {
		all = append(all, "file "+f.Name())
	}
	mounts, err := os.ReadFile("/proc/self/mounts")
	errtest.Must(t, err)
	return append(all, fmt.Sprintf("%d mounts", strings.Count(string(mounts), "\n")))
}

func TestMeshReport(t *testing.T) {
	r := &results{mesh: []figure{
		{"a new node's first block, until it is a route in another kernel", "ms", []float64{80, 70, 2500}},
		{"a block in steady state, until it is a route in another kernel", "ms", []float64{60, 90, 300}},
		{"packets lost of these", "", []float64{0, 0}},
	}}
	var w bytes.Buffer
	r.writeMesh(&w)
	for _, want := range []string{"kernel: 80.0, 80.0, 2500.0 ms (3)\n", "packets lost of these: 0\n"} {
		if !strings.Contains(w.String(), want) {
			t.Errorf("no %q in\n%s", want, w.String())
		}
	}
	var met []bool
	for _, v := range r.judgeMesh() {
		met = append(met, v.met)
	}
	if !slices.Equal(met, []bool{false, true, true}) {
		t.Errorf("verdicts: %v", met)
	}
}

func TestInstallReport(t *testing.T) {
	r := &results{install: []figure{
		{"a DaemonSet on three fresh nodes: from its creation until all its pods are ready", "ms", []float64{4000, 5100, 5200}},
		{"install: from its start until plugins and kubeconfig are in place and proven", "ms", []float64{400, 900}},
		{"60 pods at once on one node, until all run: ptp + host-local", "ms", []float64{9000, 10000, 14000}},
		{"60 pods at once on one node, until all run: Tortie", "ms", []float64{8000, 11500, 20000}},
	}}
	var w bytes.Buffer
	r.writeInstall(&w)
	if want := "ready: 5100.0, 5100.0, 5200.0 ms (3)\n"; !strings.Contains(w.String(), want) {
		t.Errorf("no %q in\n%s", want, w.String())
	}
	var got []string
	for _, v := range r.judgeInstall() {
		got = append(got, fmt.Sprint(v.measured, " ", v.met))
	}
	if want := []string{"5.1 s false", "0.4 s true", "1.15× false"}; !slices.Equal(got, want) {
		t.Errorf("verdicts: %q, want %q", got, want)
	}
}

// The model fits its points, reports the deviation at 200 speakers, and has a limit for reflectors.
func TestReflectorsReport(t *testing.T) {
	r := &results{reflection: &reflection{
		agreements: []agreement{{Nodes: 5000, Elected: 7, Client: 3, Reflector: 4999, Writes: 5003}},
		speakers: []speakers{
			{Speakers: 1, ReflectorMiB: 19, ClientMiB: 19},
			{Speakers: 50, ReflectorMiB: 25, ClientMiB: 20, ReflectorCPU: 0.3, ClientCPU: 0.05},
			{Speakers: 100, ReflectorMiB: 31, ClientMiB: 21, ReflectorCPU: 1.1, ClientCPU: 0.1},
			{Speakers: 200, ReflectorMiB: 43, ClientMiB: 23, ReflectorCPU: 9, ClientCPU: 0.2, Sessions: 199, Clients: 3, Client: 1194},
		},
		configured: []configured{{1000, 0.5, 37}, {2000, 4, 70}},
	}}
	if f := r.reflection.predict(100); math.Abs(f.reflectorCPU-1.1) > 1e-9 || f.reflectorMiB != 31 || f.sent != 10_000 {
		t.Errorf("%+v", f)
	}
	if f := r.reflection.predict(4000); math.Abs(f.configure-32) > 1e-9 {
		t.Errorf("%+v", f)
	}
	if n := r.reflection.enough(); r.reflection.predict(n).start() > 120 || r.reflection.predict(n+200).start() < 120 {
		t.Errorf("enough for %d nodes", n)
	}
	var w bytes.Buffer
	r.writeReflectors(&w)
	for _, want := range []string{"| 5000  | 7 ", "| memory of a reflector, MiB      | 43.00    | 43.00    |"} {
		if !strings.Contains(w.String(), want) {
			t.Errorf("no %q in\n%s", want, w.String())
		}
	}
	var missed []string
	for _, v := range r.judgeReflectors() {
		if !v.met {
			missed = append(missed, v.what)
		}
	}
	if len(missed) != 1 || !strings.Contains(missed[0], "CPU of a reflector") {
		t.Errorf("verdicts: %v", missed)
	}
}
