// Package guard drops packets that pods and hosts outside of the cluster must not send. It owns all chains and sets
// that begin with "guard-" in the nftables table "inet tortie".
//
// A pod may send from its own addresses only, and not to 127.0.0.0/8 of its node: both are checked before connection
// tracking, so that such a packet is part of no connection. It may not open BGP connections, which would come from its
// node's address and so from a peer, nor send tunnel packets, nor BFD to its node. These rules are in the forward and
// input hooks, behind destination NAT.
//
// A packet that arrives in IPIP or VXLAN appears in the pods' network as if it came from a node: so a node accepts it
// only from addresses of known nodes. The guard checks the outer header in the input hook; the kernel removes it
// afterwards. The inner packet passes the hooks again, and is not the guard's.
package guard
