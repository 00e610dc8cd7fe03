package api

import (
	"net/netip"
	"slices"
)

// ClusterInformation is the object "default"; its datastoreReady locks the datastore.
//
// +tortie:v3:column:name="Version",type=string,JSONPath=`.spec.calicoVersion`
// +tortie:v3:column:name="Ready",type=boolean,JSONPath=`.spec.datastoreReady`
// +tortie:v3:column:name="Types",type=string,JSONPath=`.spec.clusterType`
type ClusterInformation struct {
	Meta `json:"metadata"`
	Spec ClusterInformationSpec `json:"spec"`
}

// ClusterInformationSpec is the content of a ClusterInformation.
//
// Fields that a newer Calico adds are kept, not pruned: Calico nodes may share the cluster.
//
// +kubebuilder:pruning:PreserveUnknownFields
type ClusterInformationSpec struct {
	// CalicoVersion is the version of Calico that wrote last. Tortie never writes it: calicoctl refuses a version not its
	// own.
	CalicoVersion string `json:"calicoVersion,omitempty"`
	// ClusterGUID identifies the cluster: 32 hexadecimal digits.
	ClusterGUID string `json:"clusterGUID,omitempty"`
	// ClusterType is a comma-separated list of the cluster's components.
	ClusterType string `json:"clusterType,omitempty"`
	// DatastoreReady false stops all CNI ADD and DEL, for a migration of the datastore.
	DatastoreReady *bool `json:"datastoreReady,omitempty"`
	// Variant is the product variant of Calico.
	Variant string `json:"variant,omitempty"`
}

// ResourceType implements Resource.
func (*ClusterInformation) ResourceType() Type {
	return custom("ClusterInformation", "clusterinformations")
}

// Node is the part of a Kubernetes Node that this project reads.
type Node struct {
	Meta   `json:"metadata"`
	Spec   NodeSpec   `json:"spec"`
	Status NodeStatus `json:"status"`
}

// InternalIPs returns the valid addresses of type InternalIP in the status.
func (n *Node) InternalIPs() (addrs []netip.Addr) {
	for _, a := range n.Status.Addresses {
		if addr, err := netip.ParseAddr(a.Address); err == nil && a.Type == "InternalIP" {
			addrs = append(addrs, addr)
		}
	}
	return addrs
}

// NodeSpec is the part of a Node's spec that this project reads.
type NodeSpec struct {
	PodCIDRs []string `json:"podCIDRs,omitempty"`
	// Unschedulable is true on a cordoned node.
	Unschedulable bool    `json:"unschedulable,omitempty"`
	Taints        []Taint `json:"taints,omitempty"`
}

// Taint keeps pods off a Node, or announces a change of it.
type Taint struct {
	Key    string `json:"key"`
	Effect string `json:"effect,omitempty"`
}

// NodeStatus is the part of a Node's status that this project reads.
type NodeStatus struct {
	Addresses  []NodeAddress   `json:"addresses,omitempty"`
	Conditions []NodeCondition `json:"conditions,omitempty"`
}

// NodeCondition is one condition of a Node.
type NodeCondition struct {
	Type               string `json:"type"`
	Status             string `json:"status"`
	Reason             string `json:"reason,omitempty"`
	Message            string `json:"message,omitempty"`
	LastHeartbeatTime  string `json:"lastHeartbeatTime,omitempty"`
	LastTransitionTime string `json:"lastTransitionTime,omitempty"`
}

// The types of Node conditions: NetworkUnavailable keeps pods off a node until its network is set up, NodeReady is the
// kubelet's heartbeat.
const (
	NetworkUnavailable = "NetworkUnavailable"
	NodeReady          = "Ready"
)

// NodeAddress is one address of a Node; Type is InternalIP, ExternalIP, Hostname and so on.
type NodeAddress struct {
	Type    string `json:"type"`
	Address string `json:"address"`
}

// ResourceType implements Resource.
func (*Node) ResourceType() Type { return Type{Version: "v1", Kind: "Node", Plural: "nodes"} }

// The annotations in which Calico keeps its part of a Node.
const (
	AnnotationIPv4Address    = "projectcalico.org/IPv4Address"
	AnnotationIPv6Address    = "projectcalico.org/IPv6Address"
	AnnotationASNumber       = "projectcalico.org/ASNumber"
	AnnotationIPv4TunnelAddr = "projectcalico.org/IPv4IPIPTunnelAddr"
	AnnotationInterfaces     = "projectcalico.org/Interfaces"
	// The VXLAN tunnel endpoints: addresses of vxlan.calico and vxlan-v6.calico, and their MACs, which are derived from
	// the Node's name if these are empty.
	AnnotationIPv4VXLANAddr = "projectcalico.org/IPv4VXLANTunnelAddr"
	AnnotationIPv6VXLANAddr = "projectcalico.org/IPv6VXLANTunnelAddr"
	AnnotationVXLANMAC      = "projectcalico.org/VXLANTunnelMACAddr"
	AnnotationVXLANMACv6    = "projectcalico.org/VXLANTunnelMACAddrV6"
	// Public keys for WireGuard, and the addresses of its devices.
	AnnotationWireGuardKey   = "projectcalico.org/WireguardPublicKey"
	AnnotationWireGuardKeyV6 = "projectcalico.org/WireguardPublicKeyV6"
	AnnotationIPv4WireGuard  = "projectcalico.org/IPv4WireguardInterfaceAddr"
	AnnotationIPv6WireGuard  = "projectcalico.org/IPv6WireguardInterfaceAddr"
	// AnnotationReflector marks a route reflector, by its cluster ID. It takes no part in the mesh.
	AnnotationReflector = "projectcalico.org/RouteReflectorClusterID"
	// AnnotationLabels has labels that only Calico's selectors see, as a JSON object.
	AnnotationLabels = "projectcalico.org/labels"
)

// TunnelAddresses are the annotations with the addresses of a Node's tunnel devices.
var TunnelAddresses = []string{AnnotationIPv4TunnelAddr, AnnotationIPv4VXLANAddr, AnnotationIPv6VXLANAddr,
	AnnotationIPv4WireGuard, AnnotationIPv6WireGuard}

// Annotations and labels of this project on Nodes: agents write them, or others for them.
const (
	// AnnotationReflection served agents up to 0.1 to agree on route reflectors. Agents remove it from their own Nodes.
	AnnotationReflection = "tortie.io/reflection"
	// AnnotationWireGuardNextKey is the node's next public key, or its present one. While it differs from the annotation
	// WireguardPublicKey the node changes its key. A node without it takes no part in that.
	AnnotationWireGuardNextKey   = "tortie.io/wireguard-next-key"
	AnnotationWireGuardNextKeyV6 = "tortie.io/wireguard-next-key-v6"
	// NoReflector, as an annotation or a label, excludes a node from route reflection.
	NoReflector = "tortie.io/no-reflector"
	// LabelReflector marks Nodes that kube-controllers has made route reflectors. The API server's NodeRestriction denies
	// kubelets to write labels of this domain.
	LabelReflector = RestrictedDomain + "/route-reflector"
	// RestrictedDomain is a domain of labels that kubelets may not write.
	RestrictedDomain = "tortie.node-restriction.kubernetes.io"
	// LabelZone is the zone of a Node.
	LabelZone = "topology.kubernetes.io/zone"
)

// Pod is the part of a Kubernetes Pod that this project reads.
type Pod struct {
	Meta   `json:"metadata"`
	Spec   PodSpec   `json:"spec"`
	Status PodStatus `json:"status"`
}

// PodSpec is the part of a Pod's spec that this project reads.
type PodSpec struct {
	NodeName           string      `json:"nodeName,omitempty"`
	HostNetwork        bool        `json:"hostNetwork,omitempty"`
	ServiceAccountName string      `json:"serviceAccountName,omitempty"`
	Containers         []Container `json:"containers,omitempty"`
	InitContainers     []Container `json:"initContainers,omitempty"`
}

// Container is the part of a Pod's container that this project reads.
type Container struct {
	Ports []ContainerPort `json:"ports,omitempty"`
}

// ContainerPort is a port that a container listens on.
type ContainerPort struct {
	Name          string `json:"name,omitempty"`
	Protocol      string `json:"protocol,omitempty"`
	ContainerPort uint16 `json:"containerPort,omitempty"`
	HostPort      uint16 `json:"hostPort,omitempty"`
	HostIP        string `json:"hostIP,omitempty"`
}

// PodStatus is the part of a Pod's status that this project reads.
type PodStatus struct {
	Phase  string  `json:"phase,omitempty"`
	PodIP  string  `json:"podIP,omitempty"`
	PodIPs []PodIP `json:"podIPs,omitempty"`
}

// PodIP is one address of a Pod.
type PodIP struct {
	IP string `json:"ip"`
}

// ResourceType implements Resource.
func (*Pod) ResourceType() Type {
	return Type{Version: "v1", Kind: "Pod", Plural: "pods", Namespaced: true}
}

// The annotations that the CNI plugin writes on a Pod. An empty podIP is Calico's sign that the address was released.
const (
	AnnotationPodIP       = "cni.projectcalico.org/podIP"
	AnnotationPodIPs      = "cni.projectcalico.org/podIPs"
	AnnotationContainerID = "cni.projectcalico.org/containerID"
)

// AnnotationMirrorPod marks Pods that the kubelet creates to show its static pods. Their UIDs differ from the static
// pods' UIDs, which the runtime receives.
const AnnotationMirrorPod = "kubernetes.io/config.mirror"

// The annotations by which a Pod or its Namespace steers address assignment.
const (
	AnnotationIPv4Pools  = "cni.projectcalico.org/ipv4pools"
	AnnotationIPv6Pools  = "cni.projectcalico.org/ipv6pools"
	AnnotationIPFamilies = "cni.projectcalico.org/ipFamilies"
)

// The annotations by which a Pod steers how it is connected.
const (
	AnnotationIPAddrs        = "cni.projectcalico.org/ipAddrs"
	AnnotationIPAddrsNoIPAM  = "cni.projectcalico.org/ipAddrsNoIpam"
	AnnotationFloatingIPs    = "cni.projectcalico.org/floatingIPs"
	AnnotationHwAddr         = "cni.projectcalico.org/hwAddr"
	AnnotationAllowedSources = "cni.projectcalico.org/allowedSourcePrefixes"
)

// ConnectionAnnotations are the annotations by which a Pod steers addresses and connection, in the order in which
// plugins read them.
var ConnectionAnnotations = []string{
	AnnotationIPv4Pools, AnnotationIPv6Pools, AnnotationIPFamilies,
	AnnotationIPAddrs, AnnotationIPAddrsNoIPAM, AnnotationFloatingIPs, AnnotationHwAddr, AnnotationAllowedSources,
}

// PlainPod reports whether a Pod has no ConnectionAnnotations and is not static: its name and UID are all that a plugin
// needs to connect it.
func PlainPod(annotations map[string]string) bool {
	_, static := annotations[AnnotationMirrorPod]
	return !static && !slices.ContainsFunc(ConnectionAnnotations, func(key string) bool { return annotations[key] != "" })
}

// Namespace is the part of a Kubernetes Namespace that this project reads.
type Namespace struct {
	Meta `json:"metadata"`
}

// ResourceType implements Resource.
func (*Namespace) ResourceType() Type {
	return Type{Version: "v1", Kind: "Namespace", Plural: "namespaces"}
}
