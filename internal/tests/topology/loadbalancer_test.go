package topology

import (
	"fmt"
	"net/netip"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/tortie-net/tortie/internal/api"
	"github.com/tortie-net/tortie/internal/controllers/loadbalancer"
	"github.com/tortie-net/tortie/internal/datastore"
	"github.com/tortie-net/tortie/internal/ipam/inventory"
	"github.com/tortie-net/tortie/internal/testkit/bgptest"
	"github.com/tortie-net/tortie/internal/testkit/labtest"
	"github.com/tortie-net/tortie/internal/testkit/logtest"
	"github.com/tortie-net/tortie/internal/testkit/meshtest"
	"github.com/tortie-net/tortie/internal/testkit/netnstest"
	"github.com/tortie-net/tortie/internal/testkit/tier"
)

// servicePools are smaller than the ranges that the nodes announce.
const servicePools = `
apiVersion: crd.projectcalico.org/v1
kind: IPPool
metadata: {name: services}
spec: {cidr: 192.0.2.64/26, allowedUses: [LoadBalancer], nodeSelector: all()}
---
apiVersion: crd.projectcalico.org/v1
kind: IPPool
metadata: {name: services6}
spec: {cidr: "2001:db8:45::/122", allowedUses: [LoadBalancer], nodeSelector: all()}
---
apiVersion: crd.projectcalico.org/v1
kind: BGPConfiguration
metadata: {name: default}
spec: {serviceLoadBalancerIPs: [{cidr: 192.0.2.0/24}, {cidr: "2001:db8:45::/64"}]}
`

// balanced is a cluster whose Services get addresses from kube-controllers, which its nodes announce to a router.
type balanced struct {
	*world
	nodes []*meshtest.Node
	host  *bgptest.Host
	tor   bgptest.Daemon
}

func newBalanced(t *testing.T) *balanced {
	t.Helper()
	b := &balanced{world: newWorld(t, true)}
	b.podPools(t)
	b.shell(t, "kubectl apply -f -", servicePools)
	b.nodes = []*meshtest.Node{b.node(t, 0, 11), b.node(t, 0, 12)}
	b.host, b.tor = b.torOf(t, bgptest.FRR, nil, b.nodes...)
	meshtest.Start(t, b.nodes...)
	b.startControllers(t)
	return b
}

// startControllers starts kube-controllers with the rights that the chart gives it, in a namespace of its own: its
// addresses are fixed.
func (w *world) startControllers(t testing.TB) {
	t.Helper()
	ns, log := netnstest.New(t), &logtest.Buffer{}
	cfg := labtest.Inside(t, ns, labtest.AsOn(t, w.Admin, "tortie-kube-controllers"))
	cmd := exec.Command(filepath.Join(programs.Dir(t), "kube-controllers"))
	cmd.Env = []string{"KUBECONFIG=" + labtest.WriteKubeconfig(t, t.TempDir(), cfg), "POD_NAME=controllers", "NO_DEFAULT_POOLS=true"}
	cmd.Stdout, cmd.Stderr = log, log
	ns.Within(t, cmd.Start)
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
		if t.Failed() {
			t.Logf("end of the log of kube-controllers:\n%s", log.Tail())
		}
	})
}

// service creates a dual-stack Service of type LoadBalancer and policy Local, without an address.
func (b *balanced) service(t testing.TB, name string) {
	t.Helper()
	b.shell(t, "kubectl apply -f -", fmt.Sprintf(`
apiVersion: v1
kind: Service
metadata: {name: %s, namespace: default}
spec:
  type: LoadBalancer
  externalTrafficPolicy: Local
  ipFamilyPolicy: RequireDualStack
  ports: [{port: 80, protocol: UDP}]
`, name))
}

// endpoints sets a Service's endpoints of one family: a ready one on each of these nodes, and else an unready one on
// the first node.
func (b *balanced) endpoints(t testing.TB, service, family string, nodes ...*meshtest.Node) {
	t.Helper()
	addr := func(n *meshtest.Node) netip.Addr {
		if family == api.AddressIPv6 {
			return b.pods[n].V6
		}
		return b.pods[n].V4
	}
	one := func(n *meshtest.Node, ready bool) string {
		return fmt.Sprintf("{addresses: [%q], nodeName: %s, conditions: {ready: %v}}", addr(n), n.Name, ready)
	}
	list := []string{one(b.nodes[0], false)}
	if slices.Contains(nodes, b.nodes[0]) {
		list = nil
	}
	for _, n := range nodes {
		list = append(list, one(n, true))
	}
	b.shell(t, "kubectl apply -f -", fmt.Sprintf(`
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata:
  name: %s-%s
  namespace: default
  labels: {kubernetes.io/service-name: %s}
addressType: %s
endpoints: [%s]
ports: [{port: 80, name: "", protocol: UDP}]
`, service, strings.ToLower(family), service, family, strings.Join(list, ", ")))
}

// given waits until exactly these Services have an address of each family, in their status and in IPAM, and returns
// them, IPv4 first.
func (b *balanced) given(t testing.TB, names ...string) (addrs map[string][]netip.Addr) {
	t.Helper()
	pools := []netip.Prefix{netip.MustParsePrefix("192.0.2.64/26"), netip.MustParsePrefix("2001:db8:45::/122")}
	meshtest.Eventually(t, func() error {
		shown, held, err := b.addresses(t)
		if err != nil {
			return err
		}
		for name, all := range shown {
			if !slices.Equal(all, held[name]) {
				return fmt.Errorf("%s shows %v and holds %v", name, all, held[name])
			}
			dual := len(all) == 2 && pools[0].Contains(all[0]) && pools[1].Contains(all[1])
			if want := slices.Contains(names, name); want && !dual || !want && len(all) > 0 {
				return fmt.Errorf("%s has %v; want addresses of both families: %v", name, all, want)
			}
		}
		if len(held) != len(names) {
			return fmt.Errorf("addresses are held by %v, want %v", held, names)
		}
		addrs = shown
		return nil
	})
	return addrs
}

// addresses returns the addresses of Services of type LoadBalancer in their status and in IPAM, in ascending order, by
// the Service's name. Addresses of a handle without such a Service are under the handle's ID.
func (b *balanced) addresses(t testing.TB) (shown, held map[string][]netip.Addr, err error) {
	t.Helper()
	var list api.List[api.Service, *api.Service]
	if err := b.Store.List(t.Context(), &list, datastore.ListOptions{}); err != nil {
		return nil, nil, err
	}
	v, err := inventory.ReadIPAM(t.Context(), b.Store, time.Now)
	if err != nil {
		return nil, nil, err
	}
	shown, held = map[string][]netip.Addr{}, map[string][]netip.Addr{}
	for _, block := range v.Blocks {
		for _, a := range block.Allocations {
			if a.Class == inventory.LoadBalancer {
				held[a.Handle] = append(held[a.Handle], a.Address)
			}
		}
	}
	for i := range list.Items {
		s := &list.Items[i]
		if s.Spec.Type != api.ServiceLoadBalancer {
			continue
		}
		shown[s.Name] = nil
		for _, entry := range s.Status.LoadBalancer.Ingress {
			shown[s.Name] = append(shown[s.Name], netip.MustParseAddr(entry.IP))
		}
		if all, ok := held[loadbalancer.Handle(s)]; ok {
			delete(held, loadbalancer.Handle(s))
			held[s.Name] = all
		}
	}
	for _, all := range [2]map[string][]netip.Addr{shown, held} {
		for _, addrs := range all {
			slices.SortFunc(addrs, netip.Addr.Compare)
		}
	}
	return shown, held, nil
}

// tells waits until the router has learned from a node the pods' blocks, the Services' ranges, and exactly these
// addresses of Services.
func (b *balanced) tells(t testing.TB, n *meshtest.Node, services ...netip.Addr) {
	t.Helper()
	for peer, prefixes := range map[netip.Addr][]string{
		n.Prefix.Addr(): {"10.90.11.0/26", "10.90.12.0/26", "192.0.2.0/24"},
		n.V6:            {"2001:db8:45::/64", "fd90::b:0/122", "fd90::c:0/122"},
	} {
		var want []bgptest.Route
		for _, p := range prefixes {
			want = append(want, bgptest.Route{Prefix: netip.MustParsePrefix(p), ASPath: "64512"})
		}
		for _, a := range services {
			if a.Is4() == peer.Is4() {
				want = append(want, bgptest.Route{Prefix: netip.PrefixFrom(a, a.BitLen()), NextHop: peer, ASPath: "64512"})
			}
		}
		slices.SortFunc(want, func(a, b bgptest.Route) int { return a.Prefix.Compare(b.Prefix) })
		learned(t, b.tor, peer, want...)
	}
}

// A Service gets its addresses from kube-controllers, and the nodes with a ready endpoint announce those of the
// endpoint's family, until the Service is deleted. Packets reach the endpoint.
func TestLoadBalancer(t *testing.T) {
	tier.All(t)
	t.Parallel()
	b := newBalanced(t)
	one, two := b.nodes[0], b.nodes[1]
	b.service(t, "web")
	web := b.given(t, "web")["web"]
	b.service(t, "everywhere")
	for _, family := range []string{api.AddressIPv4, api.AddressIPv6} {
		b.endpoints(t, "everywhere", family, one, two)
	}
	everywhere := b.given(t, "web", "everywhere")["everywhere"]
	tells := func(of map[*meshtest.Node][]netip.Addr) {
		t.Helper()
		for _, n := range b.nodes {
			b.tells(t, n, slices.Concat(of[n], everywhere)...)
		}
	}
	// The nodes receive web's addresses before everywhere's, and web has no endpoint.
	tells(nil)
	before := uptimes(t, b.nodes...)
	b.endpoints(t, "web", api.AddressIPv4, two)
	tells(map[*meshtest.Node][]netip.Addr{two: web[:1]})
	b.endpoints(t, "web", api.AddressIPv6, two)
	tells(map[*meshtest.Node][]netip.Addr{two: web})
	for _, a := range web { // the other node knows them, too, and serves Services itself
		leads(t, one.NS, one.Name, netip.PrefixFrom(a, a.BitLen()).String())
	}
	b.answers(t, two, web)
	b.endpoints(t, "web", api.AddressIPv6, one)
	tells(map[*meshtest.Node][]netip.Addr{one: web[1:], two: web[:1]})
	b.endpoints(t, "web", api.AddressIPv4)
	tells(map[*meshtest.Node][]netip.Addr{one: web[1:]})
	b.endpoints(t, "web", api.AddressIPv4, one)
	tells(map[*meshtest.Node][]netip.Addr{one: web})
	b.shell(t, "kubectl delete service web", "")
	b.given(t, "everywhere")
	tells(nil)
	before.untouched(t, "endpoints moved and a Service was deleted")
	t.Run(api.RequestedServicesOnly, b.requestedOnly)
}

// answers sends packets from the router to the addresses of a Service, whose endpoint is the node's pod.
func (b *balanced) answers(t testing.TB, n *meshtest.Node, addrs []netip.Addr) {
	t.Helper()
	for i, pod := range []netip.Addr{b.pods[n].V4, b.pods[n].V6} {
		family, source := []string{"ip", "ip6"}[i], b.host.Addrs()[i]
		// These rules replace kube-proxy.
		n.Run(t, "nft", fmt.Sprintf("add table %[1]s proxy; add chain %[1]s proxy pre { type nat hook prerouting priority -100; }; "+
			"add rule %[1]s proxy pre %[1]s daddr %[2]s dnat to %[3]s", family, addrs[i], pod))
		b.pods[n].EchoUDP(t, netip.AddrPortFrom(pod, 80).String())
		answer, err := b.host.AskUDP(t, netip.AddrPortFrom(source, 0).String(), netip.AddrPortFrom(addrs[i], 80).String(),
			"hello", meshtest.Patience)
		if err != nil || answer != source.String()+" hello" {
			t.Errorf("response of the Service at %s: %q, %v", addrs[i], answer, err)
		}
	}
}

// requestedOnly sets assignIPs to RequestedServicesOnly: Services lose their addresses, except one that requests some,
// while it does.
func (b *balanced) requestedOnly(t *testing.T) {
	tells := func(addrs ...netip.Addr) {
		t.Helper()
		for _, n := range b.nodes {
			b.tells(t, n, addrs...)
		}
	}
	assign := func(value string) {
		t.Helper()
		b.shell(t, `kubectl patch kubecontrollersconfigurations.crd.projectcalico.org default --type=merge `+
			`-p '{"spec":{"controllers":{"loadBalancer":{"assignIPs":"`+value+`"}}}}'`, "")
	}
	assign(api.RequestedServicesOnly)
	b.given(t)
	tells()
	b.service(t, "plain") // before the request of the other
	asked := []netip.Addr{netip.MustParseAddr("192.0.2.77"), netip.MustParseAddr("2001:db8:45::7")}
	b.shell(t, fmt.Sprintf(`kubectl annotate service everywhere '%s=["%s","%s"]'`, api.AnnotationServiceAddresses, asked[0], asked[1]), "")
	if have := b.given(t, "everywhere")["everywhere"]; !slices.Equal(have, asked) {
		t.Errorf("the Service that asks for %v has %v", asked, have)
	}
	tells(asked...)
	b.shell(t, "kubectl annotate service everywhere "+api.AnnotationServiceAddresses+"-", "")
	b.given(t)
	tells()
	meshtest.Eventually(t, func() error {
		running := &api.KubeControllersConfiguration{Meta: api.Meta{Name: api.DefaultName}}
		err := b.Store.Get(t.Context(), running)
		if err == nil && (running.Status == nil || running.Status.RunningConfig.Controllers.LoadBalancer.AssignIPs != api.RequestedServicesOnly) {
			err = fmt.Errorf("the status does not show assignIPs %s", api.RequestedServicesOnly)
		}
		return err
	})
	assign(api.AllServices)
	tells(b.given(t, "everywhere", "plain")["everywhere"]...)
}
