// Package bfd detects within milliseconds that a neighbour no longer forwards: Bidirectional Forwarding Detection
// (RFC 5880) over one hop (RFC 5881), in asynchronous mode, without Echo.
//
// A session is a pure state machine: packets and times in, packets and changes out. The Engine has all of them in one
// goroutine, which wakes several times in the shortest interval, reads what has come, looks for what is late, and sends
// what is due, in this order: a process that was stopped for a while finds the packets of the meantime before it takes
// a neighbour for lost. There are no timers: a wheel has the sessions by their turns. A tick reads up to 64 packets by
// one system call, and sends each by one. Nearly all that 500 sessions cost is the kernel's work for their packets:
// compare BenchmarkSessions with BenchmarkPackets.
//
// The C bit is never set. It would promise that this end goes on without its control plane (RFC 5880 section 4.1), but
// this end is the agent, and ends with it, while the kernel goes on to forward. A neighbour can so tell that silence
// may mean a restart (RFC 5882 section 4.3).
//
// A neighbour that asks for Demand mode, in which this end would no longer send, is refused: its packets are dropped
// and the session stays down. Simple passwords are refused by the configuration, because they pass in the clear.
package bfd
