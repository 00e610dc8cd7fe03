package names

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/tortie-net/tortie/internal/api"
	"github.com/tortie-net/tortie/internal/testkit/difftest"
)

func TestLabels(t *testing.T) {
	own := map[string]string{"a": "1", "b": "1"}
	for annotation, want := range map[string]map[string]string{
		"":                                       own,
		`{"labels":{"b":"2","c":"3"},"uid":"x"}`: {"a": "1", "b": "2", "c": "3"},
		`{"labels":{}}`:                          own,
		`{"labels":7}`:                           own,
		`{"labels":{"b":`:                        own,
	} {
		m := &api.Meta{Labels: own, Annotations: map[string]string{AnnotationMetadata: annotation}}
		difftest.Want(t, annotation, want, Labels(m))
	}
	alone := &api.Meta{Annotations: map[string]string{AnnotationMetadata: `{"labels":{"c":"3"}}`}}
	if d := cmp.Diff(map[string]string{"c": "3"}, Labels(alone)); d != "" || own["b"] != "1" {
		t.Errorf("labels of the annotation alone (-want +got), or an object's were written:\n%s", d)
	}
}
