package ipam

import (
	"net/netip"
	"slices"

	"github.com/tortie-net/tortie/internal/api"
	"github.com/tortie-net/tortie/internal/api/names"
)

// newHandle returns a handle that holds nothing yet.
func newHandle(id string) *api.IPAMHandle {
	return &api.IPAMHandle{
		Meta: api.Meta{Name: names.Handle(id), Annotations: map[string]string{names.AnnotationMetadata: "{}"}},
		Spec: api.IPAMHandleSpec{HandleID: id, Block: map[string]int{}},
	}
}

// hostHandle returns a new handle that names its host, if that is a node.
func hostHandle(id, host string) *api.IPAMHandle {
	h := newHandle(id)
	if host != names.LoadBalancer {
		h.Annotations[names.AnnotationNode] = host
	}
	return h
}

// ofOther reports whether a handle is another host's. Calico's handles name none.
func ofOther(h *api.IPAMHandle, host string) bool {
	node := h.Annotations[names.AnnotationNode]
	return node != "" && node != host
}

// handleBlocks returns the blocks that a handle names, in order.
func handleBlocks(h *api.IPAMHandle) []netip.Prefix {
	if h == nil {
		return nil
	}
	var blocks []netip.Prefix
	for text := range h.Spec.Block {
		if cidr, err := netip.ParsePrefix(text); err == nil {
			blocks = append(blocks, cidr.Masked())
		}
	}
	slices.SortFunc(blocks, netip.Prefix.Compare)
	return slices.Compact(blocks)
}
