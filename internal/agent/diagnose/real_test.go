package diagnose

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/tortie-net/tortie/internal/agent/nodestatus"
	"github.com/tortie-net/tortie/internal/app/config"
	"github.com/tortie-net/tortie/internal/kernel/sysctl"
	"github.com/tortie-net/tortie/internal/kernel/vxlan"
	"github.com/tortie-net/tortie/internal/testkit/errtest"
	"github.com/tortie-net/tortie/internal/testkit/netnstest"
	"github.com/tortie-net/tortie/internal/testkit/waittest"
)

// asProgram in the environment makes the test binary the command itself: sockets and /proc belong to the namespace in
// which it is started.
const asProgram = "TORTIE_TEST_AS_DIAGNOSE"

func TestMain(m *testing.M) {
	if os.Getenv(asProgram) == "" {
		os.Exit(m.Run())
	}
	settings, err := config.LoadDiagnose(config.OS())
	if err == nil {
		err = Main(context.Background(), os.Args[1:], settings, nodestatus.Output{Out: os.Stdout, Err: os.Stderr})
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// network is two nodes with a router between them; here is where the command runs.
type network struct {
	here, router, there *netnstest.NS
	env                 []string // of the command

	mu     sync.Mutex // guards report once the agent serves it
	report *nodestatus.Report
}

func newNetwork(t *testing.T) *network {
	t.Helper()
	n := &network{here: netnstest.New(t), router: netnstest.New(t), there: netnstest.New(t)}
	for i, side := range []*netnstest.NS{n.here, n.there} {
		link := fmt.Sprint("side", i+1)
		netnstest.Cable(t, side, "eth0", n.router, link)
		n.router.Addr(t, link, fmt.Sprintf("10.%d.0.1/24", i+1))
		n.router.Addr(t, link, fmt.Sprintf("fd00:%d::1/64", i+1))
		side.Addr(t, "eth0", fmt.Sprintf("10.%d.0.5/24", i+1))
		side.Addr(t, "eth0", fmt.Sprintf("fd00:%d::5/64", i+1))
		side.Route(t, "0.0.0.0/0", fmt.Sprintf("10.%d.0.1", i+1), "eth0")
		side.Route(t, "::/0", fmt.Sprintf("fd00:%d::1", i+1), "eth0")
	}
	for _, ns := range []*netnstest.NS{n.here, n.router, n.there} {
		set(t, ns, "1", "net", "ipv4", "ip_forward")
		set(t, ns, "1", "net", "ipv6", "conf", "all", "forwarding")
	}
	set(t, n.here, "0", "net", "ipv4", "conf", "eth0", "rp_filter")
	n.report = &nodestatus.Report{
		Node: "here", Ready: true, Address: "10.1.0.5/24", Address6: "fd00:1::5/64", Interface: "eth0", PodMTU: 1480,
		Tunnels: []nodestatus.Tunnel{{Kind: "IPIP", Device: "tunl0", MTU: 1480}}, ForwardsIPv6: true,
		Pools: []nodestatus.Pool{{CIDR: "192.168.0.0/16", IPIPMode: "Always"}, {CIDR: "fd00:10::/48"}},
		Peers: []nodestatus.Peer{{Address: "10.2.0.5", Node: "there", State: "Active"}, {Address: "fd00:2::5", Node: "there", State: "Active"}},
	}
	return n
}

func set(t *testing.T, ns *netnstest.NS, value string, key ...string) {
	t.Helper()
	ns.Within(t, func() error { return sysctl.DefaultRoot.Set(key, value) })
}

func (n *network) listen(t *testing.T, ns *netnstest.NS, addr string) {
	t.Helper()
	family := "tcp4"
	if strings.HasPrefix(addr, "[") {
		family = "tcp6" // and no IPv4 by it
	}
	var l net.Listener
	ns.Within(t, func() (err error) {
		l, err = new(net.ListenConfig).Listen(context.Background(), family, addr)
		return err
	})
	t.Cleanup(func() { l.Close() })
}

// agent serves the report as the agent does.
func (n *network) agent(t *testing.T) {
	t.Helper()
	server := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		n.mu.Lock()
		defer n.mu.Unlock()
		n.report.Time = time.Now()
		n.report.LastPass, n.report.Started = n.report.Time, n.report.Time
		_ = json.NewEncoder(w).Encode(n.report)
	}))
	server.Listener.Close()
	n.here.Within(t, func() (err error) {
		server.Listener, err = new(net.ListenConfig).Listen(context.Background(), "tcp", "127.0.0.1:9099")
		return err
	})
	server.Start()
	t.Cleanup(server.Close)
}

// diagnose runs the command, as on a host without CNI configurations.
func (n *network) diagnose(t *testing.T, args ...string) (findings []Finding, code int) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	var out, errs bytes.Buffer
	var cmd *exec.Cmd
	err := n.here.Do(func() error {
		cmd = exec.CommandContext(ctx, os.Args[0], append([]string{"-o", "json", "-root", t.TempDir()}, args...)...)
		cmd.Env = append(os.Environ(), asProgram+"=1")
		cmd.Env = append(cmd.Env, n.env...)
		cmd.Stdout, cmd.Stderr = &out, &errs
		return cmd.Run()
	})
	var r Result
	if decodeErr := json.Unmarshal(out.Bytes(), &r); decodeErr != nil {
		t.Fatalf("%v, %v\n%s%s", err, decodeErr, &out, &errs)
	}
	if !strings.Contains(errs.String(), "looking at this host ...\n") {
		t.Errorf("no progress: %q", &errs)
	}
	return r.Findings, cmd.ProcessState.ExitCode()
}

func find(t *testing.T, findings []Finding, check, about string) Finding {
	t.Helper()
	i := slices.IndexFunc(findings, func(f Finding) bool { return f.Check == check && strings.HasPrefix(f.About, about) })
	if i < 0 {
		t.Fatalf("no finding of %s about %q in %+v", check, about, findings)
	}
	return findings[i]
}

func expect(t *testing.T, findings []Finding, check, about string, level Level, seen string) {
	t.Helper()
	if f := find(t, findings, check, about); f.Level != level || !strings.Contains(f.Seen, seen) {
		t.Errorf("%+v; want %s with %q", f, level, seen)
	}
}

// What a real kernel does with each obstacle, and the findings.
func TestObstaclesOnTheWay(t *testing.T) {
	const there, there6 = "10.2.0.5", "fd00:2::5"
	const nft = "table inet t { chain c { type filter hook input priority 0; %s }; }"
	for _, c := range []struct {
		name  string
		make  func(*testing.T, *network)
		check func(*testing.T, []Finding)
	}{
		{"an open way", func(t *testing.T, n *network) {
			n.listen(t, n.there, "10.2.0.5:179")
			n.listen(t, n.there, "[fd00:2::5]:179")
		}, func(t *testing.T, f []Finding) {
			expect(t, f, "peer-bgp", there, Warning, "open, but the session is Active")
			expect(t, f, "peer-bgp", there6, Warning, "TCP port 179 from")
			expect(t, f, "peer-mtu", there, OK, "1500 bytes arrive whole")
			expect(t, f, "peer-mtu", there6, OK, "1480 bytes arrive whole")
			expect(t, f, "rp-filter", "eth0", OK, "is 0")
			expect(t, f, "foreign-routes", "", OK, "")
			expect(t, f, "forward-hook", "", OK, "")
			expect(t, f, "cni-config", "", Unknown, "could not look")
			expect(t, f, "kernel", "tcp-md5", OK, "there")
			expect(t, f, "kernel", "nf_tables", OK, "there")
			// Without a tunnel in the namespace the kernel answers that protocol 4 is unknown.
			if ipip := find(t, f, "peer-ipip", there); ipip.Level != Problem || strings.Contains(ipip.Seen, "dropped") {
				t.Errorf("%+v", ipip)
			}
		}},
		{"nobody listens", func(*testing.T, *network) {}, func(t *testing.T, f []Finding) {
			expect(t, f, "peer-bgp", there, Problem, "TCP port 179 from 10.1.0.5: refused")
			expect(t, f, "peer-bgp", there6, Problem, "refused")
		}},
		{"the peer's firewall drops", func(t *testing.T, n *network) {
			n.there.Run(t, "nft", fmt.Sprintf(nft, "tcp dport 179 drop; meta l4proto 4 drop;"))
		}, func(t *testing.T, f []Finding) {
			expect(t, f, "peer-bgp", there, Problem, "no answer: filtered")
			expect(t, f, "peer-bgp", there6, Problem, "no answer: filtered")
			expect(t, f, "peer-ipip", there, Problem, "protocol 4 is dropped")
			expect(t, f, "peer-mtu", there, OK, "")
		}},
		{"the peer's firewall rejects", func(t *testing.T, n *network) {
			n.there.Run(t, "nft", fmt.Sprintf(nft, "tcp dport 179 reject with tcp reset; meta l4proto 4 reject with icmp type admin-prohibited;"))
		}, func(t *testing.T, f []Finding) {
			expect(t, f, "peer-bgp", there, Problem, "refused")
			expect(t, f, "peer-ipip", there, Problem, "is rejected")
		}},
		{"this host's firewall", func(t *testing.T, n *network) {
			n.here.Run(t, "nft", "table inet t { chain c { type filter hook output priority 0; tcp dport 179 drop; meta l4proto 4 drop; }; }")
		}, func(t *testing.T, f []Finding) {
			expect(t, f, "peer-ipip", there, Problem, "does not let it out")
			if bgp := find(t, f, "peer-bgp", there); bgp.Level != Problem {
				t.Errorf("%+v", bgp)
			}
		}},
		{"a small MTU on the way, and nobody says so", func(t *testing.T, n *network) {
			errtest.Must(t, n.router.Conn.SetMTU(n.router.Link(t, "side2").Index, 1400))
			n.router.Run(t, "nft", "table inet t { chain c { type filter hook output priority 0; icmp type destination-unreachable drop; icmpv6 "+
				"type packet-too-big drop; }; }")
		}, func(t *testing.T, f []Finding) {
			expect(t, f, "peer-mtu", there, Problem, "packets of 1500 bytes do not arrive; of those that were tried, the largest that did has 1400")
			expect(t, f, "peer-mtu", there6, Problem, "has 1400")
		}},
		{"a small MTU on the way, and the router says so", func(t *testing.T, n *network) {
			errtest.Must(t, n.router.Conn.SetMTU(n.router.Link(t, "side2").Index, 1450))
		}, func(t *testing.T, f []Finding) {
			expect(t, f, "peer-mtu", there, Problem, "has 1450")
			expect(t, f, "peer-mtu", there6, Problem, "has 1450")
		}},
		{"the peer is away", func(t *testing.T, n *network) {
			errtest.Must(t, n.there.Conn.SetDown(n.there.Link(t, "eth0").Index))
		}, func(t *testing.T, f []Finding) {
			if bgp := find(t, f, "peer-bgp", there); bgp.Level != Problem || !strings.Contains(bgp.Seen, "no ") {
				t.Errorf("%+v", bgp)
			}
			expect(t, f, "peer-mtu", there, Unknown, "no ping")
		}},
		{"a firewall of the host drops what it forwards", func(t *testing.T, n *network) {
			n.here.Run(t, "nft", "table inet hostfw { chain f { type filter hook forward priority 0; policy drop; ct state established accept; }; }")
			n.here.Run(t, "nft", "table ip last { chain f { type filter hook forward priority 10; tcp dport 22 accept; counter reject; }; }")
			n.here.Run(t, "nft", "table ip named { chain f { type filter hook forward priority 0; policy drop; ip saddr 192.168.0.0/16 accept; }; }")
			n.here.Run(t, "nft", "table ip open { chain f { type filter hook forward priority 0; policy drop; accept; drop; }; }")
			n.here.Run(t, "nft",
				"table ip sets { chain f { type filter hook forward priority 0; policy drop; iifname { \"eth8\", \"eth9\" } accept; }; }")
			n.here.Run(t, "nft", "table ip tortie { chain f { type filter hook forward priority 0; policy drop; }; }")
			n.here.Run(t, "iptables-nft", "-P", "FORWARD", "DROP")
			n.here.Run(t, "iptables-nft", "-N", "DOCKER-USER")
			n.here.Run(t, "ip6tables-nft", "-P", "FORWARD", "DROP")
			n.here.Run(t, "ip6tables-nft", "-A", "FORWARD", "-i", "cali+", "-j", "ACCEPT")
		}, func(t *testing.T, f []Finding) {
			expect(t, f, "forward-hook", "inet hostfw f", Problem, "its policy drop drops what this host forwards")
			expect(t, f, "forward-hook", "ip last f", Problem, "its last rule reject")
			expect(t, f, "forward-hook", "ip filter FORWARD", Problem, "policy drop")
			expect(t, f, "forward-hook", "ip sets f", Warning, "unless a set")
			for about, want := range map[string]string{
				"inet hostfw f": "nft insert rule inet hostfw f ip saddr 192.168.0.0/16 accept; nft insert rule inet hostfw f ip daddr " +
					"192.168.0.0/16 accept; nft insert rule inet hostfw f ip6 saddr fd00:10::/48 accept",
				"ip filter FORWARD": "iptables -I DOCKER-USER -s 192.168.0.0/16 -j ACCEPT",
			} {
				if got := find(t, f, "forward-hook", about); !strings.Contains(got.Do, want) {
					t.Errorf("%s: do %q, want %q in it", about, got.Do, want)
				}
			}
			if n := len(slices.DeleteFunc(slices.Clone(f), func(f Finding) bool { return f.Check != "forward-hook" })); n != 4 {
				t.Errorf("%d findings of forward-hook in %+v", n, f)
			}
		}},
		{"what the host does", func(t *testing.T, n *network) {
			set(t, n.here, "1", "net", "ipv4", "conf", "all", "rp_filter")
			set(t, n.here, "0", "net", "ipv4", "ip_forward")
			n.here.Route(t, "10.2.0.5/32", "10.1.0.1", "eth0")
			n.here.Run(t, "ip", "route", "add", "192.168.7.0/26", "via", "10.1.0.1", "proto", "12")
			n.here.Run(t, "nft", "table ip filter { chain KUBE-ROUTER-INPUT { }; }")
		}, func(t *testing.T, f []Finding) {
			expect(t, f, "rp-filter", "eth0", Warning, "strict")
			expect(t, f, "forwarding", "net.ipv4.ip_forward", Problem, "is 0")
			expect(t, f, "foreign-routes", "", Problem, "192.168.7.0/26 via 10.1.0.1 dev eth0")
			expect(t, f, "other-network", "BIRD", Warning, "route to 192.168.7.0/26")
			expect(t, f, "other-network", "kube-router", Warning, "chain KUBE-ROUTER-INPUT of table filter")
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			n := newNetwork(t)
			n.agent(t)
			c.make(t, n)
			findings, code := n.diagnose(t)
			c.check(t, findings)
			if code != 1 {
				t.Errorf("exit code %d", code)
			}
		})
	}
}

// Without an agent, peers that are named are probed all the same.
func TestWithoutAnAgent(t *testing.T) {
	n := newNetwork(t)
	n.listen(t, n.there, "10.2.0.5:179")
	findings, code := n.diagnose(t, "10.2.0.5", "fd00:2::5")
	expect(t, findings, "agent", "", Problem, "no agent answers on 127.0.0.1:9099")
	if slices.ContainsFunc(findings, func(f Finding) bool { return f.Check != "agent" && !strings.HasPrefix(f.Check, "peer-") }) {
		t.Errorf("a machine without an agent is judged: %+v", findings)
	}
	expect(t, findings, "peer-bgp", "10.2.0.5", OK, "open")
	expect(t, findings, "peer-bgp", "fd00:2::5", Problem, "refused")
	if code != 1 {
		t.Errorf("exit code %d", code)
	}
}

// A router at a link-local address is probed on its link, from an address that it knows.
func TestLinkLocalPeer(t *testing.T) {
	t.Parallel()
	n := newNetwork(t)
	n.router.Addr(t, "side1", "fe80::1/64")
	n.router.Addr(t, "side2", "fe80::2/64")
	for i, link := range []string{"side1", "side2"} { // package net takes a name for the link that has it in another namespace
		n.listen(t, n.router, fmt.Sprintf("[fe80::%d%%%d]:179", i+1, n.router.Link(t, link).Index))
	}
	n.router.Run(t, "nft", "table inet t { chain c { type filter hook input priority 0; meta nfproto ipv6 ip6 saddr != fe80::/10 drop; }; }")
	n.report.Peers = []nodestatus.Peer{{Address: "fe80::1%eth0", State: "Active"}, {Address: "fe80::2%eth0", State: "Active"},
		{Address: "fe80::1%eth9", State: "Active"}}
	waittest.For(t, 30*time.Second, func() error { // the kernel makes the node's own link-local address in its own time
		if text := n.here.Run(t, "ip", "-6", "addr", "show", "dev", "eth0", "scope", "link"); !strings.Contains(text, "fe80::") ||
			strings.Contains(text, "tentative") {
			return fmt.Errorf("addresses: %s", text)
		}
		return nil
	})
	n.agent(t)
	findings, _ := n.diagnose(t)
	expect(t, findings, "peer-bgp", "fe80::1%eth0", Warning, "open, but the session is Active")
	expect(t, findings, "peer-mtu", "fe80::1%eth0", OK, "1480 bytes arrive whole")
	expect(t, findings, "peer-bgp", "fe80::2%eth0", Problem, "no ")
	expect(t, findings, "peer-bgp", "fe80::1%eth9", Unknown, "could not be tried")
}

// A cluster without any answer is probed within the time of a diagnosis: peers beyond it have another finding.
func TestManyPeersThatAreAway(t *testing.T) {
	t.Parallel()
	n := newNetwork(t)
	n.router.Route(t, "10.2.0.0/16", "10.2.0.5", "side2") // else the router, which has a way to 10.2.0.0/24, answers once in a while
	n.router.Run(t, "nft", "table inet t { chain c { type filter hook forward priority 0; policy drop; }; }")
	n.report.Peers = nil
	for i := range 400 {
		n.report.Peers = append(n.report.Peers, nodestatus.Peer{Address: fmt.Sprintf("10.2.%d.%d", i/200+1, i%200+1), State: "Active"})
	}
	n.agent(t)
	findings, code := n.diagnose(t)
	if code != 1 {
		t.Errorf("exit code %d", code)
	}
	silent := 0
	for _, f := range findings {
		switch {
		case f.Check != "peer-bgp":
		case strings.Contains(f.Seen, "no answer: filtered"):
			silent++
		default:
			t.Errorf("peer %s: %s", f.About, f.Seen)
		}
	}
	if silent != 400 {
		t.Errorf("%d peers are said to be silent", silent)
	}
}

// Without an agent the machine is not judged: it may not be a node.
func TestMachineThatIsNoNode(t *testing.T) {
	var out, errs bytes.Buffer
	err := netnstest.New(t).Do(func() error {
		cmd := exec.CommandContext(t.Context(), os.Args[0], "-o", "json")
		cmd.Env, cmd.Stdout, cmd.Stderr = append(os.Environ(), asProgram+"=1"), &out, &errs
		return cmd.Run()
	})
	if err == nil || out.Len() > 0 ||
		!strings.Contains(errs.String(), "this machine is not judged. Ask the pod of the node that is meant: kubectl -n kube-system exec") {
		t.Errorf("%v, %q, %q", err, &out, &errs)
	}
}

func TestArguments(t *testing.T) {
	var out, errs bytes.Buffer
	for want, args := range map[string][]string{"node2": {"node2"}, "text or json": {"-o", "yaml"}} {
		err := Main(t.Context(), args, config.Diagnose{}, nodestatus.Output{Out: &out, Err: &errs})
		if err == nil || !strings.Contains(err.Error(), want) || out.Len() > 0 {
			t.Errorf("%v: %v, %q", args, err, &out)
		}
	}
}

// Probes pass real VXLAN: of both families, with a firewall in the way, and without the other end.
func TestVXLANOnTheWay(t *testing.T) {
	n := newNetwork(t)
	sides := []struct {
		ns    *netnstest.NS
		name  string
		v4    netip.Addr
		v6    netip.Addr
		inner [2]netip.Addr
		block [2]string
	}{
		{n.here, "here", netip.MustParseAddr("10.1.0.5"), netip.MustParseAddr("fd00:1::5"),
			[2]netip.Addr{netip.MustParseAddr("192.168.1.1"), netip.MustParseAddr("fd00:a:1::1")}, [2]string{"192.168.1.0/26", "fd00:a:1::/122"}},
		{n.there, "there", netip.MustParseAddr("10.2.0.5"), netip.MustParseAddr("fd00:2::5"),
			[2]netip.Addr{netip.MustParseAddr("192.168.2.1"), netip.MustParseAddr("fd00:a:2::1")}, [2]string{"192.168.2.0/26", "fd00:a:2::/122"}},
	}
	for i, side := range sides {
		other := sides[1-i]
		for j, local := range []netip.Addr{side.v4, side.v6} {
			tunnel := vxlan.Tunnel{
				Local: local, Parent: "eth0", MAC: vxlan.MACOf(side.name, j == 1), MTU: 1430 - 20*j, Addr: side.inner[j],
				Peers: []vxlan.Peer{{Addr: other.inner[j], MAC: vxlan.MACOf(other.name, j == 1), Node: []netip.Addr{other.v4, other.v6}[j]}},
			}
			if _, err := vxlan.New(side.ns.Conn).Merge(t.Context(), tunnel); err != nil {
				t.Fatal(err)
			}
			side.ns.Run(t, "ip", "route", "add", other.block[j], "via", other.inner[j].String(), "dev", vxlan.Device(j == 1), "onlink")
		}
	}
	n.report.Tunnels = []nodestatus.Tunnel{
		{Kind: "VXLAN", Device: "vxlan.calico", Address: "192.168.1.1", MTU: 1430, Port: 4789},
		{Kind: "VXLAN", Device: "vxlan-v6.calico", Address: "fd00:a:1::1", MTU: 1410, Port: 4789},
	}
	n.report.Pools = []nodestatus.Pool{{CIDR: "192.168.0.0/16", VXLANMode: "Always"}, {CIDR: "fd00:a::/48", VXLANMode: "Always"}}
	n.report.Routes.List = []nodestatus.Route{
		{Destination: "192.168.2.0/26", Via: "192.168.2.1", Device: "vxlan.calico", Encap: "VXLAN", Node: "there"},
		{Destination: "fd00:a:2::/122", Via: "fd00:a:2::1", Device: "vxlan-v6.calico", Encap: "VXLAN", Node: "there"},
	}
	n.agent(t)
	look := func(what string, level Level, seen string) {
		t.Helper()
		findings, _ := n.diagnose(t)
		for _, peer := range []string{"10.2.0.5", "fd00:2::5"} {
			if f := find(t, findings, "peer-vxlan", peer); f.Level != level || !strings.Contains(f.Seen, seen) {
				t.Errorf("%s: %+v; want %s with %q", what, f, level, seen)
			}
			expect(t, findings, "peer-mtu", peer, OK, "1480 bytes arrive whole")
		}
		for _, f := range findings {
			if f.Check == "other-network" && f.Level != OK || f.Check == "peer-ipip" {
				t.Errorf("%s: %+v", what, f)
			}
		}
	}
	look("an open way", OK, "was answered")
	n.router.Run(t, "nft", "table inet t { chain c { type filter hook forward priority 0; udp dport 4789 drop; }; }")
	look("a firewall", Problem, "VXLAN is dropped")
	n.router.Run(t, "nft", "delete table inet t")
	n.there.Run(t, "ip", "link", "delete", "vxlan.calico")
	n.there.Run(t, "ip", "link", "delete", "vxlan-v6.calico")
	look("nobody there", Problem, "UDP port 4789 there is closed")
}

// TestManagersFromThePod: without the host's file system the check is silent, unless a socket shows that such a program
// runs.
func TestManagersFromThePod(t *testing.T) {
	t.Parallel()
	n := newNetwork(t)
	n.agent(t)
	findings, _ := n.diagnose(t)
	if slices.ContainsFunc(findings, func(f Finding) bool { return f.Check == "network-manager" }) {
		t.Errorf("%+v", findings)
	}
	path := filepath.Join(t.TempDir(), "NetworkManager", "private")
	errtest.Must(t, os.Mkdir(filepath.Dir(path), 0o755))
	n.here.Within(t, func() error {
		l, err := net.Listen("unix", path)
		if err == nil {
			t.Cleanup(func() { l.Close() })
		}
		return err
	})
	findings, _ = n.diagnose(t)
	expect(t, findings, "network-manager", "", Unknown, "listens at "+path)
}

// TestServiceOfKubernetes: missing rules of kube-proxy are distinguished from a missing API server.
func TestServiceOfKubernetes(t *testing.T) {
	t.Parallel()
	n := newNetwork(t)
	n.agent(t)
	n.env = []string{"KUBERNETES_PORT=tcp://10.96.0.1:443"}
	const about = "kubernetes, 10.96.0.1:443"
	n.here.Run(t, "nft",
		"table ip kube-proxy { chain out { type nat hook output priority -100; ip daddr 10.96.0.1 tcp dport 443 dnat to 10.2.0.5:6443; }; }")
	var api net.Listener
	n.there.Within(t, func() (err error) {
		api, err = net.Listen("tcp", "10.2.0.5:6443")
		return err
	})
	findings, _ := n.diagnose(t)
	expect(t, findings, "service", about, OK, "is open")
	n.here.Within(t, func() error { // as the agent's own
		c, err := net.Dial("tcp", "10.96.0.1:443")
		if err == nil {
			t.Cleanup(func() { c.Close() })
		}
		return err
	})
	n.here.Run(t, "nft", "flush ruleset")
	n.router.Run(t, "ip", "route", "add", "blackhole", "10.96.0.0/12")
	findings, code := n.diagnose(t)
	expect(t, findings, "service", about, Problem, "its endpoint 10.2.0.5:6443 is open: kube-proxy on this node")
	if code != 1 {
		t.Errorf("exit code %d", code)
	}
	errtest.Must(t, api.Close())
	findings, _ = n.diagnose(t)
	expect(t, findings, "service", about, Problem, "nor is its endpoint 10.2.0.5:6443 open")
	n.env = append(n.env, "KUBERNETES_SERVICE_HOST=10.2.0.5", "KUBERNETES_SERVICE_PORT=6443")
	n.here.Run(t, "nft",
		"table ip kube-proxy { chain out { type nat hook output priority -100; ip daddr 10.96.0.1 tcp dport 443 dnat to 10.1.0.5:7443; }; }")
	n.listen(t, n.here, "10.1.0.5:7443")
	findings, _ = n.diagnose(t)
	expect(t, findings, "service", about, Warning, "is open, but not its endpoint 10.2.0.5:6443")
}

// TestDuplicateAddress: other hosts of the segment have the node's own addresses, or a peer's.
func TestDuplicateAddress(t *testing.T) {
	t.Parallel()
	n := newNetwork(t)
	segment, there, twin := netnstest.New(t), netnstest.New(t), netnstest.New(t)
	segment.Run(t, "ip", "link", "add", "br0", "type", "bridge", "mcast_snooping", "0")
	segment.Up(t, "br0")
	for i, ns := range []*netnstest.NS{n.here, there, twin} {
		port := fmt.Sprint("port", i)
		netnstest.Cable(t, ns, "lan", segment, port)
		segment.Run(t, "ip", "link", "set", port, "master", "br0")
	}
	addrs := func(ns *netnstest.NS, host string) {
		ns.Addr(t, "lan", "10.9.0."+host+"/24")
		ns.Run(t, "ip", "-6", "addr", "add", "fd09::"+host+"/64", "dev", "lan", "nodad")
	}
	addrs(n.here, "5")
	addrs(there, "6")
	addrs(twin, "7")
	n.report.Address, n.report.Interface, n.report.Address6, n.report.Interface6 = "10.9.0.5/24", "lan", "fd09::5/64", "lan"
	n.report.Peers = []nodestatus.Peer{{Address: "10.9.0.6", Node: "there", State: "Established"},
		{Address: "fd09::6", Node: "there", State: "Established"}}
	n.agent(t)
	findings, _ := n.diagnose(t)
	expect(t, findings, "duplicate-address", "", OK, "of 4 that were asked for")
	addrs(twin, "6")
	findings, _ = n.diagnose(t)
	for _, subnet := range []string{"10.9.0.", "fd09::"} {
		expect(t, findings, "duplicate-address", subnet+"6 on lan", Warning, "2 MACs say that they have the address of there: ")
	}
	addrs(twin, "5")
	findings, code := n.diagnose(t)
	mac := twin.Link(t, "lan").HardwareAddr.String()
	for _, subnet := range []string{"10.9.0.", "fd09::"} {
		expect(t, findings, "duplicate-address", subnet+"5 on lan", Problem, "another host has this node's address too: MAC "+mac)
	}
	if code != 1 {
		t.Errorf("exit code %d", code)
	}
}
