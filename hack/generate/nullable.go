package main

import (
	"fmt"

	apiext "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	crdmarkers "sigs.k8s.io/controller-tools/pkg/crd/markers"
	"sigs.k8s.io/controller-tools/pkg/markers"
)

// itemsNullable is the marker `+tortie:itemsNullable`: the items of an array may be null. A block's allocations are such an
// array, and controller-tools has a marker for a null array only.
type itemsNullable struct{}

func registerItemsNullable(into *markers.Registry) error {
	def, err := markers.MakeDefinition("tortie:itemsNullable", markers.DescribesField, itemsNullable{})
	if err != nil {
		return fmt.Errorf("defining tortie:itemsNullable: %w", err)
	}
	return into.Register(def)
}

// ApplyToSchema implements controller-tools' SchemaMarker.
func (itemsNullable) ApplyToSchema(_ *crdmarkers.SchemaContext, schema *apiext.JSONSchemaProps) error {
	if schema.Items == nil || schema.Items.Schema == nil {
		return fmt.Errorf("tortie:itemsNullable is for arrays, not for type %s", schema.Type)
	}
	schema.Items.Schema.Nullable = true
	return nil
}
