// Package netlinkx is the project's only door to rtnetlink and to network namespaces. It owns sockets and the translation
// between the kernel's messages and small values in netip terms; it never decides what the kernel should hold, and keeps
// no state besides its sockets.
//
// The package is linked into the CNI plugins, which live for a few milliseconds: nothing happens in it before the first
// Open.
package netlinkx
