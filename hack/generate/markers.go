package main

import (
	"bytes"
	"encoding/json"
	"fmt"

	apiext "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	crdmarkers "sigs.k8s.io/controller-tools/pkg/crd/markers"
	"sigs.k8s.io/controller-tools/pkg/markers"

	"github.com/tortie-net/tortie/internal/api/groups"
)

// itemsNullable is the marker `+tortie:itemsNullable`: the items of an array may be null. A block's allocations are
// such an array, and controller-tools has a marker for a null array only.
type itemsNullable struct{}

// numbersTo is the marker `+tortie:numbersTo=N`: a value that may be a number or a string is, as a number, 0 to N.
// Controller-tools' markers are for numbers only.
type numbersTo int

// schemaV3 is the marker `+tortie:v3:schema=JSON` of a type or a field: JSON is a part of a schema that overrides the
// other markers, in projectcalico.org/v3 only. `null` removes. Its `items` is such a part for the items of an array.
type schemaV3 string

// ruleV3 is the marker `+tortie:v3:rule:rule=,message=,fieldPath=` of a type or a field: a rule in projectcalico.org/v3
// only, after the rules of both groups.
type ruleV3 struct {
	Rule      string
	Message   string
	FieldPath string `marker:"fieldPath,optional"`
}

// columnV3 is the marker `+tortie:v3:column:name=,type=,JSONPath=` of a kind. A kind in projectcalico.org/v3 has only
// these columns: they are Calico's.
type columnV3 crdmarkers.PrintColumn

// The same markers while the other group is generated: they are known, and have no effect.
type (
	ignoredText   string
	ignoredRule   ruleV3
	ignoredColumn columnV3
)

const (
	schemaV3Name = "tortie:v3:schema"
	ruleV3Name   = "tortie:v3:rule"
	columnV3Name = "tortie:v3:column"
)

// registerOwn registers this project's markers for a group.
func registerOwn(into *markers.Registry, group groups.Group) error {
	schema, rule, column := any(ignoredText("")), any(ignoredRule{}), any(ignoredColumn{})
	if group == groups.V3 {
		schema, rule, column = schemaV3(""), ruleV3{}, columnV3{}
	}
	for _, own := range []struct {
		name   string
		on     markers.TargetType
		output any
	}{
		{"tortie:itemsNullable", markers.DescribesField, itemsNullable{}}, {"tortie:numbersTo", markers.DescribesType, numbersTo(0)},
		{schemaV3Name, markers.DescribesType, schema}, {schemaV3Name, markers.DescribesField, schema},
		{ruleV3Name, markers.DescribesType, rule}, {ruleV3Name, markers.DescribesField, rule},
		{columnV3Name, markers.DescribesType, column},
	} {
		definition, err := markers.MakeDefinition(own.name, own.on, own.output)
		if err == nil {
			err = into.Register(definition)
		}
		if err != nil {
			return fmt.Errorf("marker %s: %w", own.name, err)
		}
	}
	return nil
}

// ApplyToSchema implements controller-tools' SchemaMarker.
func (itemsNullable) ApplyToSchema(_ *crdmarkers.SchemaContext, schema *apiext.JSONSchemaProps) error {
	if schema.Items == nil || schema.Items.Schema == nil {
		return fmt.Errorf("tortie:itemsNullable is for arrays, not for type %s", schema.Type)
	}
	schema.Items.Schema.Nullable = true
	return nil
}

// ApplyToSchema implements controller-tools' SchemaMarker.
func (n numbersTo) ApplyToSchema(_ *crdmarkers.SchemaContext, schema *apiext.JSONSchemaProps) error { //nolint:unparam // an interface's
	least, most := 0.0, float64(n)
	schema.Minimum, schema.Maximum = &least, &most
	return nil
}

// ApplyPriority puts the marker after the markers of both groups.
func (schemaV3) ApplyPriority() crdmarkers.ApplyPriority { return crdmarkers.ApplyPriorityDefault + 1 }

// ApplyToSchema implements controller-tools' SchemaMarker.
func (part schemaV3) ApplyToSchema(_ *crdmarkers.SchemaContext, schema *apiext.JSONSchemaProps) error {
	if err := mergeSchema([]byte(part), schema); err != nil {
		return fmt.Errorf("marker %s=%s: %w", schemaV3Name, string(part), err)
	}
	return nil
}

// mergeSchema overrides members of a schema by the members of a JSON object.
func mergeSchema(part []byte, schema *apiext.JSONSchemaProps) error {
	var members map[string]json.RawMessage
	if err := json.Unmarshal(part, &members); err != nil {
		return err
	}
	if items, ok := members["items"]; ok {
		if schema.Items == nil || schema.Items.Schema == nil {
			return fmt.Errorf("items of a schema of type %q", schema.Type)
		}
		if err := mergeSchema(items, schema.Items.Schema); err != nil {
			return err
		}
		delete(members, "items")
	}
	rest, err := json.Marshal(members)
	if err != nil {
		return err
	}
	decoder := json.NewDecoder(bytes.NewReader(rest))
	decoder.DisallowUnknownFields()
	return decoder.Decode(schema)
}

// ApplyPriority puts the rule last.
func (ruleV3) ApplyPriority() crdmarkers.ApplyPriority { return crdmarkers.ApplyPriorityDefault + 2 }

// ApplyToSchema implements controller-tools' SchemaMarker.
func (r ruleV3) ApplyToSchema(_ *crdmarkers.SchemaContext, schema *apiext.JSONSchemaProps) error { //nolint:unparam // an interface's
	schema.XValidations = append(schema.XValidations, apiext.ValidationRule{Rule: r.Rule, Message: r.Message, FieldPath: r.FieldPath})
	return nil
}

// untyped removes the type of each value that may be a number or a string: with one the API server would refuse the
// other. Such a value can be nothing else.
func untyped(schema *apiext.JSONSchemaProps) error {
	if schema.XIntOrString {
		if len(schema.Properties) > 0 || schema.Items != nil {
			return fmt.Errorf("a value that is a number or a string has properties or items: %s", schema.Description)
		}
		schema.Type = ""
	}
	for name, property := range schema.Properties {
		if err := untyped(&property); err != nil {
			return err
		}
		schema.Properties[name] = property
	}
	if schema.Items != nil && schema.Items.Schema != nil {
		return untyped(schema.Items.Schema)
	}
	return nil
}
