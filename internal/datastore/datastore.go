// Package datastore is the contract between the project and where its state lives. It knows no Kubernetes and no etcd:
// implementations are in the packages below it.
//
// All writes are compare-and-swap: Create fails if the object exists, Update and Delete fail if it changed since it was
// read. Callers read, decide and write again on ErrConflict or ErrExists.
package datastore

import (
	"context"
	"errors"
	"fmt"

	"github.com/tortie-net/tortie/internal/api"
)

// What callers branch on. Implementations wrap these; the wrapping error says which object and request.
var (
	// ErrNotFound: the object does not exist.
	ErrNotFound = errors.New("not found")
	// ErrExists: Create found an object of that name.
	ErrExists = errors.New("already exists")
	// ErrConflict: the object changed, or went away, since the revision that the write was based on.
	ErrConflict = errors.New("changed by somebody else")
	// ErrUnauthorized: the datastore refused the credentials or the permission.
	ErrUnauthorized = errors.New("not authorized")
	// ErrUnauthenticated: the API server does not accept the token, whatever it would allow; another token may help. It is
	// ErrUnauthorized too.
	ErrUnauthenticated = fmt.Errorf("%w: credentials refused", ErrUnauthorized)
	// ErrUnavailable: no usable answer before the deadline; a write may or may not have landed.
	ErrUnavailable = errors.New("datastore unavailable")
)

// Contended reports whether reading again and deciding anew can help.
func Contended(err error) bool {
	return errors.Is(err, ErrConflict) || errors.Is(err, ErrExists)
}

// ListOptions narrows a List.
type ListOptions struct {
	// Host keeps of BlockAffinities, and of Pods, those of this host alone. It means nothing for other kinds.
	Host string
	// Stale accepts an answer that may be a little old. A consistent list waits for the API server's 100 ms progress tick
	// when others write, so every list whose use is guarded by a later compare-and-swap should accept it.
	Stale bool
	// NamesOnly leaves the contents of the objects where they are: each item has its name, namespace and revision, and
	// nothing else that can be relied on. Objects that are marked deleted are among them, as the mark is in the content.
	NamesOnly bool
}

// Store is one datastore. Its methods are safe for concurrent use.
//
// Objects have a revision everywhere; a UID, labels and annotations only where the datastore keeps them for their kind. An
// IPAMBlock, BlockAffinity, IPAMHandle or IPAMConfig has none on etcd, except the labels that follow from an affinity's name.
type Store interface {
	// Get replaces obj by what the datastore has. Obj says what is asked for: by name (and namespace), an IPAMHandle also by its
	// spec.handleID and a BlockAffinity by its spec.node and spec.cidr, which their names do not always tell. Get finishes the
	// deletion of an object that is marked deleted, and takes it for absent.
	Get(ctx context.Context, obj api.Resource) error
	// List appends to list what the datastore has, except objects that are marked deleted (see ListOptions.NamesOnly).
	List(ctx context.Context, list api.ResourceList, opts ListOptions) error
	// Create stores a new object and fills in its metadata, the revision among it.
	Create(ctx context.Context, obj api.Resource) error
	// Update replaces the object if it still has the revision that obj carries, and fills in its new metadata. An object
	// that went away is ErrConflict.
	Update(ctx context.Context, obj api.Resource) error
	// Delete removes the object, in one step, if it still has the revision that obj carries. An object that went away before
	// is no error: it is gone, as was asked. One that was created anew under the same name is ErrConflict.
	Delete(ctx context.Context, obj api.Resource) error
}
