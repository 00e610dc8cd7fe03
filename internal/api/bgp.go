package api

import "strings"

// BGPConfiguration holds BGP settings: object "default" for the cluster, "node.NAME" for one node.
type BGPConfiguration struct {
	Meta `json:"metadata"`
	Spec BGPConfigurationSpec `json:"spec"`
}

// BGPConfigurationSpec is the content of a BGPConfiguration. Of node.NAME only listenPort, logSeverityScreen and
// prefixAdvertisements are read.
//
// Calico's other fields are kept, without effect.
//
// +tortie:v3:rule:rule="!has(self.nodeMeshPassword) || !has(self.nodeToNodeMeshEnabled) || self.nodeToNodeMeshEnabled",message="without the mesh there is no session for nodeMeshPassword: leave it out, or set nodeToNodeMeshEnabled to true",fieldPath=".nodeMeshPassword"
// +tortie:v3:rule:rule="!has(self.nodeMeshMaxRestartTime) || !has(self.nodeToNodeMeshEnabled) || self.nodeToNodeMeshEnabled",message="without the mesh there is no session for nodeMeshMaxRestartTime: leave it out, or set nodeToNodeMeshEnabled to true",fieldPath=".nodeMeshMaxRestartTime"
// +tortie:v3:rule:rule="!has(self.communities) || size(self.communities) == 0 || has(self.prefixAdvertisements) && size(self.prefixAdvertisements) > 0",message="no prefixAdvertisements use the communities: add these, or leave communities out",fieldPath=".communities"
type BGPConfigurationSpec struct {
	// Keys are the fields without effect.
	Keys Keys `json:"-"`
	// LogSeverityScreen is kept for Calico nodes that share the cluster.
	// +tortie:v3:schema=`{"default":"Info","pattern":"^(?i)(Trace|Debug|Info|Warning|Error|Fatal)?$"}`
	LogSeverityScreen string `json:"logSeverityScreen,omitempty"`
	// NodeToNodeMeshEnabled makes every node a peer of every other; absent means true.
	NodeToNodeMeshEnabled *bool `json:"nodeToNodeMeshEnabled,omitempty"`
	// ASNumber is the nodes' autonomous system; absent means 64512.
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=4294967295
	// +kubebuilder:validation:Format=int64
	ASNumber *uint32 `json:"asNumber,omitempty"`
	// ListenPort is the TCP port of BGP; absent means 179.
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=65535
	ListenPort uint16 `json:"listenPort,omitempty"`
	// BindMode None makes BGP listen on all addresses; NodeIP, Tortie's default, on the node's address only.
	// +kubebuilder:validation:Enum=None;NodeIP
	BindMode string `json:"bindMode,omitempty"`
	// IgnoredInterfaces are interfaces, with * for any text, for which Calico nodes announce no networks. Tortie announces
	// no interface's networks.
	// +tortie:v3:schema=`{"x-kubernetes-list-type":"set"}`
	IgnoredInterfaces []string `json:"ignoredInterfaces,omitempty"`
	// NodeMeshPassword is the TCP MD5 password of the sessions between nodes; absent means none.
	NodeMeshPassword *BGPPassword `json:"nodeMeshPassword,omitempty"`
	// NodeMeshMaxRestartTime is how long nodes keep each other's routes over a restart, such as 120s.
	NodeMeshMaxRestartTime string `json:"nodeMeshMaxRestartTime,omitempty"`
	// Communities give names to communities.
	// +tortie:v3:schema=`{"x-kubernetes-list-type":"set"}`
	Communities []Community `json:"communities,omitempty"`
	// PrefixAdvertisements add communities to announced prefixes.
	// +tortie:v3:schema=`{"x-kubernetes-list-type":"set"}`
	PrefixAdvertisements []PrefixAdvertisement `json:"prefixAdvertisements,omitempty"`
	// ServiceClusterIPs are the ranges of Services' cluster IPs that are announced.
	// +tortie:v3:schema=`{"x-kubernetes-list-type":"set"}`
	ServiceClusterIPs []ServiceRange `json:"serviceClusterIPs,omitempty"`
	// ServiceExternalIPs are the ranges of Services' external IPs that are announced.
	// +tortie:v3:schema=`{"x-kubernetes-list-type":"set"}`
	ServiceExternalIPs []ServiceRange `json:"serviceExternalIPs,omitempty"`
	// ServiceLoadBalancerIPs are the ranges of Services' load balancer IPs that are announced.
	// +tortie:v3:schema=`{"x-kubernetes-list-type":"set"}`
	ServiceLoadBalancerIPs []ServiceRange `json:"serviceLoadBalancerIPs,omitempty"`
	// ServiceLoadBalancerAggregation Disabled announces the load balancer IPs that are in use one by one; the default,
	// Enabled, announces their whole ranges.
	// +kubebuilder:validation:Enum=Enabled;Disabled
	// +tortie:v3:schema=`{"default":"Enabled"}`
	ServiceLoadBalancerAggregation string `json:"serviceLoadBalancerAggregation,omitempty"`
	// IPv4NormalRoutePriority is the metric of IPv4 routes that BGP has learned; absent means 1024.
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=2147483646
	IPv4NormalRoutePriority *int `json:"ipv4NormalRoutePriority,omitempty"`
	// IPv6NormalRoutePriority is the metric of IPv6 routes that BGP has learned; absent means 1024.
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=2147483646
	IPv6NormalRoutePriority *int `json:"ipv6NormalRoutePriority,omitempty"`
}

// Community gives a name to a BGP community.
//
// +tortie:v3:schema=`{"x-kubernetes-map-type":"atomic"}`
type Community struct {
	// Name is the name for prefixAdvertisements.
	Name string `json:"name,omitempty"`
	// Value is the community: two numbers up to 65535, or three up to 4294967295 (a large one), with colons between them.
	// +tortie:v3:schema=`{"pattern":"^[0-9]+:[0-9]+(:[0-9]+)?$"}`
	Value string `json:"value,omitempty"`
}

// PrefixAdvertisement adds communities to the prefixes in a range.
//
// +tortie:v3:schema=`{"x-kubernetes-map-type":"atomic"}`
type PrefixAdvertisement struct {
	// CIDR is the range.
	// +tortie:v3:schema=`{"format":"cidr"}`
	CIDR string `json:"cidr,omitempty"`
	// Communities are values, or names that communities gives.
	Communities []string `json:"communities,omitempty"`
}

// ServiceRange is a range of Services' addresses.
//
// +tortie:v3:schema=`{"x-kubernetes-map-type":"atomic"}`
type ServiceRange struct {
	// +tortie:v3:schema=`{"format":"cidr"}`
	CIDR string `json:"cidr,omitempty"`
}

// BGPPassword refers to a password.
type BGPPassword struct {
	// SecretKeyRef names a Secret in the agent's namespace, and the key in it.
	SecretKeyRef *SecretKeyRef `json:"secretKeyRef,omitempty"`
}

// SecretKeyRef names one key of a Secret.
//
// +tortie:v3:schema=`{"x-kubernetes-map-type":"atomic"}`
type SecretKeyRef struct {
	// +tortie:v3:schema=`{"default":""}`
	Name string `json:"name,omitempty"`
	Key  string `json:"key"`
	// Optional makes an absent Secret or key mean no password, instead of an error.
	Optional *bool `json:"optional,omitempty"`
}

// Place is a comparable SecretKeyRef: the place of a password or of TCP-AO keys, and whether it may be absent.
type Place struct {
	Name, Key string
	Optional  bool
	TCPAO     bool
}

// Place returns the place of the password; ok is false if none is configured.
func (p *BGPPassword) Place() (place Place, ok bool) {
	if p == nil || p.SecretKeyRef == nil {
		return Place{}, false
	}
	ref := p.SecretKeyRef
	return Place{Name: ref.Name, Key: ref.Key, Optional: ref.Optional != nil && *ref.Optional}, true
}

// ResourceType implements Resource.
func (*BGPConfiguration) ResourceType() Type { return custom("BGPConfiguration", "bgpconfigurations") }

// BGPPeer is a BGP peer of nodes, or several peers: other nodes.
//
// +kubebuilder:printcolumn:name="Peer",type=string,JSONPath=`.spec.peerIP`
// +kubebuilder:printcolumn:name="AS",type=integer,JSONPath=`.spec.asNumber`
// +kubebuilder:printcolumn:name="Selector",type=string,JSONPath=`.spec.peerSelector`
// +kubebuilder:printcolumn:name="Node",type=string,JSONPath=`.spec.node`
// +kubebuilder:printcolumn:name="Nodes",type=string,JSONPath=`.spec.nodeSelector`
// +tortie:v3:column:name="Node Selector",type=string,JSONPath=`.spec.nodeSelector`
// +tortie:v3:column:name="Node",type=string,JSONPath=`.spec.node`
// +tortie:v3:column:name="Local ASN",type=integer,JSONPath=`.spec.localASNumber`
// +tortie:v3:column:name="Peer Selector",type=string,JSONPath=`.spec.peerSelector`
// +tortie:v3:column:name="Peer IP",type=string,JSONPath=`.spec.peerIP`
// +tortie:v3:column:name="Peer ASN",type=integer,JSONPath=`.spec.asNumber`
type BGPPeer struct {
	Meta `json:"metadata"`
	Spec BGPPeerSpec `json:"spec"`
}

// AnnotationBFD configures BFD on a BGPPeer, or on BGPConfiguration default for the mesh, in the form of package bfd.
// Calico has no such field, and the API server drops unknown fields of a spec.
const AnnotationBFD = "tortie.io/bfd"

// AnnotationTCPAO on a BGPPeer names, as SECRET/KEY, a Secret in the agent's namespace and a key in it. The value holds
// TCP-AO keys in the form of package tcpao. It is not in spec.password: Calico's nodes would take it for a TCP MD5
// password, and BIRD refuses a configuration with one this long.
const AnnotationTCPAO = "tortie.io/tcp-ao"

// TCPAOPlace returns the place of TCP-AO keys; ok is false unless the annotation has the form SECRET/KEY.
func TCPAOPlace(annotation string) (place Place, ok bool) {
	name, key, _ := strings.Cut(annotation, "/")
	return Place{Name: name, Key: key, TCPAO: true}, name != "" && key != ""
}

// AnnotationAggregate on a BGPPeer requests larger prefixes in place of blocks. It is an annotation for the reasons of
// AnnotationBFD; peering.Aggregation has its values.
const AnnotationAggregate = "tortie.io/aggregate"

// ReflectorsPeer is the BGPPeer by which all nodes have sessions with the route reflectors of kube-controllers.
const ReflectorsPeer = "tortie-reflectors"

// AnnotationReflectors marks objects of kube-controllers' route reflectors. On BGPPeer ReflectorsPeer it is the time of
// their last change; without it the object belongs to another writer. On BGPConfiguration default it records that the
// mesh is off because of the reflectors.
const AnnotationReflectors = "tortie.io/reflectors"

// BGPPeerSpec is the content of a BGPPeer.
//
// +tortie:v3:rule:rule="(!has(self.node) || size(self.node) == 0) || (!has(self.nodeSelector) || size(self.nodeSelector) == 0)",message="node and nodeSelector exclude one another: set one of the two",fieldPath=".nodeSelector"
// +tortie:v3:rule:rule="(!has(self.peerIP) || size(self.peerIP) == 0) || (!has(self.peerSelector) || size(self.peerSelector) == 0)",message="peerIP and peerSelector exclude one another: set one of the two",fieldPath=".peerSelector"
// +tortie:v3:rule:rule="(!has(self.peerSelector) || size(self.peerSelector) == 0) || !(has(self.asNumber) && self.asNumber != 0)",message="the AS numbers of nodes are known: leave asNumber out, or peerSelector",fieldPath=".asNumber"
// +tortie:v3:rule:rule="(!has(self.localWorkloadSelector) || size(self.localWorkloadSelector) == 0) || has(self.asNumber) && self.asNumber != 0",message="localWorkloadSelector needs the AS number of the workloads: set asNumber",fieldPath=".asNumber"
// +tortie:v3:rule:rule="(!has(self.localWorkloadSelector) || size(self.localWorkloadSelector) == 0) || (!has(self.peerIP) || size(self.peerIP) == 0)",message="peerIP and localWorkloadSelector exclude one another: set one of the two",fieldPath=".peerIP"
// +tortie:v3:rule:rule="(!has(self.localWorkloadSelector) || size(self.localWorkloadSelector) == 0) || (!has(self.peerSelector) || size(self.peerSelector) == 0)",message="peerSelector and localWorkloadSelector exclude one another: set one of the two",fieldPath=".peerSelector"
// +tortie:v3:rule:rule="(!has(self.reachableBy) || size(self.reachableBy) == 0) || has(self.peerIP) && size(self.peerIP) > 0",message="reachableBy is the gateway to peerIP: set peerIP, or leave reachableBy out",fieldPath=".reachableBy"
// +tortie:v3:rule:rule="!(has(self.keepOriginalNextHop) && self.keepOriginalNextHop) || !has(self.nextHopMode)",message="nextHopMode precedes keepOriginalNextHop: leave keepOriginalNextHop out",fieldPath=".keepOriginalNextHop"
// +tortie:v3:rule:rule="(!has(self.peerIP) || size(self.peerIP) == 0) || (self.peerIP.matches('^[0-9.]+:[0-9]{1,5}$') ? isIP(self.peerIP.split(':')[0]) && int(self.peerIP.split(':')[1]) >= 1 && int(self.peerIP.split(':')[1]) <= 65535 : self.peerIP.matches('^[[][0-9a-fA-F:.]+(%[^]]*)?[]]:[0-9]{1,5}$') ? isIP(self.peerIP.split(']:')[0].substring(1).split('%')[0]) && int(self.peerIP.split(']:')[1]) >= 1 && int(self.peerIP.split(']:')[1]) <= 65535 : isIP(self.peerIP.split('%')[0]))",message="peerIP is an address, with a port from 1 to 65535 if any: 10.0.0.1, 10.0.0.1:179, fd00::1 or [fd00::1]:179",fieldPath=".peerIP"
type BGPPeerSpec struct {
	// Keys are the fields without effect.
	Keys Keys `json:"-"`
	// Node is the node that has the session; neither node nor nodeSelector means all.
	Node string `json:"node,omitempty"`
	// NodeSelector selects the nodes that have the session, in Calico's selector language.
	NodeSelector string `json:"nodeSelector,omitempty"`
	// PeerIP is the peer's address, with its port if that is not the cluster's: 10.0.0.1, 10.0.0.1:1179 or [fd00::1]:1179.
	// A link-local address includes its interface: fe80::1%eth0. fe80::%eth0 is the router on the interface, found by its
	// router advertisements.
	PeerIP string `json:"peerIP,omitempty"`
	// PeerSelector selects nodes as the peers, instead of peerIP.
	PeerSelector string `json:"peerSelector,omitempty"`
	// LocalWorkloadSelector is kept for Calico nodes that share the cluster: Tortie has no sessions with pods.
	LocalWorkloadSelector string `json:"localWorkloadSelector,omitempty"`
	// ASNumber is the peer's autonomous system, which peerIP needs.
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=4294967295
	// +kubebuilder:validation:Format=int64
	ASNumber uint32 `json:"asNumber,omitempty"`
	// LocalASNumber is the autonomous system that the nodes show this peer instead of their own.
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=4294967295
	// +kubebuilder:validation:Format=int64
	LocalASNumber *uint32 `json:"localASNumber,omitempty"`
	// Filters are the names of BGPFilters, in the order of their evaluation.
	Filters []string `json:"filters,omitempty"`
	// NextHopMode selects the next hop that this node announces to the peer. Auto, the default, is this node on sessions
	// with another AS, else the learned next hop. Self is always this node; Keep is always the learned next hop.
	// +kubebuilder:validation:Enum=Auto;Self;Keep
	NextHopMode string `json:"nextHopMode,omitempty"`
	// KeepOriginalNextHop is the older form of nextHopMode Keep, and has an effect on sessions with another AS only.
	KeepOriginalNextHop bool `json:"keepOriginalNextHop,omitempty"`
	// Password is the TCP MD5 password of the session; absent means none.
	Password *BGPPassword `json:"password,omitempty"`
	// SourceAddress None leaves the session's own address to the kernel; the default is UseNodeIP.
	// +kubebuilder:validation:Enum=UseNodeIP;None
	SourceAddress string `json:"sourceAddress,omitempty"`
	// MaxRestartTime is how long the peer is asked to keep this node's routes over a restart, such as 120s.
	MaxRestartTime string `json:"maxRestartTime,omitempty"`
	// KeepaliveTime is the interval of keepalives; absent means a third of the hold time.
	KeepaliveTime string `json:"keepaliveTime,omitempty"`
	// NumAllowedLocalASNumbers is how often this node's own AS number may occur in the AS path of the peer's routes.
	// +tortie:v3:schema=`{"format":"int32"}`
	NumAllowedLocalASNumbers *int `json:"numAllowedLocalASNumbers,omitempty"`
	// TTLSecurity is the largest allowed distance of the peer in hops (RFC 5082); absent and 0 disable the check.
	TTLSecurity *int `json:"ttlSecurity,omitempty"`
	// ReachableBy is the gateway to the peer; the node makes a route by it.
	ReachableBy string `json:"reachableBy,omitempty"`
	// ReversePeering Manual requires separate objects for the sessions of the peers, if they are nodes; the default is
	// Auto.
	// +kubebuilder:validation:Enum=Auto;Manual
	ReversePeering string `json:"reversePeering,omitempty"`
}

// ResourceType implements Resource.
func (*BGPPeer) ResourceType() Type { return custom("BGPPeer", "bgppeers") }
