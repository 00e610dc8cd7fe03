package chaos

import (
	"os"
	"testing"

	"github.com/tortie-net/tortie/internal/api"
	store "github.com/tortie-net/tortie/internal/datastore"
	"github.com/tortie-net/tortie/internal/datastore/etcd"
	"github.com/tortie-net/tortie/internal/testkit/errtest"
	"github.com/tortie-net/tortie/internal/testkit/labtest"
)

// etcdStore is etcd with TLS as the datastore. The containers are not pods: there is no Kubernetes.
type etcdStore struct {
	*labtest.Etcd
	store store.Store
}

func onEtcd(t testing.TB, e *labtest.Etcd) *cluster {
	t.Helper()
	s, err := etcd.New(etcd.Config{Endpoints: []string{e.Endpoint}, CAFile: e.CAFile, CertFile: e.CertFile, KeyFile: e.KeyFile})
	errtest.Must(t, err)
	return setUp(t, &etcdStore{e, s}, s)
}

const (
	etcdCAPath   = "/etc/calico/ca"
	etcdCertPath = "/etc/calico/cert"
	etcdKeyPath  = "/etc/calico/key"
)

func (e *etcdStore) equip(t testing.TB, n *node) map[string]any {
	t.Helper()
	for path, file := range map[string]string{etcdCAPath: e.CAFile, etcdCertPath: e.CertFile, etcdKeyPath: e.KeyFile} {
		text, err := os.ReadFile(file)
		errtest.Must(t, err)
		n.Write(t, path, string(text))
	}
	return map[string]any{
		"datastore_type": "etcdv3", "etcd_endpoints": "https://" + n.reach(t, e.Endpoint),
		"etcd_ca_cert_file": etcdCAPath, "etcd_cert_file": etcdCertPath, "etcd_key_file": etcdKeyPath,
	}
}

func (e *etcdStore) newPod(testing.TB, *pod) (args string) { return "" }

// reported returns the addresses of the workload endpoints of all containers of the pod.
func (e *etcdStore) reported(t testing.TB, p *pod) string {
	t.Helper()
	var all api.WorkloadEndpointList
	errtest.Must(t, e.store.List(t.Context(), &all, store.ListOptions{}))
	for _, w := range all.Items {
		if w.Spec.Node == p.node.name && p.had(w.Spec.ContainerID) {
			return w.Name
		}
	}
	return ""
}
