// Package netlinkx gives access to rtnetlink and network namespaces: links, addresses, routes, neighbours, policy
// rules, and of netfilter connection tracking and ipsets. It owns sockets and translates between the kernel's messages
// and small values with netip types; it never decides what the kernel should hold, and keeps no state besides its
// sockets.
//
// Links, addresses and policy rules go through github.com/vishvananda/netlink, which knows the attributes of all kinds
// of links; routes, neighbours and netfilter go through internal/kernel/nlmsg.
//
// The package is linked into the CNI plugins, which live for a few milliseconds: nothing happens in it before the first
// Open.
package netlinkx
