// Package uninstall takes Tortie off a cluster's nodes: it ends the agents, has one pod on each node remove what agent,
// installer and plugins left there, and takes back what agents wrote on the Nodes. Whatever holds addresses (pools,
// blocks, handles) and the definitions stay: they are the cluster's data.
//
// A node on which Calico's agent runs is handed over and not cleaned: links, annotations and the condition are Calico's
// there.
//
// It writes no finalizer, so that nothing is ever stuck for its sake: who kills it half-way runs it again, or lives
// with what is left.
package uninstall
