package labtest

import (
	"maps"
	"path"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/tortie-net/tortie/internal/api"
	"github.com/tortie-net/tortie/internal/api/groups"
	"github.com/tortie-net/tortie/internal/api/names"
)

// Current returns the group of the test servers, for a client.
func Current(t testing.TB) *groups.Current {
	t.Helper()
	return groups.In(Group(t))
}

// OnlyIn skips a test of one API group if the test servers have the other one.
func OnlyIn(t testing.TB, in groups.Group, why string) {
	t.Helper()
	if Group(t) != in {
		t.Skipf("only in %s: %s", in, why)
	}
}

// InGroupText returns a text, such as an object, the path of a request or a command of kubectl, with the group of the
// test servers in place of crd.projectcalico.org/v1, of PLURAL.crd.projectcalico.org and of the path of a definition.
// It is for kinds without other differences between the groups: for IPAMConfig and BlockAffinity use InGroup and
// KindOf.
func InGroupText(t testing.TB, text string) string {
	t.Helper()
	return textIn(Group(t), text)
}

func textIn(in groups.Group, text string) string {
	file := func(g groups.Group) string { return g.DefinitionsDir() + "/" + path.Dir(string(g)) + "_" }
	return strings.NewReplacer(
		string(groups.V1), string(in), "."+api.Group, "."+path.Dir(string(in)), file(groups.V1), file(in)).Replace(text)
}

// KindOf returns the resource of a Calico kind on the test servers, by its plural in crd.projectcalico.org/v1.
func KindOf(t testing.TB, plural string) schema.GroupVersionResource {
	t.Helper()
	return KindIn(Group(t), plural)
}

// KindIn is KindOf for a server with the definitions of in.
func KindIn(in groups.Group, plural string) schema.GroupVersionResource {
	of := in.Type(api.Type{Group: api.Group, Version: "v1", Plural: plural})
	return schema.GroupVersionResource{Group: of.Group, Version: of.Version, Resource: of.Plural}
}

// InGroup converts an object that is written for crd.projectcalico.org/v1 to its form on the test servers. Any other
// object stays unchanged.
func InGroup(t testing.TB, obj *unstructured.Unstructured) {
	t.Helper()
	InGroupOf(Group(t), obj)
}

// InGroupOf is InGroup for a server with the definitions of in.
func InGroupOf(in groups.Group, obj *unstructured.Unstructured) {
	if in == groups.V1 || obj.GetAPIVersion() != string(groups.V1) {
		return
	}
	of := in.Type(api.Type{Group: api.Group, Version: "v1", Kind: obj.GetKind()})
	obj.SetAPIVersion(of.APIVersion())
	obj.SetKind(of.Kind)
	if a := obj.GetAnnotations(); a[names.AnnotationMetadata] != "" {
		m := api.Meta{Labels: obj.GetLabels(), Annotations: maps.Clone(a)}
		obj.SetLabels(names.Labels(&m))
		delete(a, names.AnnotationMetadata)
		maps.Copy(a, names.Annotations(&m))
		if len(a) == 0 {
			a = nil
		}
		obj.SetAnnotations(a)
	}
	if text, ok, _ := unstructured.NestedString(obj.Object, "spec", "deleted"); ok {
		_ = unstructured.SetNestedField(obj.Object, text == "true", "spec", "deleted")
	}
}
