package netpol_test

import (
	"errors"
	"io"
	"net"
	"net/netip"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/tortie-net/tortie/internal/kernel/netlinkx"
	"github.com/tortie-net/tortie/internal/kernel/netpol"
	"github.com/tortie-net/tortie/internal/policy"
	"github.com/tortie-net/tortie/internal/testkit/difftest"
	"github.com/tortie-net/tortie/internal/testkit/errtest"
	"github.com/tortie-net/tortie/internal/testkit/netnstest"
	"github.com/tortie-net/tortie/internal/testkit/nfttest"
)

func hostDeny(name string) policy.Verdict {
	return policy.Verdict{By: policy.ID{Kind: "GlobalNetworkPolicy", Name: name}}
}

// tcp allows some ports, and denies all else.
func tcp(name string, ports ...uint16) policy.Program {
	p := policy.Program{Rest: policy.List{Else: hostDeny(name)}, Protocols: map[uint8]policy.List{unix.IPPROTO_TCP: {Else: hostDeny(name)}},
		Ports: map[uint8][]policy.PortRange{}}
	for _, port := range ports {
		p.Ports[unix.IPPROTO_TCP] = append(p.Ports[unix.IPPROTO_TCP], policy.PortRange{First: port, Last: port, List: policy.List{Else: allow}})
	}
	return p
}

// hostSample has all that a host endpoint can have.
func hostSample() *policy.Ruleset {
	rs := sample()
	both := bySets(policy.Verdict{}, "office", 0x11)
	web := policy.Program{Ports: map[uint8][]policy.PortRange{unix.IPPROTO_TCP: {{First: 80, Last: 80, List: policy.List{Else: allow}}}},
		Protocols: map[uint8]policy.List{unix.IPPROTO_TCP: {}}}
	all := policy.Program{Rest: policy.List{Else: allow}}
	rs.Programs["host"] = policy.Program{Sequence: []policy.Segment{
		{Own: &both, When: web, Then: policy.Pass, Next: 3},
		{When: web, Then: policy.Log, Log: policy.LogRule{Policy: policy.ID{Kind: "GlobalNetworkPolicy", Name: "log"}, Rule: 1}},
		{When: all, Then: policy.Deny, Verdict: hostDeny("first")},
		{When: all, Then: policy.Allow, Verdict: allow},
	}}
	rs.Programs["raw"] = policy.Program{Sequence: []policy.Segment{
		{When: web, Then: policy.Allow, Verdict: policy.Verdict{Allow: true, NoTrack: true}},
		{When: all, Then: policy.Allow, Verdict: allow},
	}}
	rs.Hosts = map[string]policy.Host{
		"*":    {Name: "all", Programs: [policy.Stages][2]string{{"web", "host"}, {"web", "out"}, {"web", ""}, {"raw", ""}}},
		"eth1": {Name: "one", Programs: [policy.Stages][2]string{{"", "web"}, {"host", ""}}},
	}
	rs.HostRules = policy.HostRules{
		Inbound: []policy.Failsafe{{Protocol: unix.IPPROTO_TCP, Port: 22},
			{Protocol: unix.IPPROTO_TCP, Port: 179, Net: netip.MustParsePrefix("10.0.0.0/8")}},
		Outbound: []policy.Failsafe{{Protocol: unix.IPPROTO_UDP, Port: 53, Net: netip.MustParsePrefix("fd00::/65")}},
		Nodes:    []netip.Addr{addr("10.0.0.1"), addr("10.0.0.2"), addr("fd00::2")}, IPIP: true, VXLANPort: 4789,
		WireGuardPorts: []uint16{51820}, DropFromPods: true,
		Open: []netip.AddrPort{netip.MustParseAddrPort("10.96.0.1:443"), netip.MustParseAddrPort("[fd00:96::1]:443")},
	}
	return rs
}

func TestSyncHosts(t *testing.T) {
	ns := netnstest.New(t)
	e := newEngine(t, ns)
	mustSync(t, e, sample())
	without := list(t, ns)
	rs := hostSample()
	mustSync(t, e, rs)
	difftest.Golden(t, "hosts.txt", list(t, ns))
	steady(t, ns, e, rs)
	restorable(t, ns)

	t.Run("drift", func(t *testing.T) {
		whole := list(t, ns)
		chain := ""
		for _, line := range strings.Split(whole, "\n") {
			if strings.Contains(line, "chain host-input-") {
				chain = strings.Fields(line)[1]
			}
		}
		ns.Run(t, "nft", "flush", "chain", "inet", netpol.TableName, chain)
		mustSync(t, e, rs)
		if got := list(t, ns); got != whole {
			t.Errorf("a chain without its rules is not repaired:\n%s", got)
		}
		ns.Run(t, "nft", "add", "table", "inet", "foreign")
		ns.Run(t, "nft", "insert", "rule", "inet", netpol.TableName, chain, "accept")
		mustSync(t, newEngine(t, ns), rs)
		if got := list(t, ns); strings.Replace(got, "table inet foreign {\n}\n", "", 1) != whole {
			t.Errorf("a rule in front is not removed, or a foreign table is:\n%s", got)
		}
		ns.Run(t, "nft", "delete", "table", "inet", "foreign")
		mustSync(t, e, rs)
		steady(t, ns, e, rs)
	})
	t.Run("refused", func(t *testing.T) {
		bad := hostSample()
		bad.Hosts["*"] = policy.Host{Name: "all", Programs: [policy.Stages][2]string{{"missing", "host"}}}
		_, err := e.Sync(t.Context(), bad, nil)
		if !errors.Is(err, netpol.ErrRefused) || !strings.Contains(err.Error(), "*") {
			t.Errorf("%v, want that a program is refused, of link *", err)
		}
		text := list(t, ns)
		if _, input, _ := strings.Cut(text, "chain host-input-"); !strings.HasSuffix(strings.TrimSpace(strings.Split(input, "}\n")[0]), "drop") {
			t.Errorf("the direction is not closed:\n%s", text)
		}
	})
	t.Run("pruned", func(t *testing.T) {
		before := nfttest.Generation(t, ns)
		mustSync(t, e, sample())
		if n := nfttest.Generation(t, ns) - before; n != 1 {
			t.Errorf("%d transactions", n)
		}
		if got := list(t, ns); got != without {
			t.Errorf("something of the host endpoints is left:\n%s", got)
		}
	})
}

// host is a node with a link to a machine, a pod, and real programs.
type host struct {
	node, outside *netnstest.NS
	*cluster
}

var (
	nodeAddr, outsideAddr = addr("192.0.2.1"), addr("192.0.2.2")
	node6                 = addr("2001:db8::1")
)

func newHost(t *testing.T) host {
	h := host{cluster: newCluster(t, 1), outside: netnstest.New(t)}
	h.node = h.host
	netnstest.Cable(t, h.node, "eth0", h.outside, "eth0")
	h.node.Addr(t, "eth0", nodeAddr.String()+"/24")
	h.outside.Addr(t, "eth0", outsideAddr.String()+"/24")
	h.node.Addr(t, "eth0", node6.String()+"/64")
	h.outside.Addr(t, "eth0", "2001:db8::2/64")
	h.outside.Route(t, "10.1.0.0/16", nodeAddr.String(), "")
	return h
}

// listen accepts connections and sends back what comes.
func listen(t *testing.T, ns *netnstest.NS, at netip.AddrPort) {
	t.Helper()
	ns.Within(t, func() error {
		l, err := net.Listen("tcp", at.String())
		if err == nil {
			netnstest.Echo(t, l)
		}
		return err
	})
}

func dial(t *testing.T, from *netnstest.NS, to netip.AddrPort, wait time.Duration) (c net.Conn, err error) {
	t.Helper()
	return dialBy(t, &net.Dialer{Timeout: wait}, from, to)
}

func dialBy(t *testing.T, by *net.Dialer, from *netnstest.NS, to netip.AddrPort) (c net.Conn, err error) {
	t.Helper()
	from.Within(t, func() error {
		c, err = by.Dial("tcp", to.String())
		return nil
	})
	if err == nil {
		t.Cleanup(func() { c.Close() })
	}
	return c, err
}

// reaches checks whether a connection opens. Those that must not are tried at once.
func reaches(t *testing.T, want bool, from *netnstest.NS, to netip.Addr, ports ...uint16) {
	t.Helper()
	wait := 10 * time.Second
	if !want {
		wait = 300 * time.Millisecond
	}
	for _, port := range ports {
		if _, err := dial(t, from, netip.AddrPortFrom(to, port), wait); (err == nil) != want {
			t.Errorf("%s port %d: %v, want it to open: %v", to, port, err, want)
		}
	}
}

func speaks(t *testing.T, c net.Conn) {
	t.Helper()
	_ = c.SetDeadline(time.Now().Add(10 * time.Second))
	b := make([]byte, 1)
	_, err := c.Write([]byte("x"))
	if _, err2 := io.ReadFull(c, b); err != nil || err2 != nil {
		t.Errorf("an open connection has ended: %v, %v", err, err2)
	}
}

// A host endpoint for which no policy is must not lock a node out: what Calico calls failsafe ports are open, both
// ways, with known connections, neighbours, loopback, and its pods; nothing else is. Without failsafe ports nothing is.
func TestLockout(t *testing.T) {
	h := newHost(t)
	in, out := policy.DefaultInbound(), policy.DefaultOutbound()
	open := []uint16{22, 179, 2379, 2380, 5473, 6443, 6666, 6667}
	shut := []uint16{80, 10250}
	for _, port := range append(open, shut...) {
		listen(t, h.node, netip.AddrPortFrom(nodeAddr, port))
		listen(t, h.outside, netip.AddrPortFrom(outsideAddr, port))
	}
	listen(t, h.node, netip.AddrPortFrom(node6, 22))
	listen(t, h.node, netip.AddrPortFrom(addr("127.0.0.1"), 80))
	h.echo(t, 7)
	mustSync(t, h.Engine, &policy.Ruleset{}) // connections are tracked from here on, as on each node
	session, err := dial(t, h.outside, netip.AddrPortFrom(nodeAddr, 80), 10*time.Second)
	errtest.Must(t, err)
	speaks(t, session)

	closed := policy.Program{Rest: policy.List{Else: policy.Verdict{By: policy.ID{Kind: policy.KindHostEndpoint, Name: "all"}}}}
	rs := &policy.Ruleset{
		Endpoints: map[string]policy.Endpoint{"cali1": {UID: "uid-1"}}, Programs: map[string]policy.Program{"closed": closed},
		Hosts:     map[string]policy.Host{"*": {Name: "all", Programs: [policy.Stages][2]string{{"closed", "closed"}}}},
		HostRules: policy.HostRules{Inbound: in, Outbound: out},
	}
	mustSync(t, h.Engine, rs)
	reaches(t, true, h.outside, nodeAddr, open...)
	reaches(t, true, h.outside, node6, 22)
	reaches(t, true, h.node, outsideAddr, 179, 2379, 2380, 5473, 6443, 6666, 6667)
	reaches(t, false, h.outside, nodeAddr, shut...)
	reaches(t, false, h.node, outsideAddr, 22, 80)
	reaches(t, true, h.node, addr("127.0.0.1"), 80)
	reaches(t, true, h.node, nodeAddr, 80)
	reaches(t, true, h.pods[1], nodeAddr, 80) // pods are governed by their own policies
	if _, err := h.node.AskUDP(t, "", netip.AddrPortFrom(pod4(1), 7).String(), "x", 10*time.Second); err != nil {
		t.Errorf("the node does not reach its pod: %v", err)
	}
	if _, err := h.outside.AskUDP(t, "", netip.AddrPortFrom(pod4(1), 7).String(), "x", 10*time.Second); err != nil {
		t.Errorf("what is forwarded is governed without a policy for it: %v", err)
	}
	speaks(t, session)

	rs.HostRules = policy.HostRules{DropFromPods: true}
	mustSync(t, h.Engine, rs)
	reaches(t, false, h.outside, nodeAddr, 22, 6443)
	reaches(t, false, h.node, outsideAddr, 6443)
	reaches(t, false, h.pods[1], nodeAddr, 80)
	if _, err := h.node.AskUDP(t, "", netip.AddrPortFrom(pod4(1), 7).String(), "x", 10*time.Second); err != nil {
		t.Errorf("the node does not reach its pod: %v", err)
	}
	speaks(t, session)
	counters, err := h.Counters(t.Context())
	errtest.Must(t, err)
	for _, d := range []netpol.Denied{{Direction: policy.Ingress, By: closed.Rest.Else.By},
		{Direction: policy.Egress, By: closed.Rest.Else.By},
		{Direction: policy.Egress, Reason: "from pod to its node"}} {
		if counters[d].Packets == 0 {
			t.Errorf("nothing is counted for %v of %v", d, counters)
		}
	}

	// Open destinations are reached, by their own address and by a Service's, except by sockets that ask to be judged.
	h.node.Route(t, "203.0.113.0/24", outsideAddr.String(), "")
	h.node.Run(t, "nft",
		"add table ip services; add chain ip services out { type nat hook output priority -100; }; add rule ip services out ip daddr "+
			"203.0.113.1 tcp dport 443 dnat to 192.0.2.2:6443; add rule ip services out ip daddr 203.0.113.1 tcp dport 444 dnat to 192.0.2.2:6443")
	for _, to := range []string{"192.0.2.2:6443", "203.0.113.1:443"} {
		at := netip.MustParseAddrPort(to)
		rs.HostRules.Open = []netip.AddrPort{at}
		mustSync(t, h.Engine, rs)
		reaches(t, true, h.node, at.Addr(), at.Port())
		reaches(t, false, h.node, outsideAddr, 6666)
		reaches(t, false, h.node, addr("203.0.113.1"), 444)
		if _, err := dialBy(t, &net.Dialer{Timeout: 300 * time.Millisecond, Control: netpol.AskJudgement}, h.node, at); err == nil {
			t.Errorf("%s: a socket that asks to be judged is not", to)
		}
	}

	rs.Hosts = nil
	rs.HostRules = policy.HostRules{}
	mustSync(t, h.Engine, rs)
	reaches(t, true, h.outside, nodeAddr, shut...)
}

// Programs count at the links that they are for, at the stage that they are for, and a translated destination of the
// node's own packets counts with the link that it leaves by.
func TestStages(t *testing.T) {
	h := newHost(t)
	for _, port := range []uint16{80, 81} {
		listen(t, h.node, netip.AddrPortFrom(nodeAddr, port))
		listen(t, h.outside, netip.AddrPortFrom(outsideAddr, port))
		listen(t, h.pods[1], netip.AddrPortFrom(pod4(1), port))
	}
	own := policy.List{Steps: []policy.Step{{Nets: "pods", Verdict: allow}}}
	everything := policy.Program{Rest: policy.List{Else: allow}}
	programs := 0
	base := func(link string, stage policy.Stage, d policy.Direction, p policy.Program) *policy.Ruleset {
		programs++
		key := strings.Repeat("p", programs)
		rs := &policy.Ruleset{Endpoints: map[string]policy.Endpoint{"cali1": {UID: "uid-1"}}, Programs: map[string]policy.Program{key: p},
			Nets: map[string][]policy.Range{"pods": ranges("10.1.0.0-10.1.255.255")}}
		host := policy.Host{Name: "x"}
		host.Programs[stage][d] = key
		rs.Hosts = map[string]policy.Host{link: host}
		return rs
	}
	check := func(name string, rs *policy.Ruleset, want string) {
		t.Helper()
		mustSync(t, h.Engine, rs)
		var got []string
		for _, c := range []struct {
			name string
			from *netnstest.NS
			to   netip.Addr
			port uint16
		}{
			{"in", h.outside, nodeAddr, 80}, {"out", h.node, outsideAddr, 80}, {"through", h.outside, pod4(1), 80},
			{"off", h.pods[1], outsideAddr, 80},
			{"translated", h.outside, nodeAddr, 8081}, {"service", h.node, addr("203.0.113.1"), 80}, {"podservice", h.node, addr("203.0.113.2"), 80},
		} {
			wait := 10 * time.Second
			if !strings.Contains(" "+want+" ", " "+c.name+" ") {
				wait = 200 * time.Millisecond
			}
			if _, err := dial(t, c.from, netip.AddrPortFrom(c.to, c.port), wait); err == nil {
				got = append(got, c.name)
			}
		}
		if text := strings.Join(got, " "); text != want {
			t.Errorf("%s: %q pass, want %q", name, text, want)
		}
	}
	h.outside.Route(t, "0.0.0.0/0", nodeAddr.String(), "")
	h.node.Route(t, "203.0.113.0/24", outsideAddr.String(), "")
	h.node.Run(t, "nft", "add table ip services; add chain ip services pre { type nat hook prerouting priority -100; }; "+
		"add chain ip services out { type nat hook output priority -100; }; add rule ip services pre tcp dport 8081 dnat to 10.1.1.2:81; "+
		"add rule ip services out ip daddr 203.0.113.1 dnat to 192.0.2.2; add rule ip services out ip daddr 203.0.113.2 dnat to 10.1.1.2; add "+
		"chain ip services post { type nat hook postrouting priority 100; }; add rule ip services post oifname \"cali1\" ct status dnat ip "+
		"saddr 192.0.2.1 masquerade")
	all := "in out through off translated service podservice"
	check("nothing", &policy.Ruleset{}, all)
	check("input", base("eth0", policy.Terminal, policy.Ingress, tcp("p", 81)), "out through off translated service podservice")
	check("output", base("*", policy.Terminal, policy.Egress, tcp("p", 81)), "in through off translated podservice")
	check("another link", base("eth9", policy.Terminal, policy.Egress, tcp("p", 81)), all)
	check("forwarded in", base("*", policy.Forwarded, policy.Ingress, tcp("p", 81)), "in out translated service podservice")
	check("forwarded out", base("eth0", policy.Forwarded, policy.Egress, tcp("p", 81)), "in out through translated service podservice")
	check("before translation", base("*", policy.Untranslated, policy.Ingress, tcp("p", 80)), "in out through off service podservice")
	early := base("*", policy.Untranslated, policy.Ingress, tcp("p", 80))
	early.Hosts["eth0"] = policy.Host{Name: "own"}
	check("before translation, without a policy of the link's own", early, "in out through off service podservice")
	toPods := policy.Program{Sequence: []policy.Segment{
		{Own: &own, When: policy.Program{Ports: tcp("p", 80).Ports, Rest: policy.List{}}, Then: policy.Deny, Verdict: hostDeny("p")},
		{When: everything, Then: policy.Allow, Verdict: allow},
	}}
	check("own end", base("*", policy.Forwarded, policy.Ingress, toPods), "in out off translated service podservice")
	check("another own end", base("*", policy.Terminal, policy.Ingress, toPods), all)
	check("a pass", base("*", policy.Terminal, policy.Ingress, policy.Program{Sequence: []policy.Segment{
		{When: tcp("p", 80), Then: policy.Pass, Next: 2},
		{When: everything, Then: policy.Deny, Verdict: hostDeny("p")},
		{When: everything, Then: policy.Allow, Verdict: allow},
	}}), all)
}

// What is allowed before connection tracking passes a host endpoint that denies all else, both ways, and is not
// tracked; what is denied there does not affect failsafe ports.
func TestUntracked(t *testing.T) {
	h := newHost(t)
	for _, port := range []uint16{22, 80, 81} {
		listen(t, h.node, netip.AddrPortFrom(nodeAddr, port))
	}
	listen(t, h.outside, netip.AddrPortFrom(outsideAddr, 6443))
	notTracked := policy.Verdict{Allow: true, NoTrack: true}
	answers := policy.Program{
		Protocols: map[uint8]policy.List{unix.IPPROTO_TCP: {Sources: []policy.PortRange{{First: 80, Last: 80, List: policy.List{Else: allow}}}}},
	}
	everything := policy.Program{Rest: policy.List{Else: allow}}
	sequence := func(when policy.Program, v policy.Verdict, then policy.Action) policy.Program {
		return policy.Program{Sequence: []policy.Segment{{When: when, Then: then, Verdict: v},
			{When: everything, Then: policy.Allow, Verdict: allow}}}
	}
	closed := policy.Program{Rest: policy.List{Else: hostDeny("closed")}}
	rs := &policy.Ruleset{
		Programs: map[string]policy.Program{"closed": closed, "in": sequence(tcp("", 80), notTracked, policy.Allow),
			"out":  sequence(answers, notTracked, policy.Allow),
			"deny": sequence(everything, hostDeny("raw"), policy.Deny)},
		Hosts: map[string]policy.Host{"*": {Name: "all", Programs: [policy.Stages][2]string{{"closed", "closed"}, {}, {}, {"in", "out"}}}},
	}
	mustSync(t, h.Engine, rs)
	reaches(t, true, h.outside, nodeAddr, 80)
	reaches(t, false, h.outside, nodeAddr, 81)
	tracked := map[uint16]bool{}
	_, err := h.node.Conn.DeleteFlowsIf(func(f netlinkx.Flow) bool { tracked[f.Port] = true; return false }, nil)
	errtest.Must(t, err)
	if tracked[80] {
		t.Errorf("tracked are %v", tracked)
	}
	steady(t, h.node, h.Engine, rs)

	rs.Hosts = map[string]policy.Host{"*": {Name: "all", Programs: [policy.Stages][2]string{{"", ""}, {}, {}, {"deny", "deny"}}}}
	rs.HostRules = policy.HostRules{Inbound: policy.DefaultInbound(), Outbound: policy.DefaultOutbound()}
	mustSync(t, h.Engine, rs)
	reaches(t, true, h.outside, nodeAddr, 22)
	reaches(t, true, h.node, outsideAddr, 6443)
	reaches(t, false, h.outside, nodeAddr, 80)
}
