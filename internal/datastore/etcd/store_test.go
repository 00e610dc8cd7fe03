package etcd

import (
	"testing"

	"github.com/tortie-net/tortie/internal/datastore"
	"github.com/tortie-net/tortie/internal/datastore/datastoretest"
	"github.com/tortie-net/tortie/internal/labtest"
)

func open(t *testing.T, cfg Config) *Store {
	t.Helper()
	s, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// config returns how an administrator without a password reaches an etcd.
func config(e *labtest.Etcd) Config {
	return Config{Endpoints: []string{e.Endpoint}, CAFile: e.CAFile, CertFile: e.CertFile, KeyFile: e.KeyFile}
}

func TestStorePassesTheCases(t *testing.T) {
	for name, tls := range map[string]bool{"in the clear": false, "over TLS": true} {
		t.Run(name, func(t *testing.T) {
			cfg := config(labtest.NewEtcd(t, tls))
			datastoretest.Run(t, func() datastore.Store { return open(t, cfg) })
		})
	}
}
