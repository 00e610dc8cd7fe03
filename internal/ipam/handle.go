package ipam

import (
	"encoding/json"
	"net/netip"

	"github.com/tortie-net/tortie/internal/api"
	"github.com/tortie-net/tortie/internal/names"
)

// newHandle returns a handle that holds nothing yet.
func newHandle(id string) *api.IPAMHandle {
	return &api.IPAMHandle{
		Meta: api.Meta{Name: names.Handle(id), Annotations: map[string]string{names.AnnotationMetadata: "{}"}},
		Spec: api.IPAMHandleSpec{HandleID: id, Block: map[string]int{}},
	}
}

// handleBlocks returns the blocks in which a handle says it holds addresses.
func handleBlocks(h *api.IPAMHandle) []netip.Prefix {
	if h == nil {
		return nil
	}
	var blocks []netip.Prefix
	for text := range h.Spec.Block {
		if cidr, err := netip.ParsePrefix(text); err == nil {
			blocks = append(blocks, cidr)
		}
	}
	return blocks
}

// newAffinity returns a node's pending claim of a block.
func newAffinity(host string, cidr netip.Prefix) *api.BlockAffinity {
	return &api.BlockAffinity{
		Meta: affinityMeta(host, cidr),
		Spec: api.BlockAffinitySpec{
			State:   api.AffinityPending,
			Node:    host,
			Type:    api.AffinityHost,
			CIDR:    cidr.String(),
			Deleted: "false",
		},
	}
}

// withState returns the affinity as it is to be written next, with the labels that Calico rewrites on each write too.
func withState(a *api.BlockAffinity, cidr netip.Prefix, state api.AffinityState) *api.BlockAffinity {
	next := newAffinity(a.Spec.Node, cidr)
	next.UID, next.ResourceVersion = a.UID, a.ResourceVersion
	next.Spec.State = state
	return next
}

func affinityMeta(host string, cidr netip.Prefix) api.Meta {
	labels := names.AffinityLabels(host, api.AffinityHost, cidr)
	return api.Meta{
		Name:        names.Affinity(host, cidr),
		Labels:      labels,
		Annotations: map[string]string{names.AnnotationMetadata: metadataOf(labels)},
	}
}

// metadataOf returns what Calico keeps in AnnotationMetadata for an object with these labels. encoding/json sorts the keys,
// as Calico's encoder does.
func metadataOf(labels map[string]string) string {
	data, err := json.Marshal(map[string]any{"labels": labels})
	if err != nil {
		panic("a map of strings does not encode: " + err.Error())
	}
	return string(data)
}
