package migrate

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"maps"
	"net/netip"
	"slices"

	"github.com/tortie-net/tortie/internal/api"
	"github.com/tortie-net/tortie/internal/api/groups"
	"github.com/tortie-net/tortie/internal/api/names"
)

// migratedBy is the annotation of each object that a move has created: the ID of the move, and a hash of the written
// object, by which a later pass sees whether the source has changed since.
const migratedBy = "tortie.net/migrated-by"

// ofV3 are the finalizers of controllers that work in projectcalico.org/v3 only: in v1 no program would remove them.
var ofV3 = []string{"projectcalico.org/ippool-finalizer", "projectcalico.org/tier-controller"}

// uids maps the UID of each owner in the source to its UID in the target.
type uids map[string]string

// add maps the UID of an object in both forms that references use: the object's own, and the form by which Calico's
// clients know an object of v1.
func (u uids) add(source, target string) {
	u[source], u[names.ConvertUID(source)] = target, target
}

// convert returns an object of the source in the form that the move with that ID writes. The object is not changed.
func convert(o *object, to groups.Group, id string, owners uids) *object {
	m := api.Meta{Name: o.Name, Namespace: o.Namespace, Foreign: o.Foreign,
		Labels: maps.Clone(o.Labels), Annotations: maps.Clone(o.Annotations)}
	delete(m.Annotations, migratedBy)
	delete(m.Annotations, groups.Moving)
	label(o, &m)
	m.Name = to.MoveName(o.of.Kind, &o.Meta, o.Spec)
	m = to.MoveMeta(o.of.Kind, m)
	m.Foreign = foreign(m.Foreign, to, owners)
	n := &object{Meta: m, Spec: to.MoveSpec(o.of.Kind, o.Spec), of: o.of}
	if len(n.Spec) == 0 {
		n.Spec = json.RawMessage("{}")
	}
	by := id + " " + hash(n) // before the annotation is there
	n.Annotations = maps.Clone(n.Annotations)
	if n.Annotations == nil {
		n.Annotations = map[string]string{}
	}
	n.Annotations[migratedBy] = by
	return n
}

// label adds the labels by which a BlockAffinity is found. Calico before 3.31 wrote none.
func label(o *object, m *api.Meta) {
	if o.of.Kind != (*api.BlockAffinity)(nil).ResourceType().Kind {
		return
	}
	var spec api.BlockAffinitySpec
	if json.Unmarshal(o.Spec, &spec) != nil {
		return
	}
	cidr, err := netip.ParsePrefix(spec.CIDR)
	if err != nil {
		return
	}
	if spec.Type == "" {
		spec.Type = api.AffinityHost
	}
	if m.Labels == nil {
		m.Labels = map[string]string{}
	}
	maps.Copy(m.Labels, names.AffinityLabels(spec.Node, spec.Type, cidr))
}

// foreign returns finalizers and owners of an object in a group. An owner of Calico's kinds that the target does not
// have yet is left out: Kubernetes would delete an object with missing owners. A later pass adds it.
func foreign(of *api.Foreign, to groups.Group, owners uids) *api.Foreign {
	if of == nil {
		return nil
	}
	var f api.Foreign
	for _, finalizer := range of.Finalizers {
		if to != groups.V1 || !slices.Contains(ofV3, finalizer) {
			f.Finalizers = append(f.Finalizers, finalizer)
		}
	}
	var refs, moved []map[string]any
	_ = json.Unmarshal(of.OwnerReferences, &refs) // the API server has checked them
	for _, ref := range refs {
		if version, _ := ref["apiVersion"].(string); slices.Contains(groups.All, groups.Group(version)) {
			uid, _ := ref["uid"].(string)
			if owners[uid] == "" {
				continue
			}
			kind, _ := ref["kind"].(string)
			t := to.Type(api.Type{Group: api.Group, Version: "v1", Kind: modelKind(kind)})
			ref["apiVersion"], ref["kind"], ref["uid"] = t.APIVersion(), t.Kind, owners[uid]
		}
		moved = append(moved, ref)
	}
	if len(moved) > 0 {
		f.OwnerReferences, _ = json.Marshal(moved) // what was decoded encodes
	}
	if len(f.Finalizers) == 0 && len(moved) == 0 {
		return nil
	}
	return &f
}

// modelKind returns the kind in internal/api of a kind of either group.
func modelKind(kind string) string {
	for _, t := range kinds {
		if groups.V3.Type(t).Kind == kind {
			return t.Kind
		}
	}
	return kind
}

// hash returns a hash of the object that a move writes.
func hash(o *object) string {
	text, err := json.Marshal(o)
	if err != nil {
		return "" // no JSON: the API server refuses it
	}
	sum := sha256.Sum256(text)
	return hex.EncodeToString(sum[:8])
}

// lacks returns the path of the first value of want that is missing in have; empty if there is none. Objects in have
// may have more members: the API server adds defaults. A null member counts as absent.
func lacks(have, want json.RawMessage) string {
	var h, w any
	for into, data := range map[*any]json.RawMessage{&h: have, &w: want} {
		d := json.NewDecoder(bytes.NewReader(data))
		d.UseNumber() // sequence numbers need 64 bits
		if len(data) > 0 && d.Decode(into) != nil {
			return "spec"
		}
	}
	return lacking(h, w, "spec")
}

func lacking(have, want any, path string) string {
	switch w := want.(type) {
	case map[string]any:
		h, ok := have.(map[string]any)
		if !ok {
			return path
		}
		for _, key := range slices.Sorted(maps.Keys(w)) {
			if _, there := h[key]; !there && w[key] == nil {
				continue
			}
			if at := lacking(h[key], w[key], path+"."+key); at != "" {
				return at
			}
		}
	case []any:
		h, ok := have.([]any)
		if !ok || len(h) != len(w) {
			return path
		}
		for i := range w {
			if at := lacking(h[i], w[i], path); at != "" {
				return at
			}
		}
	default:
		if have != want {
			return path
		}
	}
	return ""
}
