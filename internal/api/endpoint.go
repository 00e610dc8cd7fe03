package api

// WorkloadEndpoint is an interface of a container. It is an object of its own on etcd only: on Kubernetes it is the
// Pod.
type WorkloadEndpoint struct {
	Meta `json:"metadata"`
	Spec WorkloadEndpointSpec `json:"spec"`
}

// WorkloadEndpointSpec is the content of a WorkloadEndpoint.
type WorkloadEndpointSpec struct {
	// Orchestrator is k8s for pods and cni for containers that are no pods.
	Orchestrator string `json:"orchestrator,omitempty"`
	Workload     string `json:"workload,omitempty"`
	Node         string `json:"node,omitempty"`
	ContainerID  string `json:"containerID,omitempty"`
	Pod          string `json:"pod,omitempty"`
	// Endpoint is the name of the interface in the container.
	Endpoint           string `json:"endpoint,omitempty"`
	ServiceAccountName string `json:"serviceAccountName,omitempty"`
	// IPNetworks are the addresses, each as a CIDR of its full length.
	IPNetworks  []string      `json:"ipNetworks,omitempty"`
	IPNATs      []EndpointNAT `json:"ipNATs,omitempty"`
	IPv4Gateway string        `json:"ipv4Gateway,omitempty"`
	IPv6Gateway string        `json:"ipv6Gateway,omitempty"`
	// Profiles are applied after policy, in this order.
	Profiles []string `json:"profiles,omitempty"`
	// InterfaceName is the name of the interface on the host.
	InterfaceName string         `json:"interfaceName,omitempty"`
	MAC           string         `json:"mac,omitempty"`
	Ports         []EndpointPort `json:"ports,omitempty"`
	// AllowSpoofedSourcePrefixes are CIDRs that the container may send from besides its addresses.
	AllowSpoofedSourcePrefixes []string `json:"allowSpoofedSourcePrefixes,omitempty"`
}

// EndpointPort is a port of a container that has a name or a port of the host.
type EndpointPort struct {
	Name     string `json:"name"`
	Protocol string `json:"protocol"`
	Port     uint16 `json:"port"`
	HostPort uint16 `json:"hostPort"`
	HostIP   string `json:"hostIP"`
}

// EndpointNAT maps an external address to one of the container's.
type EndpointNAT struct {
	InternalIP string `json:"internalIP"`
	ExternalIP string `json:"externalIP"`
}

// ResourceType implements Resource.
func (*WorkloadEndpoint) ResourceType() Type {
	return Type{Group: groupV3, Version: "v3", Kind: "WorkloadEndpoint", Plural: "workloadendpoints", Namespaced: true}
}

// WorkloadEndpointList is a list of WorkloadEndpoints.
type WorkloadEndpointList = List[WorkloadEndpoint, *WorkloadEndpoint]

// Profile is rules for endpoints that name it, and labels that they inherit. It is an object of its own on etcd only.
type Profile struct {
	Meta `json:"metadata"`
	Spec ProfileSpec `json:"spec"`
}

// ProfileSpec is the content of a Profile.
type ProfileSpec struct {
	Ingress       []Rule            `json:"ingress,omitempty"`
	Egress        []Rule            `json:"egress,omitempty"`
	LabelsToApply map[string]string `json:"labelsToApply,omitempty"`
}

// Rule is the part of a rule that this project writes.
type Rule struct {
	Action      string     `json:"action"`
	Source      EntityRule `json:"source"`
	Destination EntityRule `json:"destination"`
}

// EntityRule selects the endpoints of one end of a Rule; empty means all.
type EntityRule struct {
	Selector string `json:"selector,omitempty"`
}

// ResourceType implements Resource.
func (*Profile) ResourceType() Type {
	return Type{Group: groupV3, Version: "v3", Kind: "Profile", Plural: "profiles"}
}

// groupV3 is the API group of Calico's objects on etcd.
const groupV3 = "projectcalico.org"
