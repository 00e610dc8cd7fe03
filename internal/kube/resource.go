package kube

import (
	"encoding/json"
	"fmt"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"

	"github.com/tortie-net/tortie/internal/api"
)

// object carries one of the project's own resource types through client-go, which wants metadata of its own kind.
type object[T any] struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata"`
	value             T
}

// UnmarshalJSON decodes the object twice: for client-go its metadata, for the project the whole.
func (o *object[T]) UnmarshalJSON(data []byte) error {
	var meta struct {
		metav1.TypeMeta   `json:",inline"`
		metav1.ObjectMeta `json:"metadata"`
	}
	if err := json.Unmarshal(data, &meta); err != nil {
		return err
	}
	o.TypeMeta, o.ObjectMeta = meta.TypeMeta, meta.ObjectMeta
	return json.Unmarshal(data, &o.value)
}

// DeepCopyObject implements runtime.Object. Objects are never changed once they are decoded, so that sharing the value is
// safe; the metadata, which reflectors may trim, is copied.
func (o *object[T]) DeepCopyObject() runtime.Object {
	c := *o
	o.ObjectMeta.DeepCopyInto(&c.ObjectMeta)
	return &c
}

// objectList is a list of objects.
type objectList[T any] struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata"`
	Items           []object[T] `json:"items"`
}

// DeepCopyObject implements runtime.Object.
func (l *objectList[T]) DeepCopyObject() runtime.Object {
	c := *l
	c.Items = append([]object[T](nil), l.Items...)
	return &c
}

// register makes the kind of T known to a scheme.
func register[T any](scheme *runtime.Scheme, t api.Type) {
	gv := schema.GroupVersion{Group: t.Group, Version: t.Version}
	scheme.AddKnownTypeWithName(gv.WithKind(t.Kind), &object[T]{})
	scheme.AddKnownTypeWithName(gv.WithKind(t.Kind+"List"), &objectList[T]{})
}

// newScheme knows the custom resources that the agent watches.
func newScheme() *runtime.Scheme {
	scheme := runtime.NewScheme()
	register[api.IPPool](scheme, (*api.IPPool)(nil).ResourceType())
	register[api.BlockAffinity](scheme, (*api.BlockAffinity)(nil).ResourceType())
	register[api.BGPConfiguration](scheme, (*api.BGPConfiguration)(nil).ResourceType())
	metav1.AddToGroupVersion(scheme, schema.GroupVersion{Group: api.Group, Version: "v1"})
	return scheme
}

// customClient is a REST client for the custom resources.
func customClient(cfg *rest.Config) (rest.Interface, error) {
	c := rest.CopyConfig(cfg)
	c.GroupVersion = &schema.GroupVersion{Group: api.Group, Version: "v1"}
	c.APIPath = "/apis"
	c.NegotiatedSerializer = serializer.NewCodecFactory(newScheme()).WithoutConversion()
	client, err := rest.RESTClientFor(c)
	if err != nil {
		return nil, fmt.Errorf("client of %s: %w", api.Group, err)
	}
	return client, nil
}

// values returns what an informer has seen, as the project's own type.
func values[T any](store cache.Store) []T {
	items := store.List()
	out := make([]T, 0, len(items))
	for _, item := range items {
		if o, ok := item.(*object[T]); ok {
			out = append(out, o.value)
		}
	}
	return out
}
