// Package groups knows the two API groups that a cluster may keep Calico's objects in, and what differs between them on
// the wire. Nothing else of this project does: the Go types of internal/api are the model of both.
//
// crd.projectcalico.org/v1 is the older one. There, Calico keeps the labels and annotations of an object as its own API
// has them in an annotation, as JSON (names.AnnotationMetadata). projectcalico.org/v3 came with Calico 3.32: labels and
// annotations are where Kubernetes has them, IPAMConfig is called IPAMConfiguration, and the deletion mark of a
// BlockAffinity is a boolean.
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

// All has both.
var All = []Group{V1, V3}

// Other returns the other group.
func (g Group) Other() Group {
	if g == V3 {
		return V1
	}
	return V3
}

// Parse returns the group that a setting names, in any case, as Calico's CALICO_API_GROUP and calico_api_group do.
// Empty is none: it is to be found.
func Parse(text string) (Group, error) {
	for _, g := range append([]Group{""}, All...) {
		if strings.EqualFold(text, string(g)) {
			return g, nil
		}
	}
	return "", fmt.Errorf("%q is no API group of Calico's objects: use %s or %s, or leave it empty so that it is found", text, V1, V3)
}

// Type returns where a kind is in a cluster that keeps Calico's objects in the group. Kinds that are not Calico's are
// where they are. A type may have a kind alone, or a plural.
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

// The one kind with two names.
const configsV1, configsV3 = "ipamconfigs", "ipamconfigurations"

// Resource returns the name by which kubectl finds a kind of Calico's in the group alone: PLURAL.GROUP. The plural is that of
// internal/api.
func (g Group) Resource(plural string) string {
	t := g.Type(api.Type{Group: api.Group, Plural: plural})
	return t.Plural + "." + t.Group
}

// Reference returns a reference, which has the type of internal/api, as it is in a cluster of the group. References to
// kinds that are not Calico's stay.
func (g Group) Reference(o api.ObjectReference) api.ObjectReference {
	if o.APIVersion == string(V1) {
		t := g.Type(api.Type{Group: api.Group, Version: "v1", Kind: o.Kind})
		o.APIVersion, o.Kind = t.APIVersion(), t.Kind
	}
	return o
}

// DefinitionsDir returns the directory of the chart with the definitions of the group.
func (g Group) DefinitionsDir() string { return "charts/tortie/definitions/" + path.Base(string(g)) }

// Plural returns what internal/api calls a kind of the group, by the plural that such a cluster has.
func (g Group) Plural(served string) string {
	if g == V3 && served == configsV3 {
		return configsV1
	}
	return served
}

// Manifest returns an object as JSON, as it is written to such a cluster. The object is not changed. Answers need no
// counterpart: the Go types read both forms.
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

// plain returns what an object is in V3.
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

// plainMeta moves the labels and annotations of Calico's own API version to where Kubernetes has them.
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
