// Package flows records which connections of a node's pods are allowed and denied, by which policies, and what staged policies would have done.
//
// Connections come from the kernel's connection tracking: it tells which begin and end, and is asked for its table once in an interval. Denied packets
// come from the log of policies, a sample. Who has decided says the model, as `node policy explain` does: packets carry no mark, and no rule is
// added. What the package keeps is bounded, whatever pods do; so is its time of a processor.
package flows
