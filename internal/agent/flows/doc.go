// Package flows records which connections of a node's pods are allowed and denied, by which policies, and what staged
// policies would have done.
//
// Connections come from the kernel's connection tracking: from its events for begun and ended ones, and from its table,
// read once per interval. Denied packets come from the log of policies, a sample. The model names the deciding policy,
// as in `node policy explain`: packets carry no mark, and no rule is added. The package's memory and processor time are
// bounded, whatever pods do.
package flows
