package cluster

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/tortie-net/tortie/internal/api"
	"github.com/tortie-net/tortie/internal/api/groups"
)

// versions selects the version for requests of a kind: the first that the API server serves.
//
// The request itself finds it, as the API server answers 404 in a version that it does not serve. That answer is
// current before the server's list of versions is, and needs no right of its own. So a list or watch in the preferred
// version costs no other request, in the second version one. A renewed watch continues in the preferred version as soon
// as that is served, from the revision that it has reached: revisions are the same in all versions.
type versions struct {
	log     *slog.Logger
	types   []api.Type // the preferred first
	clients []*clients // one for each of types

	mu   sync.Mutex
	none error // no known version is served, as a request since begin has found; nil: not found
	used int   // index of the version of the last successful request; -1: none yet
}

// typesOf returns the versions of a source's kind.
func typesOf[T any](src *source[T]) []api.Type {
	if of, ok := any(new(T)).(api.Versioned); ok {
		return of.Types()
	}
	return []api.Type{src.of}
}

// newVersions prepares the requests for a kind in its versions, the preferred first.
func newVersions(w *feed, name string, types []api.Type, f form) (*versions, error) {
	v := &versions{log: w.log.With("kind", name), types: types, used: -1}
	for _, t := range v.types {
		client, err := newClients(w.server, w.http, t, f)
		if err != nil {
			return nil, err
		}
		v.clients = append(v.clients, client)
	}
	return v, nil
}

// begin makes the next request try all versions again. Without it, a reflector whose watch found no version would
// repeat that as a list.
func (v *versions) begin() {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.none = nil
}

// inServed makes a request in the first version that the API server serves, and returns its answer and error.
//
// If none is served, the error is missing, or unknownVersions if the API server serves only unknown versions. For a
// kind with several versions it then reads the served versions, and returns the same error to all requests until begin.
func inServed[R any](ctx context.Context, v *versions, request func(*clients) (R, error)) (answer R, err error) {
	if err := v.found(); err != nil {
		return answer, err
	}
	for i, client := range v.clients {
		if answer, err = request(client); !missing(err) {
			v.use(i, err)
			return answer, err
		}
	}
	if len(v.clients) > 1 {
		err = v.explain(ctx, err)
	}
	return answer, err
}

func (v *versions) found() error {
	v.mu.Lock()
	defer v.mu.Unlock()
	return v.none
}

// use records the version of a successful request, and logs a change.
func (v *versions) use(i int, err error) {
	v.mu.Lock()
	defer v.mu.Unlock()
	if err != nil || i == v.used {
		return
	}
	if v.used >= 0 {
		v.log.Info("objects are followed in another version, which the API server serves",
			"version", v.types[i].APIVersion(), "before", v.types[v.used].APIVersion())
	}
	v.used = i
}

// explain returns why no known version is served: notFound, the API server's answer to the last version, or a
// VersionError. It costs one request, and one more for each other version of the group.
func (v *versions) explain(ctx context.Context, notFound error) error {
	others, err := v.others(ctx)
	switch {
	case err != nil:
		return fmt.Errorf("ask in which versions the API server serves %s: %w", v.types[0].Plural, err)
	case len(others) > 0:
		err = &VersionError{Of: v.types, Served: others}
	default:
		err = notFound
	}
	v.mu.Lock()
	defer v.mu.Unlock()
	v.none = err
	return err
}

// others returns the unknown versions in which the API server serves the kind, in the server's order; none without the
// right to read them.
func (v *versions) others(ctx context.Context) (served []string, err error) {
	of := v.types[0]
	var group metav1.APIGroup
	if err := v.discover(ctx, &group, of.Group); err != nil {
		return nil, err
	}
	for _, version := range group.Versions {
		if slices.ContainsFunc(v.types, func(t api.Type) bool { return t.Version == version.Version }) {
			continue
		}
		var list metav1.APIResourceList
		if err := v.discover(ctx, &list, of.Group, version.Version); err != nil {
			return nil, err
		}
		if slices.ContainsFunc(list.APIResources, func(r metav1.APIResource) bool { return r.Name == of.Plural }) {
			served = append(served, version.Version)
		}
	}
	return served, nil
}

// discover reads a path below /apis. It leaves into empty if the path does not exist, or without the right to read it.
func (v *versions) discover(ctx context.Context, into any, below ...string) error {
	data, err := v.clients[0].by[groups.V1].Get().AbsPath(append([]string{"/apis"}, below...)...).DoRaw(ctx)
	if missing(err) || apierrors.IsForbidden(err) {
		return nil
	}
	if err != nil {
		return err
	}
	return json.Unmarshal(data, into)
}

// VersionError means that the API server serves a kind only in versions that this program does not know, so that its
// objects cannot be listed. No other right helps, only another definition or another release.
type VersionError struct {
	Of     []api.Type // the known versions, the preferred first, at least one
	Served []string   // the others, in the API server's order, at least one
}

// Error implements error.
func (e *VersionError) Error() string {
	var known []string
	for _, t := range e.Of {
		known = append(known, t.Version)
	}
	return fmt.Sprintf("the API server serves %s.%s only as %s, and this release reads %s: "+
		"let spec.versions of the definition serve one of these too, or upgrade Tortie",
		e.Of[0].Plural, e.Of[0].Group, strings.Join(e.Served, ", "), strings.Join(known, " and "))
}

// unknownVersions reports whether an error contains a VersionError.
func unknownVersions(err error) bool {
	var of *VersionError
	return errors.As(err, &of)
}
