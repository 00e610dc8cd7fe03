// Package paths watches whether pods of this node reach other nodes and their pods: continuously, and through the
// forward hook of the other node's kernel. It decides which nodes are probed when, what counts as down, and which node
// is to blame. It changes nothing but Events; docs/design/paths.md has the reasons.
package paths
