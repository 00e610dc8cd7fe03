package main

import (
	"errors"
	"fmt"

	apiext "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	crdmarkers "sigs.k8s.io/controller-tools/pkg/crd/markers"
	"sigs.k8s.io/controller-tools/pkg/markers"
)

// itemsNullable is the marker `+tortie:itemsNullable`: the items of an array may be null. A block's allocations are
// such an array, and controller-tools has a marker for a null array only.
type itemsNullable struct{}

// numbersTo is the marker `+tortie:numbersTo=N`: a value that may be a number or a string is, as a number, 0 to N.
// Markers of controller-tools are for numbers alone.
type numbersTo int

func registerOwn(into *markers.Registry) error {
	nullable, err1 := markers.MakeDefinition("tortie:itemsNullable", markers.DescribesField, itemsNullable{})
	numbers, err2 := markers.MakeDefinition("tortie:numbersTo", markers.DescribesType, numbersTo(0))
	if err := errors.Join(err1, err2); err != nil {
		return fmt.Errorf("defining markers: %w", err)
	}
	return errors.Join(into.Register(nullable), into.Register(numbers))
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

// untyped removes the type of whatever may be a number or a string: with one the API server would refuse the other. A
// value cannot be both such and anything else.
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
