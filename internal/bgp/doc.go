// Package bgp owns the node's BGP speaker: its sessions, the prefixes that this node originates and the paths that it
// learns. It never touches the kernel's routes, the datastore or Kubernetes: learned paths leave it as values.
//
// GoBGP v3 is behind the Speaker interface and this package is the only one that imports it. What GoBGP does that the
// code here is built around:
//
//   - Serve never returns and nothing can end it, and the rules of best path selection (table.SelectionOptions,
//     table.UseMultiplePaths) are variables of GoBGP's package that StartBgp overwrites. So there is one Server in a
//     process and New refuses a second one. A process that wants another speaker is another process.
//   - A management call waits for GoBGP's loop and ignores its context. Server runs each call beside the caller, who
//     then can leave at its deadline; calls never overlap, so that a call that was left behind cannot be overtaken.
//   - StopBgp and DeletePeer send Cease, on which a peer drops our paths at once, graceful restart or not. So a restart
//     is Stop(Exit): say nothing, let the process end, the kernel closes the connections, peers keep our paths.
//   - There is no end-of-initial-state among its events and its best path events lie about Best, so that events only say
//     "look again" (Dirty); the truth is ListPath, read whole by Snapshot.
//   - It calls Logger.Fatal and Logger.Panic where it believes that it can't go on, and the default logger then ends the
//     process. The adapter here logs and returns.
//   - Its gRPC server is never created.
//   - Since Go 1.24 its listeners are Multipath TCP unless the program says otherwise; New insists.
//   - It ends a restart towards all peers when the first ones have sent their tables; see barrier.go.
//   - A message of an unknown type, or an UPDATE with a truncated MP_REACH_NLRI, from a configured peer's address panics
//     in a goroutine of GoBGP and so ends the process (fsm.handlingError, PathAttributeMpReachNLRI.DecodeFromBytes).
//     Nothing here can catch that. The kernel's routes and the peers' paths survive it as they survive any restart.
//   - While it reads and writes shared state of a session without locks in places, only values leave this package.
package bgp
