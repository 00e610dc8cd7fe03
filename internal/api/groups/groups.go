// Package groups knows the two API groups that may hold a cluster's Calico objects, and their differences on the wire.
// The rest of the project is independent of the group: the Go types of internal/api are the model of both.
//
// crd.projectcalico.org/v1 is the older one. There, Calico keeps the labels and annotations of its own API version in
// an annotation, as JSON (names.AnnotationMetadata). projectcalico.org/v3 came with Calico 3.32: labels and annotations
// are Kubernetes' own, IPAMConfig is called IPAMConfiguration, and the deletion mark of a BlockAffinity is a boolean.
package groups

import (
	"encoding/json"
	"fmt"
	"maps"
	"path"
	"strings"

	"github.com/tortie-net/tortie/internal/api"
	"github.com/tortie-net/tortie/internal/api/names"
)

// Group is one of the two groups, with its version.
type Group string

// The groups.
const (
	V1 Group = api.Group + "/v1"
	V3 Group = "projectcalico.org/v3"
)

// All holds both groups.
var All = []Group{V1, V3}

// Other returns the other group.
func (g Group) Other() Group {
	if g == V3 {
		return V1
	}
	return V3
}

// Parse returns the group that a setting names, in any case, as Calico's CALICO_API_GROUP and calico_api_group do.
// Empty text returns "": the group must be detected.
func Parse(text string) (Group, error) {
	for _, g := range append([]Group{""}, All...) {
		if strings.EqualFold(text, string(g)) {
			return g, nil
		}
	}
	return "", fmt.Errorf("%q is no API group of Calico's objects: use %s or %s, or leave it empty so that it is found", text, V1, V3)
}

// Type returns the type of a kind in a cluster with Calico's objects in the group. Types of other kinds are returned
// unchanged. t may have only a Kind, or only a Plural.
func (g Group) Type(t api.Type) api.Type {
	if t.Group != api.Group || g != V3 {
		return t
	}
	t.Group, t.Version, _ = strings.Cut(string(V3), "/")
	if t.Kind == "IPAMConfig" || t.Plural == configsV1 {
		t.Kind, t.Plural = "IPAMConfiguration", configsV3
	}
	return t
}

// The plurals of the one kind with two names.
const configsV1, configsV3 = "ipamconfigs", "ipamconfigurations"

// Resource returns PLURAL.GROUP, by which kubectl finds a kind of Calico's in this group only. plural is the plural in
// internal/api.
func (g Group) Resource(plural string) string {
	t := g.Type(api.Type{Group: api.Group, Plural: plural})
	return t.Plural + "." + t.Group
}

// Reference returns a reference with the types of internal/api in the form of the group. References to kinds that are
// not Calico's stay.
func (g Group) Reference(o api.ObjectReference) api.ObjectReference {
	if o.APIVersion == string(V1) {
		t := g.Type(api.Type{Group: api.Group, Version: "v1", Kind: o.Kind})
		o.APIVersion, o.Kind = t.APIVersion(), t.Kind
	}
	return o
}

// DefinitionsDir returns the directory of the chart with the definitions of the group.
func (g Group) DefinitionsDir() string { return "charts/tortie/definitions/" + path.Base(string(g)) }

// Plural returns the plural in internal/api of a kind that the group serves as served.
func (g Group) Plural(served string) string {
	if g == V3 && served == configsV3 {
		return configsV1
	}
	return served
}

// Read changes an object that a server of the group has sent to what it means there: ReadMeta, and the name by which
// Calico's clients know a policy. All else the Go types read in both forms.
func (g Group) Read(o api.Resource) {
	if spec := api.OfCalicoPolicy(o); spec != nil {
		spec.Called = g.policyName(o.GetMeta(), spec.Tier)
	}
	g.ReadMeta(o.GetMeta())
}

// Apply changes an object of a file, in the form of a group, to what a cluster of g has when it has been applied. A policy
// of the other group is applied to V1 by Calico's clients, and to V3 by a move.
//
// A policy of V1 without types has both directions. One of V3 gets the directions of its rules: from the clients those
// with rules, from admission in V3 also those with an empty list.
func (g Group) Apply(form Group, o api.Resource) {
	form.Read(o)
	spec := api.OfCalicoPolicy(o)
	switch {
	case spec == nil:
	case form == V3 && len(spec.Types) == 0:
		spec.Types = typesOf(spec, g == V3)
	case form != V3 && g == V3:
		o.GetMeta().Name = spec.Called
		if len(spec.Types) == 0 {
			spec.Types = []string{api.PolicyTypeIngress, api.PolicyTypeEgress}
		}
	}
}

// typesOf returns the directions of a policy's rules, Ingress if there are none; empty: also those of lists without rules.
func typesOf(spec *api.CalicoPolicySpec, empty bool) (types []string) {
	has := func(rules []api.CalicoRule) bool { return len(rules) > 0 || empty && rules != nil }
	if has(spec.Ingress) || !has(spec.Egress) {
		types = []string{api.PolicyTypeIngress}
	}
	if has(spec.Egress) {
		types = append(types, api.PolicyTypeEgress)
	}
	return types
}

// policyName returns the name by which Calico's clients know a policy in a tier. In V3 it is the object's.
//
// In V1 Calico before 3.32 stores policies of tier default with a prefix. Later clients store the name that they are
// given, which may have that prefix, and write it into names.AnnotationMetadata.
func (g Group) policyName(m *api.Meta, tier string) string {
	if g == V3 || names.Tier(tier) != names.TierDefault || names.Name(m) == m.Name {
		return m.Name
	}
	return strings.TrimPrefix(m.Name, defaultPrefix)
}

const defaultPrefix = names.TierDefault + "."

// ReadMeta is the part of Read that is about metadata. In V3 the labels and annotations of V1, as in a file that was
// exported from there, have no meaning: they must not override the object's own.
func (g Group) ReadMeta(m *api.Meta) {
	if g == V3 {
		delete(m.Annotations, names.AnnotationMetadata)
	}
}

// Manifest returns an object as JSON, in the form of the group. The object is not changed.
func (g Group) Manifest(obj api.Resource) ([]byte, error) {
	of := obj.ResourceType()
	t := g.Type(of)
	var form any = obj
	if t != of {
		form = plain(obj)
	}
	body, err := json.Marshal(form)
	if err != nil {
		return nil, fmt.Errorf("encode %s %s: %w", t.Kind, obj.GetMeta().Name, err)
	}
	head := fmt.Sprintf(`{"apiVersion":%q,"kind":%q,`, t.APIVersion(), t.Kind)
	return append([]byte(head), body[1:]...), nil
}

// plain returns an object in the form of V3.
func plain(obj api.Resource) any {
	c := api.NewLike(obj)
	api.Assign(c, obj)
	m := c.GetMeta()
	*m = plainMeta(*m)
	a, ok := c.(*api.BlockAffinity)
	if !ok {
		return c
	}
	var form struct {
		api.Meta `json:"metadata"`
		Spec     struct {
			api.BlockAffinitySpec
			Deleted bool `json:"deleted"` // hides the text
		} `json:"spec"`
	}
	form.Meta, form.Spec.BlockAffinitySpec, form.Spec.Deleted = a.Meta, a.Spec, bool(a.Spec.Deleted)
	return form
}

// plainMeta moves the labels and annotations of Calico's own API version to Kubernetes' fields.
func plainMeta(m api.Meta) api.Meta {
	if _, ok := m.Annotations[names.AnnotationMetadata]; !ok {
		return m
	}
	labels, annotations := names.Labels(&m), maps.Clone(m.Annotations)
	delete(annotations, names.AnnotationMetadata)
	maps.Copy(annotations, names.Annotations(&m))
	m.Labels, m.Annotations = labels, annotations
	return m
}
