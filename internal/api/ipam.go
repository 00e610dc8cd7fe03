package api

// IPAMBlock is a range of addresses that one host assigns from, with the holder of each address.
//
// +kubebuilder:printcolumn:name="CIDR",type=string,JSONPath=`.spec.cidr`
// +kubebuilder:printcolumn:name="Affinity",type=string,JSONPath=`.spec.affinity`
// +tortie:v3:column:name="CIDR",type=string,JSONPath=`.spec.cidr`
// +tortie:v3:column:name="Affinity",type=string,JSONPath=`.spec.affinity`
// +tortie:v3:column:name="ClaimTime",type=date,JSONPath=`.spec.affinityClaimTime`
type IPAMBlock struct {
	Meta `json:"metadata"`
	Spec IPAMBlockSpec `json:"spec"`
}

// IPAMBlockSpec is the content of an IPAMBlock. An address is named by its ordinal: its distance from the block's
// first.
//
// Fields that a newer Calico adds are kept, not pruned: Calico nodes may share the cluster.
//
// +kubebuilder:pruning:PreserveUnknownFields
type IPAMBlockSpec struct {
	// CIDR is the block's range.
	// +tortie:v3:schema=`{"format":"cidr"}`
	CIDR string `json:"cidr"`
	// Affinity is the block's owner, "host:NODE" or "virtual:load-balancer"; absent when the block has no owner.
	// +tortie:v3:schema=`{"pattern":"^(host|virtual):[a-zA-Z0-9._-]+$"}`
	Affinity *string `json:"affinity,omitempty"`
	// AffinityClaimTime is when the owner claimed the block.
	// +kubebuilder:validation:Format=date-time
	AffinityClaimTime string `json:"affinityClaimTime,omitempty"`
	// Allocations has an entry for each ordinal: null if the address is free, else an index into attributes.
	// +tortie:itemsNullable
	Allocations []*int `json:"allocations"`
	// Unallocated lists the free ordinals in the order in which they will be assigned.
	Unallocated []int `json:"unallocated"`
	// Attributes name the holders of addresses.
	Attributes []AllocationAttribute `json:"attributes"`
	// SequenceNumber grows by one with each write of the block.
	// +kubebuilder:default=0
	// +kubebuilder:validation:Format=int64
	// +optional
	SequenceNumber uint64 `json:"sequenceNumber"`
	// SequenceNumberForAllocation has, for each allocated ordinal, the block's sequence number when it was assigned.
	// +optional
	SequenceNumberForAllocation map[string]uint64 `json:"sequenceNumberForAllocation"`
	// Deleted marks the block for deletion: readers finish the deletion and treat the block as absent.
	// +optional
	Deleted bool `json:"deleted"`
	// StrictAffinity is deprecated: always written false, and required by Calico's schema.
	StrictAffinity bool `json:"strictAffinity"`
}

// AllocationAttribute names the holder of the addresses that point to it.
type AllocationAttribute struct {
	// HandleID is the handle that the addresses are released by.
	HandleID *string `json:"handle_id,omitempty"`
	// Secondary holds the owner's attributes: pod, namespace, node, type, timestamp.
	Secondary map[string]string `json:"secondary,omitempty"`
	// AlternateOwnerAttrs holds a second owner's attributes (KubeVirt live migration).
	AlternateOwnerAttrs map[string]string `json:"alternateOwnerAttrs,omitempty"`
	// ReleasedAt is set while released addresses cool down: they are neither in use nor free.
	// +kubebuilder:validation:Format=date-time
	ReleasedAt string `json:"releasedAt,omitempty"`
}

// ResourceType implements Resource.
func (*IPAMBlock) ResourceType() Type { return custom("IPAMBlock", "ipamblocks") }

// MarkedDeleted implements Deletable.
func (b *IPAMBlock) MarkedDeleted() bool { return b.Spec.Deleted }

// IPAMBlockList is a list of IPAMBlocks.
type IPAMBlockList = List[IPAMBlock, *IPAMBlock]

// AffinityState is the state of a claim of a block.
//
// +tortie:v3:schema=`{"enum":["","confirmed","pending","pendingDeletion"]}`
type AffinityState string

// The states of a BlockAffinity. Only a confirmed one, or an empty one in old data, counts as ownership.
const (
	AffinityPending         AffinityState = "pending"
	AffinityConfirmed       AffinityState = "confirmed"
	AffinityPendingDeletion AffinityState = "pendingDeletion"
)

// AffinityHost and AffinityVirtual are the types of block owners.
const (
	AffinityHost    = "host"
	AffinityVirtual = "virtual"
)

// BlockAffinity is a host's claim of a block.
//
// +kubebuilder:printcolumn:name="CIDR",type=string,JSONPath=`.spec.cidr`
// +kubebuilder:printcolumn:name="Node",type=string,JSONPath=`.spec.node`
// +kubebuilder:printcolumn:name="State",type=string,JSONPath=`.spec.state`
// +tortie:v3:column:name="CIDR",type=string,JSONPath=`.spec.cidr`
// +tortie:v3:column:name="Node",type=string,JSONPath=`.spec.node`
// +tortie:v3:column:name="Type",type=string,JSONPath=`.spec.type`
type BlockAffinity struct {
	Meta `json:"metadata"`
	Spec BlockAffinitySpec `json:"spec"`
}

// BlockAffinitySpec is the content of a BlockAffinity.
//
// Fields that a newer Calico adds are kept, not pruned: Calico nodes may share the cluster.
//
// +kubebuilder:pruning:PreserveUnknownFields
type BlockAffinitySpec struct {
	// State is pending, confirmed or pendingDeletion. Empty means confirmed.
	State AffinityState `json:"state"`
	// Node is the node that claims the block.
	Node string `json:"node"`
	// Type is host or virtual; absent means host.
	Type string `json:"type,omitempty"`
	// CIDR is the block's range.
	// +tortie:v3:schema=`{"format":"cidr"}`
	CIDR string `json:"cidr"`
	// Deleted is "true" when the affinity is marked for deletion.
	// +tortie:v3:schema=`{"default":false}`
	Deleted Mark `json:"deleted"`
}

// ResourceType implements Resource.
func (*BlockAffinity) ResourceType() Type { return custom("BlockAffinity", "blockaffinities") }

// MarkedDeleted implements Deletable.
func (a *BlockAffinity) MarkedDeleted() bool { return bool(a.Spec.Deleted) }

// Confirmed reports whether the claim counts as ownership.
func (a *BlockAffinity) Confirmed() bool {
	return !a.MarkedDeleted() && (a.Spec.State == AffinityConfirmed || a.Spec.State == "")
}

// BlockAffinityList is a list of BlockAffinities.
type BlockAffinityList = List[BlockAffinity, *BlockAffinity]

// IPAMHandle lists the blocks with addresses of a handle, so that these can be released without a search.
//
// +tortie:v3:column:name="ID",type=string,JSONPath=`.spec.handleID`
type IPAMHandle struct {
	Meta `json:"metadata"`
	Spec IPAMHandleSpec `json:"spec"`
}

// IPAMHandleSpec is the content of an IPAMHandle.
//
// Fields that a newer Calico adds are kept, not pruned: Calico nodes may share the cluster.
//
// +kubebuilder:pruning:PreserveUnknownFields
type IPAMHandleSpec struct {
	// HandleID is the handle in its original case; the object's name is its lower-case form.
	HandleID string `json:"handleID"`
	// Block has the number of addresses held in each block, by the block's CIDR.
	Block map[string]int `json:"block"`
	// Deleted marks the handle for deletion.
	// +optional
	Deleted bool `json:"deleted"`
}

// ResourceType implements Resource.
func (*IPAMHandle) ResourceType() Type { return custom("IPAMHandle", "ipamhandles") }

// MarkedDeleted implements Deletable.
func (h *IPAMHandle) MarkedDeleted() bool { return h.Spec.Deleted }

// IPAMHandleList is a list of IPAMHandles.
type IPAMHandleList = List[IPAMHandle, *IPAMHandle]

// IPAMConfig is the object "default" with the cluster's IPAM rules.
//
// +tortie:v3:column:name="StrictAffinity",type=boolean,JSONPath=`.spec.strictAffinity`
// +tortie:v3:column:name="MaxBlocksPerHost",type=integer,JSONPath=`.spec.maxBlocksPerHost`
// +tortie:v3:column:name="AutoAllocateBlocks",type=boolean,JSONPath=`.spec.autoAllocateBlocks`
type IPAMConfig struct {
	Meta `json:"metadata"`
	Spec IPAMConfigSpec `json:"spec"`
}

// IPAMConfigSpec is the content of an IPAMConfig.
type IPAMConfigSpec struct {
	// StrictAffinity forbids a host to assign from blocks that it does not own.
	// +tortie:v3:schema=`{"default":false}`
	StrictAffinity bool `json:"strictAffinity"`
	// AutoAllocateBlocks lets hosts claim blocks by themselves.
	// +tortie:v3:schema=`{"default":true}`
	AutoAllocateBlocks bool `json:"autoAllocateBlocks"`
	// MaxBlocksPerHost limits the blocks that a host may own; 0 means 20.
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=2147483647
	// +tortie:v3:schema=`{"default":0,"maximum":1000000,"format":"int32"}`
	MaxBlocksPerHost int `json:"maxBlocksPerHost,omitempty"`
	// KubeVirtVMAddressPersistence keeps a virtual machine's address over its pods.
	// +kubebuilder:validation:Enum=Enabled;Disabled
	KubeVirtVMAddressPersistence string `json:"kubeVirtVMAddressPersistence,omitempty"`
	// IPCooldownSeconds is how long a released address stays unused.
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=1200
	// +tortie:v3:schema=`{"format":"int32"}`
	IPCooldownSeconds int `json:"ipCooldownSeconds,omitempty"`
}

// ResourceType implements Resource.
func (*IPAMConfig) ResourceType() Type { return custom("IPAMConfig", "ipamconfigs") }

// DefaultName is the name of the cluster's one IPAMConfig, ClusterInformation and default BGPConfiguration.
const DefaultName = "default"
