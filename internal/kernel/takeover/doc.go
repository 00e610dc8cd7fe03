// Package takeover is about nodes on which Calico ran, or will run again: what its BIRD and Felix left in the kernel,
// whether they still run, and what is to become of what the agent leaves.
//
// The agent cannot see the host's processes. It can see whether BIRD's control socket listens, as the sockets of a
// network namespace are listed in /proc, and whether what it has taken away comes back. While one of the two runs, what
// it has stays: two that remove each other's routes or rules would do so for ever.
package takeover
