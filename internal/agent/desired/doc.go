// Package desired computes this node's desired BGP, routes, tunnels and rules from the known state of the cluster.
//
// It is pure. Build and View make a Snapshot from the watched objects and from what the node finds of itself (Self).
// Judge judges the paths that BGP has learned. Everything that the agent sets follows from the Snapshot: Policy,
// Originated, DesiredRoutes, Tunnels, NAT, Guard, Host. Nothing here reads a clock, the kernel or the API.
package desired
