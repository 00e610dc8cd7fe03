// Package diagnose looks for what keeps a node's pods from reaching those of others: the command `node diagnose`.
// Collectors look at the agent, the host and the way to each peer, and change nothing but for the probes that they
// send; checks are pure functions of what was seen, and say what it means and what to do.
package diagnose
