// Package datastore is the interface of the datastore. It is independent of Kubernetes and etcd: implementations are in
// the packages below it.
//
// All writes are compare-and-swap: Create fails if the object exists, Update and Delete fail if it changed since it was
// read. Callers read, decide and write again on ErrConflict or ErrExists.
package datastore

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/tortie-net/tortie/internal/api"
	"github.com/tortie-net/tortie/internal/app/wait"
)

// Errors that callers branch on. Implementations wrap these; the wrapping error names the object and the request.
var (
	// ErrNotFound: the object does not exist.
	ErrNotFound = errors.New("not found")
	// ErrExists: Create found an object of that name.
	ErrExists = errors.New("already exists")
	// ErrConflict: the object was changed or deleted since the revision that the write was based on.
	ErrConflict = errors.New("changed by another writer")
	// ErrUnauthorized: the datastore refused the credentials or the permission.
	ErrUnauthorized = errors.New("not authorized")
	// ErrUnauthenticated: the API server does not accept the token; another token may help. It is ErrUnauthorized, too.
	ErrUnauthenticated = fmt.Errorf("%w: credentials refused", ErrUnauthorized)
	// ErrRefused: the permission is there, but an admission policy, a webhook or a quota refuses this write. It is
	// ErrUnauthorized, too.
	ErrRefused = fmt.Errorf("%w: refused by admission", ErrUnauthorized)
	// ErrLocked: nothing is written now: the API group is locked, or the cluster runs on the other one. A later try may
	// succeed. It is ErrRefused, too.
	ErrLocked error = lockedError{}
	// ErrUnavailable: no usable answer before the deadline; a write may or may not have landed.
	ErrUnavailable = errors.New("datastore unavailable")
)

// lockedError is ErrLocked. Its text does not begin with ErrRefused's: no right is missing.
type lockedError struct{}

func (lockedError) Error() string { return "locked" }

func (lockedError) Unwrap() error { return ErrRefused }

// Contended reports a conflict: reading and deciding again can help.
func Contended(err error) bool {
	return errors.Is(err, ErrConflict) || errors.Is(err, ErrExists)
}

// Retry repeats do, which reads, decides and writes, while other writers come in between: tries times at most, with
// jittered pauses that double from first to most.
func Retry(ctx context.Context, tries int, first, most time.Duration, do func() error) error {
	pauses := wait.Backoff{First: first, Most: most}
	for n := 1; ; n++ {
		err := do()
		if !Contended(err) {
			return err
		}
		if n == tries {
			return fmt.Errorf("given up after %d tries: %w", n, err)
		}
		if !wait.Sleep(ctx, pauses.Next()) {
			return fmt.Errorf("%w (%w)", context.Cause(ctx), err)
		}
	}
}

// ListOptions narrows a List.
type ListOptions struct {
	// Host selects the BlockAffinities or Pods of this host, or the BlockAffinities of names.LoadBalancer. It has no
	// effect on other kinds.
	Host string
	// Stale accepts an answer that may be stale. A consistent list waits for the API server's 100 ms progress tick when
	// others write, so every list that a later compare-and-swap guards should accept it.
	Stale bool
	// NamesOnly omits the contents of the objects: each item has its name, namespace and revision, and nothing else is
	// valid. Objects that are marked deleted are included, as the mark is in the content.
	NamesOnly bool
}

// Store is one datastore. Its methods are safe for concurrent use.
//
// Objects have a revision everywhere; a UID, labels and annotations only where the datastore keeps them for their kind.
// An IPAMBlock, BlockAffinity, IPAMHandle or IPAMConfig has none on etcd, except the labels that follow from an
// affinity's name.
type Store interface {
	// Get replaces obj by the stored object. Obj identifies it: by name (and namespace), an IPAMHandle also by its
	// spec.handleID and a BlockAffinity by its spec.node and spec.cidr, which do not always follow from their names. Get
	// finishes the deletion of an object that is marked deleted, and returns ErrNotFound.
	Get(ctx context.Context, obj api.Resource) error
	// List appends the stored objects to list, except objects that are marked deleted (see ListOptions.NamesOnly).
	List(ctx context.Context, list api.ResourceList, opts ListOptions) error
	// Create stores a new object and fills in its metadata, the revision among it.
	Create(ctx context.Context, obj api.Resource) error
	// Update replaces the object if it still has the revision that obj carries, and fills in its new metadata. If the
	// object was deleted, that is ErrConflict.
	Update(ctx context.Context, obj api.Resource) error
	// Delete removes the object, in one step, if it still has the revision that obj carries. An object that was already
	// deleted is no error. One that was created again under the same name is ErrConflict.
	Delete(ctx context.Context, obj api.Resource) error
}
