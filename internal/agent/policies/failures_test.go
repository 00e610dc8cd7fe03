package policies_test

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"k8s.io/client-go/rest"

	"github.com/tortie-net/tortie/internal/agent/policies"
	"github.com/tortie-net/tortie/internal/app/config"
	"github.com/tortie-net/tortie/internal/kernel/netpol"
	"github.com/tortie-net/tortie/internal/kernel/podnet"
	"github.com/tortie-net/tortie/internal/testkit/errtest"
	"github.com/tortie-net/tortie/internal/testkit/logtest"
)

// door is a way to the API server that can be shut.
type door struct {
	mu      sync.Mutex
	shut    bool
	refused int // connections
	conns   []net.Conn
}

// behind makes a door that a node's agent has to pass.
func behind(t *testing.T, n *node) *door {
	t.Helper()
	d := &door{}
	l, err := new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	server := strings.TrimPrefix(n.api.Host, "https://")
	n.api = rest.CopyConfig(n.api)
	n.api.Host = "https://" + l.Addr().String()
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go d.pass(c, server)
		}
	}()
	return d
}

func (d *door) pass(c net.Conn, server string) {
	d.mu.Lock()
	shut := d.shut
	if shut {
		d.refused++
	}
	d.mu.Unlock()
	up, err := net.Dial("tcp", server)
	if shut || err != nil {
		c.Close()
		return
	}
	d.mu.Lock()
	d.conns = append(d.conns, c, up)
	d.mu.Unlock()
	pipe := func(to, from net.Conn) {
		b := make([]byte, 1<<15)
		for {
			n, err := from.Read(b)
			if _, failed := to.Write(b[:n]); err != nil || failed != nil {
				c.Close()
				up.Close()
				return
			}
		}
	}
	go pipe(up, c)
	go pipe(c, up)
}

func (d *door) set(shut bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.shut = shut
	for _, c := range d.conns {
		c.Close()
	}
	d.conns = nil
}

// refuses reports whether as many connections were refused.
func (d *door) refuses(n int) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.refused >= n
}

// echo answers datagrams, and returns how many have come from a pod.
func (p *pod) echo(t *testing.T, at string) (heard func(from *pod) int) {
	t.Helper()
	conn := p.ListenUDP(t, at)
	var mu sync.Mutex
	from := map[netip.Addr]int{}
	go func() {
		for b := make([]byte, 1<<16); ; {
			size, sender, err := conn.ReadFromUDPAddrPort(b)
			if err != nil {
				return
			}
			mu.Lock()
			from[sender.Addr().Unmap()]++
			mu.Unlock()
			_, _ = conn.WriteToUDPAddrPort(b[:size], sender)
		}
	}()
	return func(p *pod) int {
		mu.Lock()
		defer mu.Unlock()
		return from[p.addr]
	}
}

// guarded is a server that a client may reach and another pod may not, with streams that count.
func guarded(t *testing.T, n *node, net4 string) (client, other *pod, at string) {
	t.Helper()
	server := n.start(t, "server", net4+".1")
	client, other = n.start(t, "client", net4+".2"), n.start(t, "other", net4+".3")
	at = net4 + ".1:53"
	n.heard = server.echo(t, at)
	n.policy(t, "allow", allowApp)
	return client, other, at
}

// probing sends packets, each the first of a connection.
type probing struct{ sent, answered atomic.Int64 }

// probe sends a packet each 5 ms until the returned function is called. It awaits each answer, or none.
func probe(t *testing.T, from *pod, at string, await bool) (p *probing, stop func()) {
	t.Helper()
	p = &probing{}
	ctx, cancel := context.WithCancel(t.Context())
	var running sync.WaitGroup
	running.Go(func() {
		for ctx.Err() == nil {
			_ = from.Do(func() error {
				c, err := net.Dial("udp", at)
				if err != nil {
					return err
				}
				defer c.Close()
				p.sent.Add(1)
				_, _ = c.Write([]byte("x"))
				_ = c.SetReadDeadline(time.Now().Add(soon))
				if !await {
					return nil
				}
				if _, err := c.Read(make([]byte, 100)); err == nil {
					p.answered.Add(1)
				}
				return nil
			})
			time.Sleep(5 * time.Millisecond) //nolint:forbidigo // the sender's pace
		}
	})
	return p, func() { cancel(); running.Wait() }
}

// goesOn waits until more packets were sent.
func (p *probing) goesOn(t *testing.T) {
	t.Helper()
	before := p.sent.Load()
	eventually(t, soon, "packets are sent", func() bool { return p.sent.Load() > before+10 })
}

// While agents end and start, and while the API server is away, nothing that is allowed is lost and nothing that is
// denied passes.
func TestRestartsLoseAndOpenNothing(t *testing.T) {
	n := newNode(t)
	client, other, at := guarded(t, n, "10.90.3")
	d := behind(t, n)
	w, stop := n.work(t)
	eventually(t, soon, "in force", func() bool { return w.Seen().Enforcing && reaches(t, client, at) && !reaches(t, other, at) })
	allowed, stopAllowed := probe(t, client, at, true)
	denied, stopDenied := probe(t, other, at, false)
	heard := n.heard(other)
	for range 3 {
		stop()
		allowed.goesOn(t)
		denied.goesOn(t)
		w, stop = n.work(t)
		eventually(t, soon, "in force again", func() bool { return w.Seen().Enforcing })
	}
	d.set(true)
	stop()
	w, _ = n.work(t)
	eventually(t, soon, "the agent has tried to reach the API server", func() bool { return d.refuses(10) })
	if passes := w.Seen().Passes; passes > 50 {
		t.Errorf("%d passes while the API server is away", passes)
	}
	if w.Seen().Enforcing || w.InPlace() {
		t.Error("it says that it enforces what it does not know")
	}
	d.set(false)
	eventually(t, 6*soon, "in force when the API server is there", func() bool { return w.Seen().Enforcing })
	stopDenied()
	allowed.goesOn(t) // behind the last denied packet
	stopAllowed()
	if answered, sent := allowed.answered.Load(), allowed.sent.Load(); answered != sent {
		t.Errorf("%d of %d allowed packets were answered", answered, sent)
	}
	if passed := n.heard(other) - heard; passed != 0 {
		t.Errorf("%d of %d denied packets passed", passed, denied.sent.Load())
	}
}

// Foreign changes of the table are undone at once, also without the API server.
func TestForeignChangesAreUndone(t *testing.T) {
	n := newNode(t)
	client, other, at := guarded(t, n, "10.90.4")
	d := behind(t, n)
	var told atomic.Int32
	n.configure = func(o *policies.Options) { o.Repaired = func() { told.Add(1) } }
	w, _ := n.work(t)
	eventually(t, soon, "in force", func() bool { return w.Seen().Enforcing && reaches(t, client, at) && !reaches(t, other, at) })
	d.set(true)
	if told.Load() != 0 {
		t.Error("the first table is told as a repair")
	}
	rules := func() string {
		var kept []string
		for line := range strings.Lines(n.table(t)) {
			kept = append(kept, strings.Split(line, "counter")[0])
		}
		return strings.Join(kept, "")
	}
	want := rules()
	for _, script := range []string{"delete table inet tortie-policy", "flush ruleset", "flush chain inet tortie-policy ingress",
		"flush map inet tortie-policy to"} {
		begun, before := time.Now(), told.Load()
		n.ns.Run(t, "nft", script)
		eventually(t, soon, "repair of "+script, func() bool { return rules() == want })
		eventually(t, soon, "word of the repair of "+script, func() bool { return told.Load() > before })
		t.Logf("%s: undone, as seen by nft, after %v", script, time.Since(begun))
	}
	if !reaches(t, client, at) || reaches(t, other, at) {
		t.Error("it is not as before")
	}
	if s := w.Seen(); !s.Enforcing || s.Err != nil {
		t.Errorf("seen: %+v", s)
	}
}

// Another engine is left alone, and replaced when it goes; no agent enforces if its setting is off.
func TestOtherEngines(t *testing.T) {
	n := newNode(t)
	client, other, at := guarded(t, n, "10.90.5")
	n.ns.Run(t, "nft", "add table ip calico; add chain ip calico filter-cali-from-wl-dispatch")
	var told sync.Map
	n.configure = func(o *policies.Options) { o.Decided = func(out bool) { told.Store("out", out) } }
	w, stop := n.work(t)
	eventually(t, soon, "stays out", func() bool { s := w.Seen(); return s.Reason == "felix" && w.InPlace() })
	out, _ := told.Load("out")
	if s := w.Seen(); s.Enforcing || out != true || len(s.Problems()) != 1 ||
		!strings.Contains(s.Problems()[0], "chain ip calico filter-cali-from-wl-dispatch") {
		t.Errorf("told %v, problems %q", out, s.Problems())
	} else if reason := s.EventReasons()[s.Problems()[0]]; reason != "PolicyLeftToOther" || s.LeftTo() != s.Problems()[0] {
		t.Errorf("reason %q of an Event %q", reason, s.LeftTo())
	}
	n.ns.Within(t, func() error { return netpol.Hold(podnet.DefaultVethPrefix) }) // a plugin that does not know of it
	eventually(t, soon, "nothing of ours", func() bool { return n.table(t) == "" })
	n.ns.Run(t, "nft", "delete table ip calico")
	eventually(t, soon, "takes over", func() bool { return w.Seen().Enforcing && !reaches(t, other, at) })
	if out, _ := told.Load("out"); out != false {
		t.Errorf("told %v", out)
	}
	if !reaches(t, client, at) {
		t.Error("what is allowed does not pass")
	}
	stop()

	// Felix's rules that are to go once ours are in force do not count.
	n.ns.Run(t, "nft", "add table ip calico; add chain ip calico filter-cali-from-wl-dispatch")
	n.ns.Run(t, "ip", "link", "add", "kube-ipvs0", "type", "veth", "peer", "name", "its-peer")
	n.ns.Run(t, "ip", "address", "add", "10.96.0.1/32", "dev", "kube-ipvs0")
	var log logtest.Buffer
	n.configure = func(o *policies.Options) { o.FelixGoes, o.Log = true, slog.New(slog.NewTextHandler(&log, nil)) }
	w, stop = n.work(t)
	eventually(t, soon, "enforces beside what Felix left", func() bool { return w.Seen().Enforcing })
	if s, err := w.Seen(), w.NotInPlace(); err == nil || !s.Is("ipvs") || !slices.Equal(s.Problems(), []string{err.Error()}) {
		t.Errorf("IPVS: not in place by %v, problems %q", err, s.Problems())
	}
	stop()
	if n := strings.Count(log.String(), "kube-proxy uses IPVS"); n != 1 {
		t.Errorf("IPVS is logged %d times:\n%s", n, log.Tail())
	}

	n.configure = func(o *policies.Options) { o.Mode = config.PolicyOn }
	w, stop = n.work(t)
	eventually(t, soon, "enforces on request, what IPVS leaves of it", func() bool { s := w.Seen(); return s.Is("ipvs") && w.InPlace() })
	stop()

	n.ns.Run(t, "nft", "delete table ip calico")
	n.configure = nil
	for link, engine := range map[string]struct{ reason, plugin string }{"cilium_host": {"cilium", "cilium-cni"},
		"antrea-gw0": {"antrea", "antrea"}} {
		dir := t.TempDir()
		file := filepath.Join(dir, "05-its.conflist")
		errtest.Must(t, os.WriteFile(file, []byte(`{"plugins":[{"type":"portmap"},{"type":"`+engine.plugin+`"}]}`), 0o600))
		n.configure = func(o *policies.Options) { o.ConfDir = dir }
		n.ns.Run(t, "ip", "link", "add", link, "type", "veth", "peer", "name", "its-peer2")
		w, stop = n.work(t)
		eventually(t, soon, "stays out of the way of "+link,
			func() bool { return w.Seen().Reason == engine.reason && w.InPlace() && n.table(t) == "" })
		if s := w.Seen(); s.Enforcing || len(s.Problems()) != 1 || !strings.Contains(s.Problems()[0], file) {
			t.Errorf("%s: problems %q", link, s.Problems())
		}
		n.ns.Run(t, "ip", "link", "delete", link)
		eventually(t, soon, "takes over from "+link, func() bool { return w.Seen().Enforcing && !reaches(t, other, at) })
		stop()
	}

	n.configure = func(o *policies.Options) { o.Mode = config.PolicyOff }
	w, _ = n.work(t)
	eventually(t, soon, "off", func() bool { return n.table(t) == "" && w.InPlace() })
	if s := w.Seen(); s.Enforcing || s.Reason != "off" || len(s.Problems()) != 0 {
		t.Errorf("off: %+v", s)
	}
}

// A pod with CAP_NET_ADMIN can create links in its node's namespace. None of them removes policies, neither of an agent
// that enforces nor of one that starts.
func TestLinksOfPods(t *testing.T) {
	n := newNode(t)
	_, other, at := guarded(t, n, "10.90.7")
	links := []string{"cilium_host", "antrea-gw0", "kube-ipvs0"}
	dir := t.TempDir()
	for name, plugin := range map[string]string{"10-calico.conflist": "calico", "20-cilium.conflist": "cilium-cni"} {
		errtest.Must(t, os.WriteFile(filepath.Join(dir, name), []byte(`{"plugins":[{"type":"`+plugin+`"}]}`), 0o600))
	}
	n.configure = func(o *policies.Options) { o.ConfDir = dir }
	for _, when := range []string{"an agent enforces", "an agent starts"} {
		w, stop := n.work(t)
		eventually(t, soon, when+": in force", func() bool { return w.Seen().Enforcing && w.InPlace() && !reaches(t, other, at) })
		if when == "an agent enforces" {
			for i, link := range links {
				peer := fmt.Sprintf("peer%d", i)
				n.ns.Run(t, "ip", "link", "add", link, "type", "veth", "peer", "name", peer)
				n.ns.Run(t, "ip", "link", "set", link, "up")
				n.ns.Run(t, "ip", "link", "set", peer, "up")
			}
		}
		eventually(t, tellsOfLinks, when+": tells of the links", func() bool { return len(w.Seen().Unproven) == 2 })
		if s := w.Seen(); !s.Enforcing || s.IPVS || !w.InPlace() || len(s.Problems()) != 2 ||
			!strings.Contains(strings.Join(s.Problems(), "\n"), "ip link delete cilium_host") {
			t.Errorf("%s: %+v, problems %q", when, s, s.Problems())
		}
		if reaches(t, other, at) {
			t.Errorf("%s: the denied pod reaches the server", when)
		}
		stop()
	}
}

// tellsOfLinks is enough for two looks at the node's links.
const tellsOfLinks = time.Minute

// The kernel's route shows a pod's address before the API server does, and the owner of an address that two pods claim.
func TestRoutesTellAddresses(t *testing.T) {
	n := newNode(t)
	_, other, at := guarded(t, n, "10.90.6")
	w, _ := n.work(t)
	eventually(t, soon, "in force", func() bool { return w.Seen().Enforcing && !reaches(t, other, at) })
	n.remove(t, n.podPath(), "client")
	eventually(t, soon, "no pod is allowed", func() bool { return w.Seen().Members == 0 })
	n.bind(t, "client", "another")
	n.note(t, "client", other.addr.String()) // an allowed pod claims it
	n.bind(t, "far", "another")
	n.note(t, "far", "10.91.0.9")
	errtest.Must(t, n.request(t, http.MethodPatch, n.podPath()+"/far", `{"metadata":{"labels":{"app":"client"}}}`))
	eventually(t, soon, "a later pod of the same watch is allowed", func() bool { return w.Seen().Members > 0 })
	if reaches(t, other, at) {
		t.Error("a pod of another node has lent a pod of this one its rights")
	}
}
