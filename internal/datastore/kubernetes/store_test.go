package kubernetes

import (
	"testing"

	"github.com/tortie-net/tortie/internal/datastore"
	"github.com/tortie-net/tortie/internal/datastore/datastoretest"
	"github.com/tortie-net/tortie/internal/labtest"
)

// realStore returns a Store of the test binary's API server.
func realStore(t *testing.T) *Store {
	t.Helper()
	cfg, err := LoadKubeconfig(labtest.API(t))
	if err != nil {
		t.Fatal(err)
	}
	s, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func TestStorePassesTheCases(t *testing.T) {
	datastoretest.Run(t, func() datastore.Store { return realStore(t) })
}
