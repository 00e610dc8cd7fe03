// Package desired says what this node's BGP, routes, tunnels and rules should be, given what is known of the cluster.
//
// It is pure: a Snapshot is built from the objects that the watches show (Build, View) and from what the node finds of
// itself (Self); what BGP has learned is judged by it (Judge); and everything that the agent sets follows from it:
// Policy, Originated, DesiredRoutes, Tunnels, NAT, Guard, Host. Nothing here reads a clock, the kernel or the API.
package desired
