// Package routes keeps the node's routes to other nodes' pods, and to its own blocks, as desired. It owns the routes of
// its table that carry its protocol number, and never changes or deletes any other, with one exception that the
// operator names: routes of a predecessor's protocol may be replaced in place, and removed where they would act in
// place of ours.
package routes
