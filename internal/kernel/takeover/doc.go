// Package takeover is for nodes on which Calico ran, or will run again: it finds what Calico's BIRD and Felix left in
// the kernel and whether they still run, and hands over or removes what the agent leaves.
//
// The agent cannot see the host's processes. It can see whether BIRD's control socket listens, as /proc lists the
// sockets of a network namespace, and whether routes or rules that it has removed come back. While BIRD or Felix runs,
// its routes and rules stay: two programs that remove each other's would do so for ever.
package takeover
