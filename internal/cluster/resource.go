package cluster

import (
	"cmp"
	"encoding/json"
	"fmt"
	"net/http"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/client-go/rest"

	"github.com/tortie-net/tortie/internal/api"
	"github.com/tortie-net/tortie/internal/api/groups"
)

// object carries one of the project's own resource types through client-go. It is also the stored form: client-go's
// metadata would be most of its size.
type object[T any] struct {
	value T
	// ended marks the bookmark at the end of the list that a watch begins with.
	ended bool
	// broken is why the object cannot be read. Its value is then the last readable one, or its name only if it was never
	// readable.
	broken error
	never  bool
}

func (o *object[T]) meta() *api.Meta { return any(&o.value).(api.Resource).GetMeta() }

// UnmarshalJSON never fails for the contents of spec or status: one broken object must not hide all others of its kind.
func (o *object[T]) UnmarshalJSON(data []byte) error {
	if err := json.Unmarshal(data, &o.value); err != nil {
		return o.readName(data, err)
	}
	o.ended = o.endsList()
	return nil
}

// endsList reports whether the object is the bookmark at the end of a watch's list. A bookmark has no name: a user may
// write the annotation on an object.
func (o *object[T]) endsList() bool {
	m := o.meta()
	return m.Name == "" && m.Annotations[metav1.InitialEventsAnnotationKey] == "true"
}

func (o *object[T]) readName(data []byte, cause error) error {
	var only struct {
		Meta api.Meta `json:"metadata"`
	}
	if err := json.Unmarshal(data, &only); err != nil {
		return err
	}
	*o = object[T]{broken: cause, never: true}
	m := only.Meta
	*o.meta() = api.Meta{Name: m.Name, Namespace: m.Namespace, UID: m.UID, ResourceVersion: m.ResourceVersion}
	if part, ok := any(&o.value).(salvager); ok {
		part.Salvage(data, cause)
		o.broken, o.never = nil, false
	}
	return nil
}

// salvager is a kind that is used in part if the rest cannot be read, instead of its last readable version.
type salvager interface {
	Salvage(data []byte, cause error)
}

// GetObjectMeta implements metav1.ObjectMetaAccessor, which reflectors use.
func (o *object[T]) GetObjectMeta() metav1.Object {
	m := o.meta()
	meta := &metav1.ObjectMeta{Name: m.Name, Namespace: m.Namespace, ResourceVersion: m.ResourceVersion}
	if o.ended {
		meta.Annotations = map[string]string{metav1.InitialEventsAnnotationKey: "true"}
	}
	return meta
}

// GetObjectKind implements runtime.Object. The kind follows from the Go type.
func (o *object[T]) GetObjectKind() schema.ObjectKind { return schema.EmptyObjectKind }

// DeepCopyObject implements runtime.Object. Objects are never changed once they are in a store, so that sharing them is
// safe.
func (o *object[T]) DeepCopyObject() runtime.Object { return o }

// objectList is a list of objects.
type objectList[T any] struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata"`
	Items           []*object[T] `json:"items"`
}

// DeepCopyObject implements runtime.Object.
func (l *objectList[T]) DeepCopyObject() runtime.Object {
	c := *l
	return &c
}

// partial is the API server's kind for an object that was requested as metadata only.
var partial = api.Type{Group: "meta.k8s.io", Version: "v1", Kind: "PartialObjectMetadata"}

// asPartial requests it.
const asPartial = "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1"

// asPartialList requests a list of it.
const asPartialList = "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1"

// clients are the clients of one kind, by Calico's API groups.
type clients struct {
	group *groups.Current // nil: the kind is not Calico's
	of    api.Type
	by    map[groups.Group]rest.Interface
}

// form has the values into which client-go decodes a kind. Clients are made from it, not from the type parameter, so
// that their code exists once: it would be 120 KB per kind.
type form struct {
	one, list runtime.Object
	protobuf  bool // it can be requested in protobuf
}

func formOf[T any]() form {
	_, ok := any(new(T)).(protobuf)
	return form{&object[T]{}, &objectList[T]{}, ok}
}

// newClients makes no request.
func newClients(at Server, shared *http.Client, of api.Type, f form) (*clients, error) {
	c := &clients{of: of, by: map[groups.Group]rest.Interface{}}
	if of.Group == api.Group { // other kinds are the same in both, and are followed before the group is known
		c.group = at.Group
	}
	for _, in := range groups.All {
		client, err := newClient(at.Config, shared, in.Type(of), f)
		if err != nil {
			return nil, err
		}
		c.by[in] = client
	}
	return c, nil
}

// get begins a request for objects of the kind, in the group in use. An empty namespace means all.
func (c *clients) get(namespace string) *rest.Request {
	in := cmp.Or(c.group.Known(), groups.V1) // without definitions there are no objects, in either
	return c.by[in].Get().NamespaceIfScoped(namespace, c.of.Namespaced).Resource(in.Type(c.of).Plural)
}

// newClient returns a client of one kind. Clients that share an http.Client share its connection to the API server.
func newClient(cfg *rest.Config, shared *http.Client, t api.Type, f form) (rest.Interface, error) {
	scheme := runtime.NewScheme()
	for _, known := range []api.Type{t, partial} {
		gv := schema.GroupVersion{Group: known.Group, Version: known.Version}
		scheme.AddKnownTypeWithName(gv.WithKind(known.Kind), f.one)
		scheme.AddKnownTypeWithName(gv.WithKind(known.Kind+"List"), f.list)
	}
	gv := schema.GroupVersion{Group: t.Group, Version: t.Version}
	metav1.AddToGroupVersion(scheme, gv)
	c := rest.CopyConfig(cfg)
	c.GroupVersion = &gv
	c.APIPath = "/apis"
	if t.Group == "" {
		c.APIPath = "/api"
	}
	c.NegotiatedSerializer = serializer.NewCodecFactory(scheme).WithoutConversion()
	if f.protobuf {
		c.AcceptContentTypes = runtime.ContentTypeProtobuf + "," + runtime.ContentTypeJSON
	}
	c.QPS = -1 // reflectors pause by themselves
	client, err := rest.RESTClientForConfigAndClient(c, shared)
	if err != nil {
		return nil, fmt.Errorf("client of %s: %w", t.Plural, err)
	}
	return client, nil
}

// missing reports that an object, or the definition of its kind, does not exist.
func missing(err error) bool { return apierrors.IsNotFound(err) }
