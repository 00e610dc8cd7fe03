// Package uninstall removes Tortie from a cluster's nodes: it ends the agents, makes one pod on each node that removes
// the files of agent, installer and plugins, and removes the agents' annotations and conditions from the Nodes. Objects
// with addresses (pools, blocks, handles) and the definitions stay: they are the cluster's data.
//
// A node on which Calico's agent runs is handed over and not cleaned: links, annotations and the condition are Calico's
// there.
//
// It writes no finalizer, so that it never blocks a deletion: if it is killed half-way, it can be run again.
package uninstall
