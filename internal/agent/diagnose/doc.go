// Package diagnose looks for what keeps a node's pods from reaching pods of other nodes: the command `node diagnose`.
// Collectors look at the agent, the host and the way to each peer; they change nothing, and send only probes. Checks
// are pure functions of the observations, and return findings with remedies.
package diagnose
