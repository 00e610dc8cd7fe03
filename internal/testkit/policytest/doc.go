// Package policytest proves network policy. Cluster.Judge is a reference, slow and obvious: it judges a packet by the
// text of the Kubernetes API, and by Calico's documentation of its policies. Generator makes clusters with as much
// overlap as possible, policies with every field and with invalid parts, and packets to and from the edges of all of
// that. Corpus has policies from tutorials. Rig sends packets through a kernel that enforces a ruleset.
//
// The reference shares no code with internal/policy or the selectors of internal/api, only the types of internal/api.
package policytest
