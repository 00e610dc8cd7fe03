package api

// CalicoStagedNetworkPolicy is Calico's StagedNetworkPolicy: a NetworkPolicy that is not enforced yet.
//
// +kubebuilder:printcolumn:name="Tier",type=string,JSONPath=`.spec.tier`
// +kubebuilder:printcolumn:name="Order",type=number,JSONPath=`.spec.order`
// +kubebuilder:printcolumn:name="Selector",type=string,JSONPath=`.spec.selector`
// +kubebuilder:printcolumn:name="Action",type=string,JSONPath=`.spec.stagedAction`
// +kubebuilder:printcolumn:name="Types",type=string,JSONPath=`.spec.types`
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`
// +tortie:v3:column:name="Tier",type=string,JSONPath=`.spec.tier`
// +tortie:v3:column:name="Order",type=number,JSONPath=`.spec.order`
type CalicoStagedNetworkPolicy struct {
	Meta `json:"metadata"`
	Spec CalicoStagedNetworkPolicySpec `json:"spec"`
}

// CalicoStagedNetworkPolicySpec is the content of a CalicoStagedNetworkPolicy.
type CalicoStagedNetworkPolicySpec struct {
	// StagedAction is the change that is tried out: Set, the default, adds or replaces the policy; Delete removes the
	// policy with this name; Learn and Ignore change nothing.
	// +kubebuilder:validation:Enum=Set;Delete;Learn;Ignore
	// +tortie:v3:schema=`{"default":"Set"}`
	StagedAction     string `json:"stagedAction,omitempty"`
	CalicoPolicySpec `json:",inline"`
}

// CalicoStagedGlobalNetworkPolicy is Calico's StagedGlobalNetworkPolicy: a GlobalNetworkPolicy that is not enforced
// yet.
//
// +kubebuilder:printcolumn:name="Tier",type=string,JSONPath=`.spec.tier`
// +kubebuilder:printcolumn:name="Order",type=number,JSONPath=`.spec.order`
// +kubebuilder:printcolumn:name="Selector",type=string,JSONPath=`.spec.selector`
// +kubebuilder:printcolumn:name="Action",type=string,JSONPath=`.spec.stagedAction`
// +kubebuilder:printcolumn:name="Types",type=string,JSONPath=`.spec.types`
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`
// +tortie:v3:column:name="Tier",type=string,JSONPath=`.spec.tier`
// +tortie:v3:column:name="Order",type=number,JSONPath=`.spec.order`
type CalicoStagedGlobalNetworkPolicy struct {
	Meta `json:"metadata"`
	Spec CalicoStagedGlobalNetworkPolicySpec `json:"spec"`
}

// CalicoStagedGlobalNetworkPolicySpec is the content of a CalicoStagedGlobalNetworkPolicy.
type CalicoStagedGlobalNetworkPolicySpec struct {
	// StagedAction is the change that is tried out: Set, the default, adds or replaces the policy; Delete removes the
	// policy with this name; Learn and Ignore change nothing.
	// +kubebuilder:validation:Enum=Set;Delete;Learn;Ignore
	// +tortie:v3:schema=`{"default":"Set"}`
	StagedAction                  string `json:"stagedAction,omitempty"`
	CalicoGlobalNetworkPolicySpec `json:",inline"`
}

// CalicoStagedKubernetesNetworkPolicy is Calico's StagedKubernetesNetworkPolicy: a Kubernetes NetworkPolicy that is not
// enforced yet.
//
// +kubebuilder:printcolumn:name="Action",type=string,JSONPath=`.spec.stagedAction`
// +kubebuilder:printcolumn:name="Types",type=string,JSONPath=`.spec.policyTypes`
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`
type CalicoStagedKubernetesNetworkPolicy struct {
	Meta `json:"metadata"`
	Spec CalicoStagedKubernetesNetworkPolicySpec `json:"spec"`
}

// CalicoStagedKubernetesNetworkPolicySpec is the content of a CalicoStagedKubernetesNetworkPolicy.
type CalicoStagedKubernetesNetworkPolicySpec struct {
	// StagedAction is the change that is tried out: Set, the default, adds or replaces the policy; Delete removes the
	// policy with this name; Learn and Ignore change nothing.
	// +kubebuilder:validation:Enum=Set;Delete;Learn;Ignore
	// +tortie:v3:schema=`{"default":"Set"}`
	StagedAction      string `json:"stagedAction,omitempty"`
	NetworkPolicySpec `json:",inline"`
}

// ResourceType implements Resource.
func (*CalicoStagedNetworkPolicy) ResourceType() Type {
	return namespaced("StagedNetworkPolicy", "stagednetworkpolicies")
}

// ResourceType implements Resource.
func (*CalicoStagedGlobalNetworkPolicy) ResourceType() Type {
	return custom("StagedGlobalNetworkPolicy", "stagedglobalnetworkpolicies")
}

// ResourceType implements Resource.
func (*CalicoStagedKubernetesNetworkPolicy) ResourceType() Type {
	return namespaced("StagedKubernetesNetworkPolicy", "stagedkubernetesnetworkpolicies")
}
