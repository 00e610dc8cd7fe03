package inventory

import (
	"context"
	"errors"
	"fmt"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/tortie-net/tortie/internal/api"
	"github.com/tortie-net/tortie/internal/datastore"
	"github.com/tortie-net/tortie/internal/ipam"
)

// Source is where a View is read from.
type Source struct {
	// IPAM has pools, blocks, affinities and handles: the Kubernetes API, or etcd.
	IPAM datastore.Store
	// Cluster has Nodes and Pods: the Kubernetes API, whatever IPAM is.
	Cluster datastore.Store
}

// Read reads everything, as of now: each list is consistent in itself. Of a cluster that lives they differ by what happens
// meanwhile, so whoever acts on a View looks again.
//
// What others may still use is read after what holds it: a pod that starts meanwhile is seen, and is not taken for gone.
func Read(ctx context.Context, from Source, now func() time.Time) (View, error) {
	v, err := ReadIPAM(ctx, from.IPAM, now)
	if err != nil {
		return View{}, err
	}
	g, gctx := errgroup.WithContext(ctx)
	var nodes api.List[Node, *Node]
	var pods api.List[Pod, *Pod]
	g.Go(func() error { return from.Cluster.List(gctx, &nodes, datastore.ListOptions{}) })
	g.Go(func() error { return from.Cluster.List(gctx, &pods, datastore.ListOptions{}) })
	if err := g.Wait(); err != nil {
		return View{}, fmt.Errorf("read who may use the addresses: %w", err)
	}
	v.Nodes, v.Pods = nodes.Items, pods.Items
	return v, nil
}

// ReadIPAM reads all but who may use the addresses.
func ReadIPAM(ctx context.Context, store datastore.Store, now func() time.Time) (View, error) {
	v := View{Taken: now()}
	if err := v.readIPAM(ctx, store); err != nil {
		return View{}, fmt.Errorf("read the addresses: %w", err)
	}
	return v, nil
}

func (v *View) readIPAM(ctx context.Context, store datastore.Store) error {
	var pools api.IPPoolList
	var reservations api.IPReservationList
	var affinities api.BlockAffinityList
	var handles api.IPAMHandleList
	g, ctx := errgroup.WithContext(ctx)
	for _, list := range []api.ResourceList{&pools, &reservations, &affinities, &handles} {
		g.Go(func() error { return store.List(ctx, list, datastore.ListOptions{}) })
	}
	g.Go(func() (err error) { v.Blocks, err = ReadBlocks(ctx, store); return err })
	g.Go(func() error {
		cfg := api.IPAMConfig{Meta: api.Meta{Name: api.DefaultName}}
		v.Config = ipam.DefaultConfig()
		err := store.Get(ctx, &cfg)
		if errors.Is(err, datastore.ErrNotFound) {
			return nil
		}
		v.Config = cfg.Spec
		return err
	})
	g.Go(func() error {
		info := api.ClusterInformation{Meta: api.Meta{Name: api.DefaultName}}
		err := store.Get(ctx, &info)
		if errors.Is(err, datastore.ErrNotFound) {
			return nil
		}
		v.Information = &info
		return err
	})
	if err := g.Wait(); err != nil {
		return err
	}
	v.Ready = v.Information != nil && v.Information.Spec.DatastoreReady != nil && *v.Information.Spec.DatastoreReady
	v.Pools, v.Reservations, v.Affinities = pools.Items, reservations.Items, affinities.Items
	for i := range handles.Items {
		v.Handles = append(v.Handles, NewHandle(&handles.Items[i]))
	}
	return nil
}
