package ipam

import (
	"fmt"
	"net/netip"
	"slices"

	"github.com/tortie-net/tortie/internal/api/names"
)

// Owner is the holder of an address.
type Owner struct {
	// Handle is the key by which the address is released.
	Handle string
	// Attrs describe the owner to people and to garbage collection: pod, namespace, node, type, timestamp, and the
	// interface if the container may have several in the network. Without any, the handle alone identifies the owner.
	Attrs map[string]string
	// Only, if not nil, narrows a release to these addresses.
	Only []netip.Addr
}

// sameContainer reports whether an allocation of the owner's handle, with these attributes, is of the owner's
// container. A handle consists of a network's name and an ID that a container runtime chose: runtimes of two nodes may
// choose the same ID, and network "a.b" with container "c" has the handle of network "a" with container "b.c". Calico
// before 3.0 stored no attributes.
func (o *Owner) sameContainer(noted map[string]string) bool {
	switch {
	case len(noted) == 0 || len(o.Attrs) == 0:
		return true
	case noted["type"] != o.Attrs["type"]:
		return false
	case noted["pod"] != "":
		return noted["pod"] == o.Attrs["pod"] && noted["namespace"] == o.Attrs["namespace"]
	}
	return noted["node"] == "" || noted["node"] == o.Attrs["node"]
}

// owns reports whether an allocation of the owner's handle is the owner's: of its container, and of its interface if
// both name one.
func (o *Owner) owns(noted map[string]string) bool {
	theirs, ours := noted[names.AttributeInterface], o.Attrs[names.AttributeInterface]
	return o.sameContainer(noted) && (theirs == "" || ours == "" || theirs == ours)
}

// owned returns the addresses that the owner holds in a block, in ascending order.
func (b *Block) owned(owner Owner) []netip.Addr {
	return slices.DeleteFunc(b.Held(owner.Handle), func(a netip.Addr) bool {
		return !owner.owns(b.noted(a)) || owner.Only != nil && !slices.Contains(owner.Only, a)
	})
}

// noted returns the attributes of an allocated address.
func (b *Block) noted(a netip.Addr) map[string]string {
	return b.obj.Spec.Attributes[*b.obj.Spec.Allocations[b.ordinal(a)]].Secondary
}

// handleOwned refuses a handle under which another container holds addresses, or another node is assigning one. It
// requires that the blocks named by the handle were read.
func (st *State) handleOwned(req *Request) error {
	held := 0
	for _, cidr := range handleBlocks(st.Handle) {
		b := st.Blocks[cidr]
		if b == nil {
			continue
		}
		for _, a := range b.Held(req.Handle) {
			if !req.sameContainer(b.noted(a)) {
				return fmt.Errorf("%w: %s %s, which is another container with the same ID", ErrTaken, a, b.holderText(a, Cooldown{}))
			}
			held++
		}
	}
	if st.Handle != nil && held == 0 && ofOther(st.Handle, req.Host) {
		return fmt.Errorf("%w: handle %s is of node %s, which has another container with the same ID", ErrTaken, req.Handle,
			st.Handle.Annotations[names.AnnotationNode])
	}
	return nil
}
