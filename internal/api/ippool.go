package api

// Encapsulation selects the packets between nodes that are encapsulated.
//
// +kubebuilder:validation:Enum=Never;Always;CrossSubnet
type Encapsulation string

// The encapsulation modes of a pool.
const (
	EncapNever       Encapsulation = "Never"
	EncapAlways      Encapsulation = "Always"
	EncapCrossSubnet Encapsulation = "CrossSubnet"
)

// AllowedUse is a use of a pool's addresses.
//
// +kubebuilder:validation:Enum=Workload;Tunnel;LoadBalancer
type AllowedUse string

// The uses of a pool.
const (
	UseWorkload     AllowedUse = "Workload"
	UseTunnel       AllowedUse = "Tunnel"
	UseLoadBalancer AllowedUse = "LoadBalancer"
)

// AssignmentMode is whether a pool is used without a request by name.
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
// +tortie:v3:column:name="CIDR",type=string,JSONPath=`.spec.cidr`
// +tortie:v3:column:name="VXLAN",type=string,JSONPath=`.spec.vxlanMode`
// +tortie:v3:column:name="IPIP",type=string,JSONPath=`.spec.ipipMode`
// +tortie:v3:column:name="NAT",type=boolean,JSONPath=`.spec.natOutgoing`
// +tortie:v3:column:name="Allocatable",type=string,JSONPath=`.status.conditions[?(@.type=='Allocatable')].status`
// +tortie:v3:column:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`
type IPPool struct {
	Meta   `json:"metadata"`
	Spec   IPPoolSpec    `json:"spec"`
	Status *IPPoolStatus `json:"status,omitempty"`
}

// IPPoolSpec is the desired state of an IPPool.
//
// +tortie:v3:rule:rule="!has(self.blockSize) || self.blockSize == 0 || !isCIDR(self.cidr) || (cidr(self.cidr).ip().family() == 4 ? self.blockSize >= 20 && self.blockSize <= 32 : self.blockSize >= 116 && self.blockSize <= 128)",message="blockSize is 20 to 32 for IPv4 and 116 to 128 for IPv6: set it within these, or leave it out",fieldPath=".blockSize"
// +tortie:v3:rule:rule="!isCIDR(self.cidr) || (has(self.blockSize) && self.blockSize != 0 ? self.blockSize : cidr(self.cidr).ip().family() == 4 ? 26 : 122) == (has(oldSelf.blockSize) && oldSelf.blockSize != 0 ? oldSelf.blockSize : cidr(self.cidr).ip().family() == 4 ? 26 : 122)",message="the blockSize of a pool cannot change: make a second pool and disable this one",fieldPath=".blockSize"
// +tortie:v3:rule:rule="has(self.disabled) && self.disabled || !isCIDR(self.cidr) || cidr(self.cidr).prefixLength() <= (has(self.blockSize) && self.blockSize != 0 ? self.blockSize : cidr(self.cidr).ip().family() == 4 ? 26 : 122)",message="the pool is smaller than one of its blocks: set a larger blockSize or a shorter prefix",fieldPath=".cidr"
// +tortie:v3:rule:rule="!(has(self.ipipMode) && self.ipipMode != 'Never') || !(has(self.vxlanMode) && self.vxlanMode != 'Never')",message="ipipMode and vxlanMode exclude one another: set one of the two to Never",fieldPath=".vxlanMode"
// +tortie:v3:rule:rule="!(has(self.ipipMode) && self.ipipMode != 'Never') || !isCIDR(self.cidr) || cidr(self.cidr).ip().family() == 4",message="IPIP is for IPv4: set ipipMode to Never, and vxlanMode if you need a tunnel",fieldPath=".ipipMode"
// +tortie:v3:rule:rule="!(has(self.allowedUses) && 'LoadBalancer' in self.allowedUses) || size(self.allowedUses) == 1",message="LoadBalancer excludes the other uses: make a pool for each",fieldPath=".allowedUses"
// +tortie:v3:rule:rule="!(has(self.allowedUses) && 'LoadBalancer' in self.allowedUses) || !(has(self.ipipMode) && self.ipipMode != 'Never') && !(has(self.vxlanMode) && self.vxlanMode != 'Never')",message="a pool for LoadBalancer has no tunnel: set ipipMode and vxlanMode to Never",fieldPath=".allowedUses"
// +tortie:v3:rule:rule="!(has(self.allowedUses) && 'LoadBalancer' in self.allowedUses) || !has(self.nodeSelector) || self.nodeSelector == 'all()'",message="a pool for LoadBalancer is for all nodes: set nodeSelector to all()",fieldPath=".nodeSelector"
// +tortie:v3:rule:rule="!(has(self.allowedUses) && 'LoadBalancer' in self.allowedUses) || !has(self.disableBGPExport) || !self.disableBGPExport",message="a pool for LoadBalancer is announced: set disableBGPExport to false",fieldPath=".disableBGPExport"
// +tortie:v3:rule:rule="!has(self.allowedUses) || !('Tunnel' in self.allowedUses) || !has(self.namespaceSelector) || size(self.namespaceSelector) == 0",message="tunnels are in no namespace: leave namespaceSelector out, or Tunnel in allowedUses",fieldPath=".namespaceSelector"
// +tortie:v3:rule:rule="!has(self.nodeSelector) || !self.nodeSelector.contains('global(')",message="global() selects no node: use has() or all()",fieldPath=".nodeSelector"
// +tortie:v3:rule:rule="!has(self.namespaceSelector) || !self.namespaceSelector.contains('global(')",message="global() selects no namespace: use has() or all()",fieldPath=".namespaceSelector"
type IPPoolSpec struct {
	// CIDR is the pool's range. It cannot change.
	// +tortie:v3:schema=`{"format":"cidr","maxLength":49}`
	// +tortie:v3:rule:rule="self == oldSelf",message="the cidr of a pool cannot change: make a second pool and disable this one"
	// +tortie:v3:rule:rule="!isCIDR(self) || cidr(self).masked() == cidr(self)",message="the address has bits after the prefix: clear them"
	// +tortie:v3:rule:rule="!isCIDR(self) || cidr(self).ip().family() == 6 || !cidr('169.254.0.0/16').containsCIDR(cidr(self)) && !cidr(self).containsCIDR('169.254.0.0/16')",message="169.254.0.0/16 is for links: choose another range"
	// +tortie:v3:rule:rule="!isCIDR(self) || cidr(self).ip().family() == 4 || !cidr('fe80::/10').containsCIDR(cidr(self)) && !cidr(self).containsCIDR('fe80::/10')",message="fe80::/10 is for links: choose another range"
	CIDR string `json:"cidr"`
	// BlockSize is the prefix length of the pool's blocks: 20 to 32 for IPv4 (default 26), 116 to 128 for IPv6 (default
	// 122).
	// +tortie:v3:schema=`{"minimum":0,"maximum":128}`
	BlockSize int `json:"blockSize,omitempty"`
	// IPIPMode selects the packets between nodes that are encapsulated in IPIP. IPv4 only; not together with vxlanMode.
	IPIPMode Encapsulation `json:"ipipMode,omitempty"`
	// VXLANMode selects the packets between nodes that are encapsulated in VXLAN.
	VXLANMode Encapsulation `json:"vxlanMode,omitempty"`
	// NATOutgoing masquerades packets that leave the pools.
	NATOutgoing bool `json:"natOutgoing,omitempty"`
	// Disabled stops new blocks and new assignments; releases still work.
	Disabled bool `json:"disabled,omitempty"`
	// DisableBGPExport keeps the pool's routes from being announced.
	DisableBGPExport bool `json:"disableBGPExport,omitempty"`
	// NodeSelector selects the nodes that use the pool, in Calico's selector language. Empty selects all.
	// +tortie:v3:schema=`{"default":"all()"}`
	NodeSelector string `json:"nodeSelector,omitempty"`
	// NamespaceSelector selects namespaces; pods in them use the pool. Empty selects all.
	NamespaceSelector string `json:"namespaceSelector,omitempty"`
	// AllowedUses are the uses of the addresses. Empty means Workload and Tunnel.
	// +tortie:v3:schema=`{"x-kubernetes-list-type":"set","maxItems":3}`
	AllowedUses []AllowedUse `json:"allowedUses,omitempty"`
	// AssignmentMode Manual keeps the pool for requests by its name.
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
//
// +tortie:v3:schema=`{"required":["lastTransitionTime","message","reason","status","type"]}`
type Condition struct {
	// +tortie:v3:schema=`{"maxLength":316}`
	Type string `json:"type"`
	// +tortie:v3:schema=`{"enum":["True","False","Unknown"]}`
	Status string `json:"status"`
	// +tortie:v3:schema=`{"minLength":1,"maxLength":1024,"pattern":"^[A-Za-z]([A-Za-z0-9_,:]*[A-Za-z0-9_])?$"}`
	Reason string `json:"reason,omitempty"`
	// +tortie:v3:schema=`{"maxLength":32768}`
	Message string `json:"message,omitempty"`
	// +tortie:v3:schema=`{"format":"date-time"}`
	LastTransitionTime string `json:"lastTransitionTime,omitempty"`
	// +tortie:v3:schema=`{"minimum":0}`
	ObservedGeneration int64 `json:"observedGeneration,omitempty"`
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
	// +tortie:v3:schema=`{"x-kubernetes-list-type":"set"}`
	ReservedCIDRs []string `json:"reservedCIDRs,omitempty"`
}

// ResourceType implements Resource.
func (*IPReservation) ResourceType() Type { return custom("IPReservation", "ipreservations") }

// IPReservationList is a list of IPReservations.
type IPReservationList = List[IPReservation, *IPReservation]
