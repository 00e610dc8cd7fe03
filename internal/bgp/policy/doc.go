// Package policy decides what becomes of a path that a peer announces, or that is announced to a peer, by Calico's
// BGPFilters, the communities of its prefixAdvertisements, and the rules for every peer. It is pure: paths go in,
// outcomes come out, and package wire writes them.
//
// Rules do what Calico's nodes have BIRD do. The first matching rule of a peer's filters decides, in the order in which
// the BGPPeer names the filters; a path that no rule matches is left to the built-in rules (Base). An export rule that
// accepts a path overrides the pools, and adds no communities of prefixAdvertisements, as in Calico. It cannot create a
// path: paths that this node neither originates nor has learned, such as the addresses of single pods in its blocks and
// its connected networks, are not offered to rules.
//
// A rule's priority is the metric of a kernel route, which Calico carries in LOCAL_PREF as 2147483647 less the metric.
// Other speakers receive it in this form. Among this node's paths it must be comparable with paths that have the usual
// LOCAL_PREF of 100, or none, which is a normal priority: Base.Import maps worse priorities below 100.
//
// Well-known communities:
//   - NO_ADVERTISE: a learned path is not passed on. NO_EXPORT and NO_EXPORT_SUBCONFED: not to another AS. No rule
//     overrides that, as in BIRD. Communities that rules and tags add are for other speakers, not for this node.
//   - GRACEFUL_SHUTDOWN (RFC 8326): a path from another AS gets the LOCAL_PREF 0, so that any other path is preferred,
//     unless a rule sets its priority.
//   - BLACKHOLE (RFC 7999) and NOPEER are passed on and otherwise ignored: dropping packets is configured on the node
//     that drops them.
package policy
