// Package policy decides what becomes of a path that a peer announces, or that is announced to a peer: Calico's
// BGPFilters, the communities of its prefixAdvertisements, and the rules that hold for every peer. It is pure: paths go
// in, outcomes come out, and package wire writes them.
//
// Rules are what Calico's nodes have BIRD do. Of a peer's filters, in the order in which the BGPPeer names them, the
// first rule that matches decides; a path that none matches is left to the built-in rules (Base). An export rule that
// accepts a path does so whatever the pools say, and without the communities of prefixAdvertisements, as in Calico. It
// cannot make up a path: what this node neither announces nor has learned, such as the addresses of single pods in its
// blocks and its connected networks, is not there to be accepted.
//
// A rule's priority is the metric of a kernel route, which Calico carries in LOCAL_PREF as 2147483647 less the metric.
// So it goes to others. Among the paths of this node it has to be comparable with those that have the usual LOCAL_PREF
// of 100, or none, which is a normal priority: Base.Import puts what is worse below that.
//
// Well-known communities:
//   - NO_ADVERTISE: a learned path is not passed on. NO_EXPORT and NO_EXPORT_SUBCONFED: not to another AS. No rule
//     undoes that, as in BIRD. Communities that rules and tags add count for others, not for this node.
//   - GRACEFUL_SHUTDOWN (RFC 8326): a path from another AS gets the LOCAL_PREF 0, so that any other path is preferred,
//     unless a rule sets its priority.
//   - BLACKHOLE (RFC 7999) and NOPEER are passed on and otherwise ignored: to drop packets is configured on the node
//     that drops them.
package policy
