// Package install puts the CNI plugins and their configuration onto the host, keeps the plugins' token fresh, and takes
// all of it away again (Uninstall, Rollback).
//
// It writes the plugins in the host's bin directories, calico-kubeconfig, one conflist and etcd's certificates in the
// directory of CNI configuration, and beside them the ledger of what it replaced, with copies in the host's
// /var/lib/calico. At no moment does one of its files exist half-written: a runtime that reads while it writes sees the
// old file or the new one. Uninstall also removes what agent and plugins keep on the host, logs among it.
package install
