// Package policytest proves network policy. Cluster.Judge is a reference: it judges a packet straight from the text of
// the Kubernetes API, and from what Calico documents of its policies, slow and obvious. Generate makes clusters in
// which as much as possible overlaps, policies with every field and with invalid parts, and packets to and from the
// edges of all of that. Corpus has policies as tutorials teach them. Rig sends packets through a kernel that enforces a
// ruleset.
//
// The reference shares no code with internal/policy or the selectors of internal/api, only the types of internal/api.
package policytest
