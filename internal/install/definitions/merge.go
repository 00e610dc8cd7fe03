package definitions

import (
	"reflect"
	"slices"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
)

// Keys of a schema; preserve means that the API server drops no unknown fields at that place.
const (
	properties = "properties"
	items      = "items"
	values     = "additionalProperties"
	enum       = "enum"
	preserve   = "x-kubernetes-preserve-unknown-fields"
)

// merge returns the spec base with the fields, allowed values and versions that only the other has, so that nothing is
// lost. Where they contradict, base wins. Neither argument is changed.
func merge(base, other map[string]any) map[string]any {
	merged := runtime.DeepCopyJSON(base)
	theirs, _, _ := unstructured.NestedSlice(other, "versions")
	versions, _, _ := unstructured.NestedSlice(merged, "versions")
	for _, item := range theirs {
		version, ok := item.(map[string]any)
		if !ok {
			continue
		}
		i := slices.IndexFunc(versions, func(v any) bool { return named(v, version["name"]) })
		if i < 0 {
			version["storage"] = false // base has the one storage version
			versions = append(versions, version)
			continue
		}
		extendSchema(schemaOf(versions[i]), schemaOf(version))
	}
	merged["versions"] = versions
	return merged
}

func named(version any, name any) bool {
	v, ok := version.(map[string]any)
	return ok && v["name"] == name
}

func schemaOf(version any) map[string]any {
	v, _ := version.(map[string]any)
	schema, _, _ := unstructured.NestedFieldNoCopy(v, "schema", "openAPIV3Schema")
	tree, _ := schema.(map[string]any)
	return tree
}

// extendSchema adds to a schema the fields and enumeration values that only the other has. A schema that keeps unknown
// fields needs no further ones.
func extendSchema(schema, other map[string]any) {
	if schema == nil || other == nil {
		return
	}
	extendEnum(schema, other)
	for _, key := range []string{items, values} {
		inner, _ := schema[key].(map[string]any)
		outer, _ := other[key].(map[string]any)
		extendSchema(inner, outer)
	}
	theirs, _ := other[properties].(map[string]any)
	if len(theirs) == 0 || schema["type"] != other["type"] {
		return
	}
	ours, _ := schema[properties].(map[string]any)
	for name, field := range theirs {
		have, ok := ours[name].(map[string]any)
		if ok {
			their, _ := field.(map[string]any)
			extendSchema(have, their)
			continue
		}
		if schema[preserve] == true || schema[values] != nil {
			continue // it keeps unknown fields, or is a map: properties are not allowed besides additionalProperties
		}
		if ours == nil {
			ours = map[string]any{}
			schema[properties] = ours
		}
		ours[name] = field
	}
}

// extendEnum adds the enumeration values of the other. A schema without an enumeration allows all.
func extendEnum(schema, other map[string]any) {
	have, limited := schema[enum].([]any)
	more, _ := other[enum].([]any)
	if !limited {
		return
	}
	for _, value := range more {
		if !slices.ContainsFunc(have, func(v any) bool { return reflect.DeepEqual(v, value) }) {
			have = append(have, value)
		}
	}
	schema[enum] = have
}
