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
	// Cluster has Nodes, Pods and Services: the Kubernetes API, whatever IPAM is.
	Cluster datastore.Store
}

// Read reads everything. Each list is consistent in itself; in a running cluster one list may be newer than another, so
// a caller that acts on a View checks again.
//
// Nodes, Pods and Services are read after the addresses, so that a pod that starts meanwhile is seen.
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
	services := api.List[Service, *Service]{Items: []Service{}}
	g.Go(func() error {
		err := from.Cluster.List(gctx, &services, datastore.ListOptions{})
		if errors.Is(err, datastore.ErrUnauthorized) { // a right of the controller of Services
			services.Items, err = nil, nil
		}
		return err
	})
	if err := g.Wait(); err != nil {
		return View{}, fmt.Errorf("read nodes, pods and Services: %w", err)
	}
	v.Nodes, v.Pods, v.Services = nodes.Items, pods.Items, services.Items
	return v, nil
}

// ReadIPAM reads all but Nodes, Pods and Services.
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
