package etcd

import (
	"encoding/json"
	"fmt"
	"strconv"

	"github.com/tortie-net/tortie/internal/api"
)

// blockFields are the fields of an IPAMBlock under the names that they have on etcd.
type blockFields struct {
	CIDR                        string                    `json:"cidr"`
	Affinity                    *string                   `json:"affinity"`
	AffinityClaimTime           string                    `json:"affinity_claim_time,omitempty"`
	Allocations                 []*int                    `json:"allocations"`
	Unallocated                 []int                     `json:"unallocated"`
	Attributes                  []api.AllocationAttribute `json:"attributes"`
	SequenceNumber              uint64                    `json:"sequenceNumber"`
	SequenceNumberForAllocation map[string]uint64         `json:"sequenceNumberForAllocation"`
	Deleted                     bool                      `json:"deleted"`
	StrictAffinity              bool                      `json:"-"`
}

// blockValue is the value of a block.
type blockValue struct {
	blockFields
	// HostAffinity is Calico 2's form of Affinity: a host's name.
	HostAffinity *string `json:"hostAffinity,omitempty"`
}

func (v *blockValue) spec() api.IPAMBlockSpec {
	spec := api.IPAMBlockSpec(v.blockFields)
	if spec.Affinity == nil && v.HostAffinity != nil {
		host := api.AffinityHost + ":" + *v.HostAffinity
		spec.Affinity = &host
	}
	return spec
}

// affinityValue is the value of an affinity; the rest is in its key. An empty object is a confirmed one.
type affinityValue struct {
	State   api.AffinityState `json:"state"`
	Deleted bool              `json:"deleted"`
}

// handleValue is the value of a handle; its ID is in the key.
type handleValue struct {
	Block   map[string]int `json:"block"`
	Deleted bool           `json:"deleted"`
}

// configValue is the value of the IPAM configuration. Absent fields are false or 0, also autoAllocateBlocks.
type configValue struct {
	StrictAffinity               bool   `json:"strict_affinity,omitempty"`
	AutoAllocateBlocks           bool   `json:"auto_allocate_blocks,omitempty"`
	MaxBlocksPerHost             int    `json:"maxBlocksPerHost,omitempty"`
	KubeVirtVMAddressPersistence string `json:"kubeVirtVMAddressPersistence,omitempty"`
	IPCooldownSeconds            int    `json:"ipCooldownSeconds,omitempty"`
}

// nodeValue has the fields of Calico's own Node that are read.
type nodeValue struct {
	api.Meta `json:"metadata"`
	Status   struct {
		PodCIDRs []string `json:"podCIDRs"`
	} `json:"status"`
}

// encode returns the value of an object.
func encode(obj api.Resource) ([]byte, error) {
	switch o := obj.(type) {
	case *api.IPAMBlock:
		return json.Marshal(blockFields(o.Spec))
	case *api.BlockAffinity:
		return json.Marshal(affinityValue{o.Spec.State, o.MarkedDeleted()})
	case *api.IPAMHandle:
		return json.Marshal(handleValue{o.Spec.Block, o.Spec.Deleted})
	case *api.IPAMConfig:
		return json.Marshal(configValue(o.Spec))
	case *api.Node:
		return nil, fmt.Errorf("encode Node %s: Calico's nodes are read here, not written", o.Name)
	}
	return encodeResource(obj)
}

// encodeResource returns an object in the form of Calico's v3 API. The revision is etcd's and not part of the value.
func encodeResource(obj api.Resource) ([]byte, error) {
	stored := api.NewLike(obj)
	api.Assign(stored, obj)
	stored.GetMeta().ResourceVersion = ""
	body, err := json.Marshal(stored)
	if err != nil {
		return nil, err
	}
	head := fmt.Sprintf(`{"kind":%q,"apiVersion":"projectcalico.org/v3",`, obj.ResourceType().Kind)
	return append([]byte(head), body[1:]...), nil
}

// decode replaces obj by the object in a key and its value. The key must be one of obj's kind.
func decode(obj api.Resource, kv keyValue) error {
	fresh := api.NewLike(obj)
	if err := decodeValue(fresh, kv); err != nil {
		return fmt.Errorf("%s: value of %s: %w", obj.ResourceType().Kind, kv.key, err)
	}
	fresh.GetMeta().ResourceVersion = strconv.FormatInt(kv.revision, 10)
	api.Assign(obj, fresh)
	return nil
}

func decodeValue(obj api.Resource, kv keyValue) (err error) {
	switch o := obj.(type) {
	case *api.IPAMBlock:
		var v blockValue
		err = json.Unmarshal(kv.value, &v)
		o.Spec = v.spec()
	case *api.BlockAffinity:
		var v affinityValue
		err = json.Unmarshal(kv.value, &v)
		o.Spec.State, o.Spec.Deleted = v.State, api.Mark(v.Deleted)
	case *api.IPAMHandle:
		var v handleValue
		err = json.Unmarshal(kv.value, &v)
		o.Spec.Block, o.Spec.Deleted = v.Block, v.Deleted
	case *api.IPAMConfig:
		var v configValue
		err = json.Unmarshal(kv.value, &v)
		o.Spec = api.IPAMConfigSpec(v)
	case *api.Node:
		var v nodeValue
		err = json.Unmarshal(kv.value, &v)
		o.Meta, o.Spec.PodCIDRs = v.Meta, v.Status.PodCIDRs
	default:
		err = json.Unmarshal(kv.value, obj)
	}
	identify(obj, kv.key) // the key decides an object's name
	return err
}

// carry returns next with the fields of raw that are unknown here: known is raw after decoding and encoding. So a write
// does not remove the fields that another program wrote. It merges objects, not arrays.
func carry(raw, known, next json.RawMessage) (json.RawMessage, error) {
	var r, k, n map[string]json.RawMessage
	if json.Unmarshal(raw, &r) != nil || json.Unmarshal(known, &k) != nil || json.Unmarshal(next, &n) != nil || n == nil {
		return next, nil // not three objects: next counts
	}
	for name, value := range r {
		was, isKnown := k[name]
		will, stays := n[name]
		switch {
		case !isKnown && !stays:
			n[name] = value
		case isKnown && stays:
			merged, err := carry(value, was, will)
			if err != nil {
				return nil, err
			}
			n[name] = merged
		}
	}
	return json.Marshal(n)
}
