// Package kernel has no code: its folder holds what the product does to a Linux kernel, one package for each kind of
// object. Desired state comes in as a whole and as plain values (routes, addresses of tunnels, ranges to masquerade, a
// pod's interface); each package reads what is there, computes the difference and writes only that. Out go netlink
// messages and writes below /proc/sys, and what the kernel answered.
//
// None of them knows Kubernetes, the datastore, BGP or settings. Netlink sockets are opened by netlinkx and nft alone.
package kernel
