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
	"github.com/tortie-net/tortie/internal/api/names"
	"github.com/tortie-net/tortie/internal/datastore"
	"github.com/tortie-net/tortie/internal/datastore/dialer"
)

const (
	contentJSON           = "application/json"
	contentJSONPatch      = "application/json-patch+json"
	contentStrategicMerge = "application/strategic-merge-patch+json"
	// acceptMeta asks for the metadata of an object that was written: its sender knows the rest.
	acceptMeta = "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1"
	// acceptNames asks for a list without what is in the objects: the server does not send it, the client does not parse
	// it.
	acceptNames = "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1"
	// pageSize bounds one answer of a consistent list. The watch cache, which answers stale ones, ignores it.
	pageSize = "500"
)

// Store is the datastore in the Kubernetes API. It implements datastore.Store.
type Store struct {
	client *client
}

var _ datastore.Store = (*Store)(nil)

// New returns a Store. It makes no request.
func New(cfg Config) (*Store, error) {
	c, err := newClient(cfg)
	if err != nil {
		return nil, err
	}
	return &Store{client: c}, nil
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
	if err := s.client.do(ctx, request{method: http.MethodGet, path: objectPath(obj)}, obj); err != nil {
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
	r := request{method: http.MethodGet, path: collectionPath(list.ItemType(), ""), query: q}
	if opts.NamesOnly {
		r.accept = acceptNames
	}
	return s.listPages(ctx, r, list)
}

// Served returns the plurals of the kinds that the API server has in a group and version; none if it has no such group.
func (s *Store) Served(ctx context.Context, groupVersion string) ([]string, error) {
	var found struct {
		Resources []struct {
			Name string `json:"name"`
		} `json:"resources"`
	}
	err := s.client.do(ctx, request{method: http.MethodGet, path: "/apis/" + groupVersion}, &found)
	if errors.Is(err, datastore.ErrNotFound) {
		err = nil
	}
	served := []string{}
	for _, r := range found.Resources {
		served = append(served, r.Name)
	}
	return served, err
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
	return s.listPages(ctx, request{method: http.MethodGet, path: collectionPath(list.ItemType(), namespace), query: q}, list)
}

// selectHost has the API server leave out what is of other hosts.
func selectHost(q url.Values, of api.Type, host string) {
	switch of {
	case (*api.BlockAffinity)(nil).ResourceType():
		affinityType, name := names.SplitOwner(host)
		q.Set("labelSelector", labelSelector(names.AffinitySelector(name, affinityType)))
	case (*api.Pod)(nil).ResourceType():
		q.Set("fieldSelector", "spec.nodeName="+host)
	}
}

func (s *Store) listPages(ctx context.Context, r request, list api.ResourceList) error {
	for {
		var page struct {
			Metadata api.ListMeta      `json:"metadata"`
			Items    []json.RawMessage `json:"items"`
		}
		if err := s.client.do(ctx, r, &page); err != nil {
			return err
		}
		for _, data := range page.Items {
			item := list.NewItem()
			if err := json.Unmarshal(data, item); err != nil {
				return fmt.Errorf("list %s: %w", r.path, err)
			}
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
	m := obj.GetMeta()
	r := request{
		method:      http.MethodPost,
		path:        collectionPath(obj.ResourceType(), m.Namespace),
		contentType: contentJSON,
		body:        manifest{obj},
	}
	return s.write(ctx, r, obj)
}

// Update implements datastore.Store. The UID that was read is a precondition too, so that an object that was deleted
// and created again under the same name counts as changed.
func (s *Store) Update(ctx context.Context, obj api.Resource) error {
	if obj.GetMeta().ResourceVersion == "" {
		return fmt.Errorf("update %s: it carries no resourceVersion: read it first", describe(obj))
	}
	r := request{method: http.MethodPut, path: objectPath(obj), contentType: contentJSON, body: manifest{obj}}
	return s.write(ctx, r, obj)
}

// write sends a request that leaves an object behind, and fills in the object's new metadata.
func (s *Store) write(ctx context.Context, r request, obj api.Resource) error {
	r.accept = acceptMeta
	var answer struct {
		Meta api.Meta `json:"metadata"`
	}
	if err := s.client.do(ctx, r, &answer); err != nil {
		return err
	}
	*obj.GetMeta() = answer.Meta
	return nil
}

// Delete implements datastore.Store: one DELETE whose preconditions are the UID and the revision that obj carries,
// which the API server checks in the transaction that removes the object. Calico marks the object first, as its clients
// could not guard a DELETE by the revision once; no reader relies on the mark.
func (s *Store) Delete(ctx context.Context, obj api.Resource) error {
	m := obj.GetMeta()
	body := map[string]any{
		"apiVersion":    "v1",
		"kind":          "DeleteOptions",
		"preconditions": map[string]string{"uid": m.UID, "resourceVersion": m.ResourceVersion},
	}
	r := request{method: http.MethodDelete, path: objectPath(obj), contentType: contentJSON, body: body}
	err := s.client.do(ctx, r, nil)
	if errors.Is(err, datastore.ErrNotFound) {
		return nil
	}
	return err
}

// UpdateStatus replaces the object's status, by its subresource, if it still is what was read, and fills in its new
// metadata. Where the kind has no such subresource it is ErrConflict.
func (s *Store) UpdateStatus(ctx context.Context, obj api.Resource) error {
	r := request{method: http.MethodPut, path: objectPath(obj) + "/status", contentType: contentJSON, body: manifest{obj}}
	return s.write(ctx, r, obj)
}

// PatchStatus sends a strategic merge patch to the object's status subresource, which may change annotations too, and
// fills in its new metadata. If guarded, the patch is refused with ErrConflict unless obj is still what was read. A
// patch with a UID is refused so if the object has another one.
func (s *Store) PatchStatus(ctx context.Context, obj api.Resource, patch Patch, guarded bool) error {
	if guarded {
		m := obj.GetMeta()
		patch.Metadata.UID, patch.Metadata.ResourceVersion = m.UID, m.ResourceVersion
	}
	r := request{
		method:      http.MethodPatch,
		path:        objectPath(obj) + "/status",
		contentType: contentStrategicMerge,
		body:        patch,
	}
	return s.write(ctx, r, obj)
}

// PatchTested sends a JSON patch (RFC 6902) to the object's status subresource, which may change annotations too. If an
// operation cannot be applied, such as a test of a value that is another one or absent, nothing changes and the error
// is ErrConflict. Obj says which object; it is not read and not filled.
func (s *Store) PatchTested(ctx context.Context, obj api.Resource, ops []Operation) error {
	r := request{
		method:      http.MethodPatch,
		path:        objectPath(obj) + "/status",
		contentType: contentJSONPatch,
		body:        ops,
	}
	return s.client.do(ctx, r, nil)
}

// PatchPart sends a JSON patch to the object itself, guarded by the revision that was read, and fills in its new
// metadata. It is for objects whose status is no subresource.
func (s *Store) PatchPart(ctx context.Context, obj api.Resource, ops []Operation) error {
	guard := Operation{Op: "test", Path: "/metadata/resourceVersion", Value: obj.GetMeta().ResourceVersion}
	r := request{
		method:      http.MethodPatch,
		path:        objectPath(obj),
		contentType: contentJSONPatch,
		body:        append([]Operation{guard}, ops...),
	}
	return s.write(ctx, r, obj)
}

// MergePatch sends a JSON merge patch (RFC 7386) of the object, and replaces the object by the answer.
func (s *Store) MergePatch(ctx context.Context, obj api.Resource, patch any) error {
	return s.client.do(ctx,
		request{method: http.MethodPatch, path: objectPath(obj), contentType: "application/merge-patch+json", body: patch}, obj)
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

// manifest encodes a resource with its apiVersion and kind, which the Go types do not carry.
type manifest struct{ api.Resource }

func (m manifest) MarshalJSON() ([]byte, error) {
	body, err := json.Marshal(m.Resource)
	if err != nil {
		return nil, err
	}
	t := m.ResourceType()
	head := fmt.Sprintf(`{"apiVersion":%q,"kind":%q,`, t.APIVersion(), t.Kind)
	return append([]byte(head), body[1:]...), nil
}

func collectionPath(t api.Type, namespace string) string {
	root := "/api/" + t.Version
	if t.Group != "" {
		root = "/apis/" + t.Group + "/" + t.Version
	}
	if t.Namespaced && namespace != "" {
		root += "/namespaces/" + url.PathEscape(namespace)
	}
	return root + "/" + t.Plural
}

func objectPath(obj api.Resource) string {
	m := obj.GetMeta()
	return collectionPath(obj.ResourceType(), m.Namespace) + "/" + url.PathEscape(m.Name)
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
