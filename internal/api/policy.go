package api

import "encoding/json"

// NetworkPolicy is the part of a Kubernetes NetworkPolicy that this project reads. Defaults of the API server may be
// missing, as in objects that never passed one.
type NetworkPolicy struct {
	Meta `json:"metadata"`
	Spec NetworkPolicySpec `json:"spec"`
}

// NetworkPolicySpec selects pods and lists the connections that the policy allows.
type NetworkPolicySpec struct {
	PodSelector LabelSelector              `json:"podSelector,omitempty"`
	Ingress     []NetworkPolicyIngressRule `json:"ingress,omitempty"`
	Egress      []NetworkPolicyEgressRule  `json:"egress,omitempty"`
	// PolicyTypes are the policy's directions; empty means Ingress, and Egress if there are egress rules.
	// +tortie:v3:schema=`{"x-kubernetes-list-type":"set","minItems":1,"maxItems":2}`
	PolicyTypes []string `json:"policyTypes,omitempty"`
	// Unreadable, if not empty, is why rules are missing: see Salvage.
	Unreadable string `json:"-"`
}

// Salvage reads the policy's pods and directions from an object that json.Unmarshal refuses with cause. If these cannot
// be read either they become the whole namespace and both directions. Metadata stays unchanged.
func (p *NetworkPolicy) Salvage(data []byte, cause error) {
	p.Spec = NetworkPolicySpec{
		PodSelector: specOf[struct{ PodSelector LabelSelector }](data).PodSelector,
		PolicyTypes: specOf[struct{ PolicyTypes []string }](data).PolicyTypes,
		Unreadable:  cause.Error(),
	}
	if len(p.Spec.PolicyTypes) == 0 {
		p.Spec.PolicyTypes = []string{PolicyTypeIngress, PolicyTypeEgress}
	}
}

// specOf reads some fields of an object's spec; it returns the zero value if one of them cannot be read.
func specOf[T any](data []byte) (parts T) {
	var object struct {
		Spec T `json:"spec"`
	}
	if json.Unmarshal(data, &object) != nil {
		return parts
	}
	return object.Spec
}

// NetworkPolicyIngressRule allows traffic from one of the peers to one of the ports; no peers or no ports means any.
type NetworkPolicyIngressRule struct {
	Ports []NetworkPolicyPort `json:"ports,omitempty"`
	From  []NetworkPolicyPeer `json:"from,omitempty"`
}

// NetworkPolicyEgressRule allows traffic to one of the peers at one of the ports; no peers or no ports means any.
type NetworkPolicyEgressRule struct {
	Ports []NetworkPolicyPort `json:"ports,omitempty"`
	To    []NetworkPolicyPeer `json:"to,omitempty"`
}

// NetworkPolicyPort is a port, a range of them, or every port of a protocol.
type NetworkPolicyPort struct {
	Protocol string       `json:"protocol,omitempty"` // empty: TCP
	Port     *IntOrString `json:"port,omitempty"`
	EndPort  *int32       `json:"endPort,omitempty"`
}

// NetworkPolicyPeer is an IPBlock, or pods by the two selectors.
type NetworkPolicyPeer struct {
	PodSelector       *LabelSelector `json:"podSelector,omitempty"`
	NamespaceSelector *LabelSelector `json:"namespaceSelector,omitempty"`
	IPBlock           *IPBlock       `json:"ipBlock,omitempty"`
}

// IPBlock is a CIDR without parts of it. Leading zeros and host bits are possible: the API server has accepted them.
type IPBlock struct {
	CIDR   string   `json:"cidr"`
	Except []string `json:"except,omitempty"`
}

// The directions of a NetworkPolicy, and the protocols of its ports.
const (
	PolicyTypeIngress = "Ingress"
	PolicyTypeEgress  = "Egress"

	ProtocolTCP  = "TCP"
	ProtocolUDP  = "UDP"
	ProtocolSCTP = "SCTP"
)

// ResourceType implements Resource.
func (*NetworkPolicy) ResourceType() Type {
	return Type{Group: "networking.k8s.io", Version: "v1", Kind: "NetworkPolicy", Plural: "networkpolicies", Namespaced: true}
}

// LabelSelector is Kubernetes' selector of labels: all of its parts must match. An empty one matches everything.
type LabelSelector struct {
	MatchLabels      map[string]string          `json:"matchLabels,omitempty"`
	MatchExpressions []LabelSelectorRequirement `json:"matchExpressions,omitempty"`
}

// LabelSelectorRequirement is a condition on one label.
type LabelSelectorRequirement struct {
	Key      string   `json:"key"`
	Operator string   `json:"operator"`
	Values   []string `json:"values,omitempty"`
}

// The operators of a LabelSelectorRequirement. NotIn and DoesNotExist match if the label is absent.
const (
	SelectorIn           = "In"
	SelectorNotIn        = "NotIn"
	SelectorExists       = "Exists"
	SelectorDoesNotExist = "DoesNotExist"
)

// IntOrString is a number, or a name if Name is not empty.
//
// +kubebuilder:validation:Type=string
// +kubebuilder:validation:XIntOrString
type IntOrString struct {
	Number int32
	Name   string
}

// UnmarshalJSON reads a number or a string.
func (v *IntOrString) UnmarshalJSON(data []byte) error {
	*v = IntOrString{}
	if len(data) > 0 && data[0] == '"' {
		return json.Unmarshal(data, &v.Name)
	}
	return json.Unmarshal(data, &v.Number)
}

// MarshalJSON writes a number or a string.
func (v IntOrString) MarshalJSON() ([]byte, error) {
	if v.Name != "" {
		return json.Marshal(v.Name)
	}
	return json.Marshal(v.Number)
}
