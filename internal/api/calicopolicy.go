package api

import (
	"encoding/json"
	"math"
)

// CalicoNetworkPolicy is Calico's NetworkPolicy: ordered rules for pods of its namespace.
//
// +kubebuilder:printcolumn:name="Tier",type=string,JSONPath=`.spec.tier`
// +kubebuilder:printcolumn:name="Order",type=number,JSONPath=`.spec.order`
// +kubebuilder:printcolumn:name="Selector",type=string,JSONPath=`.spec.selector`
// +kubebuilder:printcolumn:name="Types",type=string,JSONPath=`.spec.types`
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`
// +tortie:v3:column:name="Tier",type=string,JSONPath=`.spec.tier`
// +tortie:v3:column:name="Order",type=number,JSONPath=`.spec.order`
type CalicoNetworkPolicy struct {
	Meta `json:"metadata"`
	Spec CalicoNetworkPolicySpec `json:"spec"`
}

// CalicoNetworkPolicySpec is the content of a CalicoNetworkPolicy.
type CalicoNetworkPolicySpec struct {
	CalicoPolicySpec `json:",inline"`
}

// Limits of rule lists keep down the API server's estimate of validation cost: no object has room for as many.

// CalicoPolicySpec is the common part of all kinds of Calico policies. In a tier the policy with the lowest order comes
// first; its first matching rule that does not only log decides.
//
// +kubebuilder:validation:XValidation:rule="!has(self.ingress) || self.ingress.all(r, !has(r.destination) || !has(r.destination.services))",message="destination.services is for egress rules: select pods instead",fieldPath=".ingress"
// +kubebuilder:validation:XValidation:rule="!has(self.egress) || self.egress.all(r, !has(r.source) || !has(r.source.services))",message="source.services is for ingress rules: select pods instead",fieldPath=".egress"
// +kubebuilder:validation:XValidation:rule="!has(self.egress) || self.egress.all(r, !has(r.http))",message="http is for ingress rules: leave it out",fieldPath=".egress"
// +kubebuilder:validation:XValidation:rule="!has(self.selector) || !self.selector.contains('global(')",message="global() is for namespaceSelector of a rule's source or destination: use has() or all()",fieldPath=".selector"
// +kubebuilder:validation:XValidation:rule="!has(self.serviceAccountSelector) || !self.serviceAccountSelector.contains('global(')",message="global() is for namespaceSelector of a rule's source or destination: use has() or all()",fieldPath=".serviceAccountSelector"
type CalicoPolicySpec struct {
	// Tier is the name of the policy's Tier; empty means default.
	// +kubebuilder:default=default
	Tier string `json:"tier,omitempty"`
	// Order is the policy's place in its tier: lower ones come first. Absent means last. A Kubernetes NetworkPolicy has
	// 1000 in tier default.
	Order *float64 `json:"order,omitempty"`
	// Selector selects the policy's endpoints by their labels, in Calico's selector language. Empty means all().
	Selector string `json:"selector,omitempty"`
	// ServiceAccountSelector limits the policy to pods by the labels of their service accounts.
	ServiceAccountSelector string `json:"serviceAccountSelector,omitempty"`
	// Types are the policy's directions: Ingress, Egress. The policy has no effect on other directions. Calico's clients
	// derive types from the rules; an object without types has both.
	// +kubebuilder:validation:MaxItems=2
	// +kubebuilder:validation:items:Enum=Ingress;Egress
	// +tortie:v3:schema=`{"x-kubernetes-list-type":"set","minItems":1}`
	Types []string `json:"types,omitempty"`
	// Ingress are the rules for connections to the selected endpoints, in order.
	// +kubebuilder:validation:MaxItems=30000
	Ingress []CalicoRule `json:"ingress,omitempty"`
	// Egress are the rules for connections from the selected endpoints, in order.
	// +kubebuilder:validation:MaxItems=30000
	Egress []CalicoRule `json:"egress,omitempty"`
	// PerformanceHints are for Calico nodes that share the cluster.
	// +tortie:v3:schema=`{"items":{"enum":["AssumeNeededOnEveryNode"]}}`
	PerformanceHints []string `json:"performanceHints,omitempty"`
	// Unreadable, if not empty, is why rules are missing: see Salvage.
	Unreadable string `json:"-"`
	// Called is the name by which Calico's clients know the policy. Readers of a group set it; empty: metadata.name.
	Called string `json:"-"`
}

// OfCalicoPolicy returns the common part of an object of a kind of Calico policies that are in tiers; nil of any other.
func OfCalicoPolicy(o Resource) *CalicoPolicySpec {
	switch o := o.(type) {
	case *CalicoNetworkPolicy:
		return &o.Spec.CalicoPolicySpec
	case *CalicoGlobalNetworkPolicy:
		return &o.Spec.CalicoPolicySpec
	case *CalicoStagedNetworkPolicy:
		return &o.Spec.CalicoPolicySpec
	case *CalicoStagedGlobalNetworkPolicy:
		return &o.Spec.CalicoPolicySpec
	}
	return nil
}

// CalicoGlobalNetworkPolicy is Calico's GlobalNetworkPolicy: ordered rules for pods of all namespaces, and for host
// endpoints.
//
// +kubebuilder:printcolumn:name="Tier",type=string,JSONPath=`.spec.tier`
// +kubebuilder:printcolumn:name="Order",type=number,JSONPath=`.spec.order`
// +kubebuilder:printcolumn:name="Selector",type=string,JSONPath=`.spec.selector`
// +kubebuilder:printcolumn:name="Namespaces",type=string,JSONPath=`.spec.namespaceSelector`
// +kubebuilder:printcolumn:name="Types",type=string,JSONPath=`.spec.types`
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`
// +tortie:v3:column:name="Tier",type=string,JSONPath=`.spec.tier`
// +tortie:v3:column:name="Order",type=number,JSONPath=`.spec.order`
// +tortie:v3:column:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`
type CalicoGlobalNetworkPolicy struct {
	Meta `json:"metadata"`
	Spec CalicoGlobalNetworkPolicySpec `json:"spec"`
}

// CalicoGlobalNetworkPolicySpec is the content of a CalicoGlobalNetworkPolicy.
//
// +kubebuilder:validation:XValidation:rule="!has(self.namespaceSelector) || !self.namespaceSelector.contains('global(')",message="global() is for namespaceSelector of a rule's source or destination: use has() or all()",fieldPath=".namespaceSelector"
// +kubebuilder:validation:XValidation:rule="!has(self.ingress) || self.ingress.all(r, !has(r.source) || !has(r.source.services) || has(r.source.services.__namespace__) && size(r.source.services.__namespace__) > 0)",message="source.services needs the namespace of the Service: set namespace",fieldPath=".ingress"
// +kubebuilder:validation:XValidation:rule="!has(self.egress) || self.egress.all(r, !has(r.destination) || !has(r.destination.services) || has(r.destination.services.__namespace__) && size(r.destination.services.__namespace__) > 0)",message="destination.services needs the namespace of the Service: set namespace",fieldPath=".egress"
// +kubebuilder:validation:XValidation:rule="!(has(self.doNotTrack) && self.doNotTrack && has(self.preDNAT) && self.preDNAT)",message="preDNAT and doNotTrack exclude one another: set one of the two",fieldPath=".preDNAT"
// +kubebuilder:validation:XValidation:rule="!(has(self.preDNAT) && self.preDNAT) || !has(self.egress) || size(self.egress) == 0",message="a policy with preDNAT has no egress rules: leave them out",fieldPath=".egress"
// +kubebuilder:validation:XValidation:rule="!(has(self.preDNAT) && self.preDNAT) || !has(self.types) || !('Egress' in self.types)",message="a policy with preDNAT is for ingress: set types to Ingress",fieldPath=".types"
// +kubebuilder:validation:XValidation:rule="has(self.applyOnForward) && self.applyOnForward || !(has(self.doNotTrack) && self.doNotTrack) && !(has(self.preDNAT) && self.preDNAT)",message="doNotTrack and preDNAT need applyOnForward: set it to true",fieldPath=".applyOnForward"
type CalicoGlobalNetworkPolicySpec struct {
	CalicoPolicySpec `json:",inline"`
	// NamespaceSelector limits the policy to pods by the labels of their namespaces. For host endpoints the labels are
	// those that their profiles' namespaces have.
	NamespaceSelector string `json:"namespaceSelector,omitempty"`
	// DoNotTrack applies the policy to host endpoints, before connection tracking. Needs applyOnForward.
	DoNotTrack bool `json:"doNotTrack,omitempty"`
	// PreDNAT applies the policy to host endpoints, before the translation of Service addresses. Needs applyOnForward.
	PreDNAT bool `json:"preDNAT,omitempty"`
	// ApplyOnForward extends the policy to traffic that host endpoints forward.
	ApplyOnForward bool `json:"applyOnForward,omitempty"`
}

// CalicoRule decides on the packets that match all of its conditions; a rule without conditions matches every packet.
//
// +kubebuilder:validation:XValidation:rule="has(self.protocol) ? self.protocol in ['TCP', 'UDP', 'SCTP', 'tcp', 'udp', 'sctp', 'Tcp', 'Udp', 'Sctp'] || self.protocol == 6 || self.protocol == 17 || self.protocol == 132 || !(has(self.source) && has(self.source.ports) && size(self.source.ports) > 0 || has(self.source) && has(self.source.notPorts) && size(self.source.notPorts) > 0 || has(self.destination) && has(self.destination.ports) && size(self.destination.ports) > 0 || has(self.destination) && has(self.destination.notPorts) && size(self.destination.notPorts) > 0) : !(has(self.source) && has(self.source.ports) && size(self.source.ports) > 0 && type(self.source.ports[0]) == int || has(self.source) && has(self.source.notPorts) && size(self.source.notPorts) > 0 && type(self.source.notPorts[0]) == int || has(self.destination) && has(self.destination.ports) && size(self.destination.ports) > 0 && type(self.destination.ports[0]) == int || has(self.destination) && has(self.destination.notPorts) && size(self.destination.notPorts) > 0 && type(self.destination.notPorts[0]) == int)",message="ports and notPorts need protocol TCP, UDP or SCTP: set it, or leave them out",fieldPath=".protocol"
// +kubebuilder:validation:XValidation:rule="!has(self.icmp) || has(self.protocol) && (self.protocol in ['ICMP', 'ICMPv6', 'icmp', 'icmpv6', 'Icmp', 'Icmpv6', 'ICMPV6'] || self.protocol == 1 || self.protocol == 58)",message="icmp needs protocol ICMP or ICMPv6: set it",fieldPath=".icmp"
// +kubebuilder:validation:XValidation:rule="!has(self.ipVersion) || !(self.ipVersion == 6 && (has(self.protocol) && (self.protocol in ['ICMP', 'icmp', 'Icmp'] || self.protocol == 1) || has(self.notProtocol) && (self.notProtocol in ['ICMP', 'icmp', 'Icmp'] || self.notProtocol == 1)) || self.ipVersion == 4 && (has(self.protocol) && (self.protocol in ['ICMPv6', 'icmpv6', 'Icmpv6', 'ICMPV6'] || self.protocol == 58) || has(self.notProtocol) && (self.notProtocol in ['ICMPv6', 'icmpv6', 'Icmpv6', 'ICMPV6'] || self.notProtocol == 58)))",message="ICMP is of IPv4, ICMPv6 of IPv6: set ipVersion to that of protocol and notProtocol",fieldPath=".ipVersion"
// +kubebuilder:validation:XValidation:rule="!has(self.http) || self.action == 'Allow' && (!has(self.protocol) || self.protocol in ['TCP', 'tcp', 'Tcp'] || self.protocol == 6)",message="http is for action Allow and protocol TCP only: set these, or leave it out",fieldPath=".http"
// +kubebuilder:validation:XValidation:rule="!(has(self.destination) && has(self.destination.services)) || !(has(self.destination) && has(self.destination.ports) && size(self.destination.ports) > 0) && !(has(self.destination) && has(self.destination.notPorts) && size(self.destination.notPorts) > 0)",message="the ports are those of the Service: leave ports and notPorts out, or services",fieldPath=".destination.services"
type CalicoRule struct {
	// Action decides on the packets: Allow, Deny, Pass (to the next tier), or Log, after which the next rule decides.
	// +kubebuilder:validation:Enum=Allow;Deny;Log;Pass
	Action string `json:"action"`
	// IPVersion restricts the rule to IPv4 (4) or IPv6 (6).
	// +kubebuilder:validation:Enum=4;6
	IPVersion *int `json:"ipVersion,omitempty"`
	// Protocol is TCP, UDP, ICMP, ICMPv6, SCTP, UDPLite or a number.
	Protocol *CalicoProtocol `json:"protocol,omitempty"`
	// NotProtocol excludes a protocol.
	NotProtocol *CalicoProtocol `json:"notProtocol,omitempty"`
	// ICMP restricts the rule to ICMP messages of a type. Needs protocol ICMP or ICMPv6.
	ICMP *CalicoICMP `json:"icmp,omitempty"`
	// NotICMP excludes ICMP messages of a type. Needs protocol ICMP or ICMPv6.
	NotICMP *CalicoICMP `json:"notICMP,omitempty"`
	// Source is where the packets come from.
	Source CalicoEntityRule `json:"source,omitempty"`
	// Destination is where the packets go to.
	Destination CalicoEntityRule `json:"destination,omitempty"`
	// HTTP restricts the rule to HTTP requests. Tortie does not read them: see docs/calico-policy.md.
	HTTP *CalicoHTTP `json:"http,omitempty"`
	// Metadata is for readers of the policy.
	Metadata *CalicoRuleMetadata `json:"metadata,omitempty"`
}

// CalicoProtocol is a protocol's name or its number, which may be a number in JSON.
//
// +kubebuilder:validation:XIntOrString
// +kubebuilder:validation:Pattern=`^((?i)TCP|UDP|ICMP|ICMPv6|SCTP|UDPLite|[0-9]{1,3})$`
// +tortie:numbersTo=255
// +tortie:v3:schema=`{"pattern":"^(TCP|UDP|ICMP|ICMPv6|SCTP|UDPLite)$","minimum":1,"maxLength":7}`
type CalicoProtocol string

// UnmarshalJSON accepts a number, too, as its text.
func (p *CalicoProtocol) UnmarshalJSON(data []byte) error { return numberOrText(data, (*string)(p)) }

// CalicoPort is a port, a range such as 8080:8090, or the name of a port that pods declare. In JSON one port may be a
// number.
//
// +kubebuilder:validation:XIntOrString
// +kubebuilder:validation:Pattern=`^([0-9]{1,5}:[0-9]{1,5}|[a-zA-Z0-9_.-]{1,128})$`
// +tortie:numbersTo=65535
type CalicoPort string

// UnmarshalJSON accepts a number, too, as its text.
func (p *CalicoPort) UnmarshalJSON(data []byte) error { return numberOrText(data, (*string)(p)) }

// CalicoICMP is a type of ICMP messages, or one code of it.
//
// +kubebuilder:validation:XValidation:rule="!has(self.code) || has(self.type)",message="code needs type: set it",fieldPath=".code"
type CalicoICMP struct {
	// Type is the type; absent means any.
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=254
	Type *int `json:"type,omitempty"`
	// Code is the code; absent means any. Needs type.
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=255
	Code *int `json:"code,omitempty"`
}

// CalicoEntityRule is one end of a connection. All of its conditions must hold.
//
// +kubebuilder:validation:XValidation:rule="!has(self.services) || has(self.services.name) && size(self.services.name) > 0",message="services needs the name of a Service: set name",fieldPath=".services"
// +kubebuilder:validation:XValidation:rule="!has(self.services) || !has(self.serviceAccounts) && (!has(self.selector) || size(self.selector) == 0) && (!has(self.notSelector) || size(self.notSelector) == 0) && (!has(self.namespaceSelector) || size(self.namespaceSelector) == 0) && (!has(self.nets) || size(self.nets) == 0) && (!has(self.notNets) || size(self.notNets) == 0)",message="services excludes selector, notSelector, namespaceSelector, nets, notNets and serviceAccounts: give services or these",fieldPath=".services"
type CalicoEntityRule struct {
	// Nets are CIDRs. One must contain the address.
	// +kubebuilder:validation:items:Pattern=`^[0-9a-fA-F:.]+(/[0-9]{1,3})?$`
	// +tortie:v3:schema=`{"x-kubernetes-list-type":"set"}`
	Nets []string `json:"nets,omitempty"`
	// NotNets are CIDRs. None may contain the address.
	// +kubebuilder:validation:items:Pattern=`^[0-9a-fA-F:.]+(/[0-9]{1,3})?$`
	NotNets []string `json:"notNets,omitempty"`
	// Selector selects pods, network sets and host endpoints by their labels. A NetworkPolicy selects in its own namespace
	// only, unless there is a namespaceSelector.
	Selector string `json:"selector,omitempty"`
	// NotSelector excludes the selected endpoints.
	NotSelector string `json:"notSelector,omitempty"`
	// NamespaceSelector selects the contents of namespaces by the namespaces' labels. global() selects objects in no
	// namespace.
	NamespaceSelector string `json:"namespaceSelector,omitempty"`
	// ServiceAccounts selects pods by their service accounts.
	ServiceAccounts *CalicoServiceAccounts `json:"serviceAccounts,omitempty"`
	// Services selects the endpoints of a Kubernetes Service: as destination of egress rules with their ports, as source
	// of ingress rules.
	Services *CalicoServiceMatch `json:"services,omitempty"`
	// Ports are ports, ranges and names of ports. One must match.
	Ports []CalicoPort `json:"ports,omitempty"`
	// NotPorts are ports, ranges and names of ports. None may match.
	NotPorts []CalicoPort `json:"notPorts,omitempty"`
}

// CalicoServiceAccounts selects service accounts. Both of its conditions must hold.
type CalicoServiceAccounts struct {
	// Names are names of service accounts. One must match.
	Names []string `json:"names,omitempty"`
	// Selector selects service accounts by their labels.
	Selector string `json:"selector,omitempty"`
}

// CalicoServiceMatch names a Service.
type CalicoServiceMatch struct {
	// Name is the name of the Service.
	Name string `json:"name,omitempty"`
	// Namespace is the Service's namespace. Absent means the policy's.
	Namespace string `json:"namespace,omitempty"`
}

// CalicoHTTP is a condition on HTTP requests.
type CalicoHTTP struct {
	// Methods are methods such as GET. One must match.
	Methods []string `json:"methods,omitempty"`
	// Paths are paths. One must match.
	Paths []CalicoHTTPPath `json:"paths,omitempty"`
}

// CalicoHTTPPath is a path or its beginning.
type CalicoHTTPPath struct {
	// Exact is the whole path.
	Exact string `json:"exact,omitempty"`
	// Prefix is the beginning of the path.
	Prefix string `json:"prefix,omitempty"`
}

// CalicoRuleMetadata is for readers of the policy.
type CalicoRuleMetadata struct {
	// Annotations are free text by key.
	Annotations map[string]string `json:"annotations,omitempty"`
}

// The actions of a rule, in any case.
const (
	CalicoAllow = "Allow"
	CalicoDeny  = "Deny"
	CalicoLog   = "Log"
	CalicoPass  = "Pass"
)

// Salvage reads the policy's pods, directions, tier and order from an object that json.Unmarshal refuses with cause. A
// selector that is not a string becomes its JSON, which is not a selector either; an order that is not a number comes
// first. Metadata stays unchanged.
func (p *CalicoNetworkPolicy) Salvage(data []byte, cause error) {
	p.Spec = CalicoNetworkPolicySpec{CalicoPolicySpec: salvagePolicy(data, cause)}
}

// Salvage is like Salvage of CalicoNetworkPolicy. DoNotTrack, PreDNAT or ApplyOnForward is left out if it cannot be
// read: the policy then applies to pods, too.
func (p *CalicoGlobalNetworkPolicy) Salvage(data []byte, cause error) {
	p.Spec = CalicoGlobalNetworkPolicySpec{
		CalicoPolicySpec:  salvagePolicy(data, cause),
		NamespaceSelector: jsonText(specOf[struct{ NamespaceSelector json.RawMessage }](data).NamespaceSelector),
		DoNotTrack:        specOf[struct{ DoNotTrack bool }](data).DoNotTrack,
		PreDNAT:           specOf[struct{ PreDNAT bool }](data).PreDNAT,
		ApplyOnForward:    specOf[struct{ ApplyOnForward bool }](data).ApplyOnForward,
	}
}

func salvagePolicy(data []byte, cause error) CalicoPolicySpec {
	var object struct{ Spec json.RawMessage }
	if json.Unmarshal(data, &object) != nil || len(object.Spec) > 0 && object.Spec[0] != '{' {
		return CalicoPolicySpec{Selector: string(object.Spec), Unreadable: cause.Error()}
	}
	order := specOf[struct{ Order json.RawMessage }](data).Order
	spec := CalicoPolicySpec{
		Tier:                   specOf[struct{ Tier string }](data).Tier,
		Order:                  specOf[struct{ Order *float64 }](data).Order,
		Selector:               jsonText(specOf[struct{ Selector json.RawMessage }](data).Selector),
		ServiceAccountSelector: jsonText(specOf[struct{ ServiceAccountSelector json.RawMessage }](data).ServiceAccountSelector),
		Types:                  specOf[struct{ Types []string }](data).Types,
		Unreadable:             cause.Error(),
	}
	if spec.Order == nil && len(order) > 0 && string(order) != "null" {
		first := math.Inf(-1)
		spec.Order = &first
	}
	return spec
}

// jsonText returns the JSON string, or else the JSON itself.
func jsonText(data json.RawMessage) (text string) {
	if len(data) > 0 && json.Unmarshal(data, &text) != nil {
		return string(data)
	}
	return text
}

// ResourceType implements Resource.
func (*CalicoNetworkPolicy) ResourceType() Type {
	return namespaced("NetworkPolicy", "networkpolicies")
}

// ResourceType implements Resource.
func (*CalicoGlobalNetworkPolicy) ResourceType() Type {
	return custom("GlobalNetworkPolicy", "globalnetworkpolicies")
}
