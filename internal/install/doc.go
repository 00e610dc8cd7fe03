// Package install puts the CNI plugins and their configuration onto the host and keeps the plugins' token fresh.
//
// It owns the plugins in the host's bin directory, calico-kubeconfig and one conflist. It never touches another file, and at
// no moment does one of its files exist half-written: a runtime that reads while it writes sees the old file or the new one.
package install
