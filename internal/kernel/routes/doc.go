// Package routes keeps the node's routes to other nodes' pods, and to its own block, as they should be. It owns the
// routes of the main table that carry its protocol number, and never changes or deletes any other, with one exception
// that the operator names: routes of a predecessor's protocol may be replaced in place, and removed where they would
// stand in for ours.
package routes
