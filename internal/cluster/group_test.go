package cluster

import (
	"context"
	"log/slog"
	"testing"
	"time"

	"k8s.io/client-go/tools/clientcmd"

	"github.com/tortie-net/tortie/internal/api"
	"github.com/tortie-net/tortie/internal/api/groups"
	"github.com/tortie-net/tortie/internal/datastore/kubernetes"
	"github.com/tortie-net/tortie/internal/testkit/errtest"
	"github.com/tortie-net/tortie/internal/testkit/labtest"
	"github.com/tortie-net/tortie/internal/testkit/waittest"
)

// TestGroupIsFound: controllers of a cluster with addresses in etcd, which may have no definitions, work without, and
// find the objects of projectcalico.org/v3 when its definitions come.
func TestGroupIsFound(t *testing.T) {
	server := labtest.NewBareServer(t)
	cfg, err := clientcmd.BuildConfigFromFlags("", server.Kubeconfig())
	errtest.Must(t, err)
	at := Finding(cfg, "")
	w, err := NewInventory(at, false, slog.New(slog.NewTextHandler(t.Output(), nil)))
	errtest.Must(t, err)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	go func() { _ = w.Run(ctx) }()
	first, done := context.WithTimeout(ctx, time.Minute*labtest.TimeScale)
	defer done()
	errtest.Must(t, w.WaitForSync(first, w.log))
	if in := at.Group.Known(); in != "" {
		t.Errorf("without definitions the group is %s", in)
	}

	server.Define(t, groups.V3)
	store, err := OpenStore(at)
	errtest.Must(t, err)
	config := &api.IPAMConfig{Meta: api.Meta{Name: api.DefaultName}}
	waittest.For(t, time.Minute, func() error { return store.Create(t.Context(), config) })
	if in := at.Group.Known(); in != groups.V3 {
		t.Errorf("the group is %q, want %s", in, groups.V3)
	}
	other, err := kubernetes.LoadKubeconfig(server.Kubeconfig())
	errtest.Must(t, err)
	other.Group = groups.In(groups.V3)
	plain, err := kubernetes.New(other)
	errtest.Must(t, err)
	errtest.Must(t, plain.Get(t.Context(), &api.IPAMConfig{Meta: api.Meta{Name: api.DefaultName}}))
}
