package api

// Encapsulation says when packets between nodes are wrapped.
//
// +kubebuilder:validation:Enum=Never;Always;CrossSubnet
type Encapsulation string

// The encapsulation modes of a pool.
const (
	EncapNever       Encapsulation = "Never"
	EncapAlways      Encapsulation = "Always"
	EncapCrossSubnet Encapsulation = "CrossSubnet"
)

// AllowedUse says what a pool's addresses may be given to.
//
// +kubebuilder:validation:Enum=Workload;Tunnel;LoadBalancer
type AllowedUse string

// The uses of a pool.
const (
	UseWorkload     AllowedUse = "Workload"
	UseTunnel       AllowedUse = "Tunnel"
	UseLoadBalancer AllowedUse = "LoadBalancer"
)

// AssignmentMode says whether a pool is used without being asked for by name.
//
// +kubebuilder:validation:Enum=Automatic;Manual
type AssignmentMode string

// The assignment modes of a pool.
const (
	AssignAutomatic AssignmentMode = "Automatic"
	AssignManual    AssignmentMode = "Manual"
)

// IPPool is a range of addresses that blocks are cut from.
//
// +kubebuilder:printcolumn:name="CIDR",type=string,JSONPath=`.spec.cidr`
// +kubebuilder:printcolumn:name="Block",type=integer,JSONPath=`.spec.blockSize`
// +kubebuilder:printcolumn:name="IPIP",type=string,JSONPath=`.spec.ipipMode`
// +kubebuilder:printcolumn:name="VXLAN",type=string,JSONPath=`.spec.vxlanMode`
// +kubebuilder:printcolumn:name="NAT",type=boolean,JSONPath=`.spec.natOutgoing`
// +kubebuilder:printcolumn:name="Disabled",type=boolean,JSONPath=`.spec.disabled`
// +kubebuilder:printcolumn:name="Allocatable",type=string,JSONPath=`.status.conditions[?(@.type=="Allocatable")].status`
type IPPool struct {
	Meta   `json:"metadata"`
	Spec   IPPoolSpec    `json:"spec"`
	Status *IPPoolStatus `json:"status,omitempty"`
}

// IPPoolSpec is the desired state of an IPPool.
type IPPoolSpec struct {
	// CIDR is the pool's range. It cannot change.
	CIDR string `json:"cidr"`
	// BlockSize is the prefix length of the pool's blocks: 20 to 32 for IPv4 (default 26), 116 to 128 for IPv6 (default
	// 122).
	BlockSize int `json:"blockSize,omitempty"`
	// IPIPMode says when packets between nodes travel in IPIP. IPv4 only; not together with vxlanMode.
	IPIPMode Encapsulation `json:"ipipMode,omitempty"`
	// VXLANMode says when packets between nodes travel in VXLAN.
	VXLANMode Encapsulation `json:"vxlanMode,omitempty"`
	// NATOutgoing masquerades packets that leave the pools.
	NATOutgoing bool `json:"natOutgoing,omitempty"`
	// Disabled stops new blocks and new assignments; releases still work.
	Disabled bool `json:"disabled,omitempty"`
	// DisableBGPExport keeps the pool's routes from being announced.
	DisableBGPExport bool `json:"disableBGPExport,omitempty"`
	// NodeSelector selects the nodes that use the pool, in Calico's selector language. Empty selects all.
	NodeSelector string `json:"nodeSelector,omitempty"`
	// NamespaceSelector selects the namespaces whose pods use the pool. Empty selects all.
	NamespaceSelector string `json:"namespaceSelector,omitempty"`
	// AllowedUses says what the addresses may be given to. Empty means Workload and Tunnel.
	AllowedUses []AllowedUse `json:"allowedUses,omitempty"`
	// AssignmentMode Manual keeps the pool for those who ask for it by name.
	// +kubebuilder:default=Automatic
	AssignmentMode AssignmentMode `json:"assignmentMode,omitempty"`
}

// Allocatable is the type of Calico's condition of a pool: whether addresses may be assigned from it.
const Allocatable = "Allocatable"

// The reasons of the condition Allocatable: Calico's, and PoolInvalid, where Calico's controller leaves the condition
// out.
const (
	PoolOK          = "OK"
	PoolDisabled    = "PoolDisabled"
	PoolTerminating = "Terminating"
	PoolOverlap     = "CIDROverlap"
	PoolInvalid     = "Invalid"
)

// IPPoolStatus is the observed state of an IPPool.
type IPPoolStatus struct {
	Conditions []Condition `json:"conditions,omitempty"`
}

// Condition is one observation about a resource, as in metav1.Condition.
type Condition struct {
	Type               string `json:"type"`
	Status             string `json:"status"`
	Reason             string `json:"reason,omitempty"`
	Message            string `json:"message,omitempty"`
	LastTransitionTime string `json:"lastTransitionTime,omitempty"`
	ObservedGeneration int64  `json:"observedGeneration,omitempty"`
}

// ResourceType implements Resource.
func (*IPPool) ResourceType() Type { return custom("IPPool", "ippools") }

// IPPoolList is a list of IPPools.
type IPPoolList = List[IPPool, *IPPool]

// IPReservation keeps addresses from being assigned automatically.
type IPReservation struct {
	Meta `json:"metadata"`
	Spec IPReservationSpec `json:"spec"`
}

// IPReservationSpec is the desired state of an IPReservation.
type IPReservationSpec struct {
	// ReservedCIDRs are addresses or ranges that are never assigned automatically.
	ReservedCIDRs []string `json:"reservedCIDRs,omitempty"`
}

// ResourceType implements Resource.
func (*IPReservation) ResourceType() Type { return custom("IPReservation", "ipreservations") }

// IPReservationList is a list of IPReservations.
type IPReservationList = List[IPReservation, *IPReservation]
