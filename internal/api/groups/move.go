package groups

import (
	"encoding/json"
	"maps"
	"slices"
	"strings"

	"github.com/tortie-net/tortie/internal/api"
	"github.com/tortie-net/tortie/internal/api/names"
)

// ipamKinds are the kinds that only programs write. Their labels are Kubernetes' own in both groups.
var ipamKinds = []string{"IPAMBlock", "BlockAffinity", "IPAMHandle"}

// onObject are parts of keys: Calico also keeps keys with these on an object of V1 itself. This project reads its keys,
// tortie.io/, there.
var onObject = []string{"projectcalico.org/", "operator.tigera.io/", "tortie.io/"}

// MoveMeta returns the labels and annotations of an object of a kind, read from the other group, in the form of g. The
// maps of m are not changed.
//
// In V1 all labels and annotations go into names.AnnotationMetadata, where Calico's clients write and read them, except
// for the IPAM kinds. So does the name of a policy that would count without its prefix there. MoveMeta of V3 is the
// inverse, and takes finalizers and owners out of that annotation, too. Of an IPAM kind it drops the annotation: a node
// may write it there, and Calico keeps nothing in it.
func (g Group) MoveMeta(kind string, m api.Meta) api.Meta {
	if g == V3 {
		if slices.Contains(ipamKinds, kind) {
			m.Annotations = maps.Clone(m.Annotations)
			delete(m.Annotations, names.AnnotationMetadata)
			return m
		}
		m.Foreign = withOwn(m)
		return plainMeta(m)
	}
	if !slices.Contains(ipamKinds, kind) && len(m.Labels)+len(m.Annotations) > 0 {
		labels, annotations := m.Labels, m.Annotations
		m.Labels, m.Annotations = kept(labels), kept(annotations)
		names.SetMetadata(&m, labels, annotations)
	}
	if slices.Contains(tiered, kind) && strings.HasPrefix(m.Name, defaultPrefix) {
		m.Annotations = maps.Clone(m.Annotations)
		names.SetName(&m)
	}
	return m
}

// MoveName returns the name of an object of a kind, read from the other group, in g: in V3 a policy has the name by
// which Calico's clients know it.
func (g Group) MoveName(kind string, m *api.Meta, spec json.RawMessage) string {
	if g != V3 || !slices.Contains(tiered, kind) {
		return m.Name
	}
	var of struct{ Tier string }
	_ = json.Unmarshal(spec, &of) // the API server has checked it
	return V1.policyName(m, of.Tier)
}

// withOwn returns finalizers and owners of an object of V1: Kubernetes', and those of Calico's own API version.
func withOwn(m api.Meta) *api.Foreign {
	var own struct {
		Finalizers      []string
		OwnerReferences []map[string]any
	}
	_ = json.Unmarshal([]byte(m.Annotations[names.AnnotationMetadata]), &own) // invalid JSON has none
	if len(own.Finalizers)+len(own.OwnerReferences) == 0 {
		return m.Foreign
	}
	var all api.Foreign
	if m.Foreign != nil {
		all = *m.Foreign
	}
	var refs []map[string]any
	_ = json.Unmarshal(all.OwnerReferences, &refs) // the API server has checked them
	for _, ref := range own.OwnerReferences {
		if !slices.ContainsFunc(refs, func(r map[string]any) bool { return r["uid"] == ref["uid"] }) {
			refs = append(refs, ref)
		}
	}
	if len(refs) > 0 {
		all.OwnerReferences, _ = json.Marshal(refs) // what was decoded encodes
	}
	all.Finalizers = slices.Clone(all.Finalizers)
	for _, f := range own.Finalizers {
		if !slices.Contains(all.Finalizers, f) {
			all.Finalizers = append(all.Finalizers, f)
		}
	}
	return &all
}

// kept returns the part of a map that stays on an object of V1.
func kept(all map[string]string) map[string]string {
	part := map[string]string{}
	for key, value := range all {
		if slices.ContainsFunc(onObject, func(mark string) bool { return strings.Contains(key, mark) }) {
			part[key] = value
		}
	}
	return part
}

// tiered are the policies in tiers. Without types one applies to both directions in V1. In V3 the API server would store
// the directions of its rules only.
var tiered = []string{"NetworkPolicy", "GlobalNetworkPolicy", "StagedNetworkPolicy", "StagedGlobalNetworkPolicy"}

// MoveSpec returns the spec of an object of a kind, read from the other group, in the form of g. A deletion mark is
// removed, and a policy without directions gets both in V3. A spec that is not a JSON object stays: the API server
// refuses it.
func (g Group) MoveSpec(kind string, spec json.RawMessage) json.RawMessage {
	affinity := kind == (*api.BlockAffinity)(nil).ResourceType().Kind
	if !affinity && (g != V3 || !slices.Contains(tiered, kind)) {
		return spec
	}
	var members map[string]json.RawMessage
	if json.Unmarshal(spec, &members) != nil || members == nil {
		return spec
	}
	switch {
	case affinity && g == V3:
		members["deleted"] = json.RawMessage(`false`)
	case affinity:
		members["deleted"] = json.RawMessage(`"false"`)
	default:
		var types []string
		if _ = json.Unmarshal(members["types"], &types); len(types) > 0 { // absent, and null: none
			return spec
		}
		members["types"] = json.RawMessage(`["Ingress","Egress"]`)
	}
	moved, err := json.Marshal(members)
	if err != nil {
		return spec
	}
	return moved
}
