package api

// CalicoTier is Calico's Tier: a list of policies that decide before those of tiers with a higher order.
type CalicoTier struct {
	Meta `json:"metadata"`
	Spec CalicoTierSpec `json:"spec"`
}

// CalicoTierSpec is the content of a CalicoTier.
type CalicoTierSpec struct {
	// Order is the tier's place: lower ones come first. Absent means last.
	Order *float64 `json:"order,omitempty"`
	// DefaultAction is what becomes of packets that a policy of the tier could have decided on and no rule matches: Deny, or Pass, to the next
	// tier. Absent means Deny.
	DefaultAction string `json:"defaultAction,omitempty"`
}

// CalicoNetworkSet is Calico's NetworkSet: networks with labels, in a namespace.
type CalicoNetworkSet struct {
	Meta `json:"metadata"`
	Spec CalicoNetworkSetSpec `json:"spec"`
}

// CalicoNetworkSetSpec is the content of a CalicoNetworkSet.
type CalicoNetworkSetSpec struct {
	// Nets are CIDRs or addresses.
	Nets []string `json:"nets,omitempty"`
}

// CalicoGlobalNetworkSet is Calico's GlobalNetworkSet: networks with labels, in no namespace.
type CalicoGlobalNetworkSet struct {
	Meta `json:"metadata"`
	Spec CalicoGlobalNetworkSetSpec `json:"spec"`
}

// CalicoGlobalNetworkSetSpec is the content of a CalicoGlobalNetworkSet.
type CalicoGlobalNetworkSetSpec struct {
	// Nets are CIDRs or addresses.
	Nets []string `json:"nets,omitempty"`
}

// CalicoHostEndpoint is Calico's HostEndpoint: interfaces of a node, or its addresses, with labels.
type CalicoHostEndpoint struct {
	Meta `json:"metadata"`
	Spec CalicoHostEndpointSpec `json:"spec"`
}

// CalicoHostEndpointSpec is the content of a CalicoHostEndpoint.
type CalicoHostEndpointSpec struct {
	// Node is the node's name.
	Node string `json:"node,omitempty"`
	// InterfaceName is the interface, or * for all of the node's.
	InterfaceName string `json:"interfaceName,omitempty"`
	// ExpectedIPs are the addresses that stand for the endpoint in rules. Without interfaceName they find the interface, too.
	ExpectedIPs []string `json:"expectedIPs,omitempty"`
	// Profiles are names of Profiles that decide where no policy does.
	Profiles []string `json:"profiles,omitempty"`
	// Ports give names to ports of the node.
	Ports []CalicoEndpointPort `json:"ports,omitempty"`
}

// CalicoEndpointPort gives a name to a port.
type CalicoEndpointPort struct {
	// Name is what rules use.
	Name string `json:"name"`
	// Protocol is TCP, UDP, SCTP or a number.
	Protocol CalicoProtocol `json:"protocol"`
	// Port is the port's number.
	Port int `json:"port"`
}

// ResourceType implements Resource.
func (*CalicoTier) ResourceType() Type { return custom("Tier", "tiers") }

// ResourceType implements Resource.
func (*CalicoNetworkSet) ResourceType() Type { return namespaced("NetworkSet", "networksets") }

// ResourceType implements Resource.
func (*CalicoGlobalNetworkSet) ResourceType() Type {
	return custom("GlobalNetworkSet", "globalnetworksets")
}

// ResourceType implements Resource.
func (*CalicoHostEndpoint) ResourceType() Type { return custom("HostEndpoint", "hostendpoints") }
