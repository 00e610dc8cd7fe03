package policy

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	"sigs.k8s.io/yaml"

	"github.com/tortie-net/tortie/internal/api"
	"github.com/tortie-net/tortie/internal/kernel/nat"
	"github.com/tortie-net/tortie/internal/kernel/netpol"
	"github.com/tortie-net/tortie/internal/kernel/nft"
	"github.com/tortie-net/tortie/internal/kernel/vxlan"
	"github.com/tortie-net/tortie/internal/testkit/netnstest"
	"github.com/tortie-net/tortie/internal/testkit/policytest"
)

// family has an address of each party in the scene. The pods' labels are their names as app.
type family struct {
	host, client, web, plain netip.Addr // of the node, the pods with links 0, 1 and 3
	far, farNode             netip.Addr // another node's pod, and that node
	outside, router          netip.Addr
}

func addresses(texts ...string) family {
	var a []netip.Addr
	for _, text := range texts {
		a = append(a, netip.MustParseAddr(text))
	}
	return family{a[0], a[1], a[2], a[3], a[4], a[5], a[6], a[7]}
}

var (
	v4 = addresses("172.16.0.1", "10.0.0.6", "10.0.0.7", "10.0.0.9", "10.0.0.8", "172.16.0.2", "192.0.2.9", "198.51.100.1")
	v6 = addresses("fd01::1", "fd00::6", "fd00::7", "fd00::9", "fd00::8", "fd01::2", "2001:db8::9", "2001:db8:1::1")
)

// scene is a node on which each packet is followed.
type scene struct {
	*node
	policytest.Cluster
	came map[uint64]policytest.Arrival
}

func newScene(t *testing.T) *scene {
	s := &scene{node: newNode(t), came: map[uint64]policytest.Arrival{}}
	s.Namespaces = []api.Namespace{{Meta: api.Meta{Name: "a"}}}
	s.Nodes = policytest.NewGenerator(0).Cluster().Nodes
	for i, name := range []string{"client", "web", "far", "plain"} {
		a, b := policytest.PodAddress(i)
		p := pod(fmt.Sprint("pod-", i), name, a, name != "far")
		p.Labels, p.Status.PodIPs = map[string]string{"app": name}, []api.PodIP{{IP: a.String()}, {IP: b.String()}}
		s.Pods = append(s.Pods, p)
	}
	return s
}

// under puts policies in force, and makes the kernel forget all connections.
func (s *scene) under(t *testing.T, policies ...api.NetworkPolicy) {
	t.Helper()
	s.NetworkPolicies = policies
	s.become(t, &s.Cluster)
}

// ingress returns a policy for the pod with a label; the label's value is its name. The rules are YAML.
func ingress(app, rules string) api.NetworkPolicy { return policyFor(app, "Ingress", rules) }

func egress(app, rules string) api.NetworkPolicy { return policyFor(app, "Egress", rules) }

func policyFor(app, direction, rules string) api.NetworkPolicy {
	p := api.NetworkPolicy{Meta: api.Meta{Namespace: "a", Name: app}}
	text := fmt.Sprintf("{podSelector: {matchLabels: {app: %s}}, policyTypes: [%s], %s: %s}", app, direction,
		strings.ToLower(direction), rules)
	if err := yaml.UnmarshalStrict([]byte(text), &p.Spec); err != nil {
		panic(err)
	}
	return p
}

// pods and block are lists of one peer.
func pods(app string) string { return fmt.Sprintf("[{podSelector: {matchLabels: {app: %s}}}]", app) }

func block(a netip.Addr) string { return fmt.Sprintf("[{ipBlock: {cidr: '%s/%d'}}]", a, a.BitLen()) }

func udp(from, to netip.Addr, port uint16) policytest.Packet {
	return policytest.Packet{From: from, To: to, Protocol: policytest.UDP, Port: port}
}

// fate is the place and source address with which a packet comes out, or why it is dropped.
type fate struct {
	place  string
	source netip.Addr
	why    string
}

func (f fate) String() string {
	if f.why != "" {
		return "dropped by " + f.why
	}
	return fmt.Sprintf("at %q from %s", f.place, f.source)
}

func comes(place string, source netip.Addr) fate { return fate{place: place, source: source} }

func dropped(why string) fate { return fate{why: why} }

// sends sends a packet and follows it.
func (s *scene) sends(t *testing.T, p policytest.Packet, want fate) (number uint64) {
	t.Helper()
	return s.follow(t, p.String(), want, func() (uint64, error) { return s.Send(s.Place(p.From), p) })
}

// follow follows one packet until it came out or was dropped, which is counted by policy, and for a moment more.
func (s *scene) follow(t *testing.T, what string, want fate, send func() (uint64, error)) uint64 {
	t.Helper()
	before := s.counts(t)
	number, err := send()
	if err != nil {
		t.Fatal(err)
	}
	note := func(a policytest.Arrival) {
		if a.Place != "" || a.Source != v4.farNode { // a tunnel's outer packet
			s.came[a.Number] = a
		}
	}
	for deadline := time.Now().Add(10 * time.Second); s.came[number].Number == 0 && s.dropped(t, before) == "" &&
		time.Now().Before(deadline); {
		s.Receive(note)
	}
	time.Sleep(2 * time.Millisecond) //nolint:forbidigo // a second packet, which must not come, has no event
	s.Receive(note)
	a, came := s.came[number]
	if got := (fate{a.Place, a.Source, s.dropped(t, before)}); came != (want.why == "") || got != want {
		t.Errorf("%s: arrived %v: %s, want %s", what, came, got, want)
	}
	return number
}

// dropped returns why packets were dropped since.
func (s *scene) dropped(t *testing.T, since map[string]uint64) string {
	t.Helper()
	var all []string
	for why, n := range s.counts(t) {
		if n > since[why] {
			all = append(all, why)
		}
	}
	slices.Sort(all)
	return strings.Join(all, ", ")
}

// counts are the packets that were dropped, by the reason's text.
func (s *scene) counts(t *testing.T) map[string]uint64 {
	t.Helper()
	counters, err := s.engine.Counters(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	all := map[string]uint64{}
	for d, c := range counters {
		all[reasonOf(d)] = c.Packets
	}
	return all
}

func reasonOf(d netpol.Denied) string {
	if d.Reason != "" {
		return d.Direction.String() + " " + d.Reason
	}
	return d.Direction.String() + " " + d.By.String()
}

var allFamilies = map[string]family{"IPv4": v4, "IPv6": v6}

// ICMP errors about allowed connections pass both ways, whatever the policies for their direction. Other errors neither
// reach nor leave a pod.
func TestComplaints(t *testing.T) {
	s := newScene(t)
	for name, f := range allFamilies {
		s.under(t,
			egress("client", fmt.Sprintf("[{to: %s, ports: [{protocol: UDP, port: 53}]}]", block(f.outside))), ingress("client", "[]"),
			ingress("web", fmt.Sprintf("[{from: %s, ports: [{protocol: UDP, port: 53}]}]", block(f.outside))), egress("web", "[]"),
			ingress("plain", "[]"))
		for _, c := range policytest.Complaints {
			t.Run(name+" "+c.Name, func(t *testing.T) { s.complaints(t, f, c) })
		}
	}
}

func (s *scene) complaints(t *testing.T, f family, c policytest.Complaint) {
	client, web, plain, isolated := policytest.Link(0), policytest.Link(1), policytest.Link(3), "ingress invalid state"
	complain := func(link string, from netip.Addr, about policytest.Packet, number uint64, want fate) {
		t.Helper()
		s.follow(t, fmt.Sprintf("error from %s about %s", from, about), want,
			func() (uint64, error) { return s.Complain(link, from, c, about, number) })
	}
	out, in := udp(f.client, f.outside, 53), udp(f.outside, f.web, 53)
	sent := s.sends(t, out, comes(policytest.Uplink, f.client))
	got := s.sends(t, in, comes(web, f.outside))
	complain(policytest.Uplink, f.outside, out, sent, comes(client, f.outside))
	complain(policytest.Uplink, f.router, out, sent, comes(client, f.router))
	complain(web, f.web, in, got, comes(policytest.Uplink, f.web))

	probe := udp(f.host, f.web, 80)
	probed := s.sends(t, probe, comes(web, f.host))
	answer := comes("", f.web)
	if f.host.Is6() {
		answer.source = netip.Addr{} // an IPv6 raw socket does not deliver it
	}
	complain(web, f.web, probe, probed, answer)

	denied := s.sends(t, udp(f.client, f.outside, 54), dropped("egress NetworkPolicy a/client"))
	complain(policytest.Uplink, f.outside, udp(f.client, f.outside, 54), denied, dropped(isolated))
	complain(policytest.Uplink, f.outside, udp(f.plain, f.outside, 53), 1, dropped(isolated)) // there was no such packet
	complain(web, f.web, udp(f.outside, f.web, 53), 1, dropped("egress invalid state"))
	other := udp(f.plain, f.router, 53)
	others := s.sends(t, other, comes(policytest.Uplink, f.plain))
	complain(policytest.Uplink, f.router, other, others, comes(plain, f.router))
}

// crossing is one packet and its fate under policies.
type crossing struct {
	name     string
	policies []api.NetworkPolicy
	packet   policytest.Packet
	fate
}

func (s *scene) cross(t *testing.T, all []crossing, sends func(t *testing.T, c crossing)) {
	for _, c := range all {
		t.Run(c.name, func(t *testing.T) {
			s.under(t, c.policies...)
			sends(t, c)
		})
	}
}

func (s *scene) plainly(t *testing.T, c crossing) { s.sends(t, c.packet, c.fate) }

func only(p ...api.NetworkPolicy) []api.NetworkPolicy { return p }

// Behind a Service policies judge the pod: its address and port, and the sender before kube-proxy masquerades it.
func TestServices(t *testing.T) {
	for mode, load := range map[string][]string{"iptables": {"iptables-nft-restore", "testdata/kube-proxy.iptables"},
		"nftables": {"nft", "-f", "testdata/kube-proxy.nft"}} {
		t.Run(mode, func(t *testing.T) {
			s := newScene(t)
			s.Host.Run(t, load[0], load[1:]...)
			s.cross(t, services(), s.plainly)
			t.Run("answer and error", s.throughService)
		})
	}
}

func services() []crossing {
	web, far, local := netip.MustParseAddr("10.96.0.10"), netip.MustParseAddr("10.96.0.11"), netip.MustParseAddr("10.96.0.12")
	to := func(a netip.Addr, port int) string {
		return fmt.Sprintf("[{to: %s, ports: [{protocol: UDP, port: %d}]}]", block(a), port)
	}
	from := func(peers string, port int) string {
		return fmt.Sprintf("[{from: %s, ports: [{protocol: UDP, port: %d}]}]", peers, port)
	}
	atWeb, self := comes(policytest.Link(1), v4.client), udp(v4.web, web, 80)
	deniedIn, deniedOut := dropped("ingress NetworkPolicy a/web"), dropped("egress NetworkPolicy a/client")
	return []crossing{
		{"egress to the pod's address and port", only(egress("client", to(v4.web, 8080))), udp(v4.client, web, 80), atWeb},
		{"egress to the pod's address, the Service's port", only(egress("client", to(v4.web, 80))), udp(v4.client, web, 80), deniedOut},
		{"egress to the Service's address", only(egress("client", to(web, 80))), udp(v4.client, web, 80), deniedOut},
		{"egress to the Service's address, the pod's port", only(egress("client", to(web, 8080))), udp(v4.client, web, 80), deniedOut},
		{"egress to a pod of another node", only(egress("client", fmt.Sprintf("[{to: %s}]", pods("far")))), udp(v4.client, far, 80),
			comes(policytest.Uplink, v4.client)},
		{"egress to another pod than that of another node", only(egress("client", fmt.Sprintf("[{to: %s}]", pods("web")))),
			udp(v4.client, far, 80), deniedOut},
		{"ingress from the client", only(ingress("web", from(pods("client"), 8080))), udp(v4.client, web, 80), atWeb},
		{"ingress from another", only(ingress("web", from(pods("plain"), 8080))), udp(v4.client, web, 80), deniedIn},
		{"ingress at the Service's port", only(ingress("web", from(pods("client"), 80))), udp(v4.client, web, 80), deniedIn},
		{"hairpin", nil, self, comes(policytest.Link(1), v4.host)},
		{"hairpin, ingress from itself", only(ingress("web", from(pods("web"), 8080))), self, comes(policytest.Link(1), v4.host)},
		{"hairpin, ingress from another", only(ingress("web", from(pods("client"), 8080))), self, deniedIn},
		{"hairpin, no egress", only(egress("web", "[]")), self, dropped("egress NetworkPolicy a/web")},
		{"node port Cluster, from the client", only(ingress("web", from(block(v4.outside), 8080))), udp(v4.outside, v4.host, 30080),
			comes(policytest.Link(1), v4.host)},
		{"node port Cluster, from another", only(ingress("web", from(block(v4.router), 8080))), udp(v4.outside, v4.host, 30080), deniedIn},
		{"node port Cluster, to another node's pod", only(ingress("web", "[]")), udp(v4.outside, v4.host, 30081),
			comes(policytest.Uplink, v4.host)},
		{"node port Cluster of another node, from that node", only(ingress("web", from(block(v4.farNode), 8080))), udp(v4.farNode, v4.web, 8080),
			comes(policytest.Link(1), v4.farNode)},
		{"node port Cluster of another node, from the client", only(ingress("web", from(block(v4.outside), 8080))),
			udp(v4.farNode, v4.web, 8080), deniedIn},
		{"node port Local, from the client", only(ingress("web", from(block(v4.outside), 8080))), udp(v4.outside, v4.host, 30082),
			comes(policytest.Link(1), v4.outside)},
		{"node port Local, from another", only(ingress("web", from(block(v4.router), 8080))), udp(v4.outside, v4.host, 30082), deniedIn},
		{"node port Local, from a pod", only(ingress("web", from(pods("client"), 8080))), udp(v4.client, v4.host, 30082), atWeb},
		{"Service of a pod with node port Local", only(ingress("web", from(pods("client"), 8080))), udp(v4.client, local, 80), atWeb},
	}
}

// throughService checks that answers of an allowed connection are from the Service.
func (s *scene) throughService(t *testing.T) {
	service := netip.MustParseAddr("10.96.0.10")
	s.under(t, egress("client", fmt.Sprintf("[{to: %s}]", pods("web"))), ingress("client", "[]"),
		ingress("web", fmt.Sprintf("[{from: %s}]", pods("client"))), egress("web", "[]"))
	number := s.sends(t, udp(v4.client, service, 80), comes(policytest.Link(1), v4.client))
	behind := udp(v4.client, v4.web, 8080)
	s.follow(t, "answer", comes(policytest.Link(0), service), func() (uint64, error) { return s.Answer(policytest.Link(1), behind, number) })
	for _, c := range policytest.Complaints {
		s.follow(t, c.Name, comes(policytest.Link(0), service), func() (uint64, error) {
			return s.Complain(policytest.Link(1), v4.web, c, behind, number)
		})
	}
}

// Policies judge pods' own addresses, and natOutgoing translates after them.
func TestNATOutgoing(t *testing.T) {
	s := newScene(t)
	pools := []nat.Pool{{CIDR: netip.MustParsePrefix("10.0.0.0/29"), NATOutgoing: true}, {CIDR: netip.MustParsePrefix("10.0.0.8/32")}}
	if err := nat.New(nft.New(s.Host.Namespace)).Sync(t.Context(), nat.Config{Pools: pools}); err != nil {
		t.Fatal(err)
	}
	// plain is in no pool
	out, inside, near := udp(v4.client, v4.outside, 53), udp(v4.client, v4.far, 53), udp(v4.client, v4.plain, 53)
	s.cross(t, []crossing{
		{"egress to the destination", only(egress("client", fmt.Sprintf("[{to: %s}]", block(v4.outside)))), out,
			comes(policytest.Uplink, v4.host)},
		{"egress to another", only(egress("client", fmt.Sprintf("[{to: %s}]", block(v4.router)))), out, dropped("egress NetworkPolicy a/client")},
		{"egress inside of the pools", only(egress("client", fmt.Sprintf("[{to: %s}]", pods("far")))), inside,
			comes(policytest.Uplink, v4.client)},
		{"ingress by the pod, that is translated later", only(ingress("plain", fmt.Sprintf("[{from: %s}]", pods("client")))), near,
			comes(policytest.Link(3), v4.host)},
		{"ingress by the node that it is translated to", only(ingress("plain", fmt.Sprintf("[{from: %s}]", block(v4.host)))), near,
			dropped("ingress NetworkPolicy a/plain")},
		{"ingress from a pod of another node", only(ingress("web", fmt.Sprintf("[{from: %s}]", pods("far")))), udp(v4.far, v4.web, 53),
			comes(policytest.Link(1), v4.far)},
		{"ingress from a pod that its node has translated", only(ingress("web", fmt.Sprintf("[{from: %s}]", pods("far")))),
			udp(v4.farNode, v4.web, 53), dropped("ingress NetworkPolicy a/web")},
	}, s.plainly)
}

// Packets in tunnels are judged as those outside.
func TestTunnels(t *testing.T) {
	t.Run("none", func(t *testing.T) {
		s := newScene(t)
		s.cross(t, tunnelled(v4.client), s.plainly)
	})
	t.Run("VXLAN", func(t *testing.T) {
		s := newScene(t)
		wrap := s.vxlan(t)
		s.cross(t, tunnelled(v4.host), func(t *testing.T, c crossing) {
			s.Host.Run(t, "ip", "route", "replace", v4.far.String(), "via", "10.0.9.2", "dev", vxlan.Device4, "onlink")
			if s.Place(c.packet.From) != policytest.Uplink {
				s.plainly(t, c)
				return
			}
			s.follow(t, c.packet.String(), c.fate, func() (uint64, error) { return s.Carry(policytest.Uplink, c.packet, wrap) })
		})
	})
}

// tunnelled has packets between nodes. outer is the source of those that leave.
func tunnelled(outer netip.Addr) []crossing {
	stranger := netip.MustParseAddr("10.0.0.10")
	in, out := udp(v4.far, v4.web, 53), udp(v4.client, v4.far, 53)
	return []crossing{
		{"ingress from the pod", only(ingress("web", fmt.Sprintf("[{from: %s}]", pods("far")))), in, comes(policytest.Link(1), v4.far)},
		{"ingress from another", only(ingress("web", fmt.Sprintf("[{from: %s}]", pods("client")))), in, dropped("ingress NetworkPolicy a/web")},
		{"ingress from an address that is no pod's", only(ingress("web", fmt.Sprintf("[{from: %s}]", pods("far")))), udp(stranger, v4.web, 53),
			dropped("ingress NetworkPolicy a/web")},
		{"ingress from the other node", only(ingress("web", fmt.Sprintf("[{from: %s}]", block(v4.farNode)))), in,
			dropped("ingress NetworkPolicy a/web")},
		{"egress to the pod", only(egress("client", fmt.Sprintf("[{to: %s}]", pods("far")))), out, comes(policytest.Uplink, outer)},
		{"egress to another", only(egress("client", fmt.Sprintf("[{to: %s}]", pods("web")))), out, dropped("egress NetworkPolicy a/client")},
		{"egress to the other node", only(egress("client", fmt.Sprintf("[{to: %s}]", block(v4.farNode)))), out,
			dropped("egress NetworkPolicy a/client")},
	}
}

// vxlan adds a device to the node, and returns the encapsulation of packets that the other node sends through it.
func (s *scene) vxlan(t *testing.T) func(inner []byte) (uint16, []byte) {
	t.Helper()
	own, peer := vxlan.MAC{2, 0, 0, 0, 9, 1}, vxlan.MAC{2, 0, 0, 0, 9, 2}
	_, err := vxlan.New(s.Host.Conn).Merge(t.Context(), vxlan.Tunnel{
		Local: v4.host, Parent: policytest.Uplink, MAC: own, MTU: 1400, Addr: netip.MustParseAddr("10.0.9.1"),
		Peers: []vxlan.Peer{{Addr: netip.MustParseAddr("10.0.9.2"), MAC: peer, Node: v4.farNode}},
	})
	if err != nil {
		t.Fatal(err)
	}
	return func(inner []byte) (uint16, []byte) {
		header := []byte{8, 0, 0, 0, 0, byte(vxlan.DefaultVNI >> 8), byte(vxlan.DefaultVNI & 0xff), 0}
		frame := netnstest.Frame(peer[:], own[:], unix.ETH_P_IP, inner)
		return netnstest.Datagram(netip.AddrPortFrom(v4.farNode, 50000), netip.AddrPortFrom(v4.host, vxlan.DefaultPort), append(header, frame...))
	}
}

// The first packets of SCTP's associations are judged by their ports.
func TestSCTP(t *testing.T) {
	s := newScene(t)
	for name, f := range allFamilies {
		rules := func(ports string) []api.NetworkPolicy {
			return only(ingress("web", fmt.Sprintf("[{from: %s, ports: [%s]}]", pods("client"), ports)))
		}
		to := func(port uint16) policytest.Packet {
			return policytest.Packet{From: f.client, To: f.web, Protocol: policytest.SCTP, Port: port}
		}
		ports, arrives, denied := rules("{protocol: SCTP, port: 100, endPort: 200}"), comes(policytest.Link(1), f.client),
			dropped("ingress NetworkPolicy a/web")
		s.cross(t, []crossing{
			{name + " port", rules("{protocol: SCTP, port: 36412}"), to(36412), arrives},
			{name + " any port", rules("{protocol: SCTP}"), to(1), arrives},
			{name + " another port", rules("{protocol: SCTP, port: 36412}"), to(36413), denied},
			{name + " another protocol's port", rules("{protocol: UDP, port: 36412}, {protocol: TCP, port: 36412}"), to(36412), denied},
			{name + " before a range", ports, to(99), denied},
			{name + " first of a range", ports, to(100), arrives},
			{name + " last of a range", ports, to(200), arrives},
			{name + " after a range", ports, to(201), denied},
			{name + " from another pod", ports, policytest.Packet{From: f.plain, To: f.web, Protocol: policytest.SCTP, Port: 150}, denied},
			{name + " egress",
				only(egress("client", fmt.Sprintf("[{to: %s, ports: [{protocol: SCTP, port: 100}]}]", pods("web")))), to(100), arrives},
			{name + " egress to another port", only(egress("client", fmt.Sprintf("[{to: %s, ports: [{protocol: SCTP, port: 100}]}]", pods("web")))),
				to(101), dropped("egress NetworkPolicy a/client")},
		}, s.plainly)
	}
}
