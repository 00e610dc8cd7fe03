// Package ipip keeps the node's IP-in-IP devices. It owns tunl0 of the node's namespace: its MTU, its state, its path
// MTU discovery and its IPv4 addresses; and devices for single nodes, tunl0- and the node's address in hexadecimal. It
// never touches another link, and no routes.
//
// tunl0 is the device that the kernel's ipip module itself puts into every network namespace, with any address at both
// ends: the routes over it have the other node as next hop, onlink, which becomes the outer destination. The devices
// for single nodes only receive: a flowtable handles no packets of a device with any peer.
package ipip
