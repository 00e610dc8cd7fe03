// Package bgp owns the node's BGP speaker: its sessions, the prefixes that this node originates and the paths that it
// learns. It never touches the kernel's routes, the datastore or Kubernetes: it returns learned paths as values.
//
// Package relay has the TCP connections with peers. Package tcpao signs those of peers that have TCP-AO keys. Package
// bfd finds the peers that have fallen silent; this package tells relay of them. Package wire parses the messages on
// the connections. Package policy decides what becomes of each path in both directions. GoBGP v3 has every session: its
// state, its timers, the tables and the choice of paths. GoBGP is behind the Speaker interface, and only this package
// imports it.
//
// Two packages are called by the agent, not from here: peering decides which sessions a node has, and radv finds the
// router on a link by its router advertisements. Package interop has only tests, with other speakers.
//
// The code here is built around these properties of GoBGP:
//
//   - Serve never returns and nothing can end it, and StartBgp overwrites variables of GoBGP's package with the rules
//     of best path selection (table.SelectionOptions, table.UseMultiplePaths). So there is one Server in a process and
//     New refuses a second one. For another AS number GoBGP is stopped and started; see Server.hangUp.
//   - A management call waits for GoBGP's loop and ignores its context. Server runs each call in a goroutine of its
//     own, and the caller returns at its deadline. Calls never overlap, so that none overtakes an abandoned one.
//   - StopBgp and DeletePeer send Cease, on which a peer drops our paths at once, graceful restart or not. So a restart
//     is Stop(Exit): it sends nothing, the process ends, the kernel closes the connections, and peers keep our paths.
//   - Its best path events do not name every prefix that has changed: an event without a prefix stands for a change of
//     stale paths or of one that is not the best. So the relay names the prefixes in each UPDATE, GoBGP's loop reports
//     that it has processed one (TimingHook), and a look-up returns the paths; see window, Server.readTable, and
//     TestChoiceIsBIRDs.
//   - It calls Logger.Fatal and Logger.Panic where it believes that it cannot go on, and the default logger then ends
//     the process. The adapter here logs and returns.
//   - Its gRPC server is never created.
//   - While it reads and writes shared state of a session without locks in places, only values leave this package.
//
// The relay, the rules and the stamp make up for other properties, each with the test that shows it:
//
//   - A message of an unknown type, or an UPDATE with a truncated MP_REACH_NLRI, panics in a goroutine of GoBGP and so
//     ends the process (fsm.handlingError, PathAttributeMpReachNLRI.DecodeFromBytes). Nothing can catch that. So it
//     reads only what wire has written, which FuzzGoBGP checks with GoBGP's own decoder and validator; wire implements
//     RFC 7606 (TestAdvisoriesWithoutRelay, TestHostilePeer).
//   - It reads and queues UPDATEs without a bound, faster than it processes them; see window. Its prefix limit walks
//     all prefixes at each UPDATE, and a neighbour that exceeds it is down until an operator enables it (TestFlood).
//   - It logs a line for each connection from an unknown address, and has no damping (TestGarbageOnThePort,
//     TestDamping).
//   - It has no TTL security on connections that it accepts (TestTTLSecurity) and no TCP-AO (package tcpao). It sets an
//     MD5 key for each peer on its listeners, and a socket can have only some hundred (TestPasswordsOfSeveralPeers). To
//     change a password it deletes the neighbour, with its paths (TestPasswordIsChanged).
//   - It waits five seconds in Idle after a session and one to two before it connects (TestFastReconnect). It does not
//     connect where it waits for the peer (TestOneWayFilter). It closes the second of two connections, so that a peer
//     that has restarted waits for the hold timer (TestTakeover). Here it never connects, and is configured not to wait
//     in Idle; see idleHoldTime.
//   - It drops the paths of a restarting peer when a session begins and does not come up, as when both ends connect. So
//     it takes part in no handshake (TestHandshakesThatFail).
//   - It ends a restart towards all peers when the first ones have sent their tables, and until then delays its own
//     table, for a second at least. So it does not learn of restarts: the relay sets the restart bits in its OPENs
//     (TestRestartBitsOnTheWire), and delays the KEEPALIVE until the table is there (TestTableComesWithKeepalive).
//   - It drops the UPDATEs in its queue when their session ends. So they are processed first (TestHandshakesThatFail).
//   - It knows nothing of BFD: the paths kept of a peer that BFD has lost are ordered last when its table is read
//     (TestSilentRouter).
//   - It only logs why a session fails (TestReasonsInWords, TestEndsOfSessions).
//   - It withdraws our own prefix from all peers when a peer announces it with a higher LOCAL_PREF; see originatedPath
//     (TestOwnBlockIsOurs).
//   - Its policies have neither Calico's filters nor a change without a reset, and it does not keep rejected paths. So
//     it has one policy that accepts every path that the relay may pass on, and the relay decides on the wire
//     (TestRulesAreBIRDs, TestFilterChangesImports). The relay keeps a peer's announcements, in the few bytes of a
//     prefix and a reference, and judges them again from memory. GoBGP repeats announcements: to one peer by its soft
//     reset, to all by announcing the paths in question once more; see Server.SetPolicy. It withdraws what a peer never
//     received (TestOriginatedChanges), and knows no well-known community (TestWellKnownCommunities).
//   - It does not keep a path's next hop, its MED towards another AS, and where it comes from. So paths carry a stamp
//     inside of GoBGP; see wire.Stamp (TestNextHops, TestStamp).
//   - As a reflector it omits ORIGINATOR_ID and CLUSTER_LIST towards non-clients, does not withdraw a client's path
//     from them when a path that they may not receive replaces it, and ignores the length of a CLUSTER_LIST: two
//     reflectors then keep a withdrawn path for ever, or oscillate for ever. So in GoBGP all peers of our AS are
//     clients, the relay tells clients from non-clients (relay.Rules), and a rank in the place of MED makes the length
//     count (TestReflection, TestTwoReflectors).
//   - It does not announce a path with the peer's AS number to the peer, but does not withdraw the one before either.
//     So it is configured to put our own number in that place, and the relay withdraws paths that have it. Where a path
//     may have our own number, because the peer is allowed to send it or a filter adds it, the relay hides it from
//     GoBGP; see wire.MaskedASN (TestTransit, TestOwnASN).
//   - It cuts the zones off link-local addresses, and has one listener for its life (TestLinkLocalNodes,
//     TestListensElsewhere).
//
// To GoBGP a peer is an address of 127.0.0.0/8, a new one whenever the peer is configured, from which the relay
// connects. It is added when it first gets a session of the peer; see place. A peer also gets a new address when this
// node becomes a reflector or stops being one; the old one stays until the peer has sent all its paths again. All
// families run over these connections; a session has the family of the peer's real address, or both families if that is
// link-local. GoBGP sees a placeholder for next hops on a link; see wire.Placeholder4. One type, neighbours, translates
// GoBGP's addresses back to peers. Other processes of this host can connect there, too, so all segments are signed with
// a secret of the process (TCP MD5). On a kernel without TCP MD5 no session has a password, and a warning is logged:
// every process that may send from 127.0.0.0/8 can pose as a peer. Such a process runs on the host or in its network
// namespace, where it could as well announce itself as another node.
//
// Since Go 1.24 listeners are Multipath TCP by default, which supports no MD5 keys; New returns an error unless the
// program disables it.
package bgp
