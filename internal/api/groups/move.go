package groups

import (
	"encoding/json"
	"slices"
	"strings"

	"github.com/tortie-net/tortie/internal/api"
	"github.com/tortie-net/tortie/internal/api/names"
)

// ipamKinds are the kinds that programs alone write. Their labels are where Kubernetes has them in both groups.
var ipamKinds = []string{"IPAMBlock", "BlockAffinity", "IPAMHandle"}

// onObject are the marks of keys that Calico keeps on an object of V1 itself, too, and tortie.io/, whose keys this
// project reads there.
var onObject = []string{"projectcalico.org/", "operator.tigera.io/", "tortie.io/"}

// MoveMeta returns the labels and annotations of an object of a kind, read from the other group, in the form of g. The
// maps of m are not changed.
//
// In V1 all labels and annotations go into names.AnnotationMetadata, as Calico's clients write and read them, except
// those of the IPAM kinds. MoveMeta of V3 is the way back.
func (g Group) MoveMeta(kind string, m api.Meta) api.Meta {
	if g == V3 {
		return plainMeta(m)
	}
	if slices.Contains(ipamKinds, kind) || len(m.Labels)+len(m.Annotations) == 0 {
		return m
	}
	labels, annotations := m.Labels, m.Annotations
	m.Labels, m.Annotations = kept(labels), kept(annotations)
	names.SetMetadata(&m, labels, annotations)
	return m
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

// MoveSpec returns the spec of an object of a kind, read from the other group, in the form of g. An object that is
// marked deleted loses its mark. A spec that is no JSON object stays as it is: the API server refuses it.
func (g Group) MoveSpec(kind string, spec json.RawMessage) json.RawMessage {
	if kind != (*api.BlockAffinity)(nil).ResourceType().Kind {
		return spec
	}
	var members map[string]json.RawMessage
	if json.Unmarshal(spec, &members) != nil || members == nil {
		return spec
	}
	if members["deleted"] = json.RawMessage(`"false"`); g == V3 {
		members["deleted"] = json.RawMessage(`false`)
	}
	moved, err := json.Marshal(members)
	if err != nil {
		return spec
	}
	return moved
}
