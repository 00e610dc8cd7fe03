// Package bfd detects within milliseconds that a neighbour no longer forwards: Bidirectional Forwarding Detection
// (RFC 5880) over one hop (RFC 5881), in asynchronous mode, without Echo.
//
// A session is a pure state machine: packets and times in, packets and changes out. The Engine runs all sessions in one
// goroutine. It wakes several times in the shortest interval, reads packets, looks for late ones, and sends due ones,
// in this order: a process that was stopped for a while reads the packets of the meantime before it declares a
// neighbour lost. There are no timers: a wheel holds the sessions by their next turn. A tick reads up to 64 packets by
// one system call, and sends each by one. Nearly all the cost of 500 sessions is the kernel's work for their packets:
// compare BenchmarkSessions with BenchmarkPackets.
//
// The C bit is never set. It would promise that this end survives its control plane (RFC 5880 section 4.1). But this
// end is the agent, and ends with it, while the kernel goes on forwarding. So a neighbour knows that silence may mean a
// restart (RFC 5882 section 4.3).
//
// A neighbour that requests Demand mode, in which this end would no longer send, is refused: its packets are dropped
// and the session stays down. The configuration refuses simple passwords, because they pass in the clear.
package bfd
