// Package radv finds the router at the other end of a link by the router advertisements that it sends (RFC 4861), and
// sends some, so that the router finds this node: both ends of a BGP session that is configured by the name of an
// interface.
//
// Messages, the table of the routers on a link, and the times at which advertisements are due are values and pure
// functions. Engine has a socket and a goroutine for each link, so that a flood on one link delays no other. The host's
// own use of advertisements is the kernel's alone: it reads them whether this package does or not.
package radv
