// Package kernel has no code: its folder holds the packages that configure the Linux kernel, one for each kind of
// object. Each package receives its desired state as plain values (routes, addresses of tunnels, ranges to masquerade,
// a pod's interface), reads the state of the kernel, and writes only the difference, by netlink or below /proc/sys.
//
// None of them knows Kubernetes, the datastore, BGP or settings. Only netlinkx and nft open netlink sockets.
package kernel
