package flows

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/tortie-net/tortie/internal/agent/nodestatus"
	"github.com/tortie-net/tortie/internal/kernel/netlinkx"
	"github.com/tortie-net/tortie/internal/kernel/netpol"
	"github.com/tortie-net/tortie/internal/policy"
	"github.com/tortie-net/tortie/internal/testkit/difftest"
)

var (
	webAddr    = netip.MustParseAddr("10.0.0.1")
	clientAddr = netip.MustParseAddr("10.0.1.2")
	nodeAddr   = netip.MustParseAddr("172.16.0.1")
)

// recorder returns a Recorder of a node with a pod, shop/web-1, that is isolated for ingress except at port 80, and
// knows a client on another node.
func recorder(staged ...policy.Staged) *Recorder {
	key := policy.PodKey{Namespace: "shop", Name: "web-1"}
	client := policy.PodKey{Namespace: "shop", Name: "client"}
	state := policy.State{
		Local: map[string]policy.PodKey{"cali1": key}, Namespaces: map[string]map[string]string{"shop": {}},
		Pods: map[policy.PodKey]*policy.Pod{
			key:    {PodKey: key, Prefix: "web-", Addresses: []netip.Addr{webAddr}},
			client: {PodKey: client, Addresses: []netip.Addr{clientAddr}},
		},
		Policies: []policy.Policy{web()},
		Sets:     []policy.NetworkSet{{Name: "partners", Nets: []netip.Prefix{netip.MustParsePrefix("198.51.100.0/24")}}},
	}
	r := New(Options{Node: "node1", Interval: time.Second, Log: slog.New(slog.DiscardHandler)})
	r.own = map[netip.Addr]string{nodeAddr: "eth0"}
	if len(staged) == 0 {
		r.InForce(policy.Select(state), state.Pods, nil, nil)
		return r
	}
	after, by := policy.WithStaged(state, staged)
	r.InForce(policy.Select(state), state.Pods, policy.Select(after), by)
	return r
}

func web() policy.Policy {
	p := policy.Policy{ID: policy.ID{Kind: policy.KindNetworkPolicy, Namespace: "shop", Name: "web"}, Tier: policy.TierDefault,
		Subject: policy.Pods{Namespace: "shop"}}
	p.Applies[policy.Ingress] = true
	p.Rules[policy.Ingress] = []policy.Rule{
		{Action: policy.Allow, AnyPeer: true, Ports: []policy.Port{{Protocol: policy.TCP, First: 80, Last: 80}}},
	}
	return p
}

func event(id uint32, from, to netip.Addr, port uint16, sent uint64, ended bool) *netlinkx.FlowEvent {
	return &netlinkx.FlowEvent{Ended: ended, TrackedFlow: netlinkx.TrackedFlow{
		ID: id, Flow: netlinkx.Flow{Client: from, Server: to, Protocol: policy.TCP, Port: port, SourcePort: 40000},
		Sent: netlinkx.Count{Packets: sent / 100, Bytes: sent},
	}}
}

// lines returns the records so far, without times.
func lines(r *Recorder) (all []string) {
	r.finish(time.Unix(100, 0))
	for _, f := range r.Answer(0).Records {
		all = append(all, fmt.Sprintf("%s %s %s:%s -> %s:%s:%d/%s %v %s %v flows %d %d %d out %d %d in %d %d", f.Reporter, f.Action,
			f.Source.Type, f.Source, f.Dest.Type, f.Dest, f.Port, f.Protocol, f.Policies.Enforced, f.Policies.Action, f.Policies.Pending, f.Flows,
			f.Started, f.Completed, f.OutPkts, f.OutBytes, f.InPkts, f.InBytes))
	}
	return all
}

const byWeb = "default|NetworkPolicy shop/web"

func TestAggregation(t *testing.T) {
	partner, stranger := netip.MustParseAddr("198.51.100.9"), netip.MustParseAddr("203.0.113.1")
	for name, c := range map[string]struct {
		do   func(*Recorder)
		want []string
	}{
		"a connection": {func(r *Recorder) {
			r.take(event(1, clientAddr, webAddr, 80, 0, false))
			r.take(event(1, clientAddr, webAddr, 80, 500, true))
		}, []string{"dst allow wep:shop/client -> wep:shop/web-*:80/tcp [" + byWeb + "|allow|0]  [] flows 1 1 1 out 5 500 in 0 0"}},
		"two of one key": {func(r *Recorder) {
			for id := range uint32(2) {
				r.take(event(id, partner, webAddr, 80, 100, false))
			}
		}, []string{"dst allow ns:partners -> wep:shop/web-*:80/tcp [" + byWeb + "|allow|0]  [] flows 2 2 0 out 2 200 in 0 0"}},
		"one whose beginning is not known": {func(r *Recorder) { r.take(event(1, stranger, webAddr, 80, 300, true)) },
			[]string{"dst allow net:pub -> wep:shop/web-*:80/tcp [" + byWeb + "|allow|0]  [] flows 1 0 1 out 3 300 in 0 0"}},
		"of the node, which no policy judges": {func(r *Recorder) { r.take(event(1, nodeAddr, webAddr, 99, 0, false)) },
			[]string{"dst allow hep:node1 -> wep:shop/web-*:99/tcp []  [] flows 1 1 0 out 0 0 in 0 0"}},
		"allowed, and the policies say otherwise by now": {func(r *Recorder) { r.take(event(1, clientAddr, webAddr, 99, 0, false)) },
			[]string{"dst allow wep:shop/client -> wep:shop/web-*:99/tcp []  [] flows 1 1 0 out 0 0 in 0 0"}},
		"from the pod": {func(r *Recorder) { r.take(event(1, webAddr, netip.MustParseAddr("10.9.9.9"), 443, 0, false)) },
			[]string{"src allow wep:shop/web-* -> net:pvt:443/tcp []  [] flows 1 1 0 out 0 0 in 0 0"}},
		"of others":    {func(r *Recorder) { r.take(event(1, clientAddr, nodeAddr, 80, 0, false)) }, nil},
		"another node": {func(r *Recorder) { r.NotInForce(); r.take(event(1, clientAddr, webAddr, 80, 0, false)) }, nil},
		"a list, first without what was before": {func(r *Recorder) {
			r.listed(&event(1, clientAddr, webAddr, 80, 1000, false).TrackedFlow, true, true)
			r.listed(&event(1, clientAddr, webAddr, 80, 1200, false).TrackedFlow, false, true)
			r.listed(&event(2, clientAddr, webAddr, 80, 300, false).TrackedFlow, false, true) // its beginning was lost
		}, []string{"dst allow wep:shop/client -> wep:shop/web-*:80/tcp [" + byWeb + "|allow|0]  [] flows 2 1 0 out 5 500 in 0 0"}},
		"a denied packet": {func(r *Recorder) {
			r.Denied(netpol.Drop{Why: "ingress NetworkPolicy shop/web", Src: clientAddr, Dst: webAddr, Protocol: policy.TCP, DstPort: 99, Bytes: 60})
			r.Denied(netpol.Drop{Why: "ingress NetworkPolicy shop/web rule 1", Logged: true, Src: clientAddr, Dst: webAddr,
				Protocol: policy.TCP, DstPort: 98})
		}, []string{"dst deny wep:shop/client -> wep:shop/web-*:99/tcp [" + byWeb + "|deny|-1]  [] flows 1 0 0 out 1 60 in 0 0"}},
		"denied by what is no more": {func(r *Recorder) {
			r.Denied(netpol.Drop{Why: "ingress NetworkPolicy shop/old", Src: clientAddr, Dst: webAddr, Protocol: policy.TCP, DstPort: 80, Bytes: 60})
		}, []string{"dst deny wep:shop/client -> wep:shop/web-*:80/tcp [|NetworkPolicy shop/old|deny|-1]  [] flows 1 0 0 out 1 60 in 0 0"}},
	} {
		r := recorder()
		c.do(r)
		if got := lines(r); strings.Join(got, "\n") != strings.Join(c.want, "\n") {
			t.Errorf("%s:\n%s\nwant\n%s", name, strings.Join(got, "\n"), strings.Join(c.want, "\n"))
		}
	}
}

// Decisions of host endpoints' policies are reported with the node as the reporting end: for packets of the node's
// programs, and for packets denied elsewhere, even to pods that their own policies do not deny.
func TestHostEndpoints(t *testing.T) {
	outside, service := netip.MustParseAddr("203.0.113.1"), netip.MustParseAddr("10.96.0.1")
	gnp := func(name string, rule policy.Rule) policy.Policy {
		p := policy.Policy{ID: policy.ID{Kind: policy.KindCalicoGlobalNetworkPolicy, Name: name}, Tier: policy.TierDefault,
			Subject: policy.Pods{Calico: true, Scope: policy.Global}}
		p.Applies[policy.Ingress], p.Rules[policy.Ingress] = true, []policy.Rule{rule}
		return p
	}
	port := func(n uint16) []policy.Port { return []policy.Port{{Protocol: policy.TCP, First: n, Last: n}} }
	own := gnp("own", policy.Rule{Action: policy.Allow, AnyPeer: true, Ports: port(80)})
	forward := gnp("forward", policy.Rule{Action: policy.Deny, AnyPeer: true, Ports: port(81)})
	forward.Forward, forward.Order = true, -1
	before := gnp("before", policy.Rule{Action: policy.Deny, AnyPeer: true, Ports: port(82)})
	before.PreDNAT = true
	other := policy.PodKey{Namespace: "shop", Name: "open"}
	openAddr := netip.MustParseAddr("10.0.0.2")
	state := policy.State{
		Local: map[string]policy.PodKey{"cali1": other}, Namespaces: map[string]map[string]string{"shop": {}},
		Pods:     map[policy.PodKey]*policy.Pod{other: {PodKey: other, Addresses: []netip.Addr{openAddr}}},
		Policies: []policy.Policy{own, forward, before}, Node: "node1",
		HostEndpoints: []policy.HostEndpoint{{Name: "uplink", Node: "node1", Interface: "eth0"}},
		Host:          policy.HostRules{Inbound: policy.DefaultInbound(), Nodes: []netip.Addr{outside}, IPIP: true, VXLANPort: 4789},
	}
	const gnps = "CalicoGlobalNetworkPolicy "
	staged := gnp("own", policy.Rule{Action: policy.Deny, AnyPeer: true, AnyPort: true})
	for name, c := range map[string]struct {
		do   func(*Recorder)
		want []string
	}{
		"received": {func(r *Recorder) { r.take(event(1, outside, nodeAddr, 80, 0, false)) },
			[]string{"dst allow net:pub -> hep:node1:80/tcp [default|" + gnps +
				"own|allow|0] deny [default|StagedGlobalNetworkPolicy own|deny|0] flows 1 1 0 out 0 0 in 0 0"}},
		"by a failsafe port": {func(r *Recorder) { r.take(event(1, outside, nodeAddr, 22, 0, false)) },
			[]string{"dst allow net:pub -> hep:node1:22/tcp []  [] flows 1 1 0 out 0 0 in 0 0"}},
		"by the tunnel of another node": {func(r *Recorder) {
			e := event(1, outside, nodeAddr, 4789, 0, false)
			e.Protocol = policy.UDP
			r.take(e)
		}, []string{"dst allow net:pub -> hep:node1:4789/udp []  [] flows 1 1 0 out 0 0 in 0 0"}},
		"at another link": {func(r *Recorder) { r.own[nodeAddr] = "eth1"; r.take(event(1, outside, nodeAddr, 80, 0, false)) }, nil},
		"from the node's pod": {func(r *Recorder) { r.take(event(1, openAddr, nodeAddr, 80, 0, false)) },
			[]string{"src allow wep:shop/open -> hep:node1:80/tcp []  [] flows 1 1 0 out 0 0 in 0 0"}},
		"denied": {func(r *Recorder) {
			r.Denied(netpol.Drop{Why: "ingress " + gnps + "own", Src: outside, Dst: nodeAddr, Protocol: policy.TCP, DstPort: 99, Bytes: 60})
		}, []string{"dst deny net:pub -> hep:node1:99/tcp [default|" + gnps +
			"forward|deny|-1] deny [default|StagedGlobalNetworkPolicy own|deny|0] flows 1 0 0 out 1 60 in 0 0"}},
		"sent, which no policy allows": {func(r *Recorder) {
			r.Denied(netpol.Drop{Why: "egress HostEndpoint uplink", Src: nodeAddr, Dst: outside, Protocol: policy.TCP, DstPort: 443, Bytes: 60})
		}, []string{"src deny hep:node1 -> net:pub:443/tcp [|HostEndpoint uplink|deny|-1]  [] flows 1 0 0 out 1 60 in 0 0"}},
		"to a pod without policies": {func(r *Recorder) {
			r.Denied(netpol.Drop{Why: "ingress " + gnps + "forward", Src: outside, Dst: openAddr, Protocol: policy.TCP, DstPort: 81, Bytes: 60})
		}, []string{"dst deny net:pub -> wep:shop/open:81/tcp [default|" + gnps + "forward|deny|0]  [] flows 1 0 0 out 1 60 in 0 0"}},
		"to a Service": {func(r *Recorder) {
			r.Denied(netpol.Drop{Why: "ingress " + gnps + "before", Src: outside, Dst: service, Protocol: policy.TCP, DstPort: 82, Bytes: 60})
		}, []string{"dst deny net:pub -> net:pvt:82/tcp [default|" + gnps + "before|deny|0]  [] flows 1 0 0 out 1 60 in 0 0"}},
		"by another engine's log": {func(r *Recorder) {
			r.Denied(netpol.Drop{Why: "ingress unknown link", Src: outside, Dst: service, Protocol: policy.TCP, DstPort: 82, Bytes: 60})
		}, nil},
	} {
		r := New(Options{Node: "node1", Interval: time.Second, Log: slog.New(slog.DiscardHandler)})
		r.own = map[netip.Addr]string{nodeAddr: "eth0"}
		after, by := policy.WithStaged(state, []policy.Staged{{By: policy.ID{Kind: "StagedGlobalNetworkPolicy", Name: "own"}, Policy: staged}})
		r.InForce(policy.Select(state), state.Pods, policy.Select(after), by)
		c.do(r)
		if got := lines(r); strings.Join(got, "\n") != strings.Join(c.want, "\n") {
			t.Errorf("%s:\n%s\nwant\n%s", name, strings.Join(got, "\n"), strings.Join(c.want, "\n"))
		}
	}
}

// The traffic of an interval is in that interval's record.
func TestIntervals(t *testing.T) {
	r := recorder()
	r.take(event(1, clientAddr, webAddr, 80, 100, false))
	r.finish(time.Unix(10, 0))
	r.listed(&event(1, clientAddr, webAddr, 80, 1100, false).TrackedFlow, false, true)
	r.finish(time.Unix(20, 0))
	r.finish(time.Unix(30, 0))
	r.take(event(1, clientAddr, webAddr, 80, 1150, true))
	r.finish(time.Unix(40, 0))
	var got []string
	for _, f := range r.Answer(0).Records {
		got = append(got, fmt.Sprintf("%d-%d: %d %d %d %d", f.Start, f.End, f.Flows, f.Started, f.Completed, f.OutBytes))
	}
	if want := fmt.Sprintf("[%d-10: 1 1 0 100 10-20: 1 0 0 1000 30-40: 1 0 1 50]", r.ring.records[0].start); fmt.Sprint(got) != want {
		t.Errorf("%v, want %s", got, want)
	}
	if len(r.live.of) != 0 {
		t.Errorf("%d connections are live", len(r.live.of))
	}
}

// A staged policy counts what it would do, and the verdict stays.
func TestStagedVerdicts(t *testing.T) {
	deny := policy.Policy{ID: policy.ID{Kind: policy.KindCalicoNetworkPolicy, Namespace: "shop", Name: "closed"}, Tier: policy.TierDefault,
		Order: -1, Subject: policy.Pods{Namespace: "shop"}}
	deny.Applies[policy.Ingress] = true
	deny.Rules[policy.Ingress] = []policy.Rule{{Action: policy.Deny, AnyPeer: true, AnyPort: true}}
	by := policy.ID{Kind: "StagedNetworkPolicy", Namespace: "shop", Name: "closed"}
	gone := policy.ID{Kind: "StagedKubernetesNetworkPolicy", Namespace: "shop", Name: "web"}
	for name, c := range map[string]struct {
		staged policy.Staged
		want   string
		total  Total
	}{
		"set": {policy.Staged{By: by, Policy: deny}, " deny [default|StagedNetworkPolicy shop/closed|deny|0] ",
			Total{Allow: true, By: by, Staged: true}},
		"delete": {policy.Staged{By: gone, Policy: policy.Policy{ID: web().ID}, Delete: true}, " allow [] ",
			Total{Allow: true, By: gone, Staged: true, Pending: true}},
	} {
		r := recorder(c.staged)
		r.take(event(1, clientAddr, webAddr, 80, 0, false))
		if got := lines(r); len(got) != 1 || !strings.Contains(got[0], "dst allow ") || !strings.Contains(got[0], byWeb+"|allow|0]"+c.want) {
			t.Errorf("%s: %v", name, got)
		}
		if r.Totals()[c.total] != 1 {
			t.Errorf("%s: %+v", name, r.Totals())
		}
	}
}

// Whatever pods do, memory is bounded: half a million connections from as many addresses to as many ports take no more
// than a few MB.
func TestFloodIsBounded(t *testing.T) {
	r := recorder()
	flood := func(n uint32) {
		for i := range n {
			from := netip.AddrFrom4([4]byte{100, byte(i >> 16), byte(i >> 8), byte(i)})
			r.take(event(i, from, webAddr, uint16(i), 0, false))
			r.Denied(netpol.Drop{Why: "ingress NetworkPolicy shop/web", Src: from, Dst: webAddr, Protocol: policy.TCP,
				DstPort: uint16(i), Bytes: 60})
			if i%20000 == 0 {
				r.finish(time.Unix(int64(i), 0))
			}
		}
	}
	inUse := func() uint64 {
		var m runtime.MemStats
		runtime.GC()
		runtime.ReadMemStats(&m)
		return m.HeapAlloc
	}
	before := inUse()
	flood(200_000)
	if used := int64(inUse()) - int64(before); used > 20<<20 {
		t.Errorf("%d bytes", used)
	}
	if len(r.live.of) > mostLive || len(r.labels) > mostLabels || len(r.table.of) > mostKeys+4 || len(r.ring.records) > mostRecords ||
		len(r.totals) > mostTotals+8 {
		t.Errorf("%d live, %d labels, %d keys, %d records, %d totals", len(r.live.of), len(r.labels), len(r.table.of),
			len(r.ring.records), len(r.totals))
	}
	lost := r.Lost()
	if lost.Crowded > 400_000 {
		t.Errorf("%d crowded", lost.Crowded)
	}
	var counted uint64
	for _, n := range r.Totals() {
		counted += n
	}
	if counted != 400_000 || lost.Crowded == 0 {
		t.Errorf("%d of 400000 are counted, %d without a key of their own", counted, lost.Crowded)
	}
	runtime.KeepAlive(r)
}

func TestRing(t *testing.T) {
	r := ring{most: 3, mostBytes: 1 << 20}
	for i := range int64(5) {
		r.add(stored{start: i})
	}
	starts := func(after uint64, most int) string {
		found, next := r.after(after, most)
		var all []int64
		for _, s := range found {
			all = append(all, s.start)
		}
		return fmt.Sprint(all, next)
	}
	for question, want := range map[[2]int]string{{0, 9}: "[2 3 4] 5", {0, 2}: "[2 3] 4", {4, 9}: "[4] 5",
		{5, 9}: "[] 5", {99, 9}: "[2 3 4] 5"} {
		if got := starts(uint64(question[0]), question[1]); got != want {
			t.Errorf("after %v: %s, want %s", question, got, want)
		}
	}
	long := stored{Key: Key{Source: End{Name: strings.Repeat("x", 1<<20)}}}
	if r.add(long); len(r.records) != 0 || r.bytes != 0 {
		t.Errorf("%d records of %d bytes", len(r.records), r.bytes)
	}
}

func TestFileRotates(t *testing.T) {
	dir := t.TempDir()
	f := &File{Path: filepath.Join(dir, "new", "flows.log"), Size: 10, Old: 2}
	for i := range 5 {
		if err := f.Append(func(encode func(any) error) error { return encode(fmt.Sprintf("a line %d", i)) }); err != nil {
			t.Fatal(err)
		}
	}
	got := map[string]string{}
	entries, err := os.ReadDir(filepath.Dir(f.Path))
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		text, _ := os.ReadFile(filepath.Join(filepath.Dir(f.Path), e.Name()))
		got[e.Name()] = strings.TrimSpace(string(text))
		if info, _ := e.Info(); info.Mode() != 0o600 {
			t.Errorf("%s has mode %s", e.Name(), info.Mode())
		}
	}
	difftest.Want(t, "files", map[string]string{"flows.log": `"a line 4"`, "flows.log.1": `"a line 3"`, "flows.log.2": `"a line 2"`}, got)
	link := filepath.Join(dir, "link")
	if err := os.Symlink("/dev/null", link); err != nil {
		t.Fatal(err)
	}
	for _, path := range []string{link, "/dev/null", dir} {
		if err := (&File{Path: path, Size: 1 << 20}).Append(func(func(any) error) error { return nil }); err == nil {
			t.Errorf("%s is written", path)
		}
	}
}

func TestCommand(t *testing.T) {
	r := recorder()
	r.take(event(1, clientAddr, webAddr, 80, 12345, false))
	r.Denied(netpol.Drop{Why: "ingress NetworkPolicy shop/web", Src: nodeAddr, Dst: webAddr, Protocol: 1, ICMP: 0x800, Bytes: 84})
	r.finish(time.Unix(3661, 0))
	server := httptest.NewServer(http.HandlerFunc(r.Serve))
	t.Cleanup(server.Close)
	run := func(args ...string) (string, error) {
		var out bytes.Buffer
		err := Main(t.Context(), args, server.Listener.Addr().String(), nodestatus.Output{Out: &out, Err: &out})
		return out.String(), err
	}
	text, err := run()
	if err != nil || strings.Count(text, "\n") != 3 {
		t.Errorf("%v:\n%s", err, text)
	}
	difftest.Contains(t, text, "01:01:01", "shop/client", "shop/web-*:80/TCP", "12 kB", "NetworkPolicy shop/web[0], tier default", "deny",
		"node1", "shop/web-*/ICMP")
	for args, want := range map[string]int{"-denied": 2, "shop/client": 2, "shop": 3, "bank": 0, "-staged": 0} {
		if text, err := run(args); err != nil || strings.Count(text, "\n") != want {
			t.Errorf("%s: %v:\n%s", args, err, text)
		}
	}
	text, err = run("-o", "json", "shop/client")
	var record Record
	if err != nil || json.Unmarshal([]byte(text), &record) != nil || record.Host != "node1" || record.OutBytes != 12345 {
		t.Errorf("%v: %s", err, text)
	}
	for _, args := range [][]string{{"-o", "yaml"}, {"a", "b"}, {"-x"}} {
		if _, err := run(args...); err == nil {
			t.Errorf("%v: no error", args)
		}
	}
	server.Config.Handler = http.NotFoundHandler()
	if _, err := run(); err == nil || !strings.Contains(err.Error(), "another program") ||
		strings.Contains(err.Error(), "policy.flows.enabled") {
		t.Errorf("another program: %v", err)
	}
	server.Config.Handler = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != "/status" {
			http.NotFound(w, r)
			return
		}
		_, _ = io.WriteString(w, `{"node": "n1"}`)
	})
	if _, err := run(); err == nil || !strings.Contains(err.Error(), "policy.flows.enabled") ||
		strings.Contains(err.Error(), "another program") {
		t.Errorf("an agent without records: %v", err)
	}
}
