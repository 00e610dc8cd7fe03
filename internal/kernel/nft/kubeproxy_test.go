package nft_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"k8s.io/client-go/rest"

	"github.com/tortie-net/tortie/internal/kernel/guard"
	"github.com/tortie-net/tortie/internal/kernel/nat"
	"github.com/tortie-net/tortie/internal/kernel/nft"
	"github.com/tortie-net/tortie/internal/kernel/sysctl"
	"github.com/tortie-net/tortie/internal/testkit/errtest"
	"github.com/tortie-net/tortie/internal/testkit/labtest"
	"github.com/tortie-net/tortie/internal/testkit/netnstest"
	"github.com/tortie-net/tortie/internal/testkit/nfttest"
	"github.com/tortie-net/tortie/internal/testkit/waittest"
)

// proxied is a node with the real kube-proxy: a client and a server pod, a Service in front of the server, and a host
// outside.
type proxied struct {
	node, client, outside *netnstest.NS
	service               string
	config, hyperkube     string
	proxy                 *exec.Cmd
}

const proxyConfig = `apiVersion: kubeproxy.config.k8s.io/v1alpha1
kind: KubeProxyConfiguration
mode: %s
hostnameOverride: %s
clusterCIDR: 10.244.0.0/16
clientConnection: {kubeconfig: %s}
conntrack: {maxPerCore: 0, min: 0, tcpEstablishedTimeout: 0s, tcpCloseWaitTimeout: 0s}
`

// request makes an object in the API, or changes one.
func request(t *testing.T, method, path, kind string, body any) map[string]any {
	t.Helper()
	cfg := labtest.RESTConfig(t)
	client, err := rest.HTTPClientFor(cfg)
	errtest.Must(t, err)
	text, err := json.Marshal(body)
	errtest.Must(t, err)
	req, err := http.NewRequestWithContext(t.Context(), method, cfg.Host+path, bytes.NewReader(text))
	errtest.Must(t, err)
	req.Header.Set("Content-Type", kind)
	resp, err := client.Do(req)
	errtest.Must(t, err)
	defer resp.Body.Close()
	answer, err := io.ReadAll(resp.Body)
	if err != nil || resp.StatusCode >= 300 {
		t.Fatalf("%s %s: %s, %v: %s", method, path, resp.Status, err, answer)
	}
	var object map[string]any
	errtest.Must(t, json.Unmarshal(answer, &object))
	return object
}

type object = map[string]any

// newProxied makes the namespaces and the API's objects; kube-proxy does not run yet.
func newProxied(t *testing.T, mode string) *proxied {
	t.Helper()
	for _, program := range []string{"nft", "iptables-save", "ip6tables-save"} {
		if _, err := exec.LookPath(program); err != nil {
			t.Fatalf("%s is missing: %v: make deps", program, err)
		}
	}
	p := &proxied{node: netnstest.New(t), client: netnstest.New(t), outside: netnstest.New(t)}
	server := netnstest.New(t)
	netnstest.Cable(t, p.node, "eth0", p.outside, "eth0")
	p.node.Addr(t, "eth0", "192.0.2.1/24")
	p.outside.Addr(t, "eth0", "192.0.2.9/24")
	p.node.Route(t, "0.0.0.0/0", "192.0.2.9", "eth0")
	for i, pod := range []*netnstest.NS{p.client, server} {
		link := fmt.Sprint("cali", i)
		netnstest.Cable(t, p.node, link, pod, "eth0")
		p.node.Addr(t, link, fmt.Sprintf("10.244.%d.254/24", i))
		pod.Addr(t, "eth0", fmt.Sprintf("10.244.%d.1/24", i))
		pod.Route(t, "0.0.0.0/0", fmt.Sprintf("10.244.%d.254", i), "eth0")
	}
	p.node.Within(t, func() error { return sysctl.DefaultRoot.Set(sysctl.Key{"net", "ipv4", "ip_forward"}, "1") })
	server.EchoUDP(t, "10.244.1.1:7000")
	p.outside.EchoUDP(t, "192.0.2.9:7000")
	p.outside.Route(t, "10.244.0.0/16", "192.0.2.1", "eth0")

	name := fmt.Sprintf("proxied-%s-%d", mode, time.Now().UnixNano())
	meta := func(labels object) object { return object{"name": name, "labels": labels} }
	request(t, "POST", "/api/v1/nodes", "application/json", object{"metadata": meta(nil)})
	request(t, "PATCH", "/api/v1/nodes/"+name+"/status", "application/merge-patch+json",
		object{"status": object{"addresses": []object{{"type": "InternalIP", "address": "192.0.2.1"}}}})
	service := request(t, "POST", "/api/v1/namespaces/default/services", "application/json",
		object{"metadata": meta(nil), "spec": object{"ports": []object{{"protocol": "UDP", "port": 53, "targetPort": 7000}}}})
	request(t, "POST", "/apis/discovery.k8s.io/v1/namespaces/default/endpointslices", "application/json", object{
		"metadata": meta(object{"kubernetes.io/service-name": name}), "addressType": "IPv4",
		"endpoints": []object{{"addresses": []string{"10.244.1.1"}}}, "ports": []object{{"protocol": "UDP", "port": 7000}},
	})
	p.service = netip.AddrPortFrom(netip.MustParseAddr(service["spec"].(object)["clusterIP"].(string)), 53).String()
	p.configure(t, mode, name)
	return p
}

// configure writes kube-proxy's files. It reaches the API server at its own loopback address.
func (p *proxied) configure(t *testing.T, mode, name string) {
	t.Helper()
	dir := t.TempDir()
	kubeconfig := labtest.WriteKubeconfig(t, dir, labtest.Inside(t, p.node, labtest.RESTConfig(t)))
	p.config = filepath.Join(dir, "proxy.yaml")
	errtest.Must(t, os.WriteFile(p.config, fmt.Appendf(nil, proxyConfig, mode, name, kubeconfig), 0o600))
	p.hyperkube = labtest.Program(t, "hyperkube")
}

// start runs kube-proxy until stop.
func (p *proxied) start(t *testing.T) {
	t.Helper()
	p.proxy = exec.Command(p.hyperkube, "kube-proxy", "--config="+p.config)
	p.proxy.Stderr = t.Output()
	p.node.Within(t, p.proxy.Start)
	t.Cleanup(p.stop)
	waittest.Until(t, time.Minute, "kube-proxy is healthy", p.synced)
	p.wantSource(t, p.client, p.service, "10.244.0.1")
	p.settle(t)
}

// settle waits until kube-proxy is done with both families: it is healthy when one of them is.
func (p *proxied) settle(t *testing.T) {
	t.Helper()
	last, since := "", time.Now()
	waittest.For(t, time.Minute, func() error {
		text := p.theirs(t)
		if text != last {
			last, since = text, time.Now()
		}
		done := strings.Count(text, "\n-A FORWARD -m comment --comment \"kubernetes forwarding rules\"") == 2 ||
			strings.Count(text, "chain services {") == 2
		if !done || time.Since(since) <= 2*time.Second {
			return fmt.Errorf("kube-proxy does not come to rest:\n%s", last)
		}
		return nil
	})
}

// synced reports whether kube-proxy has written its rules: rules of an earlier process do not show that.
func (p *proxied) synced() bool {
	answer := make([]byte, 100)
	err := p.node.Do(func() error {
		conn, err := net.Dial("tcp", "127.0.0.1:10256")
		if err != nil {
			return err
		}
		defer conn.Close()
		conn.SetDeadline(time.Now().Add(10 * time.Second))
		if _, err := io.WriteString(conn, "GET /healthz HTTP/1.0\r\n\r\n"); err != nil {
			return err
		}
		_, err = io.ReadFull(conn, answer[:12])
		return err
	})
	return err == nil && string(answer[:12]) == "HTTP/1.0 200"
}

func (p *proxied) stop() {
	if p.proxy != nil {
		p.proxy.Process.Kill()
		p.proxy.Wait()
		p.proxy = nil
	}
}

// wantSource sends a request and compares the source that the other end receives it from.
func (p *proxied) wantSource(t *testing.T, from *netnstest.NS, to, source string) {
	t.Helper()
	got, err := from.AskUDP(t, "", to, "hello", 40*time.Second)
	if err != nil || got != source+" hello" {
		t.Fatalf("to %s: %q, %v; want to be seen as %s", to, got, err, source)
	}
}

// theirs returns all of kube-proxy's rules in the kernel, without counters and times.
func (p *proxied) theirs(t *testing.T) string {
	t.Helper()
	text := p.node.Run(t, "iptables-save") + p.node.Run(t, "ip6tables-save")
	text = regexp.MustCompile(`(?m)^#.*\n|\[\d+:\d+\]`).ReplaceAllString(text, "")
	for _, family := range []string{"ip", "ip6"} {
		if strings.Contains(p.node.Run(t, "nft", "list", "tables"), "table "+family+" kube-proxy\n") {
			text += p.node.Run(t, "nft", "-s", "list", "table", family, "kube-proxy")
		}
	}
	return text
}

// TestBesideKubeProxy: a Service works before, with and after our rules; kube-proxy's rules are exactly the same, and
// so are ours after kube-proxy has started anew.
func TestBesideKubeProxy(t *testing.T) {
	for mode, chain := range map[string]string{"nftables": "chain services", "iptables": ":KUBE-SERVICES"} {
		t.Run(mode, func(t *testing.T) {
			p := newProxied(t, mode)
			p.start(t)
			before := p.theirs(t)
			if !strings.Contains(before, chain) {
				t.Fatalf("kube-proxy has no %q:\n%s", chain, before)
			}
			same := func(when string) {
				t.Helper()
				if diff := cmp.Diff(before, p.theirs(t)); diff != "" {
					t.Errorf("%s (-kube-proxy's before +after):\n%s", when, diff)
				}
			}
			p.wantSource(t, p.client, "192.0.2.9:7000", "10.244.0.1")

			table := nft.New(p.node.Namespace)
			masquerade, packets := nat.New(table), guard.New(table)
			ours := func() string { return p.node.Run(t, "nft", "list", "table", "inet", "tortie") }
			syncBoth := func() {
				t.Helper()
				pools := nat.Config{Pools: []nat.Pool{{CIDR: netip.MustParsePrefix("10.244.0.0/16"), NATOutgoing: true}}}
				tunnels := guard.Config{Nodes: []netip.Addr{netip.MustParseAddr("192.0.2.1")}, PodLinks: "cali", IPIP: true, VXLAN: true}
				errtest.Must(t, masquerade.Sync(t.Context(), pools))
				errtest.Must(t, packets.Sync(t.Context(), tunnels))
			}
			syncBoth()
			same("after our first Sync")
			p.wantSource(t, p.client, p.service, "10.244.0.1")
			p.wantSource(t, p.client, "192.0.2.9:7000", "192.0.2.1")
			p.node.Run(t, "nft", "flush table inet tortie")
			syncBoth()
			same("after a repair")

			text := ours()
			p.stop()
			p.start(t)
			if diff := cmp.Diff(text, ours()); diff != "" {
				t.Errorf("ours, after kube-proxy started anew (-before +after):\n%s", diff)
			}
			generationBefore := nfttest.Generation(t, p.node)
			syncBoth()
			if nfttest.Generation(t, p.node) != generationBefore && ours() != text {
				t.Error("what was right was written")
			}
			p.wantSource(t, p.client, "192.0.2.9:7000", "192.0.2.1")

			before = p.theirs(t)
			errtest.Must(t, masquerade.Sync(t.Context(), nat.Config{}))
			if _, err := table.Sync(t.Context(), nft.Part{Prefixes: []string{"guard-"}}); err != nil {
				t.Fatal(err)
			}
			same("after ours is gone")
			if tables := p.node.Run(t, "nft", "list", "tables"); strings.Contains(tables, "tortie") {
				t.Errorf("our table is left: %s", tables)
			}
			p.wantSource(t, p.client, p.service, "10.244.0.1")
			p.wantSource(t, p.client, "192.0.2.9:7000", "10.244.0.1")
		})
	}
}
