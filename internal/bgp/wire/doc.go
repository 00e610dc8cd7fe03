// Package wire checks BGP messages as they come from a peer and writes them anew for the speaker behind: framing, OPEN,
// UPDATE, NOTIFICATION, KEEPALIVE and ROUTE-REFRESH by RFC 4271, 4760, 6793 and 2918, errors by RFC 4271 section 6 and
// RFC 7606. It is pure: bytes go in, a verdict comes out. It knows no socket, no clock and no other speaker.
//
// A message is not passed on as it came. Its understood parts are written again, with the capabilities and path
// attributes that are on a list here and no others: whatever a peer invents, the speaker behind reads only what this
// package would write. Unknown attributes are not passed on to other peers, although they may ask for it.
//
// On its way through the speaker behind each path has a Stamp, of what that speaker would forget; what that speaker
// says is taken apart, changed and written again by Editor, Prune and Narrow.
package wire
