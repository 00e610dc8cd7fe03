// Package policy decides which packets the pods of a node may send and receive. Its input is the cluster's policies,
// namespaces and pods, its output a Ruleset: for each local pod and direction a Program, which finds a packet's verdict
// by its port and then by its peer's address. The package is pure: it does not read the kernel, the API server or the
// time. Package internal/kernel/netpol puts a Ruleset into force.
//
// # One example, from YAML to nftables
//
// Pod web is on this node, behind the link cali1, and calls its TCP port 8080 http. Pod client is on another node, at
// 10.65.1.1. An administrator denies the guests' network, and the pod's owner admits clients:
//
//	kind: Tier
//	metadata: {name: security}
//	spec: {order: 100}
//
//	kind: GlobalNetworkPolicy
//	metadata: {name: security.no-guests}
//	spec:
//	  tier: security
//	  selector: app == 'web'
//	  types: [Ingress]
//	  ingress:
//	  - {action: Deny, source: {nets: [10.9.0.0/24]}}
//	  - {action: Pass}
//
//	kind: NetworkPolicy
//	metadata: {name: web, namespace: shop}
//	spec:
//	  podSelector: {matchLabels: {app: web}}
//	  ingress:
//	  - from: [{podSelector: {matchLabels: {role: client}}}]
//	    ports: [{port: http}]
//
// FromCalicoGlobalNetworkPolicy and FromNetworkPolicy turn each object into a Policy, the one model of all kinds: a
// Tier, an order, the Pods that it selects, and Rules by Direction. The second one is in TierDefault, after security.
//
// Select finds the policies of each local pod and direction, in the order of tiers. For web's ingress these are both,
// for its egress none.
//
// Compile makes a Program of them. A selector of peers becomes a set of addresses, and the name of a port becomes the
// number that the pod declares. Pass leads to the next tier, so one list for each port is left:
//
//	program of ingress behind cali1
//	  TCP 8080
//	    10.9.0.0-10.9.0.255: deny by CalicoGlobalNetworkPolicy security.no-guests
//	    set 0xc15b47b6: allow
//	    else: deny by NetworkPolicy shop/web
//	  rest
//	    10.9.0.0-10.9.0.255: deny by CalicoGlobalNetworkPolicy security.no-guests
//	    else: deny by NetworkPolicy shop/web
//	members: 10.65.1.1 is in set 0xc15b47b6
//
// A client that starts or ends changes the members alone: Update finds which addresses. Ruleset.Decide reads programs
// as the kernel does. Judge and Explain read the policies instead, name the rule that decides, and must agree.
//
// Netpol writes each list as a chain, named after its content, and looks up the link, the port and the address in maps
// and sets:
//
//	set members4-4096 {
//		type mark . ipv4_addr
//		...
//		elements = { 0xc15b47b6 . 10.65.1.1 }
//	}
//	map ports-fb29219dab5d1f319ece {
//		...
//		elements = { 8080 : goto l-286085703b11b9ec7336 }
//	}
//	map to {
//		type ifname : verdict
//		elements = { "cali1" comment "uid-web" : goto p-4a50020276dd048e13c1 }
//	}
//	chain l-286085703b11b9ec7336 {
//		ip saddr @nets4-9406ae3a85b473d81776eca7fe3df62e goto deny-eeef31df84f7ff96e7eb
//		meta mark & 0xc15b47b6 | 0xc15b47b6 . ip saddr @members4-4096 accept
//		...
//		goto deny-2fe32195e557499e5cbf
//	}
//	chain p-4a50020276dd048e13c1 {
//		ct state invalid counter drop comment "invalid state"
//		...
//		tcp dport vmap @ports-fb29219dab5d1f319ece
//		goto l-966862f6dab82a1aa224
//	}
//	chain ingress {
//		type filter hook forward priority filter - 4; policy accept;
//		ct state established,related accept
//		oifname vmap @to
//		...
//	}
//
// So the first packet of a connection costs a few look-ups and the steps of one list, whatever the number of policies.
package policy
