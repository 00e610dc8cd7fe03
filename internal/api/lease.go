package api

// Lease is the lock of a leader election: the holder, and how long no other candidate may take over.
type Lease struct {
	Meta `json:"metadata"`
	Spec LeaseSpec `json:"spec"`
}

// LeaseSpec is the content of a Lease.
type LeaseSpec struct {
	HolderIdentity       string `json:"holderIdentity,omitempty"`
	LeaseDurationSeconds int    `json:"leaseDurationSeconds,omitempty"`
	AcquireTime          string `json:"acquireTime,omitempty"`
	RenewTime            string `json:"renewTime,omitempty"`
	LeaseTransitions     int    `json:"leaseTransitions,omitempty"`
}

// MicroTime is the format of a Lease's times.
const MicroTime = "2006-01-02T15:04:05.000000Z07:00"

// ResourceType implements Resource.
func (*Lease) ResourceType() Type {
	return Type{Group: "coordination.k8s.io", Version: "v1", Kind: "Lease", Plural: "leases", Namespaced: true}
}
