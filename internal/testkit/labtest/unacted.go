package labtest

import (
	"context"
	"slices"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/rest"

	"github.com/tortie-net/tortie/internal/api"
	"github.com/tortie-net/tortie/internal/testkit/errtest"
)

// asked are values of the fields of api.Kept that are not their defaults.
var asked = map[string]any{
	"ignoredInterfaces": []any{"docker*"}, "logSeverityScreen": "Debug", "healthChecks": "Disabled", "prometheusMetricsPort": int64(9999),
	"reportingInterval": "1m",
}

// CreateUnacted creates an object of a kind that has every field without effect, and returns its UID and these fields
// in order. It is deleted with the test.
func CreateUnacted(t testing.TB, admin *rest.Config, kind, name string) (uid string, fields []string) {
	t.Helper()
	obj := &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": api.Group + "/v1", "kind": kind, "metadata": map[string]any{"name": name}, "spec": map[string]any{},
	}}
	if kind == "KubeControllersConfiguration" {
		obj.Object["spec"] = map[string]any{"controllers": map[string]any{}}
	}
	set := func(path string, value any) {
		t.Helper()
		errtest.Must(t, unstructured.SetNestedField(obj.Object, value, append([]string{"spec"}, strings.Split(path, ".")...)...))
		fields = append(fields, "spec."+path)
	}
	for _, path := range api.Unacted[kind] {
		set(path, map[string]any{"of": "any form"})
	}
	for path := range api.Kept[kind] {
		if asked[path] == nil {
			t.Fatalf("%s of %s is in api.Kept: give it a value that is not the default", path, kind)
		}
		set(path, asked[path])
	}
	client, err := dynamic.NewForConfig(admin)
	errtest.Must(t, err)
	of := client.Resource(KindOf(t, strings.ToLower(kind)+"s"))
	InGroup(t, obj)
	obj, err = of.Create(t.Context(), obj, metav1.CreateOptions{FieldValidation: metav1.FieldValidationStrict})
	errtest.Must(t, err)
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
		defer cancel()
		_ = of.Delete(ctx, name, metav1.DeleteOptions{})
	})
	slices.Sort(fields)
	return string(obj.GetUID()), fields
}
