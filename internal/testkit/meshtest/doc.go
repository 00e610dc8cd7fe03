// Package meshtest gives tests a cluster of agents: real agent processes in namespaces that stand for nodes, an API server of their
// own, pods that are wired as the plugin wires them, and streams between pods of which every packet is counted. It looks at agents
// from outside only, and ends with the test.
package meshtest
