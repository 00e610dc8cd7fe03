package definitions

import (
	"reflect"
	"slices"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
)

// Of a schema: the keys by which it is walked, and the mark that the API server drops no field at that place.
const (
	properties = "properties"
	items      = "items"
	values     = "additionalProperties"
	enum       = "enum"
	preserve   = "x-kubernetes-preserve-unknown-fields"
)

// merge returns base with everything that only the other definition has and without which something would be lost:
// fields, allowed values, whole versions. Where both have something to say, base does. Neither argument is changed.
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
			version["storage"] = false // there is one such version, and base has it
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

// extendSchema adds to a schema the fields and the values of an enumeration that only the other has. A schema that
// keeps unknown fields needs none added: nothing is dropped there.
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
			continue // a map of anything, or one that keeps all: a schema may not have properties besides additionalProperties
		}
		if ours == nil {
			ours = map[string]any{}
			schema[properties] = ours
		}
		ours[name] = field
	}
}

// extendEnum allows what either allows. A schema without an enumeration allows all.
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
