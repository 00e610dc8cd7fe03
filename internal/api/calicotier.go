package api

// CalicoTier is Calico's Tier: a list of policies that decide before the policies of tiers with a higher order.
//
// +kubebuilder:printcolumn:name="Order",type=number,JSONPath=`.spec.order`
// +kubebuilder:printcolumn:name="Default",type=string,JSONPath=`.spec.defaultAction`
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`
// +kubebuilder:validation:XValidation:rule="!self.metadata.name.contains('.')",message="a tier's name has no dot: choose another"
// +kubebuilder:validation:XValidation:rule="self.metadata.name != 'default' || has(self.spec) && has(self.spec.order) && self.spec.order == 1000000.0",message="the order of tier default is 1000000: set spec.order to it"
// +kubebuilder:validation:XValidation:rule="self.metadata.name != 'default' || !has(self.spec) || !has(self.spec.defaultAction) || self.spec.defaultAction == 'Deny'",message="the defaultAction of tier default is Deny: set spec.defaultAction to it"
// +tortie:v3:column:name="Order",type=integer,JSONPath=`.spec.order`
// +tortie:v3:column:name="DefaultAction",type=string,JSONPath=`.spec.defaultAction`
// +tortie:v3:column:name="Status",type=string,JSONPath=`.status.conditions[?(@.type=='Ready')].reason`
// +tortie:v3:schema=`{"x-kubernetes-validations":null}`
// +tortie:v3:rule:rule="self.metadata.name != 'default' || has(self.spec.defaultAction) && self.spec.defaultAction == 'Deny'",message="the defaultAction of tier default is Deny: set it",fieldPath=".spec.defaultAction"
// +tortie:v3:rule:rule="self.metadata.name != 'kube-admin' || has(self.spec.defaultAction) && self.spec.defaultAction == 'Pass'",message="the defaultAction of tier kube-admin is Pass: set it",fieldPath=".spec.defaultAction"
// +tortie:v3:rule:rule="self.metadata.name != 'kube-baseline' || has(self.spec.defaultAction) && self.spec.defaultAction == 'Pass'",message="the defaultAction of tier kube-baseline is Pass: set it",fieldPath=".spec.defaultAction"
// +tortie:v3:rule:rule="self.metadata.name != 'default' || has(self.spec.order) && self.spec.order == 1000000.0",message="the order of tier default is 1000000: set it",fieldPath=".spec.order"
// +tortie:v3:rule:rule="self.metadata.name != 'kube-admin' || has(self.spec.order) && self.spec.order == 1000.0",message="the order of tier kube-admin is 1000: set it",fieldPath=".spec.order"
// +tortie:v3:rule:rule="self.metadata.name != 'kube-baseline' || has(self.spec.order) && self.spec.order == 10000000.0",message="the order of tier kube-baseline is 10000000: set it",fieldPath=".spec.order"
type CalicoTier struct {
	Meta `json:"metadata"`
	Spec CalicoTierSpec `json:"spec"`
	// Status exists in projectcalico.org/v3 only.
	Status *CalicoTierStatus `json:"status,omitempty"`
}

// CalicoTierStatus is a tier's state: Ready, or Terminating while policies name it. The tier controller writes it.
type CalicoTierStatus struct {
	Conditions []Condition `json:"conditions,omitempty"`
}

// CalicoTierSpec is the content of a CalicoTier.
type CalicoTierSpec struct {
	// Order is the tier's place: lower ones come first. Absent means last.
	Order *float64 `json:"order,omitempty"`
	// DefaultAction is the action for packets of endpoints that a policy of the tier selects, if no rule matches: Deny, or
	// Pass, to the next tier. Absent means Deny.
	// +kubebuilder:validation:Enum=Deny;Pass
	// +tortie:v3:schema=`{"default":"Deny"}`
	DefaultAction string `json:"defaultAction,omitempty"`
}

// CalicoNetworkSet is Calico's NetworkSet: networks with labels, in a namespace.
//
// +kubebuilder:printcolumn:name="Nets",type=string,priority=1,JSONPath=`.spec.nets`
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`
type CalicoNetworkSet struct {
	Meta `json:"metadata"`
	Spec CalicoNetworkSetSpec `json:"spec"`
}

// CalicoNetworkSetSpec is the content of a CalicoNetworkSet.
type CalicoNetworkSetSpec struct {
	// Nets are CIDRs or addresses.
	// +kubebuilder:validation:items:Pattern=`^[0-9a-fA-F:.]+(/[0-9]{1,3})?$`
	// +tortie:v3:schema=`{"x-kubernetes-list-type":"set","maxItems":100000,"items":{"maxLength":49}}`
	// +tortie:v3:rule:rule="self.all(n, isIP(n) || isCIDR(n))",message="one of the nets is no address and no CIDR: write each as 10.0.0.1, 10.0.0.0/8 or fd00::/8"
	Nets []string `json:"nets,omitempty"`
}

// CalicoGlobalNetworkSet is Calico's GlobalNetworkSet: networks with labels, in no namespace.
//
// +kubebuilder:printcolumn:name="Nets",type=string,priority=1,JSONPath=`.spec.nets`
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`
// +tortie:v3:column:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`
type CalicoGlobalNetworkSet struct {
	Meta `json:"metadata"`
	Spec CalicoGlobalNetworkSetSpec `json:"spec"`
}

// CalicoGlobalNetworkSetSpec is the content of a CalicoGlobalNetworkSet.
type CalicoGlobalNetworkSetSpec struct {
	// Nets are CIDRs or addresses.
	// +kubebuilder:validation:items:Pattern=`^[0-9a-fA-F:.]+(/[0-9]{1,3})?$`
	// +tortie:v3:schema=`{"x-kubernetes-list-type":"set","maxItems":100000,"items":{"maxLength":49}}`
	// +tortie:v3:rule:rule="self.all(n, isIP(n) || isCIDR(n))",message="one of the nets is no address and no CIDR: write each as 10.0.0.1, 10.0.0.0/8 or fd00::/8"
	Nets []string `json:"nets,omitempty"`
}

// CalicoHostEndpoint is Calico's HostEndpoint: interfaces of a node, or its addresses, with labels.
//
// +kubebuilder:printcolumn:name="Node",type=string,JSONPath=`.spec.node`
// +kubebuilder:printcolumn:name="Interface",type=string,JSONPath=`.spec.interfaceName`
// +kubebuilder:printcolumn:name="Addresses",type=string,JSONPath=`.spec.expectedIPs`
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`
// +tortie:v3:column:name="Node",type=string,JSONPath=`.spec.node`
// +tortie:v3:column:name="Interface",type=string,JSONPath=`.spec.interfaceName`
type CalicoHostEndpoint struct {
	Meta `json:"metadata"`
	Spec CalicoHostEndpointSpec `json:"spec"`
}

// CalicoHostEndpointSpec is the content of a CalicoHostEndpoint.
//
// +kubebuilder:validation:XValidation:rule="has(self.node) && size(self.node) > 0",message="node is missing: name the node"
// +kubebuilder:validation:XValidation:rule="has(self.interfaceName) && size(self.interfaceName) > 0 || has(self.expectedIPs) && size(self.expectedIPs) > 0",message="give interfaceName, which may be *, or expectedIPs"
type CalicoHostEndpointSpec struct {
	// Node is the node's name.
	Node string `json:"node,omitempty"`
	// InterfaceName is the interface, or * for all of the node's.
	// +kubebuilder:validation:Pattern=`^(\*|[a-zA-Z0-9_.-]{0,15})$`
	InterfaceName string `json:"interfaceName,omitempty"`
	// ExpectedIPs are the addresses that stand for the endpoint in rules. Without interfaceName they find the interface,
	// too.
	// +kubebuilder:validation:items:Pattern=`^[0-9a-fA-F:.]+$`
	// +tortie:v3:schema=`{"x-kubernetes-list-type":"set"}`
	ExpectedIPs []string `json:"expectedIPs,omitempty"`
	// Profiles are names of Profiles that decide where no policy does.
	// +tortie:v3:schema=`{"x-kubernetes-list-type":"set"}`
	Profiles []string `json:"profiles,omitempty"`
	// Ports give names to ports of the node.
	Ports []CalicoEndpointPort `json:"ports,omitempty"`
}

// CalicoEndpointPort gives a name to a port.
type CalicoEndpointPort struct {
	// Name is the name that rules use.
	// +kubebuilder:validation:Pattern=`^[a-zA-Z0-9_.-]{1,128}$`
	Name string `json:"name"`
	// Protocol is TCP, UDP, SCTP or a number.
	// +tortie:v3:schema=`{"enum":["TCP","UDP","SCTP",6,17,132]}`
	Protocol CalicoProtocol `json:"protocol"`
	// Port is the port's number.
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=65535
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
