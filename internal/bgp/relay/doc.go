// Package relay owns the TCP connections of BGP sessions. Peers talk to it; it talks to a speaker behind, one
// connection for one session, and passes on messages that package wire accepts. It listens on the node's addresses
// only, dials from them, sets TCP MD5 keys and the TTL, refuses connections of other addresses, retries, resolves
// collisions (RFC 4271 section 6.8), and ends and holds down the session of a peer that announces too much.
//
// The relay goes through the handshake with a peer by itself, and hands over a session that is up: what fails before
// that is nothing to the speaker behind, which keeps the paths of a peer that restarts.
//
// How a session ends is told truly to both sides. A peer whose connection breaks is a broken connection for the speaker
// behind, which then keeps the peer's paths as graceful restart has it; what the speaker says before it closes reaches
// the peer; a peer that sent what it must not gets the NOTIFICATION from here, and the speaker is told to drop its
// paths.
//
// From then on timers, tables and announcements are the speaker behind's.
//
// What passes is judged by the peer's Rules, in both directions, and rewritten where they say so. What a peer announces
// is kept with its attributes, of which there is one copy for all peers, so that other rules need nothing of the peer;
// what a peer was told is a bit for each prefix, so that nothing is withdrawn from it that it was never told.
//
// All is bounded: at most one session of a peer and one connection in its handshake, one message in each direction,
// deadlines on all writes. It knows nothing of the speaker behind but the connections that it hands out, and never
// touches routes.
package relay
