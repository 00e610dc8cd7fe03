package api

// BGPFilter selects the routes that a node accepts from BGP peers and announces to them. A BGPPeer names its filters.
type BGPFilter struct {
	Meta `json:"metadata"`
	Spec BGPFilterSpec `json:"spec"`
}

// BGPFilterSpec is the content of a BGPFilter: a list of rules for each direction and family. The first rule that
// matches a route decides; a route that none matches is left to the next filter of the peer, and in the end to the
// agent's own rules.
type BGPFilterSpec struct {
	// ExportV4 is for IPv4 routes that are announced to a peer.
	// +tortie:v3:rule:rule="self.all(r, !has(r.prefixLength) || (!has(r.prefixLength.min) || r.prefixLength.min <= 32) && (!has(r.prefixLength.max) || r.prefixLength.max <= 32))",message="the prefixes of IPv4 have 32 bits: set min and max of prefixLength to 32 at most"
	ExportV4 []BGPFilterRule `json:"exportV4,omitempty"`
	// ImportV4 is for IPv4 routes that a peer announces.
	// +tortie:v3:rule:rule="self.all(r, !has(r.prefixLength) || (!has(r.prefixLength.min) || r.prefixLength.min <= 32) && (!has(r.prefixLength.max) || r.prefixLength.max <= 32))",message="the prefixes of IPv4 have 32 bits: set min and max of prefixLength to 32 at most"
	ImportV4 []BGPFilterRule `json:"importV4,omitempty"`
	// ExportV6 is for IPv6 routes that are announced to a peer.
	ExportV6 []BGPFilterRule `json:"exportV6,omitempty"`
	// ImportV6 is for IPv6 routes that a peer announces.
	ImportV6 []BGPFilterRule `json:"importV6,omitempty"`
}

// BGPFilterRule decides on the routes that match all of its conditions; a rule without conditions matches every route.
//
// +mapType=atomic
// +kubebuilder:validation:XValidation:rule="(has(self.cidr) && size(self.cidr) > 0) == (has(self.matchOperator) && size(self.matchOperator) > 0)",message="cidr and matchOperator belong together: set both or none"
// +kubebuilder:validation:XValidation:rule="!has(self.prefixLength) || (has(self.cidr) && size(self.cidr) > 0)",message="prefixLength needs a cidr"
// +kubebuilder:validation:XValidation:rule="!has(self.operations) || size(self.operations) == 0 || self.action == 'Accept'",message="operations are for action Accept only"
type BGPFilterRule struct {
	// CIDR is compared with the route's prefix by matchOperator.
	// +kubebuilder:validation:MaxLength=43
	// +tortie:v3:schema=`{"format":"cidr","maxLength":49}`
	CIDR string `json:"cidr,omitempty"`
	// PrefixLength bounds the length of prefixes that are In the cidr.
	PrefixLength *BGPFilterPrefixLength `json:"prefixLength,omitempty"`
	// MatchOperator is Equal, or In, for the cidr or a part of it; NotEqual and NotIn are their opposites.
	MatchOperator BGPFilterOperator `json:"matchOperator,omitempty"`
	// Source RemotePeers restricts the rule to routes that were learned by BGP.
	// +kubebuilder:validation:Enum=RemotePeers
	Source string `json:"source,omitempty"`
	// Interface restricts the rule to routes that lead through an interface of this name, with * for any text.
	// +kubebuilder:validation:MaxLength=15
	Interface string `json:"interface,omitempty"`
	// PeerType restricts the rule to peers of another (eBGP) or the same (iBGP) autonomous system.
	// +kubebuilder:validation:Enum=eBGP;iBGP
	PeerType string `json:"peerType,omitempty"`
	// Communities restricts the rule to routes that have a community.
	Communities *BGPFilterCommunities `json:"communities,omitempty"`
	// ASPathPrefix restricts the rule to routes with an AS path that begins with these numbers.
	// +kubebuilder:validation:items:Minimum=1
	// +kubebuilder:validation:items:Maximum=4294967295
	// +kubebuilder:validation:items:Format=int64
	ASPathPrefix []uint32 `json:"asPathPrefix,omitempty"`
	// Priority restricts the rule to routes of this priority: the metric of their kernel route, 1024 normally.
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=2147483646
	Priority *int `json:"priority,omitempty"`
	// Action accepts or rejects the route: Accept or Reject.
	// +kubebuilder:validation:Enum=Accept;Reject
	Action string `json:"action"`
	// Operations change a route that is accepted, in their order.
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=10
	Operations []BGPFilterOperation `json:"operations,omitempty"`
}

// BGPFilterOperator compares a prefix with a CIDR.
//
// +kubebuilder:validation:Enum=Equal;NotEqual;In;NotIn
type BGPFilterOperator string

// The operators of a rule.
const (
	FilterEqual    BGPFilterOperator = "Equal"
	FilterNotEqual BGPFilterOperator = "NotEqual"
	FilterIn       BGPFilterOperator = "In"
	FilterNotIn    BGPFilterOperator = "NotIn"
)

// Values of a rule.
const (
	FilterAccept      = "Accept"
	FilterReject      = "Reject"
	FilterRemotePeers = "RemotePeers"
	FilterEBGP        = "eBGP"
	FilterIBGP        = "iBGP"
)

// BGPFilterPrefixLength is a range of prefix lengths, with both ends.
//
// +mapType=atomic
type BGPFilterPrefixLength struct {
	// Min is the shortest; absent means the length of the cidr.
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=128
	Min *int32 `json:"min,omitempty"`
	// Max is the longest; absent means 32, or 128 for IPv6.
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=128
	Max *int32 `json:"max,omitempty"`
}

// BGPFilterCommunities names the community that a route must have.
//
// +mapType=atomic
type BGPFilterCommunities struct {
	// Values has one community: two numbers up to 65535, or three up to 4294967295 (a large one), with colons between
	// them.
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=1
	// +tortie:v3:schema=`{"items":{"pattern":"^(([0-9]{1,4}|[1-5][0-9]{4}|6[0-4][0-9]{3}|65[0-4][0-9]{2}|655[0-2][0-9]|6553[0-5]):([0-9]{1,4}|[1-5][0-9]{4}|6[0-4][0-9]{3}|65[0-4][0-9]{2}|655[0-2][0-9]|6553[0-5])|([0-9]{1,9}|[1-3][0-9]{9}|4[01][0-9]{8}|42[0-8][0-9]{7}|429[0-3][0-9]{6}|4294[0-8][0-9]{5}|42949[0-5][0-9]{4}|429496[0-6][0-9]{3}|4294967[01][0-9]{2}|42949672[0-8][0-9]|429496729[0-5]):([0-9]{1,9}|[1-3][0-9]{9}|4[01][0-9]{8}|42[0-8][0-9]{7}|429[0-3][0-9]{6}|4294[0-8][0-9]{5}|42949[0-5][0-9]{4}|429496[0-6][0-9]{3}|4294967[01][0-9]{2}|42949672[0-8][0-9]|429496729[0-5]):([0-9]{1,9}|[1-3][0-9]{9}|4[01][0-9]{8}|42[0-8][0-9]{7}|429[0-3][0-9]{6}|4294[0-8][0-9]{5}|42949[0-5][0-9]{4}|429496[0-6][0-9]{3}|4294967[01][0-9]{2}|42949672[0-8][0-9]|429496729[0-5]))$"}}`
	Values []string `json:"values"`
}

// BGPFilterOperation is one change of a route.
//
// +mapType=atomic
// +kubebuilder:validation:XValidation:rule="(has(self.addCommunity) ? 1 : 0) + (has(self.prependASPath) ? 1 : 0) + (has(self.setPriority) ? 1 : 0) == 1",message="an operation is exactly one of addCommunity, prependASPath and setPriority"
type BGPFilterOperation struct {
	// AddCommunity adds a community.
	AddCommunity *BGPFilterAddCommunity `json:"addCommunity,omitempty"`
	// PrependASPath puts AS numbers before the route's AS path.
	PrependASPath *BGPFilterPrependASPath `json:"prependASPath,omitempty"`
	// SetPriority sets the route's priority.
	SetPriority *BGPFilterSetPriority `json:"setPriority,omitempty"`
}

// BGPFilterAddCommunity adds a community.
//
// +mapType=atomic
type BGPFilterAddCommunity struct {
	// Value is the community.
	// +kubebuilder:validation:MaxLength=32
	// +tortie:v3:schema=`{"pattern":"^(([0-9]{1,4}|[1-5][0-9]{4}|6[0-4][0-9]{3}|65[0-4][0-9]{2}|655[0-2][0-9]|6553[0-5]):([0-9]{1,4}|[1-5][0-9]{4}|6[0-4][0-9]{3}|65[0-4][0-9]{2}|655[0-2][0-9]|6553[0-5])|([0-9]{1,9}|[1-3][0-9]{9}|4[01][0-9]{8}|42[0-8][0-9]{7}|429[0-3][0-9]{6}|4294[0-8][0-9]{5}|42949[0-5][0-9]{4}|429496[0-6][0-9]{3}|4294967[01][0-9]{2}|42949672[0-8][0-9]|429496729[0-5]):([0-9]{1,9}|[1-3][0-9]{9}|4[01][0-9]{8}|42[0-8][0-9]{7}|429[0-3][0-9]{6}|4294[0-8][0-9]{5}|42949[0-5][0-9]{4}|429496[0-6][0-9]{3}|4294967[01][0-9]{2}|42949672[0-8][0-9]|429496729[0-5]):([0-9]{1,9}|[1-3][0-9]{9}|4[01][0-9]{8}|42[0-8][0-9]{7}|429[0-3][0-9]{6}|4294[0-8][0-9]{5}|42949[0-5][0-9]{4}|429496[0-6][0-9]{3}|4294967[01][0-9]{2}|42949672[0-8][0-9]|429496729[0-5]))$"}`
	Value string `json:"value"`
}

// BGPFilterPrependASPath puts AS numbers before an AS path.
//
// +mapType=atomic
type BGPFilterPrependASPath struct {
	// Prefix is the numbers, in the order in which the path then has them.
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=10
	// +kubebuilder:validation:items:Minimum=1
	// +kubebuilder:validation:items:Maximum=4294967295
	// +kubebuilder:validation:items:Format=int64
	Prefix []uint32 `json:"prefix"`
}

// BGPFilterSetPriority sets a route's priority.
//
// +mapType=atomic
type BGPFilterSetPriority struct {
	// Value is the metric that a kernel route gets: the lower, the better.
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=2147483646
	Value int `json:"value"`
}

// ResourceType implements Resource.
func (*BGPFilter) ResourceType() Type { return custom("BGPFilter", "bgpfilters") }
