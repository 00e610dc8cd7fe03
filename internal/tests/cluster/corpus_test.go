package cluster

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"maps"
	"net"
	"net/netip"
	"slices"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"

	"github.com/tortie-net/tortie/internal/api"
	"github.com/tortie-net/tortie/internal/kernel/sysctl"
	"github.com/tortie-net/tortie/internal/testkit/errtest"
	"github.com/tortie-net/tortie/internal/testkit/labtest"
	"github.com/tortie-net/tortie/internal/testkit/meshtest"
	"github.com/tortie-net/tortie/internal/testkit/netnstest"
	"github.com/tortie-net/tortie/internal/testkit/policytest"
	"github.com/tortie-net/tortie/internal/testkit/tier"
)

// answerTime is how long an answer may take: nobody listens, so that a kernel answers, or a policy has dropped the
// packet.
const answerTime = time.Second

// pods4 is the range of pods' addresses, in none of the networks that cases name.
const pods4 = "10.0.0.0/16"

// ofHosts are what only cases have that need HostEndpoints. The others have none: policies for all would cut the nodes
// off.
var ofHosts = []string{"kubernetes-host", "notSelector: all()"}

// TestCorpus applies policies of tutorials to a cluster, and opens the connections that they should allow and deny,
// between pods, nodes and addresses outside. In the end it cuts a node off.
func TestCorpus(t *testing.T) {
	tier.All(t)
	cases, err := policytest.Corpus()
	errtest.Must(t, err)
	w := newWorld(t, "-image", labtest.Image(t), "-pod-cidr", pods4)
	w.rollout(t, "--set", "ipPool.cidr="+pods4)
	w.Kubectl(t, "wait", "--for=condition=Ready", "node", "--all", "--timeout="+patience.String())
	t.Run("pods at once", func(t *testing.T) { w.compare(t, netip.MustParsePrefix(pods4)) })
	w.Kubectl(t, "apply", "--server-side", "-f", labtest.ClusterNetworkPolicyDefinition(t))
	// Agents watch the kinds that exist when they start.
	w.Kubectl(t, "rollout", "restart", "daemonset/tortie-node", "-n", "kube-system")
	w.rolledOut(t, "daemonset/tortie-node", "-n", "kube-system")
	p := w.parties(t, cases[0].Cluster)
	tried := 0
	for _, c := range cases {
		text, ends := strings.Join(c.Manifests, "\n---\n"), p
		if c.Hosts || slices.ContainsFunc(ofHosts, func(word string) bool { return strings.Contains(text, word) }) {
			link := `"*"`
			if c.ByAddress {
				link = `""`
			}
			text += hostEndpoint(p, 0, link, "[projectcalico-default-allow]") + hostEndpoint(p, 1, link, "[projectcalico-default-allow]")
		}
		if strings.Contains(text, "name: kubernetes,") {
			ends = maps.Clone(p)
			ends["node0"] = p["api"]
		}
		t.Run(c.Name, func(t *testing.T) {
			path := w.Manifest(t, text)
			w.Kubectl(t, "create", "-f", path)
			defer w.Kubectl(t, "delete", "-f", path)
			tried += ends.hold(t, c)
		})
	}
	if t.Logf("%d connections tried", tried); tried < 250 {
		t.Errorf("%d connections were tried, want 250 at least", tried)
	}
	t.Run("host endpoint", func(t *testing.T) { w.cutOff(t, p) })
	if t.Failed() {
		w.explain(t)
	}
}

// parties are what connections are between, by the names that cases have for them.
type parties map[string]party

type party struct {
	*netnstest.NS
	address netip.Addr
}

// hostEndpoint returns one for a node of the cases.
func hostEndpoint(ps parties, node int, link, profiles string) string {
	return fmt.Sprintf(`
---
apiVersion: crd.projectcalico.org/v1
kind: HostEndpoint
metadata: {name: %[1]s, labels: {kubernetes-host: ""}}
spec: {node: %[1]s, interfaceName: %[3]s, expectedIPs: [%[2]s], profiles: %[4]s}
`, nodes[node], ps[fmt.Sprint("node", node)].address, link, profiles)
}

// cutOff gives a node a host endpoint that nothing is allowed for: SSH, BGP and the API server stay by their failsafe
// ports. Without these nothing is left, so that the node does not come back.
func (w *world) cutOff(t *testing.T, ps parties) {
	w.Kubectl(t, "create", "-f", w.Manifest(t, hostEndpoint(ps, 1, `"*"`, "[]")))
	failsafe := []string{"node0 -> node1 TCP 22", "node0 -> node1 TCP 179", "node1 -> node0 TCP 179", "node1 -> api TCP 6443"}
	other := []string{"node0 -> node1 TCP 23", "node1 -> node0 TCP 23", "node1 -> api TCP 22", "node0 -> node1 ICMP 8/0"}
	ps.hold(t, &policytest.Case{Allow: failsafe, Deny: other})
	w.Kubectl(t, "patch", "felixconfiguration", "default", "--type=merge", "-p",
		`{"spec":{"failsafeInboundHostPorts":[],"failsafeOutboundHostPorts":[]}}`)
	ps.hold(t, &policytest.Case{Deny: slices.Concat(failsafe, other)})
}

// hold waits until a case's connections are as expected, and returns their number.
func (ps parties) hold(t *testing.T, c *policytest.Case) (tried int) {
	t.Helper()
	meshtest.Within(t, patience, func() error {
		var g errgroup.Group
		tried = 0
		for i, text := range slices.Concat(c.Allow, c.Deny) {
			if ps.known(text) {
				tried++
				g.Go(func() error { return ps.expect(text, i < len(c.Allow)) })
			}
		}
		return g.Wait()
	})
	return tried
}

// known reports whether a connection can be tried: of ICMP only echoes are answered.
func (ps parties) known(text string) bool {
	f := strings.Fields(text)
	_, from := ps[f[0]]
	_, to := ps[f[2]]
	return from && to && (f[3] != "ICMP" || f[4] == "8/0")
}

func (ps parties) expect(text string, allowed bool) error {
	f := append(strings.Fields(text), "0") // the port of the source, if there is none
	from, to := ps[f[0]], ps[f[2]]
	at := func(p party, port string) netip.AddrPort {
		return netip.MustParseAddrPort(net.JoinHostPort(p.address.String(), strings.Split(port, "/")[0]))
	}
	var answered bool
	err := from.Do(func() (err error) {
		answered, err = try(at(from, f[5]), at(to, f[4]), strings.ToLower(f[3]))
		return err
	})
	if err == nil && answered != allowed {
		err = fmt.Errorf("%s: answered %v, want %v", text, answered, allowed)
	}
	return err
}

// try reports whether a packet is answered: also that nobody listens is an answer.
func try(from, to netip.AddrPort, protocol string) (answered bool, err error) {
	d := net.Dialer{Timeout: answerTime}
	switch protocol {
	case "tcp":
		d.LocalAddr = net.TCPAddrFromAddrPort(from)
	case "udp":
		d.LocalAddr = net.UDPAddrFromAddrPort(from)
	default:
		return ping(from.Addr(), to.Addr())
	}
	conn, err := d.DialContext(context.Background(), protocol, to.String())
	if protocol == "tcp" {
		return answer(err)
	}
	if err != nil {
		return false, err
	}
	defer conn.Close()
	_ = conn.SetDeadline(time.Now().Add(answerTime))
	if _, err := conn.Write([]byte("?")); err != nil {
		return answer(err)
	}
	_, err = conn.Read(make([]byte, 1500))
	return answer(err)
}

// echoes counts the echo requests. A connection to conntrack is one identifier between two addresses: a try with that
// of an earlier one would be part of a connection that began before the policies were in force, and keep it
// established.
var echoes atomic.Uint32

// ping reports whether an echo request is answered. The socket also receives other ICMP messages of that address: only
// the reply counts.
func ping(from, to netip.Addr) (answered bool, err error) {
	conn, err := net.DialIP("ip4:icmp", &net.IPAddr{IP: from.AsSlice()}, &net.IPAddr{IP: to.AsSlice()})
	if err != nil {
		return false, err
	}
	defer conn.Close()
	_ = conn.SetDeadline(time.Now().Add(answerTime))
	id := uint16(echoes.Add(1))
	if _, err := conn.Write(echo(8, id)); err != nil {
		return answer(err)
	}
	reply, message := echo(0, id), make([]byte, 1500)
	for {
		n, _, err := conn.ReadFromIP(message) // without the IP header, unlike Read
		if errors.Is(err, syscall.ECONNREFUSED) {
			return false, nil // an ICMP error instead of the reply
		}
		if err != nil || bytes.Equal(message[:n], reply) {
			return answer(err)
		}
	}
}

// echo returns an echo message of ICMP with sequence number 1 and nothing else (RFC 792): 8 is the type of requests, 0
// of replies.
func echo(kind byte, id uint16) []byte {
	m := []byte{kind, 0, 0, 0, byte(id >> 8), byte(id), 0, 1}
	sum := uint32(kind)<<8 + uint32(id) + 1
	binary.BigEndian.PutUint16(m[2:], ^uint16(sum>>16+sum))
	return m
}

// answer reports by a call's error whether there was an answer.
func answer(err error) (answered bool, _ error) {
	switch timeout := net.Error(nil); {
	case err == nil, errors.Is(err, syscall.ECONNREFUSED):
		return true, nil
	case errors.As(err, &timeout) && timeout.Timeout(), errors.Is(err, syscall.EPERM), errors.Is(err, syscall.EHOSTUNREACH):
		return false, nil
	}
	return false, err
}

// parties creates the pods of the cases on two nodes, their service accounts and Services; the third node has the
// addresses outside.
func (w *world) parties(t *testing.T, c *policytest.Cluster) parties {
	t.Helper()
	var accounts, pods []any
	for _, n := range c.Namespaces {
		accounts = append(accounts, &corev1.Namespace{TypeMeta: v1("Namespace"), ObjectMeta: metav1.ObjectMeta{Name: n.Name, Labels: n.Labels}})
	}
	for _, a := range c.ServiceAccounts {
		accounts = append(accounts, &corev1.ServiceAccount{TypeMeta: v1("ServiceAccount"),
			ObjectMeta: metav1.ObjectMeta{Namespace: a.Namespace, Name: a.Name, Labels: a.Labels}})
	}
	for i := range c.Pods {
		pods = append(pods, idlePod(&c.Pods[i]))
	}
	w.define(t, accounts)
	w.define(t, pods)
	ps, addresses := parties{}, map[string]string{}
	for i := range c.Pods {
		p := &c.Pods[i]
		w.Kubectl(t, "wait", "-n", p.Namespace, "pod/"+p.Name, "--for=condition=Ready", "--timeout="+patience.String())
		made, err := w.client.CoreV1().Pods(p.Namespace).Get(t.Context(), p.Name, metav1.GetOptions{})
		errtest.Must(t, err)
		end := &netnstest.NS{Namespace: w.Pod(t, string(made.UID)).Namespace}
		ps[p.Namespace+"/"+p.Labels["app"]] = party{end, netip.MustParseAddr(made.Status.PodIP)}
		addresses[policytest.Addresses(p)[0].String()] = made.Status.PodIP
	}
	w.services(t, c, addresses)
	for i, name := range []string{"node0", "node1"} {
		ps[name] = party{w.Node(t, nodes[i]), netip.MustParseAddr(w.address(t, nodes[i]))}
	}
	server, err := w.client.DiscoveryV1().EndpointSlices("default").Get(t.Context(), "kubernetes", metav1.GetOptions{})
	errtest.Must(t, err)
	ps["api"] = party{nil, netip.MustParseAddr(server.Endpoints[0].Addresses[0])}
	far := w.address(t, nodes[2])
	for name, address := range policytest.Outside {
		if _, is := ps[name]; is {
			continue
		}
		w.On(t, nodes[2], "ip addr add "+address+"/32 dev lo")
		for _, n := range nodes[:2] {
			w.On(t, n, fmt.Sprintf("ip route add %s via %s", address, far))
		}
		ps[name] = party{w.Node(t, nodes[2]), netip.MustParseAddr(address)}
	}
	for _, end := range ps { // answers that a port is closed are many
		if end.NS == nil {
			continue
		}
		end.Within(t, func() error { return sysctl.DefaultRoot.Set(sysctl.Key{"net", "ipv4", "icmp_ratelimit"}, "0") })
	}
	return ps
}

func v1(kind string) metav1.TypeMeta { return metav1.TypeMeta{APIVersion: "v1", Kind: kind} }

// on is the node of each node of the cases.
var on = map[string]string{"node-0": nodes[0], "node-1": nodes[1]}

// idlePod returns a pod that does nothing.
func idlePod(p *api.Pod) *corev1.Pod {
	var none int64
	made := &corev1.Pod{TypeMeta: v1("Pod"),
		ObjectMeta: metav1.ObjectMeta{Namespace: p.Namespace, Name: p.Name, Labels: p.Labels}, Spec: corev1.PodSpec{
			NodeName: on[p.Spec.NodeName], ServiceAccountName: p.Spec.ServiceAccountName, TerminationGracePeriodSeconds: &none,
			Containers: []corev1.Container{
				{Name: "idle", Image: labtest.DebugImage, ImagePullPolicy: corev1.PullNever, Command: []string{"sleep", "1d"}},
			},
		}}
	for _, c := range p.Spec.Containers {
		for _, port := range c.Ports {
			made.Spec.Containers[0].Ports = append(made.Spec.Containers[0].Ports,
				corev1.ContainerPort{Name: port.Name, ContainerPort: int32(port.ContainerPort), Protocol: corev1.Protocol(port.Protocol)})
		}
	}
	return made
}

// services creates the Services of the cases, but Kubernetes' own, with the addresses that their pods have here.
func (w *world) services(t *testing.T, c *policytest.Cluster, addresses map[string]string) {
	t.Helper()
	var objects []any
	for _, s := range c.Services {
		if s.Name == "kubernetes" {
			continue
		}
		meta := metav1.ObjectMeta{Namespace: s.Namespace, Name: s.Name}
		service := &corev1.Service{TypeMeta: v1("Service"), ObjectMeta: meta}
		meta.Labels = map[string]string{discoveryv1.LabelServiceName: s.Name}
		slice := &discoveryv1.EndpointSlice{TypeMeta: metav1.TypeMeta{APIVersion: "discovery.k8s.io/v1", Kind: "EndpointSlice"}, ObjectMeta: meta,
			AddressType: discoveryv1.AddressTypeIPv4}
		for _, e := range s.Endpoints {
			slice.Endpoints = append(slice.Endpoints, discoveryv1.Endpoint{Addresses: []string{addresses[e.Address]}})
			for i, p := range e.Ports {
				name, protocol, port := fmt.Sprint("p", i), corev1.Protocol(p.Protocol), int32(p.Port)
				slice.Ports = append(slice.Ports, discoveryv1.EndpointPort{Name: &name, Protocol: &protocol, Port: &port})
				service.Spec.Ports = append(service.Spec.Ports, corev1.ServicePort{Name: name, Protocol: protocol, Port: port})
			}
		}
		objects = append(objects, service, slice)
	}
	w.define(t, objects)
}

// define creates objects, or changes those that are there.
func (w *world) define(t *testing.T, objects []any) {
	t.Helper()
	var text strings.Builder
	for _, o := range objects {
		one, err := yaml.Marshal(o)
		errtest.Must(t, err)
		fmt.Fprintf(&text, "---\n%s", one)
	}
	w.Kubectl(t, "apply", "-f", w.Manifest(t, text.String()))
}
