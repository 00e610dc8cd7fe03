// Package labstore gives tests a datastore on a real API server.
package labstore

import (
	"context"
	"testing"
	"time"

	"github.com/tortie-net/tortie/internal/api"
	"github.com/tortie-net/tortie/internal/datastore/kubernetes"
	"github.com/tortie-net/tortie/internal/testkit/errtest"
	"github.com/tortie-net/tortie/internal/testkit/labtest"
)

// Store returns a datastore on the server of labtest.API, with administrator rights.
func Store(t testing.TB) *kubernetes.Store {
	t.Helper()
	return At(t, labtest.API(t))
}

// At returns a datastore on the server of a kubeconfig, such as a test's own server or a proxy.
func At(t testing.TB, kubeconfig string) *kubernetes.Store {
	t.Helper()
	cfg, err := kubernetes.LoadKubeconfig(kubeconfig)
	errtest.Must(t, err)
	cfg.Group = labtest.Current(t)
	store, err := kubernetes.New(cfg)
	errtest.Must(t, err)
	return store
}

// Make creates an object that is deleted with the test, in place of one with its name from an earlier test.
func Make(t testing.TB, store *kubernetes.Store, obj api.Resource) {
	t.Helper()
	old := api.NewLike(obj)
	*old.GetMeta() = api.Meta{Name: obj.GetMeta().Name, Namespace: obj.GetMeta().Namespace}
	Forget(t, store, old)
	errtest.Must(t, store.Create(t.Context(), obj))
}

// Forget deletes an object now and at the end of the test: the API server is shared.
func Forget(t testing.TB, store *kubernetes.Store, obj api.Resource) {
	t.Helper()
	clean := func() {
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
		defer cancel()
		if err := store.Get(ctx, obj); err == nil {
			_ = store.Delete(ctx, obj)
		}
	}
	clean()
	t.Cleanup(clean)
}
