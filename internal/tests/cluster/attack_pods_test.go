package cluster

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/tortie-net/tortie/internal/testkit/errtest"
	"github.com/tortie-net/tortie/internal/testkit/meshtest"
	"github.com/tortie-net/tortie/internal/testkit/netnstest"
)

const partPods = "By pods on node2"

// hostMAC is the address of the host's end of each pod's veth pair.
var hostMAC = net.HardwareAddr{0xee, 0xee, 0xee, 0xee, 0xee, 0xee}

// tenant has pods on a node that is not the thief's.
type tenant struct {
	*siege
	raw, bare *meshtest.Pod // with NET_RAW, and without any capability
	mac       net.HardwareAddr
}

func (s *siege) hostilePods(t *testing.T) {
	pods := s.readyPods(t, "hostile", 2)
	h := &tenant{siege: s, raw: s.both(t, &pods[0]), bare: s.both(t, &pods[1])}
	h.raw.Within(t, func() error {
		link, err := net.InterfaceByName("eth0")
		if err == nil {
			h.mac = link.HardwareAddr
		}
		return err
	})
	h.forged(t)
	h.secondLink(t)
	h.neighbours(t)
	h.annotated(t)
	h.translated(t)
	h.detour(t)
}

// drop runs an attack that the guard of the tenant's node must drop and count.
func (h *tenant) drop(t *testing.T, aim, tried, reason string, do func()) {
	t.Helper()
	t.Run(aim, func(t *testing.T) {
		seen := h.counted(t, victim, dropped(reason), do)
		h.inVain(t)
		h.record.add(row{part: partPods, aim: aim, tried: tried, answer: "dropped", seen: seen})
	})
}

// send sends packets from the pod with NET_RAW.
func (h *tenant) send(t *testing.T, packets ...func() (uint16, []byte)) {
	t.Helper()
	for _, p := range packets {
		kind, b := p()
		h.raw.Send(t, "eth0", netnstest.Frame(h.mac, hostMAC, kind, b))
	}
}

// secondLink sends by a link such as a pod with CAP_NET_ADMIN can make into its node's namespace.
func (h *tenant) secondLink(t *testing.T) {
	node := h.hosts[victim]
	h.raw.Run(t, "ip", "link", "add", "x1", "up", "type", "veth", "peer", "name", "x0", "netns", node.Path())
	defer node.Run(t, "ip", "link", "delete", "x0")
	node.Run(t, "ip", "link", "set", "x0", "up")
	by := func(aim, tried string, packet func() (uint16, []byte)) {
		h.drop(t, "with CAP_NET_ADMIN, by a second link into its node, "+aim, tried, "spoofed-by-other-link", func() {
			kind, b := packet()
			h.raw.Send(t, "x1", netnstest.Frame(mac(t, h.raw.NS, "x1"), mac(t, node, "x0"), kind, b))
		})
	}
	web, here, there := h.web.Status.PodIP, h.is[victim], h.is[witness]
	by("packets with its own address, past its egress policy", "UDP from its address to "+web, datagram(at(h.raw.V4, 53), at(web, 53), nil))
	by("packets with another pod's address", "UDP from "+h.pod[witness].V4.String()+" to "+web,
		datagram(at(h.pod[witness].V4, 53), at(web, 53), nil))
	by("packets with another pod's address, IPv6", "UDP from "+h.pod[witness].V6.String()+" to "+h.pod[victim].V6.String(),
		datagram(at(h.pod[witness].V6, 53), at(h.pod[victim].V6, 53), nil))
	by("VXLAN with a node's address", "UDP from "+there.address+" to "+here.address+":4789",
		datagram(at(there.address, 4789), at(here.address, 4789), h.encapsulated()))
}

func datagram(src, dst string, data []byte) func() (uint16, []byte) {
	return func() (uint16, []byte) {
		return netnstest.Datagram(netip.MustParseAddrPort(src), netip.MustParseAddrPort(dst), data)
	}
}

func at(a any, port int) string { return net.JoinHostPort(fmt.Sprint(a), fmt.Sprint(port)) }

// encapsulated returns the payload of a VXLAN packet: a datagram from a pod of the witness to one of the victim.
func (s *siege) encapsulated() []byte {
	kind, b := netnstest.Datagram(netip.AddrPortFrom(s.pod[witness].V4, 53), netip.AddrPortFrom(s.pod[victim].V4, 7999), []byte("forged"))
	mac, _ := net.ParseMAC(s.is[victim].mac)
	const vni = 4096
	header := binary.BigEndian.AppendUint32([]byte{8, 0, 0, 0}, vni<<8)
	return append(header, netnstest.Frame(hostMAC, mac, kind, b)...)
}

// forged sends packets with addresses or protocols that are not the pod's.
func (h *tenant) forged(t *testing.T) {
	web, own := h.web.Status.PodIP, h.raw.V4
	h.drop(t, "packets with another pod's address", "UDP from "+h.pod[witness].V4.String()+" to "+web, "spoofed-from-pod", func() {
		h.send(t, datagram(at(h.pod[witness].V4, 53), at(web, 53), nil))
	})
	h.drop(t, "packets with another pod's address, IPv6", "UDP from "+h.pod[witness].V6.String()+" to "+h.pod[victim].V6.String(),
		"spoofed-from-pod", func() {
			h.send(t, datagram(at(h.pod[witness].V6, 53), at(h.pod[victim].V6, 53), nil))
		})
	h.drop(t, "VXLAN with a node's address", "UDP from "+h.is[witness].address+" to "+h.is[victim].address+":4789",
		"spoofed-from-pod", func() {
			h.send(t, datagram(at(h.is[witness].address, 4789), at(h.is[victim].address, 4789), h.encapsulated()))
		})
	h.drop(t, "services on 127.0.0.1 of its node", "a frame to 127.0.0.1:9099", "loopback-from-pod", func() {
		h.send(t, datagram(at(own, 53), at("127.0.0.1", 9099), nil))
	})
	h.drop(t, "VXLAN to another node", "UDP to "+h.is[witness].address+":4789, a pod's packet inside", "vxlan-from-pod", func() {
		h.send(t, datagram(at(own, 53), at(h.is[witness].address, 4789), h.encapsulated()))
	})
	h.drop(t, "IPIP to another node", "protocol 4 to "+h.is[witness].address, "ipip-from-pod", func() {
		h.send(t, func() (uint16, []byte) {
			_, inner := netnstest.Datagram(netip.AddrPortFrom(h.pod[witness].V4, 53), netip.AddrPortFrom(h.pod[victim].V4, 53), nil)
			return netnstest.Packet(own, netip.MustParseAddr(h.is[witness].address), unix.IPPROTO_IPIP, 64, inner, -1)
		})
	})
	for _, to := range []string{h.is[witness].address, h.is[victim].address, h.is[witness].address6} {
		h.drop(t, "a BGP session as its node, without any capability: to "+to, "connect "+at(to, 179), "bgp-from-pod", func() {
			if err := connect(h.bare.NS, at(to, 179)); err == nil {
				t.Errorf("a pod has a connection to %s:179", to)
			}
		})
	}
}

// connect opens a connection within a short timeout.
func connect(from *netnstest.NS, to string) error {
	return from.Do(func() error {
		conn, err := net.DialTimeout("tcp", to, 500*time.Millisecond)
		if err == nil {
			err = conn.Close()
		}
		return err
	})
}

// neighbours sends ARP and NDP claims of other addresses on the pod's link.
func (h *tenant) neighbours(t *testing.T) {
	t.Run("ARP", func(t *testing.T) {
		gateway := netip.MustParseAddr("169.254.1.1")
		var frames [][]byte
		for _, a := range []string{h.web.Status.PodIP, h.pod[witness].V4.String(), h.is[witness].address, h.is[victim].address} {
			for _, op := range []byte{1, 2} {
				frames = append(frames, netnstest.ARP(op, h.mac, netip.MustParseAddr(a), gateway),
					netnstest.ARP(op, h.mac, netip.MustParseAddr(a), netip.MustParseAddr(a)))
			}
		}
		for i := range 2000 {
			frames = append(frames, netnstest.ARP(1, h.mac, netip.AddrFrom4([4]byte{10, 250, byte(i >> 8), byte(i)}), gateway))
		}
		h.raw.Send(t, "eth0", frames...)
		var believed []string
		for line := range strings.Lines(h.hosts[victim].Run(t, "ip", "-4", "neigh", "show")) {
			if f := strings.Fields(line); strings.Contains(line, h.mac.String()) && f[0] != h.raw.V4.String() {
				believed = append(believed, line)
			}
		}
		if len(believed) > 0 {
			t.Errorf("neighbour entry of %s: %q", victim, believed)
		}
		h.inVain(t)
		h.record.add(row{part: partPods, aim: "ARP for others' addresses, and from 2,000", tried: "requests and replies for pods and nodes",
			answer: "no entry in node2's table of neighbours but of the pod's own address",
			seen:   "nowhere: the kernel ignores them, and counts none"})
	})
	h.drop(t, "neighbour discovery from 1,000 addresses", "router and neighbour solicitations", "neighbours-from-pod", func() {
		var frames [][]byte
		to := netip.MustParseAddr("fe80::ecee:eeff:feee:eeee")
		for i := range 1000 {
			body := slices.Concat([]byte{135, 0, 0, 0, 0, 0, 0, 0}, to.AsSlice(), []byte{1, 1}, h.mac)
			kind, b := netnstest.Packet(netip.AddrFrom16([16]byte{0: 0xfe, 1: 0x80, 14: byte(i >> 8), 15: byte(i)}), to,
				unix.IPPROTO_ICMPV6, 255, body, 2)
			frames = append(frames, netnstest.Frame(h.mac, hostMAC, kind, b))
		}
		h.raw.Send(t, "eth0", frames...)
	})
}

// annotated creates pods that request addresses of others by Calico's annotations.
func (h *tenant) annotated(t *testing.T) {
	for i, c := range []struct{ aim, key, value, message string }{
		{"the address of a pod that runs", "cni.projectcalico.org/ipAddrs", fmt.Sprintf("[%q]", h.web.Status.PodIP), h.web.Status.PodIP},
		{"any address, without IPAM", "cni.projectcalico.org/ipAddrsNoIpam", fmt.Sprintf("[%q]", h.is[witness].address), "ipAddrsNoIpam"},
		{"a node's address", "cni.projectcalico.org/ipAddrs", fmt.Sprintf("[%q]", h.is[witness].address), h.is[witness].address},
		{"the address of a Service besides its own", "cni.projectcalico.org/floatingIPs", `["10.96.0.1"]`, "floatingIPs"},
	} {
		t.Run(c.aim, func(t *testing.T) {
			name := fmt.Sprint("greedy", i)
			_, err := h.client.CoreV1().Pods(namespace).Create(t.Context(), idle(name, map[string]string{c.key: c.value}), metav1.CreateOptions{})
			errtest.Must(t, err)
			defer h.Kubectl(t, "delete", "pod", name, "--now")
			text := h.sandboxRefused(t, name, c.message)
			h.inVain(t)
			h.record.add(row{part: partPods, aim: c.aim, tried: c.key + ": " + c.value, answer: text,
				seen: "Event FailedCreatePodSandBox of the pod"})
		})
	}
}

// idle returns a pod on the victim's node.
func idle(name string, annotations map[string]string) *corev1.Pod {
	now := int64(0)
	return &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: name, Annotations: annotations, Labels: map[string]string{"app": name}},
		Spec: corev1.PodSpec{
			NodeName: victim, TerminationGracePeriodSeconds: &now,
			Containers: []corev1.Container{
				{Name: "c", Image: "docker.io/tortie-net/debug:dev", ImagePullPolicy: corev1.PullNever, Command: []string{"sleep", "infinity"}},
			},
		}}
}

// sandboxRefused waits until the runtime reports why a pod has no network.
func (s *siege) sandboxRefused(t *testing.T, name, words string) (text string) {
	t.Helper()
	meshtest.Within(t, time.Minute, func() error {
		list, err := s.client.CoreV1().Events(namespace).List(t.Context(),
			metav1.ListOptions{FieldSelector: "reason=FailedCreatePodSandBox,involvedObject.name=" + name})
		if err != nil {
			return err
		}
		for _, e := range list.Items {
			if strings.Contains(e.Message, words) {
				_, text, _ = strings.Cut(e.Message, "failed to setup network for sandbox ")
				_, text, _ = strings.Cut(text, ": ")
				return nil
			}
		}
		return fmt.Errorf("%d Events, none with %q", len(list.Items), words)
	})
	return text
}

// translated uses the DNAT of kube-proxy and portmap: packets to a node's address lead to a pod, and packets to a
// Service to a node.
func (h *tenant) translated(t *testing.T) {
	t.Run("host port of VXLAN", func(t *testing.T) {
		h.porter(t, corev1.ContainerPort{ContainerPort: 4789, HostPort: 4789, Protocol: corev1.ProtocolUDP})
		h.flows(t, "all VXLAN of a node, by a host port", "hostPort 4789/UDP", untracked)
	})
	t.Run("host port of BGP", func(t *testing.T) {
		h.porter(t, corev1.ContainerPort{ContainerPort: 179, HostPort: 179, Protocol: corev1.ProtocolTCP})
		if err := connect(h.hosts[witness], at(h.is[victim].address, 179)); !errors.Is(err, unix.ECONNREFUSED) {
			t.Errorf("a new connection to BGP of %s: %v, want it refused by the pod, which does not listen", victim, err)
		}
		h.flows(t, "new BGP sessions of a node, by a host port", "hostPort 179/TCP",
			"new connections are the pod's, which is a known gap; sessions that are up, and routes, stay")
	})
	t.Run("external address of VXLAN", func(t *testing.T) {
		service := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Name: "porter"}, Spec: corev1.ServiceSpec{
			Selector: map[string]string{"app": "hostile"}, ExternalIPs: []string{h.is[victim].address, h.is[witness].address},
			Ports: []corev1.ServicePort{{Port: 4789, Protocol: corev1.ProtocolUDP}},
		}}
		if _, err := h.client.CoreV1().Services(namespace).Create(t.Context(), service, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
		defer h.Kubectl(t, "delete", "service", "porter")
		meshtest.Within(t, time.Minute, func() error { return h.translates(t, "4789") })
		h.flows(t, "all VXLAN of two nodes, by a Service", "externalIPs of both nodes, port 4789/UDP", untracked)
	})
}

const untracked = "no effect: VXLAN between nodes is not tracked, and so not translated"

// porter runs a pod with a host port until the test ends.
func (h *tenant) porter(t *testing.T, port corev1.ContainerPort) {
	t.Helper()
	p := idle("porter", nil)
	p.Spec.Containers[0].Ports = []corev1.ContainerPort{port}
	if _, err := h.client.CoreV1().Pods(namespace).Create(t.Context(), p, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if _, err := h.Do(context.Background(), "kubectl", "delete", "pod", "porter", "--now"); err != nil {
			t.Error(err)
		}
	})
	h.readyPods(t, "porter", 1)
}

// translates returns nil once kube-proxy has rules for a Service's external address.
func (h *tenant) translates(t *testing.T, port string) error {
	if text := h.hosts[victim].Run(t, "nft", "list", "map", "ip", "kube-proxy", "service-ips"); !strings.Contains(text,
		h.is[victim].address+" . udp . "+port) {
		return fmt.Errorf("rules of kube-proxy: %s", text)
	}
	return nil
}

// flows opens connections between the pods with traffic: each is another VXLAN flow.
func (h *tenant) flows(t *testing.T, aim, tried, answer string) {
	t.Helper()
	for range 50 {
		if page, err := get(t.Context(), h.pod[witness].NS, at(h.web.Status.PodIP, 80)); err != nil || page != "web" {
			t.Errorf("a new connection: %q, %v", page, err)
			break
		}
	}
	h.inVain(t)
	h.record.add(row{part: partPods, aim: aim, tried: tried, answer: answer, seen: "the pod's or Service's own object"})
}

// detour sends packets through another node: to the node port of a Service with nodes as endpoints. The node
// masquerades the packets that it translates.
func (h *tenant) detour(t *testing.T) {
	for _, c := range []struct {
		aim, reason string
		protocol    corev1.Protocol
		port        int32
		send        func(to string)
	}{
		{"a BGP session as a node, by a port of a Service", "bgp-translated", corev1.ProtocolTCP, 179, func(to string) {
			if err := connect(h.bare.NS, to); err == nil {
				t.Errorf("a pod has a BGP connection by %s", to)
			}
		}},
		{"VXLAN as a node, by a port of a Service", "vxlan-translated", corev1.ProtocolUDP, 4789, func(to string) {
			h.send(t, datagram(at(h.raw.V4, 53), to, h.encapsulated()))
		}},
	} {
		t.Run(c.aim, func(t *testing.T) {
			const port = 30179
			meta := metav1.ObjectMeta{Name: "detour", Labels: map[string]string{"kubernetes.io/service-name": "detour"}}
			service := &corev1.Service{ObjectMeta: meta, Spec: corev1.ServiceSpec{Type: corev1.ServiceTypeNodePort,
				Ports: []corev1.ServicePort{{Port: c.port, NodePort: port, Protocol: c.protocol}}}}
			if _, err := h.client.CoreV1().Services(namespace).Create(t.Context(), service, metav1.CreateOptions{}); err != nil {
				t.Fatal(err)
			}
			defer h.Kubectl(t, "delete", "service,endpointslice", "detour")
			slice := &discoveryv1.EndpointSlice{ObjectMeta: meta, AddressType: discoveryv1.AddressTypeIPv4,
				Ports:     []discoveryv1.EndpointPort{{Port: &c.port, Protocol: &c.protocol}},
				Endpoints: []discoveryv1.Endpoint{{Addresses: []string{h.is[witness].address}}}}
			if _, err := h.client.DiscoveryV1().EndpointSlices(namespace).Create(t.Context(), slice, metav1.CreateOptions{}); err != nil {
				t.Fatal(err)
			}
			was := h.metric(t, witness, dropped(c.reason))
			meshtest.Eventually(t, func() error {
				c.send(at(h.is[witness].address, port))
				if now := h.metric(t, witness, dropped(c.reason)); now <= was {
					return fmt.Errorf("%s: %v", c.reason, now)
				}
				return nil
			})
			h.inVain(t)
			h.record.add(row{part: partPods, aim: c.aim,
				tried:  fmt.Sprintf("endpoint %s, port %d/%s, nodePort %d of master", h.is[witness].address, c.port, c.protocol, port),
				answer: "dropped", seen: witness + ": `" + dropped(c.reason) + "`"})
		})
	}
}
