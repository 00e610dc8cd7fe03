// Package relay owns the TCP connections of BGP sessions. Peers talk to it; it talks to a speaker behind, one
// connection for one session, and passes on messages that package wire accepts. It listens on the node's addresses
// only, dials from them, sets TCP MD5 keys and the TTL, refuses connections of other addresses, retries, resolves
// collisions (RFC 4271 section 6.8), and ends and holds down the session of a peer that announces too much.
//
// The relay itself goes through the handshake with a peer, and hands over a session that is up. A failure before that
// does not reach the speaker behind, which keeps the paths of a peer that restarts. From then on timers, tables and
// announcements are the speaker's.
//
// Both sides learn how a session really ends. If the peer's connection breaks, so does the speaker's, which then keeps
// the peer's paths (graceful restart). The peer receives all messages that the speaker sends before it closes. A peer
// that violates the protocol gets a NOTIFICATION from the relay, and the speaker gets one that makes it drop the peer's
// paths.
//
// The peer's Rules judge messages in both directions, and rewrite them. A peer's paths are kept with their attributes,
// one copy for all peers, so that a change of rules needs nothing from the peer. Announcements to a peer are kept as a
// bit for each prefix, so that only announced prefixes are withdrawn.
//
// All is bounded: one session of a peer and one connection in its handshake, one message in each direction, deadlines
// on all writes. The relay knows the speaker only by the connections that it hands out, and never touches routes.
package relay
