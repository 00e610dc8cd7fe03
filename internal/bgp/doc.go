// Package bgp owns the node's BGP speaker: its sessions, the prefixes that this node originates and the paths that it
// learns. It never touches the kernel's routes, the datastore or Kubernetes: learned paths leave it as values.
//
// It has five parts. Package relay has the TCP connections with peers, package bfd tells it which peers have fallen
// silent, package wire takes apart what comes on the connections, package policy decides what becomes of each path in
// both directions, and GoBGP v3 behind them has every session: its state, its timers, the tables and the choice of
// paths. GoBGP is behind the Speaker interface and this package is the only one that imports it. What GoBGP does that
// the code here is built around:
//
//   - Serve never returns and nothing can end it, and the rules of best path selection (table.SelectionOptions,
//     table.UseMultiplePaths) are variables of GoBGP's package that StartBgp overwrites. So there is one Server in a
//     process and New refuses a second one. For another AS number GoBGP is stopped and started; see Server.hangUp.
//   - A management call waits for GoBGP's loop and ignores its context. Server runs each call beside the caller, who
//     then can leave at its deadline; calls never overlap, so that a call that was left behind cannot be overtaken.
//   - StopBgp and DeletePeer send Cease, on which a peer drops our paths at once, graceful restart or not. So a restart
//     is Stop(Exit): say nothing, let the process end, the kernel closes the connections, peers keep our paths.
//   - Its best path events do not name every prefix that has changed: one without a prefix is a change of a path that is
//     not the best, or of what is stale. So the relay names what is in each UPDATE, GoBGP's loop says that it has worked
//     one in (TimingHook), and a look-up says what holds; see window, Server.readTable, and TestChoiceIsBIRDs.
//   - It calls Logger.Fatal and Logger.Panic where it believes that it can't go on, and the default logger then ends
//     the process. The adapter here logs and returns.
//   - Its gRPC server is never created.
//   - While it reads and writes shared state of a session without locks in places, only values leave this package.
//
// And what it does, or cannot do, that the relay, the rules and the stamp are for, with the test that shows it:
//
//   - A message of an unknown type, or an UPDATE with a truncated MP_REACH_NLRI, panics in a goroutine of GoBGP and so
//     ends the process (fsm.handlingError, PathAttributeMpReachNLRI.DecodeFromBytes). Nothing can catch that. Now it
//     reads only what wire has written, which FuzzGoBGP holds against its own decoder and validator; RFC 7606 is wire's
//     (TestAdvisoriesWithoutRelay, TestHostilePeer).
//   - It reads and queues UPDATEs without a bound, faster than it works them in; see window. Its limit of prefixes walks
//     all of them at each UPDATE, and a neighbour that exceeds it is down until somebody enables it (TestFlood).
//   - It logs a line for each connection of a stranger, and knows no damping (TestGarbageOnThePort, TestDamping).
//   - It has no TTL security on connections that it accepts (TestTTLSecurity), no TCP-AO (package tcpao), and sets an MD5
//     key for each peer on its listeners, of which a socket can have some hundred only (TestPasswordsOfSeveralPeers). A
//     neighbour whose password changes is deleted, with its paths (TestPasswordIsChanged).
//   - It waits five seconds in Idle after a session and one to two before it connects (TestFastReconnect), does not connect
//     where it waits for the peer (TestOneWayFilter), and closes the second of two connections, so that a peer that has
//     restarted waits for the hold timer (TestTakeover). Here it never connects, and is told not to wait in Idle; see
//     idleHoldTime.
//   - Of a peer that restarts it drops the paths when a session begins and does not come up, as when both ends connect. So
//     it takes part in no handshake (TestHandshakesThatFail).
//   - It ends a restart towards all peers when the first ones have sent their tables, and until then keeps its own
//     back, for a second at least. So it is told of none: the relay sets the restart bits in its OPENs
//     (TestRestartBitsOnTheWire), and holds the KEEPALIVE back until the table is there (TestTableComesWithKeepalive).
//   - It drops UPDATEs that it has read when their session ends. So they are worked in first (TestHandshakesThatFail).
//   - It knows nothing of BFD: what is kept of a peer that BFD has lost is put last when its table is read
//     (TestSilentRouter).
//   - It tells only its log why a session fails (TestReasonsInWords, TestEndsOfSessions).
//   - It withdraws our own prefix from everybody when a peer announces it with a higher LOCAL_PREF; see originatedPath
//     (TestOwnBlockIsOurs).
//   - Its policies know neither Calico's filters nor a change without a reset, and what one of them has rejected is not
//     kept. So it has one that lets pass what may have to be passed on, and the relay decides on the wire
//     (TestRulesAreBIRDs, TestFilterChangesImports). A peer's announcement is kept there, in the few bytes of a prefix and
//     a reference, and is judged again from memory. What a peer was told is told again by GoBGP: to one peer by its soft
//     reset, to all by announcing the paths in question once more; see Server.SetPolicy. It withdraws what a peer was
//     never told (TestOriginatedChanges), and knows no well-known community (TestWellKnownCommunities).
//   - It forgets on the way through what a path was: its next hop, and its MED towards another AS, where it comes from.
//     So paths have a stamp while they are inside; see wire.Stamp (TestNextHops, TestStamp).
//   - As a reflector it leaves ORIGINATOR_ID and CLUSTER_LIST out towards peers that are no clients, does not withdraw
//     what a client has announced from them when a path that they may not have takes its place, and knows nothing of
//     the length of a CLUSTER_LIST: two reflectors then keep a path for ever that is over, or change their minds for
//     ever. So to it all peers of our AS are clients, the relay knows better (relay.Rules), and a rank in the place of
//     MED makes it see the length (TestReflection, TestTwoReflectors).
//   - A path with the peer's AS number in it is not announced to the peer, but neither is the one before withdrawn. So
//     it is told to put our own number in that place, and the relay withdraws what has that. Our own number, where it
//     is in a path because it is allowed there or a filter has put it there, is hidden from it; see wire.MaskedASN
//     (TestTransit, TestOwnASN).
//   - It cuts the zones off link-local addresses, and has one listener for its life (TestLinkLocalNodes,
//     TestListensElsewhere).
//
// To GoBGP a peer is an address of 127.0.0.0/8, a new one whenever the peer is configured, from which the relay
// connects. It is added when it first gets a session of the peer; see place.
// A peer gets another one, too, when this node becomes a reflector or is none any more; the old one stays until all its
// paths have come again. All families run over these connections; the session's family is the one of the peer's real
// address, or both if that is link-local. Of next hops on a link GoBGP sees a placeholder; see wire.Placeholder4. What
// GoBGP says is translated back in one place, neighbours. Other processes of this host can connect there, too, so that
// all is signed with a secret of the process (TCP MD5). A kernel without TCP MD5 gets no session with a password, and a
// warning that every process that may send from 127.0.0.0/8 could pose as a peer: it would need to run on the host or
// in its network namespace, where it could as well announce itself as another node.
//
// Since Go 1.24 listeners are Multipath TCP unless the program says otherwise, which knows no MD5 keys; New insists.
package bgp
