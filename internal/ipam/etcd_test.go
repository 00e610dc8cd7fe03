package ipam

import (
	"fmt"
	"testing"

	"github.com/tortie-net/tortie/internal/api"
	"github.com/tortie-net/tortie/internal/datastore"
	"github.com/tortie-net/tortie/internal/datastore/etcd"
	"github.com/tortie-net/tortie/internal/testkit/errtest"
	"github.com/tortie-net/tortie/internal/testkit/labtest"
)

// etcdSite starts an etcd with a pool, and returns what opens it as a process of its own would: with its own connection.
func etcdSite(t *testing.T, pool *api.IPPool) func() datastore.Store {
	t.Helper()
	e := labtest.NewEtcd(t, true)
	open := func() datastore.Store {
		s, err := etcd.New(etcd.Config{Endpoints: []string{e.Endpoint}, CAFile: e.CAFile, CertFile: e.CertFile, KeyFile: e.KeyFile})
		errtest.Must(t, err)
		return s
	}
	errtest.Must(t, open().Create(t.Context(), pool))
	return open
}

// 8 nodes with 12 pods each, all at once, on etcd: every address once, every block one owner, and all is given back.
func TestManyNodesAtOnceOnEtcd(t *testing.T) {
	g := crowd{open: etcdSite(t, poolObject("etcd", "10.30.0.0/24"))}
	const nodes, pods = 8, 12
	g.assign(t, nodes*pods, func(i int) (node, handle string) {
		return fmt.Sprintf("node-%d", i%nodes), fmt.Sprintf("Net.Pod-%d", i) // etcd keeps the case of handles
	})
	g.release(t)
}

func TestExhaustedPoolOnEtcd(t *testing.T) {
	open := etcdSite(t, poolObject("small", "10.31.0.0/30"))
	useUp(t, open(), "10.31.0.0/30")
}
