// Package install installs the CNI plugins and their configuration on the host, renews the plugins' token, and removes
// all of it again (Uninstall, Rollback).
//
// It writes the plugins in the host's bin directories, calico-kubeconfig, one conflist and etcd's certificates in the
// directory of CNI configuration, and beside them the ledger of replaced files, with copies in the host's
// /var/lib/calico. None of its files is ever half-written: a concurrent reader finds the old file or the new one.
// Uninstall also removes the state of agent and plugins on the host, including logs.
package install
