package policy

import (
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/tortie-net/tortie/internal/api"
	"github.com/tortie-net/tortie/internal/policy"
	"github.com/tortie-net/tortie/internal/testkit/netnstest"
	"github.com/tortie-net/tortie/internal/testkit/policytest"
)

// second is the link by which the node forwards what comes by the uplink. Only the host endpoint of all links can be
// for it.
const second = "second"

// way is a way through the node, in one family; its packets have ports of their own.
type way struct {
	name string
	policytest.Journey
	port uint16
}

// tunnel names a way of VXLAN, which the rules deny.
const tunnel = "VXLAN"

// deeds are what the rules of matrix policies do, by the last digit of a port. Each way has ten ports.
var deeds = []string{"no match", "allow", "deny", "pass"}

// at is the way's journey with a packet to the port of a deed.
func (w way) at(deed int) policytest.Journey {
	j := w.Journey
	if j.Before.Port = w.port + uint16(deed); strings.HasPrefix(w.name, tunnel) {
		j.Before.Port = policytest.Failsafes.VXLANPort
	}
	j.After.Port = j.Before.Port
	return j
}

// ways returns all ways: of packets that the node receives, sends and forwards, from and to its pods and two links, and
// of translated ones (translations).
func ways() (all []way) {
	add := func(name, in, out, meant string, from, to, translated string) {
		p := policytest.Packet{From: netip.MustParseAddr(from), To: netip.MustParseAddr(to), Protocol: policytest.UDP}
		j := policytest.Journey{In: in, Out: out, Meant: meant, Before: p, After: p}
		j.After.To = netip.MustParseAddr(translated)
		name = strings.TrimSpace(fmt.Sprintf("%s %s -> %s by %q, %q", name, from, to, in, out))
		all = append(all, way{name, j, uint16(1000 + 10*len(all))})
	}
	up, a, b := policytest.Uplink, policytest.Link(0), policytest.Link(1)
	for _, at := range []map[string]string{
		{up: "192.0.2.9", second: "198.18.0.9", a: "10.0.0.6", b: "10.0.0.7", "": "172.16.0.1"},
		{up: "2001:db8::9", second: "2001:db8:2::9", a: "fd00::6", b: "fd00::7", "": "fd01::1"},
	} {
		for _, ends := range [][2]string{
			{up, ""}, {second, ""}, {"", up}, {"", second}, {up, a}, {a, up}, {a, b}, {a, ""}, {"", a}, {up, second}, {second, up},
		} {
			add("", ends[0], ends[1], ends[1], at[ends[0]], at[ends[1]], at[ends[1]])
		}
	}
	add("loopback", "", policytest.Loopback, policytest.Loopback, "172.16.0.1", "172.16.0.1", "172.16.0.1")
	add(tunnel, up, "", "", "172.16.0.2", "172.16.0.1", "172.16.0.1")
	add(tunnel, "", up, up, "172.16.0.1", "172.16.0.2", "172.16.0.2")
	add(tunnel, up, second, second, "172.16.0.2", "198.18.0.9", "198.18.0.9")
	add(tunnel, up, "", "", "192.0.2.9", "172.16.0.1", "172.16.0.1")
	add("node port", up, a, "", "192.0.2.9", "172.16.0.1", "10.0.0.6")
	add("node port of the second link", second, a, "", "198.18.0.9", "172.16.0.1", "10.0.0.6")
	add("service of the node", "", up, up, "172.16.0.1", "203.0.113.1", "192.0.2.9")
	add("service of the node by another link", "", second, up, "172.16.0.1", "203.0.113.2", "198.18.0.9")
	add("service of the node in a pod", "", a, up, "172.16.0.1", "203.0.113.3", "10.0.0.6")
	add("service of a pod in a pod", b, a, up, "10.0.0.7", "203.0.113.3", "10.0.0.6")
	return all
}

// translations are for the ways that have other destinations in the end.
const translations = "add table ip services; add chain ip services pre { type nat hook prerouting " +
	"priority -100; }; add chain ip services out { type nat hook output priority -100; }; add rule ip services pre ip daddr 172.16.0.1 udp " +
	"dport 1270-1289 dnat to 10.0.0.6; add rule ip services pre ip daddr 203.0.113.3 dnat to 10.0.0.6; add rule ip services out ip daddr " +
	"203.0.113.1 dnat to 192.0.2.9; add rule ip services out ip daddr 203.0.113.2 dnat to 198.18.0.9; add rule ip services out ip daddr " +
	"203.0.113.3 dnat to 10.0.0.6"

// setting is the policies and host endpoints of one ruleset of the matrix.
type setting struct {
	endpoints, stage, others string
	ingress                  bool
}

func (s setting) String() string {
	return fmt.Sprintf("%s, %s, ingress %v, %s", s.endpoints, s.stage, s.ingress, s.others)
}

// settings are all combinations. Those without a stage have no policy but the others.
func settings() (all []setting) {
	for _, endpoints := range []string{"named", "all", "named of both", "all of both"} {
		for _, others := range []string{"nothing else", "no profile", "closed in", "closed out", "a later tier closes"} {
			for _, stage := range []string{"", "untracked", "untranslated", "forwarded", "terminal"} {
				all = append(all, setting{endpoints, stage, others, true})
				if stage != "" && stage != "untranslated" {
					all = append(all, setting{endpoints, stage, others, false})
				}
			}
		}
	}
	return all
}

// cluster has two pods on the node.
func (s setting) cluster() *policytest.Cluster {
	c := &policytest.Cluster{Namespaces: []api.Namespace{{Meta: api.Meta{Name: "ns"}}},
		Nodes: []api.Node{{Meta: api.Meta{Name: policytest.Node}}},
		Tiers: []api.CalicoTier{{Meta: api.Meta{Name: "later"}, Spec: api.CalicoTierSpec{Order: new(2e6)}}}}
	for _, text := range []string{policytest.Node, "172.16.0.1", "fd01::1"} {
		c.Nodes[0].Status.Addresses = append(c.Nodes[0].Status.Addresses, api.NodeAddress{Address: text})
	}
	for i := range 2 {
		v4, v6 := policytest.PodAddress(i)
		pod := api.Pod{Meta: api.Meta{Namespace: "ns", Name: fmt.Sprint("pod-", i), UID: fmt.Sprint("uid-", i)}}
		pod.Spec.NodeName, pod.Status.PodIPs = policytest.Node, []api.PodIP{{IP: v4.String()}, {IP: v6.String()}}
		c.Pods = append(c.Pods, pod)
	}
	for label, link := range map[string]string{"named": policytest.Uplink, "all": policy.AllInterfaces} {
		if strings.HasPrefix(s.endpoints, label) || strings.HasSuffix(s.endpoints, "both") {
			h := api.CalicoHostEndpoint{Meta: api.Meta{Name: label, Labels: map[string]string{"is": label}}}
			h.Spec.Node, h.Spec.InterfaceName = policytest.Node, link
			if s.others != "no profile" {
				h.Spec.Profiles = []string{policy.ProfileAllows}
			}
			c.HostEndpoints = append(c.HostEndpoints, h)
		}
	}
	c.CalicoGlobalNetworkPolicies = s.policies()
	return c
}

func (s setting) policies() (all []api.CalicoGlobalNetworkPolicy) {
	add := func(name, tier, selector string, order float64, ingress bool, rules []api.CalicoRule) *api.CalicoGlobalNetworkPolicySpec {
		p := api.CalicoGlobalNetworkPolicy{Meta: api.Meta{Name: name}}
		p.Spec.Tier, p.Spec.Selector, p.Spec.Order, p.Spec.ApplyOnForward = tier, selector, &order, true
		if ingress {
			p.Spec.Types, p.Spec.Ingress = []string{"Ingress"}, rules
		} else {
			p.Spec.Types, p.Spec.Egress = []string{"Egress"}, rules
		}
		all = append(all, p)
		return &all[len(all)-1].Spec
	}
	deny := []api.CalicoRule{{Action: "Deny"}}
	if s.others == "closed in" || s.others == "closed out" {
		add("closed", "default", "has(is)", 20, s.others == "closed in", deny)
	}
	if s.others == "a later tier closes" {
		add("closed-in", "later", "has(is)", 1, true, deny)
		add("closed-out", "later", "has(is)", 1, false, deny)
	}
	if s.stage != "" {
		label, _, _ := strings.Cut(s.endpoints, " ")
		p := add("judged", "default", fmt.Sprintf("is == '%s'", label), 10, s.ingress, byPorts())
		p.DoNotTrack, p.PreDNAT, p.ApplyOnForward = s.stage == "untracked", s.stage == "untranslated", s.stage != "terminal"
	}
	return all
}

// byPorts returns rules that do, at each way's ports, the deed of their last digit.
func byPorts() (rules []api.CalicoRule) {
	udp := api.CalicoProtocol("UDP")
	for deed, action := range []string{"", "Allow", "Deny", "Pass"} {
		if action == "" {
			continue
		}
		r := api.CalicoRule{Action: action, Protocol: &udp}
		for i := range len(ways()) {
			r.Destination.Ports = append(r.Destination.Ports, api.CalicoPort(fmt.Sprint(1000+10*i+deed)))
		}
		if action == "Deny" {
			r.Destination.Ports = append(r.Destination.Ports, api.CalicoPort(fmt.Sprint(policytest.Failsafes.VXLANPort)))
		}
		rules = append(rules, r)
	}
	return rules
}

// cell is a packet of the matrix, and its failure.
type cell struct {
	name, link string
	policytest.Packet
	passes bool
	number uint64
}

// A packet passes where Felix allows it, at each stage in each direction, by an interface's host endpoint and by the
// one of all interfaces, on each way: packets that open a connection, belong to an earlier one, or belong to none.
func TestHostMatrix(t *testing.T) {
	n, m := newNode(t), matrix{all: ways()}
	n.Cable(t, second, 0xfe)
	for _, at := range []string{"198.18.0.9", "2001:db8:2::9"} {
		a := netip.MustParseAddr(at)
		n.Host.Route(t, netip.PrefixFrom(a, a.BitLen()).String(), "", second)
		n.Neighbours(t, second, a)
	}
	n.AwaitLink(t, second,
		policytest.Packet{From: netip.MustParseAddr("172.16.0.1"), To: netip.MustParseAddr("198.18.0.9"), Protocol: policytest.Other})
	n.Host.Run(t, "nft", translations)
	for _, s := range settings() {
		m.setting = s
		c := s.cluster()
		n.becomeHost(t, &policytest.Cluster{Namespaces: c.Namespaces, Nodes: c.Nodes, Pods: c.Pods})
		known := m.open(t, n, c)
		v := newHostView(c)
		n.sync(t, &v.Ruleset, nil)
		m.judge(t, n, known)
		m.judge(t, n, m.strangers(c))
		n.Forget(t)
		m.judge(t, n, m.first(c))
	}
	t.Logf("%d cells, of which %d do not pass", m.cells, m.denied)
	if m.cells < 500 || m.denied < m.cells/10 || m.wrong > 0 {
		t.Errorf("%d cells, %d denied, %d wrong", m.cells, m.denied, m.wrong)
	}
}

// matrix counts cells.
type matrix struct {
	setting
	all                  []way
	cells, denied, wrong int
}

// first are the packets that open connections.
func (m *matrix) first(c *policytest.Cluster) (cells []cell) {
	for _, w := range m.all {
		for deed, name := range deeds {
			j := w.at(deed)
			cells = append(cells, cell{name: w.name + ", " + name, link: j.In, Packet: j.Before, passes: c.HostPasses(j)})
		}
	}
	return cells
}

// open opens and answers all connections while there are no policies, and returns what each one's next packet is.
func (m *matrix) open(t *testing.T, n *node, c *policytest.Cluster) []cell {
	t.Helper()
	cells := m.first(&policytest.Cluster{Nodes: c.Nodes})
	m.judge(t, n, cells)
	var answers []uint64
	for i := range cells {
		j := m.all[i/len(deeds)].at(i % len(deeds))
		answer, err := n.Answer(j.Out, j.After, cells[i].number)
		if err != nil {
			t.Fatal(err)
		}
		answers = append(answers, answer)
		j.Tracked = policytest.Established
		cells[i].name, cells[i].passes = cells[i].name+", established", c.HostPasses(j)
	}
	n.Await(map[uint64]string{}, answers)
	return cells
}

// strangers are packets of TCP that no connection can begin with, also to a failsafe port, where a host endpoint is
// asked: a pod's link has rules of its own for them.
func (m *matrix) strangers(c *policytest.Cluster) (cells []cell) {
	for _, w := range m.all {
		for _, port := range []uint16{w.port, policytest.Failsafes.Inbound[0].Port} {
			j := w.Journey
			j.Before.Protocol, j.Before.Port, j.Before.SourcePort, j.Tracked = policytest.TCP, port, 5555, policytest.Invalid
			passes := c.HostPasses(j)
			if ofPod := strings.HasPrefix(j.In+" "+j.Meant, "cali") || strings.HasPrefix(j.Meant, "cali"); ofPod && passes {
				continue
			}
			cells = append(cells, cell{name: fmt.Sprintf("%s, invalid to port %d", w.name, port), link: j.In, Packet: j.Before, passes: passes})
		}
	}
	return cells
}

// send sends the cells' packets, or those that are known once more.
func (m *matrix) send(t *testing.T, n *node, cells []cell) {
	t.Helper()
	for i := range cells {
		var err error
		switch c := &cells[i]; {
		case c.Protocol == policytest.TCP:
			c.number, err = n.Carry(c.link, c.Packet, func(inner []byte) (uint16, []byte) { return withFIN(c.Packet, inner) })
		case c.number != 0:
			err = n.Again(c.link, c.Packet, c.number)
		default:
			c.number, err = n.Send(c.link, c.Packet)
		}
		if err != nil && !errors.Is(err, unix.EPERM) { // as a process learns of a denial
			t.Fatal(err)
		}
	}
}

// withFIN makes a segment with FIN alone of a SYN.
func withFIN(p policytest.Packet, inner []byte) (kind uint16, packet []byte) {
	segment := inner[20:]
	if p.From.Is6() {
		segment = inner[40:]
	}
	segment[13], segment[16], segment[17] = 1, 0, 0
	return netnstest.Packet(p.From, p.To, policytest.TCP, 64, segment, 16)
}

// judge sends the cells' packets and holds what arrives against what passes.
func (m *matrix) judge(t *testing.T, n *node, cells []cell) {
	t.Helper()
	came := map[uint64]string{}
	m.send(t, n, cells)
	var expected []uint64
	for _, c := range cells {
		if c.passes {
			expected = append(expected, c.number)
		}
	}
	n.Await(came, expected)
	for _, c := range cells {
		if m.cells++; !c.passes {
			m.denied++
		}
		if _, arrived := came[c.number]; arrived != c.passes {
			m.wrong++
			t.Errorf("%s: %s: arrived %v", m.setting, c.name, arrived)
		}
	}
	if m.wrong > 40 {
		t.Fatal("the rest is not tried")
	}
}
