package kube

import (
	"context"
	"encoding/json"
	"fmt"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/metadata"
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
	// What client-go goes by. The rest, such as who wrote which field, is half of what an affinity takes.
	o.TypeMeta, o.ObjectMeta = meta.TypeMeta, metav1.ObjectMeta{
		Name: meta.Name, Namespace: meta.Namespace, UID: meta.UID, ResourceVersion: meta.ResourceVersion, Annotations: meta.Annotations,
	}
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
	register[api.IPAMConfig](scheme, (*api.IPAMConfig)(nil).ResourceType())
	register[api.IPReservation](scheme, (*api.IPReservation)(nil).ResourceType())
	register[api.ClusterInformation](scheme, (*api.ClusterInformation)(nil).ResourceType())
	metav1.AddToGroupVersion(scheme, schema.GroupVersion{Group: api.Group, Version: "v1"})
	return scheme
}

// clients speak to the API server: one connection, which client-go shares among clients of one configuration.
type clients struct {
	custom rest.Interface
	meta   metadata.Interface
}

func newClients(cfg *rest.Config) (clients, error) {
	custom, err := customClient(cfg)
	if err != nil {
		return clients{}, err
	}
	meta, err := metadata.NewForConfig(cfg)
	if err != nil {
		return clients{}, fmt.Errorf("client of metadata: %w", err)
	}
	return clients{custom: custom, meta: meta}, nil
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

// customSource has the objects of a custom resource.
func customSource[T any](c clients, t api.Type) source {
	parameters := metav1.ParameterCodec
	return source{
		kind:    t.Kind,
		example: &object[T]{},
		list: func(ctx context.Context, opts metav1.ListOptions) (runtime.Object, error) {
			return c.custom.Get().Resource(t.Plural).VersionedParams(&opts, parameters).Do(ctx).Get()
		},
		watch: func(ctx context.Context, opts metav1.ListOptions) (watch.Interface, error) {
			opts.Watch = true
			return c.custom.Get().Resource(t.Plural).VersionedParams(&opts, parameters).Watch(ctx)
		},
	}
}

// metadata has the metadata of a resource of Kubernetes' core.
func (c clients) metadata(t api.Type, trim cache.TransformFunc) source {
	client := c.meta.Resource(schema.GroupVersionResource{Version: t.Version, Resource: t.Plural})
	return source{
		kind:    t.Kind,
		example: &metav1.PartialObjectMetadata{},
		list: func(ctx context.Context, opts metav1.ListOptions) (runtime.Object, error) {
			return client.List(ctx, opts)
		},
		watch: client.Watch,
		trim:  trim,
	}
}

// missing reports that an object does not exist.
func missing(err error) bool { return apierrors.IsNotFound(err) }
