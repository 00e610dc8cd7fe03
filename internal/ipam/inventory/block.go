package inventory

import (
	"context"
	"encoding/json"
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/tortie-net/tortie/internal/api"
	"github.com/tortie-net/tortie/internal/api/names"
	"github.com/tortie-net/tortie/internal/datastore"
	"github.com/tortie-net/tortie/internal/datastore/podnote"
	"github.com/tortie-net/tortie/internal/ipam"
)

// ResourceType implements api.Resource.
func (*Block) ResourceType() api.Type { return (*api.IPAMBlock)(nil).ResourceType() }

// UnmarshalJSON reads an IPAMBlock.
func (b *Block) UnmarshalJSON(data []byte) error {
	var obj api.IPAMBlock
	if err := json.Unmarshal(data, &obj); err != nil {
		return err
	}
	*b = NewBlock(&obj)
	return nil
}

// NewBlock returns the relevant parts of a stored block.
func NewBlock(obj *api.IPAMBlock) Block {
	b := Block{Meta: bare(obj.Meta), Sequence: obj.Spec.SequenceNumber}
	b.DeletionTimestamp = obj.DeletionTimestamp
	if obj.Spec.Deleted {
		b.DeletionTimestamp = "marked" // its deleter is between its two steps
	}
	b.CIDR, _ = names.ParseBlock(obj.Name)
	if _, err := ipam.ParseBlock(obj); err != nil {
		b.Damage = err
		return b
	}
	if obj.Spec.Affinity != nil {
		b.Affinity = shared(*obj.Spec.Affinity)
	}
	b.Free = len(obj.Spec.Unallocated)
	owners := make([]Allocation, len(obj.Spec.Attributes))
	for i := range obj.Spec.Attributes {
		owners[i] = newAllocation(&obj.Spec.Attributes[i])
	}
	b.Allocations = make([]Allocation, 0, len(obj.Spec.Allocations)-b.Free)
	address := b.CIDR.Addr()
	for ordinal, at := range obj.Spec.Allocations {
		if at != nil {
			a := owners[*at]
			a.Address, a.Sequence = address, obj.Spec.SequenceNumberForAllocation[strconv.Itoa(ordinal)]
			b.Allocations = append(b.Allocations, a)
		}
		address = address.Next()
	}
	return b
}

// bare keeps the metadata that identifies an object and its revision.
func bare(m api.Meta) api.Meta {
	return api.Meta{Name: m.Name, UID: m.UID, ResourceVersion: m.ResourceVersion, CreationTimestamp: m.CreationTimestamp,
		Annotations: bookmark(m)}
}

// windowsReserved is the handle, in any case, of the addresses that Windows keeps for itself in each of its blocks.
const windowsReserved = "windows-reserved-ipam-handle"

// newAllocation reads the attributes of an address's owner.
func newAllocation(owner *api.AllocationAttribute) Allocation {
	at := owner.Secondary
	a := Allocation{Node: shared(at["node"]), Namespace: shared(at["namespace"]), Pod: at["pod"], Service: at["service"],
		Since: since(at["timestamp"])}
	if owner.HandleID != nil {
		a.Handle = *owner.HandleID
	}
	a.Released, _ = time.Parse(time.RFC3339, owner.ReleasedAt)
	a.Class = classOf(a, at)
	ifName := at[names.AttributeInterface]
	a.Further = ifName != "" && ifName != podnote.Primary
	if a.Class == Tunnel {
		a.Type = shared(at["type"])
	}
	return a
}

// Types of tunnels' addresses, as their attribute "type" has them.
const (
	TypeIPIP        = "ipipTunnelAddress"
	TypeVXLAN       = "vxlanTunnelAddress"
	TypeVXLANv6     = "vxlanV6TunnelAddress"
	TypeWireGuard   = "wireguardTunnelAddress"
	TypeWireGuardV6 = "wireguardV6TunnelAddress"
)

func classOf(a Allocation, attributes map[string]string) Class {
	switch attributes["type"] {
	case TypeIPIP, TypeVXLAN, TypeVXLANv6, TypeWireGuard, TypeWireGuardV6:
		return Tunnel
	}
	switch {
	case strings.EqualFold(a.Handle, windowsReserved):
		return Windows
	case attributes["vmi-name"] != "":
		return VM
	case attributes["service"] != "":
		return LoadBalancer
	case a.Pod != "" && a.Namespace != "" && a.Node != "":
		return OfPod
	case a.Pod == "" && a.Namespace == "" && a.Node != "" && a.Handle != "" && attributes["type"] == "":
		return OfContainer
	}
	return Unknown
}

// since parses the format of Go's time.Time.String, which may end with a monotonic clock reading.
func since(text string) time.Time {
	text, _, _ = strings.Cut(text, " m=")
	at, _ := time.Parse("2006-01-02 15:04:05.999999999 -0700 MST", text)
	return at
}

func owner(affinity string) (string, bool) { return strings.CutPrefix(affinity, api.AffinityHost+":") }

// blockList is a list of any datastore that converts blocks as they are decoded.
type blockList struct{ items []Block }

// ItemType implements api.ResourceList.
func (*blockList) ItemType() api.Type { return (*api.IPAMBlock)(nil).ResourceType() }

// NewItem implements api.ResourceList.
func (*blockList) NewItem() api.Resource { return new(api.IPAMBlock) }

// Add implements api.ResourceList.
func (l *blockList) Add(item api.Resource) {
	if obj, ok := item.(*api.IPAMBlock); ok && !obj.MarkedDeleted() {
		l.items = append(l.items, NewBlock(obj))
	}
}

// ReadBlocks lists all blocks as they are now.
func ReadBlocks(ctx context.Context, store datastore.Store) ([]Block, error) {
	var list blockList
	err := store.List(ctx, &list, datastore.ListOptions{})
	return list.items, err
}

// ResourceType implements api.Resource.
func (*Handle) ResourceType() api.Type { return (*api.IPAMHandle)(nil).ResourceType() }

// UnmarshalJSON reads an IPAMHandle, or the metadata of one.
func (h *Handle) UnmarshalJSON(data []byte) error {
	var obj api.IPAMHandle
	if err := json.Unmarshal(data, &obj); err != nil {
		return err
	}
	*h = NewHandle(&obj)
	return nil
}

// NewHandle returns the relevant parts of a stored handle.
func NewHandle(obj *api.IPAMHandle) Handle {
	h := Handle{Meta: bare(obj.Meta), ID: obj.Spec.HandleID, Named: obj.Spec.HandleID == "",
		Node: shared(obj.Annotations[names.AnnotationNode])}
	for text, n := range obj.Spec.Block {
		cidr, err := netip.ParsePrefix(text)
		if err != nil {
			h.Odd = append(h.Odd, text)
			continue
		}
		if h.Blocks == nil {
			h.Blocks = make(map[netip.Prefix]int, len(obj.Spec.Block))
		}
		h.Blocks[cidr.Masked()] += n
	}
	slices.Sort(h.Odd)
	return h
}

// HandleName returns the name of the object of a handle. Calico's migration from host-local once stored handles with a
// carriage return, and Calico compares without it, too.
func HandleName(id string) string {
	id, _, _ = strings.Cut(id, "\r")
	return names.Handle(id)
}

// String names the address and its owner, for people.
func (a *Allocation) String() string {
	switch {
	case a.Class == OfPod:
		return fmt.Sprintf("%s of pod %s/%s on %s", a.Address, a.Namespace, a.Pod, a.Node)
	case a.Class == LoadBalancer:
		return fmt.Sprintf("%s of Service %s/%s", a.Address, a.Namespace, a.Service)
	case a.Node != "":
		return fmt.Sprintf("%s of a %s on %s", a.Address, a.Class, a.Node)
	}
	return fmt.Sprintf("%s (%s)", a.Address, a.Class)
}
