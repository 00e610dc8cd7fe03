package kubernetes

import (
	"context"
	"errors"
	"net/http"

	"github.com/tortie-net/tortie/internal/api"
	"github.com/tortie-net/tortie/internal/datastore"
)

// UpdateStatus replaces the object's status, by its subresource, if the object is unchanged since it was read, and
// fills in its new metadata. If the kind has no such subresource it is ErrConflict.
func (s *Store) UpdateStatus(ctx context.Context, obj api.Resource) error {
	return s.write(ctx, toStatus(obj), request{method: http.MethodPut, contentType: contentJSON, body: obj}, obj)
}

// SetStatus replaces the object's status, guarded by the revision that was read, and fills in the object's new
// metadata. By group and release, Calico's definitions have the status of some kinds as a subresource or as a field.
// The subresource is tried first: where there is one, a change of the object leaves the status as it is, without an
// error. It is ErrConflict if the object has changed, ErrNotFound if it is gone.
func (s *Store) SetStatus(ctx context.Context, obj api.Resource, status any) error {
	r := request{method: http.MethodPatch, contentType: contentJSONPatch, body: []Operation{
		{Op: "test", Path: "/metadata/resourceVersion", Value: obj.GetMeta().ResourceVersion},
		{Op: "add", Path: "/status", Value: status},
	}}
	err := s.write(ctx, toStatus(obj), r, obj)
	if errors.Is(err, datastore.ErrNotFound) {
		return s.write(ctx, toObject(obj), r, obj)
	}
	return err
}
