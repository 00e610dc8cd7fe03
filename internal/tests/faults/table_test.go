package faults

import (
	"fmt"

	"github.com/tortie-net/tortie/internal/agent/nodestatus"
	"github.com/tortie-net/tortie/internal/api/groups"
	"github.com/tortie-net/tortie/internal/testkit/labtest"
)

// firewall is a chain of another program on node2.
func firewall(hook, rule string) []step {
	return []step{{"node2", `nft "add table inet hostfw; add chain inet hostfw c { type filter hook ` + hook + `; }; ` + rule + `"`}}
}

var noFirewall = []step{{"node2", "nft delete table inet hostfw"}}

// forwardDrop drops what node2 forwards.
var forwardDrop = step{"node2",
	`nft "add table inet hostfw; add chain inet hostfw c { type filter hook forward priority 0; policy drop; }"`}

// apply creates an object of group crd.projectcalico.org.
func apply(kind, name, spec string) step {
	return step{"kubectl", fmt.Sprintf(
		"apply -f - <<END\n{apiVersion: crd.projectcalico.org/v1, kind: %s, metadata: {name: %s}, spec: {%s}}\nEND", kind, name, spec)}
}

// pool is an IPPool, of which nothing but pods that ask for it get addresses.
func pool(name, cidr string, blockSize int) step {
	return apply("IPPool", name,
		fmt.Sprintf("cidr: %s, blockSize: %d, vxlanMode: Always, natOutgoing: true, allowedUses: [Workload]", cidr, blockSize))
}

// newPod starts a pod on node1, from a pool if it has a name.
func newPod(name, pool string) step {
	asks := ""
	if pool != "" {
		asks = fmt.Sprintf(`,"metadata":{"annotations":{"cni.projectcalico.org/ipv4pools":"[\"%s\"]"}}`, pool)
	}
	return step{"kubectl", fmt.Sprintf(`run %s --image=%s --image-pull-policy=Never --overrides '{"spec":{"nodeName":"node1",`+
		`"terminationGracePeriodSeconds":0}%s}' -- sleep 1d`, name, labtest.DebugImage, asks)}
}

func ready(pod string) step {
	return step{"kubectl", "wait pod/" + pod + " --for=condition=Ready --timeout=" + patience.String()}
}

// restartAgent starts node1's agent anew.
var restartAgent = remove("pod -n kube-system -l app.kubernetes.io/component=node --field-selector spec.nodeName=node1")

func remove(what string) step { return step{"kubectl", "delete " + what} }

// disable sets a field of the default pool.
func disable(value string) step {
	return step{"kubectl", `patch ippools.crd.projectcalico.org default-ipv4-ippool --type=merge -p '{"spec":{"disabled":` + value + `}}'`}
}

// poolFile has the pools while their definition is gone.
const poolFile = "${TMPDIR:-/tmp}/tortie-faults-pools.json"

var definition = labtest.DefinitionsDir(groups.V1) + "/crd.projectcalico.org_ippools.yaml"

// proxyBack writes the rules of kube-proxy that newWorld has kept.
func proxyBack(node string) []step { return []step{{node, "nft -f /lab/state/kube-proxy.nft"}} }

// noAPI are the checks that find something on a node that does not reach the API server.
var noAPI = []string{"service", "pools", "facts", "problem", "agent", "journal"}

// upgrade changes values of the chart, and rollback all of them back.
func upgrade(flags string) step {
	return step{"helm", "upgrade tortie " + labtest.ChartDir() + " --namespace kube-system --reuse-values " + flags}
}

var rollback = []step{{"helm", "rollback tortie 1 --namespace kube-system --wait"}}

// faults are numbered as when they were first looked for. 15, a clock that steps, cannot be made: nodes of a lab share
// the machine's. 16b, a full file system of the plugins' log, does no harm. NotEncrypted needs kernels with WireGuard,
// which nodes of a lab have in virtual machines only: TestAgentWireGuard has it.
var faults = []fault{
	{
		number: "1", what: "ip_forward is 0", traffic: short,
		inject: []step{{"node2", "sysctl -w net.ipv4.ip_forward=0"}},
		told:   []told{event{"Node", "node2", "Repaired", "net.ipv4.ip_forward was 0, set to 1"}},
	},
	{
		number: "2", what: "a firewall of the host drops VXLAN", traffic: cut, checks: []string{"peer-vxlan", "peer-path"},
		inject: firewall("input priority -10", "add rule inet hostfw c udp dport 4789 drop"), undo: noFirewall,
		told: []told{
			event{"Node", "node2", "PathDown",
				"node2 is not reached by pods of node1 (VXLAN, since ... see on node2 that firewalls let VXLAN pass, UDP port 4789"},
			line{"node1", "Paths ... pods do not reach node2 (VXLAN)"},
			finding{"node1", "peer-vxlan", nodestatus.Problem, "VXLAN is dropped",
				"allow UDP port 4789 between the nodes in firewalls and security groups"},
			finding{"node2", "peer-vxlan", nodestatus.Problem, "VXLAN is dropped",
				"allow UDP port 4789 between the nodes in firewalls and security groups"},
		},
	},
	{
		number: "3", what: "the tunnel's device is deleted", traffic: short,
		inject: []step{{"node1", "ip link delete vxlan.calico"}},
		told:   []told{event{"Node", "node1", "Repaired", "link vxlan.calico was missing, made again"}},
	},
	{
		number: "4", what: "a node's link has a smaller MTU", traffic: kept, checks: []string{"peer-mtu"}, // by small packets
		inject: []step{{"node2", "ip link set eth0 mtu 1300"}}, undo: []step{{"node2", "ip link set eth0 mtu 1500"}},
		told: []told{
			finding{"node1", "peer-mtu", nodestatus.Problem, "packets of 1500 bytes do not arrive; ... the largest that did has 1300",
				"give the network between the nodes an MTU of 1500, or the nodes' links ... what fits: 1300 and 1250"},
		},
	},
	{
		number: "5", what: "the network's configuration is removed", traffic: kept,
		inject: []step{{"node1", "rm /etc/cni/net.d/10-calico.conflist"}},
		told: []told{
			event{"Node", "node1", "ConflistRestored", "10-calico.conflist in /etc/cni/net.d was removed by another program, and is put back"},
		},
	},
	{
		number: "5b", what: "the plugin is removed", traffic: kept,
		inject: []step{{"node1", "rm /opt/cni/bin/calico"}},
		told:   []told{event{"Node", "node1", "PluginRestored", "calico in /opt/cni/bin was removed by another program, and is put back"}},
	},
	{
		number: "6", what: "the token of the plugins is broken", traffic: kept,
		inject: []step{{"node1", `sed -i "s/token: .*/token: broken/" /etc/cni/net.d/calico-kubeconfig`}, newPod("f6", ""),
			ready("f6"), remove("pod f6")},
		told: []told{
			event{"Node", "node1", "ConflistRestored", "calico-kubeconfig in /etc/cni/net.d was changed by another program, and is put back"},
		},
	},
	{
		number: "7", what: "the definition of IPPools is deleted", traffic: kept, checks: []string{"definitions", "problem", "facts"},
		inject: []step{
			{"kubectl", "get ippools.crd.projectcalico.org -o json > " + poolFile},
			remove("--wait=false crd ippools.crd.projectcalico.org"),
			// In projectcalico.org/v3 a pool in use stays by its finalizer, and its definition with it.
			{"kubectl", "wait --for=jsonpath='{.metadata.deletionTimestamp}' --timeout=10s " +
				"ippools.crd.projectcalico.org/default-ipv4-ippool || true"},
			{"kubectl", "patch ippools.crd.projectcalico.org default-ipv4-ippool --type=merge -p '{\"metadata\":{\"finalizers\":[]}}' || true"},
			{"kubectl", "wait --for=delete crd/ippools.crd.projectcalico.org --timeout=" + patience.String()},
		},
		undo: []step{{"kubectl", "apply --server-side -f " + definition}, {"kubectl",
			"wait crd/ippools.crd.projectcalico.org --for=condition=Established"}, {"kubectl", "create -f " + poolFile + " && rm " + poolFile}},
		told: []told{
			event{"Node", "node1", "ClusterShrank", "the API server shows no IPPools where it showed 1, and blocks in them: keeping what was known"},
			finding{"node1", "definitions", nodestatus.Problem, "the API server does not have ippools.crd.projectcalico.org",
				"kubectl apply --server-side -f charts/tortie/definitions/v1/crd.projectcalico.org_ippools.yaml; ... restore them from a backup"},
		},
	},
	{
		number: "8", what: "the only pool is disabled", traffic: kept, checks: []string{"pools"},
		inject: []step{disable("true"), newPod("f8", "")}, undo: []step{disable("false"), ready("f8"), remove("pod f8")},
		told: []told{
			event{"Pod", "f8", "FailedCreatePodSandBox", "no usable IPPool: default-ipv4-ippool (spec.disabled is true)"},
			finding{"node1",
				"pools", nodestatus.Problem, "no pool that selects this node assigns anything: default-ipv4-ippool: spec.disabled is true",
				`kubectl patch ippools.crd.projectcalico.org default-ipv4-ippool --type merge -p '{"spec":{"disabled":false}}'`},
		},
	},
	{
		number: "8b", what: "a pool is full", traffic: kept, checks: []string{"pools"},
		inject: []step{pool("tiny", "10.98.0.0/30", 30), newPod("f8b1", "tiny"), newPod("f8b2", "tiny"), newPod("f8b3", "tiny"),
			newPod("f8b4", "tiny"), newPod("f8b5", "tiny")},
		undo: []step{remove("pod f8b1 f8b2 f8b3 f8b4 f8b5"), remove("ippools.crd.projectcalico.org tiny")},
		told: []told{
			event{"Pod", "f8b", "FailedCreatePodSandBox", "no free address in [tiny 10.98.0.0/30]: add an IPPool or remove pods"},
			event{"IPPool", "tiny", "PoolExhausted", "4 of 4 addresses are in use: pods get none. Add an IPPool, or remove pods"},
			finding{"node1", "pools", nodestatus.Warning, "no free address in pool tiny; others have some",
				"enlarge it, or let these pods use another"},
		},
	},
	{
		number: "8c", what: "a second pool overlaps the first, with another size of blocks", traffic: kept, checks: []string{"pools"},
		// of the older one
		inject: []step{pool("extra", "10.99.0.0/24", 28), pool("overlap", "10.99.0.0/25", 26), newPod("f8c", "extra"), ready("f8c")},
		undo:   []step{remove("pod f8c"), remove("ippools.crd.projectcalico.org overlap extra")},
		told: []told{
			event{"IPPool", "overlap", "CIDROverlap", "10.99.0.0/25 overlaps 10.99.0.0/24 of the older IPPool extra"},
			finding{"node1", "pools", nodestatus.Problem, "10.99.0.0/25 overlaps 10.99.0.0/24 of the older IPPool extra",
				"delete it, or change its range"},
		},
	},
	{
		number: "9", what: "the annotation with a node's address is changed", traffic: short,
		inject: []step{{"kubectl", "annotate --overwrite node node2 projectcalico.org/IPv4Address=172.30.0.99/24"}},
		told: []told{
			event{"Node", "node2", "Repaired", "annotation projectcalico.org/IPv4Address of the Node was changed or removed, written again"},
		},
	},
	{
		number: "10", what: "the rules of kube-proxy are gone", traffic: kept, checks: noAPI,
		inject: []step{{"node1", "nft delete table ip kube-proxy"}}, undo: proxyBack("node1"),
		told: []told{
			finding{"node1", "service", nodestatus.Problem, "does not answer, and its endpoint 172.30.0.1:6443 is open: kube-proxy on this node",
				"see that kube-proxy runs on this node ... read its log and restart it: it writes its rules anew"},
		},
	},
	{
		number: "12", what: "the route to a node's pods is deleted", traffic: short,
		inject: []step{{"node2", `ip route delete $(ip route | grep "/26 via" | tail -1 | cut -d" " -f1)`}},
		told:   []told{event{"Node", "node2", "Repaired", "routes ... were missing or changed, such as one to 192.168. ... : written again"}},
	},
	{
		number: "13a", what: "the agent is stopped", traffic: kept, checks: []string{"agent"}, // its liveness probe restarts it
		inject: []step{{"node1", `kill -STOP $(pgrep -o -f "^/usr/bin/node")`}},
		told: []told{finding{"node1", "agent", nodestatus.Problem,
			"does not answer within 5s: its log says why, and its liveness probe restarts it", "look at its log: kubectl -n kube-system logs"}},
	},
	{
		number: "13b", what: "the chart names a link for the nodes' addresses that no node has", traffic: kept, checks: []string{"problem"},
		inject: []step{upgrade("--set nodeAddress.ipv4=interface=foo0 --wait")}, undo: rollback,
		told: []told{
			event{"Node", "node1", "NoNodeAddress", "IP_AUTODETECTION_METHOD=interface=foo0 finds no address: 172.30.0.12/24 on eth0 (its link is " +
				"not named) ... ; 172.30.0.12 on eth0 is kept from the Node"},
			finding{"node1", "problem", nodestatus.Warning, "interface=foo0 finds no address: 172.30.0.12/24 on eth0 (its link is not named)",
				"set nodeAddress.ipv4 or nodeAddress.ipv6, such as cidr=10.0.0.0/24"},
		},
	},
	{
		number: "14", what: "a node does not reach the API server", traffic: kept, checks: noAPI,
		inject: firewall("output priority 0", "add rule inet hostfw c tcp dport 6443 drop"), undo: noFirewall,
		told: []told{
			finding{"node2", "service", nodestatus.Problem, "does not answer, nor is its endpoint 172.30.0.1:6443 open",
				"see that the API server runs there, and allow its TCP port from this node in firewalls and security groups"},
			line{"node2", "the facts file is getting old, plugins will ask the API server instead:"},
		},
	},
	{
		number: "17", what: "a BGPPeer has a wrong AS number", traffic: kept, checks: []string{"problem", "peer-bgp"},
		inject: []step{apply("BGPPeer", "wrong", "node: node1, peerIP: 172.30.0.13, asNumber: 64999")},
		undo:   []step{remove("bgppeers.crd.projectcalico.org wrong")},
		told: []told{
			event{"BGPPeer", "wrong", "InvalidPeer",
				"peer 172.30.0.13: spec.asNumber is 64999, and node node2 is in AS 64512: set it to 64512"},
			finding{"node1", "problem", nodestatus.Problem,
				"BGPPeer wrong: peer 172.30.0.13: spec.asNumber is 64999, and node node2 is in AS 64512: set it to 64512",
				"correct the named field"},
		},
	},
	{
		number: "17b", what: "a BGPPeer's password is in a Secret that agents may not read", traffic: kept, checks: []string{"problem"},
		inject: []step{
			{"kubectl", "-n kube-system create secret generic pw --from-literal=password=x"},
			apply("BGPPeer", "secret", "node: node1, peerIP: 172.30.0.99, asNumber: 64999, password: {secretKeyRef: {name: pw, key: password}}"),
		},
		undo: []step{remove("bgppeers.crd.projectcalico.org secret"), remove("-n kube-system secret pw")},
		told: []told{
			event{"BGPPeer",
				"secret", "InvalidPeer", `key "password" of Secret kube-system/pw: agents may not read it ... helm upgrade with --reuse-values --set ` +
					`'bgp.passwordSecrets={pw}', beside those that it has; without Helm add it to resourceNames of Role kube-system/tortie-node-secrets`},
			finding{"node1", "problem", nodestatus.Problem, `key "password" of Secret kube-system/pw: agents may not read it`,
				"helm upgrade with --reuse-values --set 'bgp.passwordSecrets={pw}', beside those that it has"},
		},
	},
	{
		number: "17c", what: "a FelixConfiguration asks for what only Calico does", traffic: kept,
		inject: []step{apply("FelixConfiguration", "node.node1", "bpfEnabled: true")},
		undo:   []step{remove("felixconfigurations.crd.projectcalico.org node.node1")},
		told: []told{
			event{"FelixConfiguration", "node.node1", "FieldWithoutEffect", "spec.bpfEnabled: Tortie keeps these fields of Calico's and does not " +
				"act on them, so they have no effect: remove them, unless nodes run Calico"},
			finding{"node1", "fields", nodestatus.OK, "without effect: spec.bpfEnabled", "remove them, unless nodes run Calico"},
			line{"node1", "FelixConfiguration node.node1: spec.bpfEnabled"},
		},
	},
	{
		number: "18a", what: "a left-over Node has another node's address", traffic: kept, checks: []string{"problem"},
		inject: []step{{"kubectl", "apply -f - <<END\n" +
			"{apiVersion: v1, kind: Node, metadata: {name: ghost, annotations: {projectcalico.org/IPv4Address: 172.30.0.13/24}}}\nEND"}},
		undo: []step{remove("node ghost")},
		told: []told{
			event{"Node", "ghost", "InvalidNode", "its address 172.30.0.13 is that of node node2 too, which counts: give it another, or delete it " +
				"if its machine is gone (kubectl delete node ghost)"},
			finding{"node1", "problem", nodestatus.Warning, "Node ghost: its address 172.30.0.13 is that of node node2 too, which counts: give it " +
				"another, or delete it if its machine is gone (kubectl delete node ghost)", "correct or remove it"},
		},
	},
	{
		number: "18b", what: "another host takes a node's address", traffic: some,
		checks: []string{"duplicate-address", "peer-vxlan", "peer-mtu", "peer-path", "peer-bgp", "problem"},
		inject: []step{{"master", "ip address add 172.30.0.13/32 dev eth0"}},
		undo:   []step{{"master", "ip address delete 172.30.0.13/32 dev eth0"}},
		told: []told{
			finding{"node2", "duplicate-address", nodestatus.Problem, "another host has this node's address too: MAC 02:00:ac:1e:00:0b",
				"give one of the hosts another address"},
			finding{"node1", "duplicate-address", nodestatus.Warning, "2 MACs say that they have the address of node2",
				"give one of the hosts another address"},
			line{"master", "its next hop 172.30.0.13 is this node itself"},
		},
	},
	{
		number: "19", what: "a firewall of the host drops BGP", traffic: kept, checks: []string{"peer-bgp", "problem"},
		inject: firewall("input priority 0", "add rule inet hostfw c tcp dport 179 drop; add rule inet hostfw c tcp sport 179 drop"),
		undo:   noFirewall,
		told: []told{
			finding{"node1", "peer-bgp", nodestatus.Problem, "TCP port 179 from 172.30.0.12: no answer: filtered",
				"allow TCP port 179 between the nodes in firewalls and security groups"},
			event{"Node", "node2", "PeerDown", "node2 has no BGP session with any of 2 nodes, with ... : no TCP answer on port 179"},
			event{"Node", "node2", "PeerDown",
				"other nodes have no BGP session with node2 at 172.30.0.13: it does not connect, and no TCP answer on port 179"},
		},
	},
	{
		number: "20", what: "a firewall of the host drops what it forwards", traffic: cut, checks: []string{"forward-hook", "peer-path"},
		inject: []step{forwardDrop}, undo: noFirewall,
		told: []told{
			event{"Node", "node2", "PathDown",
				"node2 is not reached by pods of node1 (VXLAN, since ... that no chain drops what is forwarded (nft list ruleset"},
			line{"node1", "Paths ... pods do not reach node2 (VXLAN)"},
			finding{"node2", "forward-hook", nodestatus.Problem, "its policy drop drops what this host forwards",
				"nft insert rule inet hostfw c ip saddr 192.168.0.0/16 accept"},
			finding{"node1", "peer-path", nodestatus.Problem, "probes that it should forward back are lost (VXLAN)",
				"on that node look for a chain that drops what is forwarded"},
		},
	},
	{
		number: "20b", what: "a node has been behind such a firewall since it joined", traffic: cut,
		checks: []string{"forward-hook", "peer-path"},
		// node1 has forgotten who has answered
		inject: []step{{"node1", "rm /var/lib/calico/tortie/paths.json"}, forwardDrop, restartAgent}, undo: noFirewall,
		told: []told{
			event{"Node", "node2", "PathUnknown", "node2 has sent back no probe of node1 (VXLAN, since ... though it answers other packets ... " +
				"that no chain drops what is forwarded (nft list ruleset"},
			line{"node1", "Paths ... pods reach 1 node; 1 node not known yet"},
			finding{"node2", "forward-hook", nodestatus.Problem, "its policy drop drops what this host forwards",
				"nft insert rule inet hostfw c ip saddr 192.168.0.0/16 accept"},
		},
	},
	{
		number: "24", what: "another network's configuration comes before", traffic: kept, checks: []string{"cni-config"},
		inject: []step{
			{"node1", `echo '{"name":"cbr0","cniVersion":"0.3.1","plugins":[{"type":"flannel"}]}' > /etc/cni/net.d/05-flannel.conflist`},
		},
		undo: []step{{"node1", "rm /etc/cni/net.d/05-flannel.conflist"}},
		told: []told{
			event{"Node", "node1", "OtherNetworkPreferred", "the runtime takes 05-flannel.conflist instead of 10-calico.conflist, as it comes " +
				"first in lexical order: remove it from /etc/cni/net.d on this node"},
			finding{"node1", "cni-config", nodestatus.Problem, "plugins flannel", "remove the other network, then this file"},
		},
	},
	{
		number: "25", what: "all rules of nftables are flushed", traffic: short, checks: noAPI,
		inject: []step{{"node2", "nft flush ruleset"}}, undo: proxyBack("node2"),
		told: []told{
			finding{"node2", "service", nodestatus.Problem, "does not answer, and its endpoint 172.30.0.1:6443 is open: kube-proxy on this node",
				"see that kube-proxy runs on this node ... read its log and restart it: it writes its rules anew"},
		},
		after: []told{event{"Node", "node2", "Repaired", "nftables table inet tortie, chains ... were changed or removed, written again"}},
	},
	{
		number: "W", what: "WireGuard is wanted, and the kernel has none", traffic: kept, checks: []string{"problem"},
		inject: []step{upgrade("--set wireguard.enabled=true --wait")}, undo: rollback,
		told: []told{
			event{"Node", "node1", "NoWireGuard", "wireguard.cali: the kernel has no WireGuard: load module wireguard (modprobe wireguard"},
			finding{"node1", "problem", nodestatus.Problem, "wireguard.cali: the kernel has no WireGuard",
				"modprobe wireguard, or turn it off (wireguard.enabled)"},
		},
	},
	{
		// small packets
		number: "4b", what: "the path between nodes drops packets of more than 1,400 bytes", traffic: kept, checks: []string{"peer-mtu"},
		inject: firewall("input priority -10", "add rule inet hostfw c ip saddr { 172.30.0.11, 172.30.0.12 } meta length > 1400 drop"),
		undo:   noFirewall,
		told: []told{
			finding{"node1", "peer-mtu", nodestatus.Problem, "packets of 1500 bytes do not arrive; ... the largest that did has 1400",
				"give the network between the nodes an MTU of 1500, or the nodes' links ... what fits: 1400 and 1350"},
		},
	},
	{
		number: "16", what: "the file system of /var/lib/cni is full", traffic: kept, checks: []string{"space"},
		inject: []step{
			{"node1", "mount -t tmpfs -o size=64k tmpfs /var/lib/cni; head -c 64k /dev/zero > /var/lib/cni/full"},
			restartAgent, // the agent sees what is mounted when it starts
			newPod("f16", ""),
		},
		undo: []step{
			{"node1", "umount -l /var/lib/cni"}, restartAgent, ready("f16"), remove("pod f16"),
		},
		told: []told{
			event{"Pod", "f16", "FailedCreatePodSandBox", "no space left on device"},
			event{"Node", "node1", "NoSpace", "the file system of /var/lib/cni is full: pods do not start, nor end, until there is room"},
			finding{"node1", "space", nodestatus.Problem, "its file system is full", "make room (df -h and df -i /var/lib/cni on the node"},
		},
	},
	{
		number: "13c", what: "the chart names an image that cannot be pulled", traffic: kept,
		inject: []step{upgrade("--set image.tag=none --timeout 20s || true")},
		undo:   append([]step{remove("job -n kube-system tortie-definitions")}, rollback...),
		told:   []told{event{"Pod", "tortie-definitions-", "Failed", "Failed to pull image \"" + labtest.ImageRepository + ":none\""}},
	},
	{
		number: "11", what: "a policy denies a pod DNS", traffic: kept, checks: []string{"denials"},
		inject: []step{
			newPod("f11", ""), ready("f11"),
			{"kubectl", "apply -f - <<END\n{apiVersion: networking.k8s.io/v1, kind: NetworkPolicy, metadata: {name: f11}, spec: {podSelector: " +
				"{matchLabels: {run: f11}}, policyTypes: [Egress]}}\nEND"},
			{"kubectl", "exec f11 -- nslookup kubernetes.default || true"},
		},
		undo: []step{remove("networkpolicy f11"), remove("pod f11")},
		told: []told{
			finding{"node1", "denials", nodestatus.Warning,
				"policies deny this pod DNS: default/f11 ( ... ) -> kube-system/coredns- ... port 53/UDP by egress NetworkPolicy default/f11",
				"allow egress to UDP and TCP port 53 of the cluster's DNS pods"},
		},
	},
}
