package policyview

import (
	"io"
	"net"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/tortie-net/tortie/internal/api"
	"github.com/tortie-net/tortie/internal/app/config"
	"github.com/tortie-net/tortie/internal/kernel/netlinkx"
	"github.com/tortie-net/tortie/internal/kernel/sysctl"
	"github.com/tortie-net/tortie/internal/policy"
	"github.com/tortie-net/tortie/internal/testkit/errtest"
	"github.com/tortie-net/tortie/internal/testkit/netnstest"
	"github.com/tortie-net/tortie/internal/testkit/waittest"
)

// closing denies what the test has open: all of the host but port 80, and the web to addresses.
const closing = `
apiVersion: crd.projectcalico.org/v1
kind: GlobalNetworkPolicy
metadata: {name: hosts}
spec:
  selector: has(host)
  types: [Ingress, Egress]
  ingress: [{action: Allow, protocol: TCP, destination: {ports: [80]}}]
---
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata: {name: web, namespace: shop}
spec: {podSelector: {matchLabels: {app: web}}, ingress: []}
`

// open opens a connection that stays.
func open(t *testing.T, from, to *netnstest.NS, at string) (client, server net.Conn) {
	t.Helper()
	accepted := make(chan net.Conn, 1)
	to.Within(t, func() error {
		l, err := net.Listen("tcp", at)
		if err == nil {
			go func() { c, _ := l.Accept(); l.Close(); accepted <- c }()
		}
		return err
	})
	from.Within(t, func() (err error) { client, err = net.DialTimeout("tcp", at, 10*time.Second); return err })
	server = <-accepted
	t.Cleanup(func() { client.Close(); server.Close() })
	return client, server
}

// opened are the connections of a node and its pod that a kernel knows.
func opened(t *testing.T) (seen *openFlows) {
	t.Helper()
	node, outside, pod := netnstest.New(t), netnstest.New(t), netnstest.New(t)
	netnstest.Cable(t, node, "eth0", outside, "eth0")
	netnstest.Cable(t, node, "cali1", pod, "eth0")
	node.Addr(t, "eth0", "192.0.2.1/24")
	outside.Addr(t, "eth0", "192.0.2.2/24")
	node.Addr(t, "cali1", "10.0.0.254/24")
	pod.Addr(t, "eth0", "10.0.0.1/24")
	pod.Route(t, "0.0.0.0/0", "10.0.0.254", "")
	outside.Route(t, "10.0.0.0/24", "192.0.2.1", "")
	node.Within(t, func() error { return sysctl.DefaultRoot.Set(sysctl.Key{"net", "ipv4", "ip_forward"}, "1") })
	node.Run(t, "nft", "add table inet t; add chain inet t in { type filter hook input priority 0; }; add rule inet t in ct state new counter")
	open(t, outside, node, "192.0.2.1:22")
	open(t, outside, node, "192.0.2.1:22")
	open(t, outside, node, "192.0.2.1:80")
	open(t, outside, node, "192.0.2.1:10250")
	open(t, node, outside, "192.0.2.2:6443")
	open(t, node, outside, "192.0.2.2:443")
	open(t, node, outside, "192.0.2.2:179")
	open(t, outside, pod, "10.0.0.1:8080")
	open(t, node, pod, "10.0.0.1:8081")
	open(t, pod, node, "10.0.0.254:53")
	client, server := open(t, outside, node, "192.0.2.1:22")
	client.Close()
	_, _ = io.Copy(io.Discard, server)
	server.Close()

	waittest.Until(t, 10*time.Second, "the kernel knows what is open, and what was closed", func() bool {
		var err error
		seen, err = readFlows(node.Conn)
		errtest.Must(t, err)
		ssh := slices.DeleteFunc(slices.Clone(seen.flows), func(f netlinkx.Flow) bool { return f.Port != 22 })
		return len(ssh) == 2
	})
	seen.api = []netip.AddrPort{netip.MustParseAddrPort("192.0.2.2:443")}
	return seen
}

// diff names the connections of the node and its pods that are open in the kernel and will be denied, and no others.
func TestSessions(t *testing.T) {
	seen := opened(t)
	k := shop(t)
	k.Node = "node1"
	k.HostEndpoints = []policy.HostEndpoint{
		{Name: "node1-eth0", Node: "node1", Interface: "eth0", Allows: true, Labels: map[string]string{"host": "1"}},
	}
	c, err := parsePolicies("test", []byte(closing))
	errtest.Must(t, err)
	errtest.Must(t, c.read(nil))
	d := diff(k.State, c, nil, seen)
	d.Flows = nil
	golden(t, "diff-sessions", d)

	d.Sessions, d.Unseen = nil, "no rights"
	var text strings.Builder
	errtest.Must(t, d.WriteText(&text))
	if !strings.Contains(text.String(), "not judged: no rights") {
		t.Error(text.String())
	}
}

// A host endpoint without policies denies everything but failsafe ports, of which the node has fewer: SSH for some
// peers, and none for BGP. Then FelixConfigurations leave no failsafe port, and pods cannot reach their node.
func TestSessionsOfHostEndpoints(t *testing.T) {
	seen, k := opened(t), shop(t)
	k.Node = "node1"
	settings := config.PolicyView{Nodename: "node1",
		Felix: api.FelixConfigurationSpec{FailsafeInboundHostPorts: &api.FailsafePorts{{Protocol: "tcp", Port: 22, Net: "192.0.2.0/24"}}}}
	found := []api.FelixConfiguration{
		{Meta: api.Meta{Name: "node.node2"}, Spec: api.FelixConfigurationSpec{FailsafeOutboundHostPorts: &api.FailsafePorts{}}},
		{Meta: api.Meta{Name: "default"}, Spec: api.FelixConfigurationSpec{FailsafeInboundHostPorts: &api.FailsafePorts{},
			FailsafeOutboundHostPorts: &api.FailsafePorts{{Protocol: "tcp", Port: 6443}}}},
	}
	k.Host, _ = hostRules(settings, found)
	c, err := parsePolicies("test",
		[]byte("kind: HostEndpoint\napiVersion: projectcalico.org/v3\nmetadata: {name: new}\nspec: {node: node1, interfaceName: eth0}"))
	errtest.Must(t, err)
	errtest.Must(t, c.read(nil))
	golden(t, "diff-new-host", diff(k.State, c, nil, seen))

	k.HostEndpoints, k.Policies = c.hosts, nil
	c, err = parsePolicies("test", []byte(
		`{kind: FelixConfiguration, apiVersion: crd.projectcalico.org/v1, metadata: {name: node.node1},
			spec: {failsafeOutboundHostPorts: [], defaultEndpointToHostAction: Drop,
		failsafeInboundHostPorts: [{port: 0}]}}`))
	errtest.Must(t, err)
	errtest.Must(t, c.read(nil))
	settings.Felix = api.FelixConfigurationSpec{}
	c.readFelix(settings, found)
	golden(t, "diff-felix", diff(k.State, c, nil, seen))
}
