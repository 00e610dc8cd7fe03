package policies_test

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/netip"
	"strings"
	"sync"
	"testing"
	"time"

	"k8s.io/client-go/rest"

	"github.com/tortie-net/tortie/internal/agent/policies"
	"github.com/tortie-net/tortie/internal/app/config"
	"github.com/tortie-net/tortie/internal/cluster"
	"github.com/tortie-net/tortie/internal/kernel/netpol"
	"github.com/tortie-net/tortie/internal/kernel/nft"
	"github.com/tortie-net/tortie/internal/kernel/podnet"
	"github.com/tortie-net/tortie/internal/kernel/sysctl"
	"github.com/tortie-net/tortie/internal/policy"
	"github.com/tortie-net/tortie/internal/testkit/labtest"
	"github.com/tortie-net/tortie/internal/testkit/netnstest"
	"github.com/tortie-net/tortie/internal/testkit/waittest"
)

// node is a real kernel namespace and a real API server around a Worker.
type node struct {
	ns        *netnstest.NS
	name      string // of the node, and of the namespace of its pods
	admin     *rest.Config
	api       *rest.Config // as the agent reaches it
	configure func(*policies.Options)
	heard     func(from *pod) int // of the server of guarded
}

// pod is a pod of the node with its own namespace.
type pod struct {
	*netnstest.NS
	name, link string
	addr       netip.Addr
}

func newNode(t *testing.T) *node {
	t.Helper()
	n := &node{ns: netnstest.New(t), name: strings.ToLower(t.Name()), admin: labtest.RESTConfig(t), api: labtest.As(t, "tortie-node")}
	n.ns.Within(t, func() error { return sysctl.DefaultRoot.Set(sysctl.Key{"net", "ipv4", "ip_forward"}, "1") })
	n.ns.Within(t, func() error {
		return sysctl.DefaultRoot.Set(sysctl.Key{"net", "ipv6", "conf", "all", "forwarding"}, "1")
	})
	netnstest.Cable(t, n.ns, "eth0", netnstest.New(t), "eth0")
	n.ns.Addr(t, "eth0", "172.31.0.1/24")
	n.ns.Route(t, "0.0.0.0/0", "172.31.0.2", "") // without it the host does not answer for pods' gateway
	n.put(t, "/api/v1/namespaces", n.name, fmt.Sprintf(`{"apiVersion":"v1","kind":"Namespace","metadata":{"name":%q}}`, n.name))
	return n
}

// request asks the API server as the administrator. Path and body are written for crd.projectcalico.org/v1.
func (n *node) request(t *testing.T, method, path, body string) error {
	t.Helper()
	client, err := rest.HTTPClientFor(n.admin)
	if err != nil {
		t.Fatal(err)
	}
	path, body = labtest.InGroupText(t, path), labtest.InGroupText(t, body)
	r, err := http.NewRequestWithContext(context.Background(), method, n.admin.Host+path, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	r.Header.Set("Content-Type", "application/json")
	if method == http.MethodPatch {
		r.Header.Set("Content-Type", "application/merge-patch+json")
	}
	answer, err := client.Do(r)
	if err != nil {
		return err
	}
	defer answer.Body.Close()
	text, _ := io.ReadAll(answer.Body)
	if answer.StatusCode >= 300 {
		return fmt.Errorf("%s %s: %s: %s", method, path, answer.Status, text)
	}
	return nil
}

// put creates an object that goes with the test, in the place of an earlier one.
func (n *node) put(t *testing.T, path, name, body string) {
	t.Helper()
	if err := n.request(t, http.MethodPost, path, body); err != nil && !strings.Contains(err.Error(), "AlreadyExists") {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = n.request(t, http.MethodDelete, path+"/"+name+"?gracePeriodSeconds=0", "") })
}

func (n *node) remove(t *testing.T, path, name string) {
	t.Helper()
	if err := n.request(t, http.MethodDelete, path+"/"+name+"?gracePeriodSeconds=0", ""); err != nil {
		t.Fatal(err)
	}
}

func (n *node) policyPath() string {
	return "/apis/networking.k8s.io/v1/namespaces/" + n.name + "/networkpolicies"
}

func (n *node) podPath() string { return "/api/v1/namespaces/" + n.name + "/pods" }

// policy creates a NetworkPolicy with a spec.
func (n *node) policy(t *testing.T, name, spec string) {
	t.Helper()
	n.put(t, n.policyPath(), name,
		fmt.Sprintf(`{"apiVersion":"networking.k8s.io/v1","kind":"NetworkPolicy","metadata":{"name":%q},"spec":%s}`, name, spec))
}

// bind creates a pod on a node, by its name for a label app.
func (n *node) bind(t *testing.T, name, on string) {
	t.Helper()
	n.put(t, n.podPath(), name, fmt.Sprintf(`{"apiVersion":"v1","kind":"Pod","metadata":{"name":%q,"labels":{"app":%q}},
		"spec":{"nodeName":%q,"containers":[{"name":"c","image":"i"}]}}`, name, name, on))
}

// note writes an address on a pod, as the plugin does at the end of ADD.
func (n *node) note(t *testing.T, name, addr string) {
	t.Helper()
	body := fmt.Sprintf(`{"metadata":{"annotations":{"cni.projectcalico.org/podIP":%q,"cni.projectcalico.org/podIPs":%q}}}`, addr, addr)
	if err := n.request(t, http.MethodPatch, n.podPath()+"/"+name+"/status", body); err != nil {
		t.Fatal(err)
	}
}

// wire gives a pod its link, as ADD does.
func (n *node) wire(t *testing.T, name, addr string) *pod {
	t.Helper()
	p := &pod{NS: netnstest.New(t), name: name, link: podnet.HostVethName(podnet.DefaultVethPrefix, n.name, name),
		addr: netip.MustParseAddr(addr)}
	n.ns.Within(t, func() error {
		_, err := podnet.Setup(t.Context(), podnet.Config{Netns: p.Path(), IfName: "eth0", HostVeth: p.link, Addresses: []netip.Addr{p.addr}})
		return err
	})
	return p
}

// unwire takes its link from a pod, as DEL does.
func (n *node) unwire(t *testing.T, p *pod) {
	t.Helper()
	n.ns.Within(t, func() error {
		_, err := podnet.Teardown(t.Context(), podnet.Config{Netns: p.Path(), IfName: "eth0", HostVeth: p.link, Addresses: []netip.Addr{p.addr}})
		return err
	})
}

// start makes a pod as it comes: bound, then wired.
func (n *node) start(t *testing.T, name, addr string) *pod {
	t.Helper()
	n.bind(t, name, n.name)
	return n.wire(t, name, addr)
}

// ground has blocks of the node another, 10.91.0.0/16, and all others are of one node.
type ground struct{ node string }

func (g ground) Place(a netip.Addr) (pooled bool, node string) {
	if netip.MustParsePrefix("10.91.0.0/16").Contains(a) {
		return true, "another"
	}
	return true, g.node
}

// work runs a Worker until the returned function is called.
func (n *node) work(t *testing.T) (w *policies.Worker, stop func()) {
	t.Helper()
	log := slog.New(slog.NewTextHandler(t.Output(), nil))
	feed, err := cluster.NewPolicyFeed(cluster.Server{Config: n.api, Group: labtest.Current(t)}, n.name, log)
	if err != nil {
		t.Fatal(err)
	}
	engine := netpol.New(n.ns.Conn.Namespace(), podnet.DefaultVethPrefix)
	o := policies.Options{
		Mode: config.PolicyAuto, Feed: feed, Engine: engine, Kernel: n.ns.Conn, Table: nft.New(n.ns.Conn.Namespace()), Log: log,
		Drops: func(ctx context.Context) (<-chan netpol.Drop, error) { return netpol.Drops(ctx, n.ns.Conn.Namespace()) },
	}
	if n.configure != nil {
		n.configure(&o)
	}
	w = policies.New(o)
	w.SetGround(ground{n.name})
	w.SetHostRules(policy.HostRules{Inbound: policy.DefaultInbound(), Outbound: policy.DefaultOutbound()})
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- w.Run(ctx) }()
	stop = sync.OnceFunc(func() {
		cancel()
		if err := <-ended; err != nil {
			t.Errorf("the worker ended with %v", err)
		}
		engine.Close()
	})
	t.Cleanup(stop)
	return w, stop
}

// reaches reports whether a datagram comes back from a port of UDP.
func reaches(t *testing.T, from *pod, to string) bool {
	t.Helper()
	_, err := from.AskUDP(t, "", to, "hello", 0)
	return err == nil
}

func eventually(t *testing.T, limit time.Duration, what string, condition func() bool) {
	t.Helper()
	waittest.Until(t, limit, what, condition)
}

func (n *node) table(t *testing.T) string {
	t.Helper()
	_, text, _ := strings.Cut(n.ns.Run(t, "nft", "list", "ruleset"), "table inet tortie-policy {")
	return text
}
