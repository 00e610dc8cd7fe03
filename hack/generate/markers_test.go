package main

import (
	"strings"
	"testing"

	apiext "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"

	"github.com/tortie-net/tortie/internal/testkit/difftest"
	"github.com/tortie-net/tortie/internal/testkit/errtest"
)

// TestSchemaOfV3 applies a part of a schema over the results of other markers: it adds, replaces and removes, and an
// error names a mistake in it.
func TestSchemaOfV3(t *testing.T) {
	most := 5.0
	schema := func() *apiext.JSONSchemaProps {
		return &apiext.JSONSchemaProps{
			Type: "array", Maximum: &most, XValidations: apiext.ValidationRules{{Rule: "true"}},
			Items: &apiext.JSONSchemaPropsOrArray{Schema: &apiext.JSONSchemaProps{Type: "string", Format: "ip"}},
		}
	}
	got := schema()
	errtest.Must(t, schemaV3(`{"maximum":7,"minItems":1,"x-kubernetes-validations":null,"items":{"format":"cidr"}}`).ApplyToSchema(nil, got))
	want, one, more := schema(), int64(1), 7.0
	want.Maximum, want.MinItems, want.XValidations, want.Items.Schema.Format = &more, &one, nil, "cidr"
	difftest.Want(t, "schema", want, got)
	for part, names := range map[string]string{
		`{"maximun":1}`: "maximun", `{"maximum":"1"}`: "maximum", `maximum`: "maximum", `{"items":{"items":{}}}`: "items",
	} {
		if err := schemaV3(part).ApplyToSchema(nil, schema()); err == nil || !strings.Contains(err.Error(), names) {
			t.Errorf("%s: %v, want an error that names %s", part, err, names)
		}
	}
}
