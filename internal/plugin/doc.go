// Package plugin implements the CNI verbs of the plugins calico and calico-ipam, one file each.
//
// It owns the meaning of the network configuration and the mapping from errors to CNI's codes. It never changes the
// kernel or the datastore itself: internal/kernel/podnet wires a pod, internal/ipam assigns its address.
package plugin
