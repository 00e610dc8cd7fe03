// Package guard keeps out packets that pods and hosts outside of the cluster must not send. It owns all chains and sets
// that begin with "guard-" in the nftables table "inet tortie".
//
// A pod may send from its own addresses only, and not to 127.0.0.0/8 of its node: both are looked at before connection
// tracking, so that such a packet is part of no connection. It may not open BGP connections, which would come from its
// node's address and so from a peer, nor send tunnel packets, nor BFD to its node. These rules are in the forward and
// input hooks, behind destination NAT.
//
// What arrives encapsulated, IPIP or VXLAN, appears in the pods' network as if it came from a node: so a node takes it
// only from addresses of known nodes. The kernel takes the outer header off after the input hook, where the guard looks
// at it. The same packet, or what was in it, comes by again later without that header, and is not the guard's.
package guard
