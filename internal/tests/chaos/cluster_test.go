package chaos

import (
	"context"
	"errors"
	"net/url"
	"testing"

	"github.com/tortie-net/tortie/internal/api"
	"github.com/tortie-net/tortie/internal/api/groups"
	store "github.com/tortie-net/tortie/internal/datastore"
	"github.com/tortie-net/tortie/internal/testkit/errtest"
	"github.com/tortie-net/tortie/internal/testkit/labtest"
)

// cluster is a datastore with the state of some nodes.
type cluster struct {
	datastore
	store store.Store  // with administrator rights
	group groups.Group // of Calico's objects, if the datastore is an API server
}

// datastore is the part of a cluster that depends on the kind of datastore.
type datastore interface {
	// equip gives a node its credentials, and returns the datastore's part of its network configuration.
	equip(t testing.TB, n *node) map[string]any
	// newPod creates the pod's objects before it starts, and returns CNI_ARGS for it.
	newPod(t testing.TB, p *pod) (args string)
	// reported returns the pod's address in its status.
	reported(t testing.TB, p *pod) string
}

// setUp creates the objects of an installed Tortie.
func setUp(t testing.TB, d datastore, s store.Store) *cluster {
	t.Helper()
	ready := true
	info := &api.ClusterInformation{Meta: api.Meta{Name: api.DefaultName}, Spec: api.ClusterInformationSpec{DatastoreReady: &ready}}
	if err := s.Create(t.Context(), info); err != nil && !errors.Is(err, store.ErrExists) {
		t.Fatal(err)
	}
	return &cluster{datastore: d, store: s, group: labtest.Group(t)}
}

// shared returns a cluster on the shared API server, with all IPAM objects removed, now and at the end of the test.
func shared(t *testing.T) *cluster {
	t.Helper()
	c := onKubernetes(t, labtest.API(t))
	c.wipe(t)
	t.Cleanup(func() { c.wipe(t) })
	return c
}

// wipe removes the objects that plugins create.
func (c *cluster) wipe(t testing.TB) {
	t.Helper()
	all, err := c.contents(context.Background())
	errtest.Must(t, err)
	for i := range all.blocks.Items {
		c.remove(t, &all.blocks.Items[i])
	}
	for i := range all.handles.Items {
		c.remove(t, &all.handles.Items[i])
	}
	for i := range all.affinities.Items {
		c.remove(t, &all.affinities.Items[i])
	}
}

// create creates objects that are deleted with the test.
func (c *cluster) create(t testing.TB, objs ...api.Resource) {
	t.Helper()
	for _, obj := range objs {
		errtest.Must(t, c.store.Create(t.Context(), obj))
		t.Cleanup(func() { c.remove(t, obj) })
	}
}

func (c *cluster) remove(t testing.TB, obj api.Resource) {
	t.Helper()
	ctx := context.Background()
	err := c.store.Get(ctx, obj)
	if err == nil {
		err = c.store.Delete(ctx, obj)
	}
	if err != nil && !errors.Is(err, store.ErrNotFound) {
		t.Errorf("clean up: %v", err)
	}
}

// reach gives a node, which has a network namespace of its own, access to a server through a socket on the node's
// loopback, and returns the address. Data and closes are passed on, so a killed server has its usual effect on its
// clients.
func (n *node) reach(t testing.TB, server string) string {
	t.Helper()
	upstream, err := url.Parse(server)
	errtest.Must(t, err)
	l := n.Listen(t)
	t.Cleanup(func() { l.Close() })
	go labtest.Forward(l, upstream.Host)
	return l.Addr().String()
}
