package topology

import (
	"fmt"
	"net/netip"
	"regexp"
	"strconv"
	"testing"

	"github.com/tortie-net/tortie/internal/agent/nodestatus"
	"github.com/tortie-net/tortie/internal/testkit/bgptest"
	"github.com/tortie-net/tortie/internal/testkit/meshtest"
)

// endpoints is the EndpointSlice of the chapter's Service: one endpoint on node-12.
const endpoints = `
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata:
  name: web-1
  namespace: default
  labels: {kubernetes.io/service-name: web}
addressType: IPv4
endpoints:
  - {addresses: [10.90.12.5], nodeName: node-12, conditions: {ready: true}}
ports: [{port: 80, name: ""}]
`

// Chapter 5: Service addresses with communities, a filter, a password and TTL security.
func TestServices(t *testing.T) {
	t.Parallel()
	w := newWorld(t, false)
	nodes := []*meshtest.Node{w.node(t, 0, 11), w.node(t, 0, 12)}
	w.GrantSecret(t, "bgp-passwords")
	meshtest.Start(t, nodes...)
	routers := w.apply(t, chapter(t, "5. "))
	// The Service's load balancer controller writes its status.
	w.shell(t, `kubectl patch service web --subresource=status --type=merge -p '{"status":{"loadBalancer":{"ingress":[{"ip":"192.0.2.7"}]}}}'`,
		"")
	w.shell(t, "kubectl apply -f -", endpoints)
	host := w.host(t, "tor", link{"nodes", "br0", []string{"172.31.1.2/24"}})
	client := clientOf(t, host, "198.51.100.1/24", "198.51.100.10/24")
	tor := run(t, host, routers["tor"])

	peersWith(t, nodes[0], "172.31.1.2", "172.31.1.12")
	peersWith(t, nodes[1], "172.31.1.2", "172.31.1.11")
	route := func(prefix, communities string, next *meshtest.Node) bgptest.Route {
		return bgptest.Route{Prefix: netip.MustParsePrefix(prefix), NextHop: next.Prefix.Addr(), ASPath: "64512", Communities: communities}
	}
	const ofPods, ofServices = "65000:100", "65000:300 65000:1:300"
	own := func(n *meshtest.Node) []bgptest.Route {
		return []bgptest.Route{route("10.90.11.0/26", ofPods, n), route("10.90.12.0/26", ofPods, n), route("192.0.2.0/24", ofServices, n)}
	}
	learned(t, tor, nodes[0].Prefix.Addr(), own(nodes[0])...)
	learned(t, tor, nodes[1].Prefix.Addr(), append(own(nodes[1]), route("192.0.2.7/32", ofServices, nodes[1]))...)
	leads(t, host.NS, "tor", "192.0.2.0/24", "172.31.1.11 nodes", "172.31.1.12 nodes")
	leads(t, host.NS, "tor", "192.0.2.7", "172.31.1.12 nodes")
	for _, n := range nodes {
		leads(t, n.NS, n.Name, "198.51.100.0/24", "172.31.1.2 eth0")
		leads(t, n.NS, n.Name, "192.0.2.0/24")
	}
	talk(t, w.pods[nodes[0]], w.pods[nodes[1]], client)

	// These rules replace kube-proxy.
	nodes[1].Run(t, "nft", "add table ip proxy; add chain ip proxy pre { type nat hook prerouting priority -100; }; add rule ip proxy pre "+
		"ip daddr 192.0.2.7 dnat to 10.90.12.5")
	w.pods[nodes[1]].EchoUDP(t, "10.90.12.5:80")
	answer, err := client.AskUDP(t, "198.51.100.10:0", "192.0.2.7:80", "hello", meshtest.Patience)
	if err != nil || answer != "198.51.100.10 hello" {
		t.Errorf("response of the Service: %q, %v", answer, err)
	}

	t.Run("a filter that accepts all", func(t *testing.T) {
		before := uptimes(t, nodes...)
		filter := func(rule string) {
			t.Helper()
			w.shell(t, `kubectl patch bgpfilters.crd.projectcalico.org tor --type=merge -p '{"spec":{"exportV4":[`+rule+`]}}'`, "")
		}
		for _, mark := range []string{"65000:777", "65000:778"} { // the first one's paths have come before the second is seen
			filter(`{"action":"Accept","operations":[{"addCommunity":{"value":"` + mark + `"}}]}`)
			accepted := func(n *meshtest.Node, services ...bgptest.Route) {
				t.Helper()
				paths := append([]bgptest.Route{route("10.90.11.0/26", "", n), route("10.90.12.0/26", "", n)}, services...)
				for i := range paths {
					paths[i].Communities = mark
					if block := paths[i].Prefix.String(); i < 2 && (block == "10.90.11.0/26") != (n == nodes[0]) {
						paths[i].Communities = "65000:100 " + mark // as the block's own node has announced it
					}
				}
				learned(t, tor, n.Prefix.Addr(), paths...)
			}
			services := route("192.0.2.0/24", "", nodes[1])
			accepted(nodes[1], services, route("192.0.2.7/32", "", nodes[1]))
			services.NextHop = nodes[0].Prefix.Addr()
			accepted(nodes[0], services)
		}
		leads(t, host.NS, "tor", "192.0.2.7", "172.31.1.12 nodes")
		filter("")
		learned(t, tor, nodes[0].Prefix.Addr(), own(nodes[0])...)
		before.untouched(t, "a filter was changed")
	})
	t.Run("no endpoint", func(t *testing.T) {
		before := uptimes(t, nodes...)
		w.shell(t, "kubectl delete endpointslice web-1", "")
		learned(t, tor, nodes[1].Prefix.Addr(), own(nodes[1])...)
		w.shell(t, "kubectl label node node-11 node.kubernetes.io/exclude-from-external-load-balancers=true", "")
		learned(t, tor, nodes[0].Prefix.Addr(), own(nodes[0])[:2]...)
		before.untouched(t, "an endpoint and a node were taken out")
	})
	t.Run("filter", func(t *testing.T) {
		before := uptimes(t, nodes...)
		w.shell(t, "kubectl apply -f -", `
apiVersion: crd.projectcalico.org/v1
kind: BGPFilter
metadata: {name: tor}
spec:
  exportV4: [{action: Reject, matchOperator: In, cidr: 192.0.2.0/24}]
  importV4: [{action: Reject}]
`)
		learned(t, tor, nodes[1].Prefix.Addr(), own(nodes[1])[:2]...)
		for _, n := range nodes {
			leads(t, n.NS, n.Name, "198.51.100.0/24")
		}
		before.untouched(t, "a filter was changed")
	})
	t.Run("wrong password", func(t *testing.T) {
		before := uptimes(t, nodes...)
		w.shell(t, "kubectl -n kube-system patch secret bgp-passwords --type=merge -p '{\"stringData\":{\"tor\":\"another\"}}'", "")
		for _, n := range nodes {
			down(t, n, "172.31.1.2", "password")
		}
		before.untouched(t, "the router's password was changed", "172.31.1.2")
		w.shell(t, "kubectl -n kube-system patch secret bgp-passwords --type=merge -p '{\"stringData\":{\"tor\":\"change-me\"}}'", "")
		peersWith(t, nodes[0], "172.31.1.2", "172.31.1.12")
		peersWith(t, nodes[1], "172.31.1.2", "172.31.1.11")
	})
	t.Run("too far away", func(t *testing.T) {
		host.Run(t, "nft", "add table ip far; add chain ip far out { type filter hook output priority 0; }; "+
			"add rule ip far out tcp dport 179 ip ttl set 254; add rule ip far out tcp sport 179 ip ttl set 254")
		for _, n := range nodes {
			host.Run(t, "nft", "add rule ip far out ip daddr "+n.Prefix.Addr().String()+" meta l4proto tcp counter")
			n.Run(t, "ss", "-K", "state", "established", "dst", "172.31.1.2")
			down(t, n, "172.31.1.2", "")
		}
		lost := []nodestatus.Peer{sessions(t, nodes[0])["172.31.1.2"], sessions(t, nodes[1])["172.31.1.2"]}
		const most = 6 // packets of more than one attempt
		meshtest.Eventually(t, func() error {
			text := host.Run(t, "nft", "list", "table", "ip", "far")
			for _, found := range regexp.MustCompile(`counter packets (\d+)`).FindAllStringSubmatch(text, -1) {
				if n, err := strconv.Atoi(found[1]); err != nil || n < most {
					return fmt.Errorf("want %d packets to each node:\n%s", most, text)
				}
			}
			return nil
		})
		for i, n := range nodes {
			if p := sessions(t, n)["172.31.1.2"]; p.State == "Established" || !p.Since.Equal(lost[i].Since) {
				t.Errorf("%s has or had a session with a router that is too far away: %+v", n.Name, p)
			}
		}
		host.Run(t, "nft", "delete", "table", "ip", "far")
		peersWith(t, nodes[0], "172.31.1.2", "172.31.1.12")
	})
}
