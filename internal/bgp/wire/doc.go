// Package wire checks BGP messages of a peer and writes them anew for the speaker behind: framing, OPEN, UPDATE,
// NOTIFICATION, KEEPALIVE and ROUTE-REFRESH by RFC 4271, 4760, 6793 and 2918, errors by RFC 4271 section 6 and RFC
// 7606. It is pure: bytes in, a verdict out. It knows no socket, no clock and no other speaker.
//
// No message is passed on as it came. Its understood parts are written again, with only the capabilities and path
// attributes that are listed here: whatever a peer invents, the speaker behind reads only bytes of this package.
// Unknown attributes are not passed on to other peers, even if they are transitive.
//
// In the speaker behind each path carries a Stamp with facts that the speaker would drop. Editor, Prune and Narrow
// parse, change and rewrite the speaker's messages.
package wire
