package cluster

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/tortie-net/tortie/internal/testkit/bgptest"
	"github.com/tortie-net/tortie/internal/testkit/errtest"
	"github.com/tortie-net/tortie/internal/testkit/meshtest"
	"github.com/tortie-net/tortie/internal/testkit/netnstest"
)

const partAnnotations = "By annotations of its own Node"

// annotations are the writes that the API server accepts, as they are about the thief's own Node. The thief has stopped
// its agent, which would revert them.
func (s *siege) annotations(t *testing.T) {
	s.On(t, thief, "kill -STOP $(pgrep -xo kubelet); kill -KILL $(pgrep -xo node)")
	path := core + "nodes/" + thief + "/status"
	v := s.is[victim]
	const prefix = "projectcalico.org/"
	meant := field[object](s.get(t, core+"nodes/"+thief), "metadata", "annotations")
	inside := lastOf(s.block(victim)).String()
	for _, c := range []struct {
		aim, by       string
		kubelet       any // written first, with the kubelet's credentials
		notes         []string
		problem, what string
	}{
		{"another node's address, and another AS number", "agent", nil, []string{"IPv4Address", v.address + "/24", "ASNumber", "65009"},
			"its address " + v.address + " is that of node " + victim + " too", ""},
		{"another node's address, and its kubelet reports it", "agent", internalIP(v.address), []string{"IPv4Address", v.address + "/24"},
			"its address " + v.address + " is that of node " + victim + " too", "its InternalIP too"},
		{"an address in another node's block", "agent", nil, []string{"IPv4Address", inside + "/32"},
			"its address " + inside + " lies in block", ""},
		{"an address in another node's block, and its kubelet reports it", "agent", internalIP(inside), []string{"IPv4Address", inside + "/32"},
			"its address " + inside + " lies in block", "its InternalIP too"},
		{"another node's end of VXLAN tunnels", "agent", nil, []string{"IPv4VXLANTunnelAddr", v.end},
			"its end of VXLAN tunnels, " + v.end + ", lies in none of its blocks", ""},
		{"an address that is none", "kubelet", nil, []string{"IPv4Address", "0.0.0.0/0"}, "0.0.0.0/0 cannot be a node's address", ""},
		{"an address of several hosts", "kubelet", nil, []string{"IPv4Address", "224.0.0.1/4"}, "224.0.0.1/4 cannot be a node's address", ""},
		{"the MAC of another node's end", "kubelet", nil, []string{"VXLANTunnelMACAddr", v.mac}, "has the MAC of node " + victim, ""},
	} {
		t.Run(c.aim, func(t *testing.T) {
			if c.kubelet != nil {
				s.must(t, request{by: "kubelet", verb: "PATCH", path: path, body: c.kubelet})
			}
			var pairs []string
			for i, text := range c.notes {
				if i%2 == 0 {
					text = prefix + text
				}
				pairs = append(pairs, text)
			}
			r := request{by: c.by, verb: "PATCH", path: path, body: notes(pairs...)}
			s.must(t, r)
			problem, seen := s.reported(t, c.problem)
			s.inVain(t)
			tried := r.String()
			if c.what != "" {
				tried += ", " + c.what
			}
			s.record.add(row{part: partAnnotations, aim: c.aim, tried: tried, answer: "ignored: " + problem, seen: seen})
			s.restore(t, path, meant)
		})
	}
	s.tunnelOfAnother(t, path, meant)
}

// tunnelOfAnother gives the thief's tunnel the address of a pod, while a policy denies pods all nodes.
func (s *siege) tunnelOfAnother(t *testing.T, path string, meant object) {
	aim := "a pod's address as its tunnel's, to deny it to whom a policy denies nodes"
	t.Run(aim, func(t *testing.T) {
		const clusterPolicies = "/apis/policy.networking.k8s.io/v1alpha2/clusternetworkpolicies"
		server, node := s.inside(t, s.tenants["server"]), at(s.is[witness].address, 10250)
		errtest.Must(t, connect(server.NS, node))
		s.must(t, request{by: "admin", verb: "POST", path: clusterPolicies, body: object{
			"apiVersion": "policy.networking.k8s.io/v1alpha2", "kind": "ClusterNetworkPolicy",
			"metadata": object{"name": "no-nodes"}, "spec": object{
				"tier": "Admin", "priority": 1, "subject": object{"namespaces": object{"matchLabels": object{"kubernetes.io/metadata.name": "team"}}},
				"egress": []object{{"name": "no-nodes", "action": "Deny", "to": []object{{"nodes": object{}}}}},
			},
		}})
		defer s.must(t, request{by: "admin", verb: "DELETE", path: clusterPolicies + "/no-nodes"})
		meshtest.Within(t, time.Minute, func() error {
			if connect(server.NS, node) == nil {
				return fmt.Errorf("%s is reached", node)
			}
			return nil
		})
		r := request{by: "agent", verb: "PATCH", path: path, body: notes("projectcalico.org/IPv4VXLANTunnelAddr", s.web.Status.PodIP)}
		s.must(t, r)
		s.tells(t, "is said to be the address of a tunnel device, and lies in no block of this node")
		serves(t, server.NS, at(s.web.Status.PodIP, 80), "web")
		s.inVain(t)
		s.record.add(row{part: partAnnotations, aim: aim, tried: r.String(), answer: "no address of a node to policies: the pod is reached",
			seen: victim + ": `node status`"})
		s.restore(t, path, meant)
	})
}

// lastOf returns the last address of a block.
func lastOf(b netip.Prefix) netip.Addr {
	a := b.Addr().As4()
	a[3] |= byte(1<<(32-b.Bits()) - 1)
	return netip.AddrFrom4(a)
}

// internalIP returns a Node status with an InternalIP.
func internalIP(a string) object {
	return object{
		"status": object{"addresses": []any{object{"type": "InternalIP", "address": a}, object{"type": "Hostname", "address": thief}}},
	}
}

// restore restores the Node of the thief, and waits until the witness reports no problem.
func (s *siege) restore(t *testing.T, path string, meant object) {
	t.Helper()
	was := object{}
	for _, key := range []string{"IPv4Address", "IPv4VXLANTunnelAddr", "VXLANTunnelMACAddr", "ASNumber"} {
		was["projectcalico.org/"+key] = meant["projectcalico.org/"+key] // null removes it
	}
	body := internalIP(s.is[thief].address)
	body["metadata"] = object{"annotations": was}
	s.must(t, request{by: "kubelet", verb: "PATCH", path: path, body: body})
	meshtest.Within(t, time.Minute, func() error {
		status, err := s.status(witness)
		if err == nil && slices.ContainsFunc(status.Problems, func(p string) bool { return strings.HasPrefix(p, "Node "+thief) }) {
			err = fmt.Errorf("%s still reports %q", witness, status.Problems)
		}
		return err
	})
}

func (s *siege) must(t *testing.T, r request) {
	t.Helper()
	if err := s.send(t, r); err != nil {
		t.Fatalf("%s: %v", r, err)
	}
}

const partBGP = "By BGP, and packets between nodes"

// speaker replaces the thief's agent by a BGP speaker.
func (s *siege) speaker(t *testing.T) {
	s.unknown(t)
	host := &bgptest.Host{NS: s.hosts[thief], T: t, V4: netip.MustParseAddr(s.is[thief].address)}
	to := netip.MustParseAddr(s.is[witness].address)
	s.silent(t, host, to)
	session, _ := host.Establish(to, 64512, 120)
	hop, other := host.V4, netip.MustParseAddr(s.is[victim].address)
	free := netip.MustParsePrefix("192.168.77.0/26")
	single := func(a string) netip.Prefix { p := netip.MustParseAddr(a); return netip.PrefixFrom(p, p.BitLen()) }
	for _, c := range []struct {
		aim    string
		prefix netip.Prefix
		hop    netip.Addr
		why    string
	}{
		{"another node's block", s.block(victim), hop, "belongs to node " + victim},
		{"the address of another node's pod", single(s.web.Status.PodIP), hop, "in use on node " + victim},
		{"a part of another node's block", netip.PrefixFrom(s.block(victim).Addr(), 27), hop, "belongs to node " + victim},
		{"half of the pool", netip.MustParsePrefix("192.168.0.0/17"), hop, "larger than a block"},
		{"a default route", netip.MustParsePrefix("0.0.0.0/0"), hop, ""},
		{"the API server's address", single("172.30.0.1"), hop, "in no IPPool"},
		{"another node's address", single(s.is[victim].address), hop, "in no IPPool"},
		{"a Service's address", netip.MustParsePrefix("10.96.0.1/32"), hop, "in no IPPool"},
		{"its own block by another node", s.block(thief), other, "belongs to node " + thief},
		{"a free block by a host that is no node", free, netip.MustParseAddr("172.30.0.99"), "no node of the cluster"},
	} {
		t.Run(c.aim, func(t *testing.T) {
			session.Send(bgptest.UpdateMessage(c.hop, 100, c.prefix), bgptest.Message(bgptest.Keepalive))
			why := s.refusal(t, c.prefix, c.why)
			s.inVain(t)
			s.record.add(row{part: partBGP, aim: "announce " + c.aim, tried: c.prefix.String() + " via " + c.hop.String(),
				answer: "no route: " + why, seen: witness + ": `node routes`, refused"})
		})
	}
	t.Run("too many prefixes", func(t *testing.T) {
		s.flood(t, session, hop)
	})
	s.revive(t)
}

// refusal waits until the witness reports why it rejects a prefix.
func (s *siege) refusal(t *testing.T, p netip.Prefix, words string) (why string) {
	t.Helper()
	meshtest.Within(t, 30*time.Second, func() error {
		status, err := s.status(witness)
		if err != nil {
			return err
		}
		for _, r := range slices.Concat(status.Routes.Refusals, status.Routes.LeftToNetwork) {
			if r.Prefix == p.String() && strings.Contains(r.Reason, words) {
				why = r.Reason
				return nil
			}
		}
		for _, peer := range status.Peers {
			for _, r := range peer.Refusals {
				if r.Example == p.String() {
					why = r.Reason
					return nil
				}
			}
		}
		return fmt.Errorf("%s rejects %+v, want %s with %q", witness, status.Routes.Refusals, p, words)
	})
	return why
}

// flood announces more prefixes than the maximum prefix limit.
func (s *siege) flood(t *testing.T, session *bgptest.Raw, hop netip.Addr) {
	const most = 20000
	var some []netip.Prefix
	for i := range most + 1000 {
		some = append(some, netip.PrefixFrom(netip.AddrFrom4([4]byte{10, 128 + byte(i>>16), byte(i >> 8), byte(i)}), 32))
	}
	seen := s.counted(t, witness, "tortie_bgp_held_down_peers", func() {
		for chunk := range slices.Chunk(some, 500) {
			session.Send(bgptest.UpdateMessage(hop, 100, chunk...))
		}
	})
	s.event(t, "PeerHeldDown", thief)
	s.inVain(t)
	s.record.add(row{part: partBGP, aim: "announce too much", tried: fmt.Sprintf("%d prefixes", len(some)),
		answer: "the session is closed, for a minute at least", seen: seen + "; Event PeerHeldDown"})
}

// silent opens connections and sends nothing.
func (s *siege) silent(t *testing.T, host *bgptest.Host, to netip.Addr) {
	t.Run("silent connections", func(t *testing.T) {
		const count, few = 300, 8
		var open []net.Conn
		for range count {
			_ = host.Do(func() error {
				d := net.Dialer{LocalAddr: &net.TCPAddr{IP: host.V4.AsSlice()}, Timeout: time.Second}
				conn, err := d.DialContext(t.Context(), "tcp", netip.AddrPortFrom(to, 179).String())
				if err == nil {
					open = append(open, conn)
				}
				return nil
			})
		}
		s.inVain(t)
		kept := 0
		for _, conn := range open {
			_ = conn.SetReadDeadline(time.Now().Add(20 * time.Millisecond))
			if _, err := io.Copy(io.Discard, conn); errors.Is(err, os.ErrDeadlineExceeded) {
				kept++
			}
			_ = conn.Close()
		}
		if kept > few {
			t.Errorf("%s keeps %d of %d connections", witness, kept, count)
		}
		s.record.add(row{part: partBGP, aim: "keep the speaker busy",
			tried:  fmt.Sprintf("%d connections that say nothing, from the node's address", count),
			answer: fmt.Sprintf("at most %d are kept; sessions of others stay", few), seen: witness + ": `node peers`: " + s.down(t)})
	})
}

// down waits until the witness has no session with the thief's node, and returns the reason.
func (s *siege) down(t *testing.T) string {
	t.Helper()
	status, err := s.status(witness)
	errtest.Must(t, err)
	for _, p := range status.Peers {
		if p.Node == thief && p.State != "Established" && strings.Contains(p.Address, ".") {
			return "no session with " + thief
		}
	}
	t.Errorf("%s has a session with %s: %+v", witness, thief, status.Peers)
	return ""
}

// unknown sends packets and opens connections from addresses that are no node's.
func (s *siege) unknown(t *testing.T) {
	ns := s.hosts[thief]
	ns.Run(t, "ip", "addr", "add", outsider+"/24", "dev", "eth0")
	defer ns.Run(t, "ip", "addr", "del", outsider+"/24", "dev", "eth0")
	t.Run("BGP from an unconfigured peer", func(t *testing.T) {
		seen := s.counted(t, witness, "tortie_bgp_strangers_total", func() {
			_ = ns.Do(func() error {
				d := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP(outsider)}, Timeout: time.Second}
				conn, err := d.DialContext(context.Background(), "tcp", at(s.is[witness].address, 179))
				if err == nil {
					conn.Close()
				}
				return nil
			})
		})
		s.inVain(t)
		s.record.add(row{part: partBGP, aim: "a BGP session from an address of no node", tried: "connect from " + outsider,
			answer: "closed", seen: seen})
	})
	t.Run("VXLAN from an unknown address", func(t *testing.T) {
		kind, b := netnstest.Datagram(netip.MustParseAddrPort(outsider+":4789"),
			netip.MustParseAddrPort(at(s.is[victim].address, 4789)), s.encapsulated())
		seen := s.counted(t, victim, dropped("vxlan-from-stranger"), func() {
			ns.Send(t, "eth0", netnstest.Frame(mac(t, ns, "eth0"), mac(t, s.hosts[victim], "eth0"), kind, b))
		})
		s.inVain(t)
		s.record.add(row{part: partBGP, aim: "VXLAN from an address of no node", tried: "a pod's packet inside, from " + outsider,
			answer: "dropped", seen: seen})
	})
}

func mac(t *testing.T, ns *netnstest.NS, link string) (address net.HardwareAddr) {
	t.Helper()
	ns.Within(t, func() error {
		l, err := net.InterfaceByName(link)
		if err == nil {
			address = l.HardwareAddr
		}
		return err
	})
	return address
}

// revive resumes the thief's kubelet, which restarts the agent: the initial state is restored.
func (s *siege) revive(t *testing.T) {
	t.Helper()
	s.On(t, thief, "kill -CONT $(pgrep -xo kubelet)")
	s.rolledOut(t, "daemonset/tortie-node", "-n", "kube-system")
}
