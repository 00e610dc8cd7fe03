package api

import "reflect"

// Type is the location of a kind in the Kubernetes API.
type Type struct {
	Group      string // "" is the core group
	Version    string
	Kind       string
	Plural     string
	Namespaced bool
}

// APIVersion returns the value of a manifest's apiVersion field.
func (t Type) APIVersion() string {
	if t.Group == "" {
		return t.Version
	}
	return t.Group + "/" + t.Version
}

// Group is the API group of Calico's custom resources.
const Group = "crd.projectcalico.org"

func custom(kind, plural string) Type {
	return Type{Group: Group, Version: "v1", Kind: kind, Plural: plural}
}

func namespaced(kind, plural string) Type {
	return Type{Group: Group, Version: "v1", Kind: kind, Plural: plural, Namespaced: true}
}

// Meta is the part of Kubernetes' ObjectMeta that this project reads or writes.
//
// ResourceVersion is the revision that compare-and-swap updates are guarded by.
type Meta struct {
	Name              string            `json:"name,omitempty"`
	GenerateName      string            `json:"generateName,omitempty"`
	Namespace         string            `json:"namespace,omitempty"`
	UID               string            `json:"uid,omitempty"`
	ResourceVersion   string            `json:"resourceVersion,omitempty"`
	CreationTimestamp string            `json:"creationTimestamp,omitempty"`
	DeletionTimestamp string            `json:"deletionTimestamp,omitempty"`
	Labels            map[string]string `json:"labels,omitempty"`
	Annotations       map[string]string `json:"annotations,omitempty"`
	*Foreign
}

// GetMeta returns the metadata for reading and writing.
func (m *Meta) GetMeta() *Meta { return m }

// Resource is one object of the datastore.
type Resource interface {
	GetMeta() *Meta
	// ResourceType may be called on a nil pointer.
	ResourceType() Type
}

// Versioned is a kind that API servers serve in one or more of several versions. This project reads the same fields in
// all of them.
type Versioned interface {
	Resource
	// Types are the kind's versions, the preferred one first. They differ in Version alone, and there is at least one.
	// Types may be called on a nil pointer.
	Types() []Type
}

// Deletable is a resource that Calico deletes in two steps on the Kubernetes datastore: first it is marked, then
// removed. A reader of a marked object finishes the deletion and treats the object as absent. This project removes in
// one step.
type Deletable interface {
	Resource
	MarkedDeleted() bool
}

// Marked reports that a resource is marked deleted, if its kind can be.
func Marked(obj Resource) bool {
	d, ok := obj.(Deletable)
	return ok && d.MarkedDeleted()
}

// NewLike returns a new, empty object of obj's type.
func NewLike(obj Resource) Resource {
	return reflect.New(reflect.TypeOf(obj).Elem()).Interface().(Resource)
}

// Assign replaces *to by *from.
func Assign(to, from Resource) {
	reflect.ValueOf(to).Elem().Set(reflect.ValueOf(from).Elem())
}

// ResourceList is a list of resources of one type.
type ResourceList interface {
	// ItemType may be called on an empty list.
	ItemType() Type
	// NewItem returns a new, empty item.
	NewItem() Resource
	// Add appends an item that NewItem returned. One that is marked deleted counts as absent and is left out.
	Add(item Resource)
}

// List is a list of resources of type T.
type List[T any, P interface {
	*T
	Resource
}] struct {
	Meta  ListMeta `json:"metadata"`
	Items []T      `json:"items"`
}

// ItemType implements ResourceList.
func (l *List[T, P]) ItemType() Type { return P(nil).ResourceType() }

// ListMeta is the metadata of a list.
type ListMeta struct {
	ResourceVersion string `json:"resourceVersion,omitempty"`
	Continue        string `json:"continue,omitempty"`
}

// NewItem implements ResourceList.
func (l *List[T, P]) NewItem() Resource { return P(new(T)) }

// Add implements ResourceList.
func (l *List[T, P]) Add(item Resource) {
	if p, ok := item.(P); ok && !Marked(item) {
		l.Items = append(l.Items, *p)
	}
}
