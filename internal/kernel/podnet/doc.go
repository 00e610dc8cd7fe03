// Package podnet connects one pod to its node: a veth pair, its addresses and routes, and the kernel parameters that
// make the node answer for the pod's gateway. It owns what it makes for that pod and never touches another link, route
// or parameter, except a leftover host-side link of the pod's name and the routes of a pod with a removed namespace.
//
// The result is Calico's, including the order of operations, so that either plugin can remove or check the interfaces
// of the other, and Calico's Felix can run on the node:
//
//	pod namespace                                 node
//	  eth0  10.0.0.5/32                             cali7fba7a35b74   ee:ee:ee:ee:ee:ee, no IPv4 address
//	  default via 169.254.1.1 dev eth0              10.0.0.5 dev cali7fba7a35b74 scope link
//	  169.254.1.1 dev eth0 scope link               proxy_arp answers for 169.254.1.1
//
// Proxy ARP answers for 169.254.1.1 only while the node has a route that covers it, which normally is the default
// route. In IPv6 the pod's gateway is the link-local address of the node's end, which needs no proxy.
package podnet
