// Package radv finds the router at the other end of a link by its router advertisements (RFC 4861), and sends some, so
// that the router finds this node: these are the ends of a BGP session that is configured by the name of an interface.
//
// Messages, the table of the routers on a link, and the schedule of advertisements are values and pure functions.
// Engine has a socket and a goroutine for each link, so that a flood on one link delays no other. The kernel processes
// advertisements for the host independently of this package.
package radv
