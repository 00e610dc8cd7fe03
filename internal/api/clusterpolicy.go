package api

import "encoding/json"

// ClusterNetworkPolicy is the part of a ClusterNetworkPolicy of Kubernetes' network policy group that this project
// reads. Fields of later versions are lost on reading: an object that lacks its required field, such as a peer without
// a selector, is of an unknown later kind.
type ClusterNetworkPolicy struct {
	// APIVersion is the group and version in which the object was read; "" for an object that was made here.
	APIVersion string `json:"apiVersion,omitempty"`

	Meta `json:"metadata"`
	Spec ClusterNetworkPolicySpec `json:"spec"`
}

// ClusterNetworkPolicySpec selects pods and decides on their connections: the first matching rule counts.
type ClusterNetworkPolicySpec struct {
	Tier string `json:"tier"`
	// Priority within the tier: lower ones come first.
	Priority int32                             `json:"priority"`
	Subject  ClusterNetworkPolicySubject       `json:"subject"`
	Ingress  []ClusterNetworkPolicyIngressRule `json:"ingress,omitempty"`
	Egress   []ClusterNetworkPolicyEgressRule  `json:"egress,omitempty"`
	// Unreadable, if not empty, is why rules are missing: see Salvage.
	Unreadable string `json:"-"`
}

// Salvage reads the policy's subject, tier and priority from an object that json.Unmarshal refuses with cause. A field
// of these that cannot be read is left empty. Metadata stays unchanged.
func (p *ClusterNetworkPolicy) Salvage(data []byte, cause error) {
	var only struct {
		APIVersion string `json:"apiVersion"`
	}
	_ = json.Unmarshal(data, &only) // it could be read as JSON before
	p.APIVersion = only.APIVersion
	p.Spec = ClusterNetworkPolicySpec{
		Tier:       specOf[struct{ Tier string }](data).Tier,
		Priority:   specOf[struct{ Priority int32 }](data).Priority,
		Subject:    specOf[struct{ Subject ClusterNetworkPolicySubject }](data).Subject,
		Unreadable: cause.Error(),
	}
}

// The tiers of a ClusterNetworkPolicy: before and after the NetworkPolicies.
const (
	ClusterTierAdmin    = "Admin"
	ClusterTierBaseline = "Baseline"
)

// ClusterNetworkPolicySubject selects pods, by exactly one of its fields.
type ClusterNetworkPolicySubject struct {
	Namespaces *LabelSelector `json:"namespaces,omitempty"`
	Pods       *NamespacedPod `json:"pods,omitempty"`
}

// NamespacedPod selects pods by their namespaces' labels and their own.
type NamespacedPod struct {
	NamespaceSelector LabelSelector `json:"namespaceSelector"`
	PodSelector       LabelSelector `json:"podSelector"`
}

// ClusterNetworkPolicyIngressRule decides on connections from one of the peers.
type ClusterNetworkPolicyIngressRule struct {
	Name      string                         `json:"name,omitempty"`
	Action    string                         `json:"action"`
	From      []ClusterNetworkPolicyPeer     `json:"from"`
	Protocols []ClusterNetworkPolicyProtocol `json:"protocols,omitempty"` // empty: any
}

// ClusterNetworkPolicyEgressRule decides on connections to one of the peers.
type ClusterNetworkPolicyEgressRule struct {
	Name      string                         `json:"name,omitempty"`
	Action    string                         `json:"action"`
	To        []ClusterNetworkPolicyPeer     `json:"to"`
	Protocols []ClusterNetworkPolicyProtocol `json:"protocols,omitempty"` // empty: any
}

// The actions of a rule.
const (
	ClusterPolicyAccept = "Accept"
	ClusterPolicyDeny   = "Deny"
	ClusterPolicyPass   = "Pass"
)

// ClusterNetworkPolicyPeer is exactly one of its fields; an ingress rule has only the first two.
type ClusterNetworkPolicyPeer struct {
	Namespaces  *LabelSelector `json:"namespaces,omitempty"`
	Pods        *NamespacedPod `json:"pods,omitempty"`
	Nodes       *LabelSelector `json:"nodes,omitempty"`
	Networks    []string       `json:"networks,omitempty"`
	DomainNames []string       `json:"domainNames,omitempty"`
}

// ClusterNetworkPolicyProtocol is exactly one of its fields.
type ClusterNetworkPolicyProtocol struct {
	TCP                  *ClusterNetworkPolicyPorts `json:"tcp,omitempty"`
	UDP                  *ClusterNetworkPolicyPorts `json:"udp,omitempty"`
	SCTP                 *ClusterNetworkPolicyPorts `json:"sctp,omitempty"`
	DestinationNamedPort string                     `json:"destinationNamedPort,omitempty"`
}

// ClusterNetworkPolicyPorts are ports of a protocol.
type ClusterNetworkPolicyPorts struct {
	DestinationPort *ClusterNetworkPolicyPort `json:"destinationPort,omitempty"`
}

// ClusterNetworkPolicyPort is exactly one of its fields.
type ClusterNetworkPolicyPort struct {
	Number int32                          `json:"number,omitempty"`
	Range  *ClusterNetworkPolicyPortRange `json:"range,omitempty"`
}

// ClusterNetworkPolicyPortRange includes both ends.
type ClusterNetworkPolicyPortRange struct {
	Start int32 `json:"start"`
	End   int32 `json:"end"`
}

// Types implements Versioned. The fields are the same in all versions.
func (*ClusterNetworkPolicy) Types() []Type {
	of := Type{Group: "policy.networking.k8s.io", Kind: "ClusterNetworkPolicy", Plural: "clusternetworkpolicies"}
	beta, alpha := of, of
	beta.Version, alpha.Version = "v1beta1", "v1alpha2" // since releases v0.3 and v0.2 of Kubernetes' network-policy-api
	return []Type{beta, alpha}
}

// ResourceType implements Resource. It has the version in which the object was read; for an object that was made here,
// and for nil, it has the preferred version.
func (p *ClusterNetworkPolicy) ResourceType() Type {
	types := p.Types()
	if p != nil {
		for _, t := range types {
			if t.APIVersion() == p.APIVersion {
				return t
			}
		}
	}
	return types[0]
}
