// Package encapguard keeps forged tunnel packets out. What arrives encapsulated, IPIP or VXLAN, appears in the pods' network as
// if it came from a node: so a node takes it only from addresses of known nodes, and a pod may not send it at all. The package
// owns two chains and two sets in the nftables table "inet tortie".
//
// The kernel takes the outer header off after the input hook, where the guard looks at it. The same packet, or what was in it,
// comes by again later without that header, and is not the guard's.
package encapguard
