// Package ipip keeps the node's IP-in-IP device. It owns tunl0 of the node's namespace: its MTU, its state, its path MTU
// discovery and its IPv4 addresses; it never touches another link, and no routes.
//
// tunl0 is the device that the kernel's ipip module itself puts into every network namespace, with any address at both
// ends: the routes over it name the other node as next hop, onlink, and that becomes the outer destination.
package ipip
