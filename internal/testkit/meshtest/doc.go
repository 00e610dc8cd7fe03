// Package meshtest gives tests a cluster of agents: real agent processes in namespaces that stand for nodes, an API
// server of their own, pods connected by the plugin's code, and packet streams between pods in which every packet is
// counted. It only observes agents from outside, and removes everything with the test.
package meshtest
