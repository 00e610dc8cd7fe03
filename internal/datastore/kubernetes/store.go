package kubernetes

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"slices"
	"strings"

	"github.com/tortie-net/tortie/internal/api"
	"github.com/tortie-net/tortie/internal/api/groups"
	"github.com/tortie-net/tortie/internal/api/names"
	"github.com/tortie-net/tortie/internal/datastore"
	"github.com/tortie-net/tortie/internal/datastore/dialer"
)

const (
	contentJSON           = "application/json"
	contentJSONPatch      = "application/json-patch+json"
	contentStrategicMerge = "application/strategic-merge-patch+json"
	// acceptMeta asks for only the metadata of a written object: its sender knows the rest.
	acceptMeta = "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1"
	// acceptNames asks for a list without the objects' content: the server does not send it, the client does not parse it.
	acceptNames = "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1"
	// pageSize bounds one answer of a consistent list. The watch cache, which answers stale lists, ignores it.
	pageSize = "500"
)

// Store is the datastore in the Kubernetes API. It implements datastore.Store.
//
// Callers name kinds as internal/api does, whichever of Calico's API groups the cluster uses.
type Store struct {
	client *client
	group  *groups.Current
}

var _ datastore.Store = (*Store)(nil)

// New returns a Store. It makes no request.
func New(cfg Config) (*Store, error) {
	c, err := newClient(cfg)
	if err != nil {
		return nil, err
	}
	return &Store{client: c, group: cfg.Group}, nil
}

// Connect begins to open the connection to the API server. It may be called before the first request.
func (s *Store) Connect() {
	if base := s.client.base; base.Scheme == "https" {
		dialer.Ahead(s.client.transport, net.JoinHostPort(base.Hostname(), cmp.Or(base.Port(), "443")))
	}
}

// Close ends the connections that are not in use. A program that ends need not call it.
func (s *Store) Close() { s.client.http.CloseIdleConnections() }

// Get implements datastore.Store. An object that is marked deleted is deleted for good and reported as not found: its
// deleter died between its two steps.
func (s *Store) Get(ctx context.Context, obj api.Resource) error {
	if err := s.send(ctx, toObject(obj), request{method: http.MethodGet}, obj); err != nil {
		return err
	}
	if !api.Marked(obj) {
		return nil
	}
	if err := s.Delete(ctx, obj); err != nil {
		return fmt.Errorf("finish the deletion of %s: %w", describe(obj), err)
	}
	return fmt.Errorf("%s: %w: it was marked deleted", describe(obj), datastore.ErrNotFound)
}

// List implements datastore.Store. Objects that are marked deleted are left out.
func (s *Store) List(ctx context.Context, list api.ResourceList, opts datastore.ListOptions) error {
	q := url.Values{}
	if opts.Stale {
		q.Set("resourceVersion", "0")
	} else {
		q.Set("limit", pageSize)
	}
	if opts.Host != "" {
		selectHost(q, list.ItemType(), opts.Host)
	}
	r := request{method: http.MethodGet, query: q}
	if opts.NamesOnly {
		r.accept = acceptNames
	}
	return s.listPages(ctx, "", r, list)
}

// Select lists the objects of a namespace, or of all, that selectors choose by labels and fields; each may be empty.
// The answer may be stale.
func (s *Store) Select(ctx context.Context, namespace, labels, fields string, list api.ResourceList) error {
	q := url.Values{"resourceVersion": {"0"}}
	if labels != "" {
		q.Set("labelSelector", labels)
	}
	if fields != "" {
		q.Set("fieldSelector", fields)
	}
	return s.listPages(ctx, namespace, request{method: http.MethodGet, query: q}, list)
}

// selectHost adds a selector for the objects of a host.
func selectHost(q url.Values, of api.Type, host string) {
	switch of {
	case (*api.BlockAffinity)(nil).ResourceType():
		affinityType, name := names.SplitOwner(host)
		q.Set("labelSelector", labelSelector(names.AffinitySelector(name, affinityType)))
	case (*api.Pod)(nil).ResourceType():
		q.Set("fieldSelector", "spec.nodeName="+host)
	}
}

func (s *Store) listPages(ctx context.Context, namespace string, r request, list api.ResourceList) error {
	to := target{of: list.ItemType(), namespace: namespace, all: true}
	for {
		var page struct {
			Metadata api.ListMeta      `json:"metadata"`
			Items    []json.RawMessage `json:"items"`
		}
		in, err := s.ask(ctx, to, r, &page)
		if err != nil {
			return err
		}
		for _, data := range page.Items {
			item := list.NewItem()
			if err := json.Unmarshal(data, item); err != nil {
				return fmt.Errorf("list %s: %w", to.of.Plural, err)
			}
			in.Read(item)
			list.Add(item)
		}
		if page.Metadata.Continue == "" {
			return nil
		}
		r.query.Set("continue", page.Metadata.Continue)
	}
}

// Create implements datastore.Store.
func (s *Store) Create(ctx context.Context, obj api.Resource) error {
	to := target{of: obj.ResourceType(), namespace: obj.GetMeta().Namespace, all: true}
	return s.write(ctx, to, request{method: http.MethodPost, contentType: contentJSON, body: obj}, obj)
}

// Update implements datastore.Store. The UID that was read is a precondition too, so that an object that was deleted
// and created again under the same name counts as changed.
func (s *Store) Update(ctx context.Context, obj api.Resource) error {
	if obj.GetMeta().ResourceVersion == "" {
		return fmt.Errorf("update %s: it carries no resourceVersion: read it first", describe(obj))
	}
	return s.write(ctx, toObject(obj), request{method: http.MethodPut, contentType: contentJSON, body: obj}, obj)
}

// write sends a create, update or patch, and fills in the object's new metadata.
func (s *Store) write(ctx context.Context, to target, r request, obj api.Resource) error {
	r.accept = acceptMeta
	var answer struct {
		Meta api.Meta `json:"metadata"`
	}
	in, err := s.ask(ctx, to, r, &answer)
	if err != nil {
		return err
	}
	in.ReadMeta(&answer.Meta)
	*obj.GetMeta() = answer.Meta
	return nil
}

// Delete implements datastore.Store: one DELETE with the UID and revision of obj as preconditions, which the API server
// checks in the transaction that removes the object. Calico marks the object first, as its clients could not guard a
// DELETE by the revision once; no reader relies on the mark.
func (s *Store) Delete(ctx context.Context, obj api.Resource) error {
	m := obj.GetMeta()
	body := map[string]any{
		"apiVersion":    "v1",
		"kind":          "DeleteOptions",
		"preconditions": map[string]string{"uid": m.UID, "resourceVersion": m.ResourceVersion},
	}
	err := s.send(ctx, toObject(obj), request{method: http.MethodDelete, contentType: contentJSON, body: body}, nil)
	if errors.Is(err, datastore.ErrNotFound) {
		return nil
	}
	return err
}

// PatchStatus sends a strategic merge patch to the object's status subresource, which may change annotations too, and
// fills in its new metadata. If guarded, the patch is refused with ErrConflict unless obj is unchanged since it was
// read. A patch with a UID is refused likewise if the object has another one.
func (s *Store) PatchStatus(ctx context.Context, obj api.Resource, patch Patch, guarded bool) error {
	if guarded {
		m := obj.GetMeta()
		patch.Metadata.UID, patch.Metadata.ResourceVersion = m.UID, m.ResourceVersion
	}
	return s.write(ctx, toStatus(obj), request{method: http.MethodPatch, contentType: contentStrategicMerge, body: patch}, obj)
}

// PatchTested sends a JSON patch (RFC 6902) to the object's status subresource, which may change annotations too. If an
// operation cannot be applied, such as a test of another or an absent value, nothing changes and the error is
// ErrConflict. obj names the object; it is neither read nor filled.
func (s *Store) PatchTested(ctx context.Context, obj api.Resource, ops []Operation) error {
	return s.send(ctx, toStatus(obj), request{method: http.MethodPatch, contentType: contentJSONPatch, body: ops}, nil)
}

// MergePatch sends a JSON merge patch (RFC 7386) of the object, and replaces the object by the answer.
func (s *Store) MergePatch(ctx context.Context, obj api.Resource, patch any) error {
	return s.send(ctx, toObject(obj), request{method: http.MethodPatch, contentType: "application/merge-patch+json", body: patch}, obj)
}

// Operation is one operation of a JSON patch.
type Operation struct {
	Op    string `json:"op"` // test, add or remove
	Path  string `json:"path"`
	Value any    `json:"value,omitempty"`
}

// AnnotationPath returns the path of an annotation in a JSON patch: in a key, "~" is written ~0 and "/" is written ~1.
func AnnotationPath(key string) string {
	return "/metadata/annotations/" + strings.NewReplacer("~", "~0", "/", "~1").Replace(key)
}

// Patch is a strategic merge patch of an object's annotations and status.
type Patch struct {
	Metadata PatchMeta `json:"metadata"`
	Status   any       `json:"status,omitempty"`
}

// PatchMeta is the metadata of a Patch.
type PatchMeta struct {
	UID             string `json:"uid,omitempty"`
	ResourceVersion string `json:"resourceVersion,omitempty"`
	// Annotations to set; nil removes one.
	Annotations map[string]*string `json:"annotations,omitempty"`
}

// target is the object of a request: an object, a part of one, or all of a kind.
type target struct {
	of        api.Type
	namespace string
	all       bool // of the kind, in the namespace or in all
	name      string
	part      string // such as status
}

func toObject(obj api.Resource) target {
	m := obj.GetMeta()
	return target{of: obj.ResourceType(), namespace: m.Namespace, name: m.Name}
}

func toStatus(obj api.Resource) target {
	to := toObject(obj)
	to.part = "status"
	return to
}

// path returns the target's path in a cluster that keeps Calico's objects in a group.
func (to target) path(in groups.Group) string {
	t := in.Type(to.of)
	path := "/api/" + t.Version
	if t.Group != "" {
		path = "/apis/" + t.Group + "/" + t.Version
	}
	if t.Namespaced && to.namespace != "" {
		path += "/namespaces/" + url.PathEscape(to.namespace)
	}
	path += "/" + t.Plural
	if !to.all {
		path += "/" + url.PathEscape(to.name)
	}
	if to.part != "" {
		path += "/" + to.part
	}
	return path
}

// manifest is an object as it is sent.
type manifest struct {
	in  groups.Group
	obj api.Resource
}

// MarshalJSON implements json.Marshaler.
func (m manifest) MarshalJSON() ([]byte, error) { return m.in.Manifest(m.obj) }

// send is ask, for an answer that is nil or the object.
func (s *Store) send(ctx context.Context, to target, r request, out api.Resource) error {
	if out == nil {
		_, err := s.ask(ctx, to, r, nil)
		return err
	}
	in, err := s.ask(ctx, to, r, out)
	if err == nil {
		in.Read(out)
	}
	return err
}

// ask is client.do for a target. It sends a resource as body in the form of its group, and returns the group in whose
// form the answer is; groups.V1 for what is not Calico's. While the group is held, a write of one of Calico's objects is
// datastore.ErrLocked, without a request.
func (s *Store) ask(ctx context.Context, to target, r request, out any) (in groups.Group, err error) {
	in = groups.V1
	if to.of.Group == api.Group {
		if in, err = s.group.Get(ctx); err != nil {
			return in, err
		}
		if r.method != http.MethodGet && s.group.Held() {
			return in, fmt.Errorf("%w: no %s is written in %s for now", datastore.ErrLocked, to.of.Kind, in)
		}
	}
	r.path = to.path(in)
	if obj, ok := r.body.(api.Resource); ok {
		r.body = manifest{in, obj}
	}
	return in, s.client.do(ctx, r, out)
}

func describe(obj api.Resource) string {
	m := obj.GetMeta()
	if m.Namespace != "" {
		return obj.ResourceType().Kind + " " + m.Namespace + "/" + m.Name
	}
	return obj.ResourceType().Kind + " " + m.Name
}

func labelSelector(labels map[string]string) string {
	terms := make([]string, 0, len(labels))
	for k, v := range labels {
		terms = append(terms, k+"="+v)
	}
	slices.Sort(terms)
	return strings.Join(terms, ",")
}
