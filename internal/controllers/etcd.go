package controllers

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"sync/atomic"
	"time"

	"github.com/tortie-net/tortie/internal/api"
	"github.com/tortie-net/tortie/internal/datastore"
	"github.com/tortie-net/tortie/internal/datastore/etcd"
	"github.com/tortie-net/tortie/internal/ipam/inventory"
)

// etcdDuties are the controllers' requests to etcd besides IPAM.
type etcdDuties interface {
	CalicoNodes(ctx context.Context) ([]etcd.CalicoNode, error)
	Relabel(ctx context.Context, n etcd.CalicoNode, labels, annotations map[string]string) error
	DeleteNode(ctx context.Context, n etcd.CalicoNode) error
	Revision(ctx context.Context) (int64, error)
	Compact(ctx context.Context, revision int64) error
}

// etcdKeeper serves IPAM on etcd. It lists the objects for each pass: a watch would need a streaming gRPC client, to
// save a few lists an hour.
type etcdKeeper struct {
	store   Etcd
	cluster datastore.Store
	log     *slog.Logger

	nodes     []etcd.CalicoNode // as of the last view
	settings  atomic.Pointer[api.KubeControllersConfiguration]
	compacted time.Time
	revision  int64 // at that time
}

// view adds the objects on etcd to the Nodes and Pods. A host without a Kubernetes Node exists as long as its Calico
// Node. Addresses of a node with different names in both are left alone: the name that they refer to is ambiguous.
func (k *etcdKeeper) view(ctx context.Context, of inventory.View) (inventory.View, error) {
	v, err := inventory.ReadIPAM(ctx, k.store, time.Now)
	if err != nil {
		return v, err
	}
	if k.nodes, err = k.store.CalicoNodes(ctx); err != nil {
		return v, fmt.Errorf("read Calico's nodes: %w", err)
	}
	if err := k.readSettings(ctx); err != nil {
		return v, err
	}
	if of.Taken.Before(v.Taken) {
		v.Taken = of.Taken
	}
	v.Nodes, v.Pods = of.Nodes, of.Pods
	renamed := map[string]bool{}
	for _, n := range k.nodes {
		if n.Kubernetes == n.Name {
			continue
		}
		v.Nodes = append(v.Nodes, inventory.Node{Meta: api.Meta{Name: n.Name, Labels: n.Labels}})
		renamed[n.Name] = n.Kubernetes != ""
	}
	for i := range v.Blocks {
		for j := range v.Blocks[i].Allocations {
			if a := &v.Blocks[i].Allocations[j]; renamed[a.Node] {
				a.Class = inventory.Unknown
			}
		}
	}
	return v, nil
}

// readSettings reads the object, and creates it if there is none.
func (k *etcdKeeper) readSettings(ctx context.Context) error {
	obj := &api.KubeControllersConfiguration{Meta: api.Meta{Name: api.DefaultName}}
	err := k.store.Get(ctx, obj)
	if errors.Is(err, datastore.ErrNotFound) {
		obj = defaultConfiguration()
		err = k.store.Create(ctx, obj)
	}
	if err != nil && !datastore.Contended(err) {
		return fmt.Errorf("KubeControllersConfiguration %s: %w", api.DefaultName, err)
	}
	k.settings.Store(obj)
	return nil
}

// sync keeps Calico's Nodes equal to Kubernetes', and compacts etcd.
func (k *etcdKeeper) sync(ctx context.Context, v *inventory.View, s Settings) error {
	errs := []error{k.compact(ctx, s.Compaction)}
	existing := make(map[string]*inventory.Node, len(v.Nodes))
	for i := range v.Nodes {
		existing[v.Nodes[i].Name] = &v.Nodes[i]
	}
	for _, n := range k.nodes {
		if n.Kubernetes == "" {
			continue
		}
		node := existing[n.Kubernetes]
		switch {
		case node == nil:
			errs = append(errs, k.deleteNode(ctx, n))
		case s.SyncLabels:
			errs = append(errs, k.relabel(ctx, n, node.Labels))
		}
	}
	return errors.Join(errs...)
}

// deleteNode deletes Calico's Node if the Kubernetes Node is still missing.
func (k *etcdKeeper) deleteNode(ctx context.Context, n etcd.CalicoNode) error {
	err := k.cluster.Get(ctx, &inventory.Node{Meta: api.Meta{Name: n.Kubernetes}})
	if !errors.Is(err, datastore.ErrNotFound) {
		return err
	}
	if err := k.store.DeleteNode(ctx, n); err != nil && !datastore.Contended(err) {
		return err
	}
	k.log.Info("deleted Calico's Node of a node that is gone", "name", n.Name)
	return nil
}

// kubeLabels is the annotation in which Calico's controllers record the labels that come from Kubernetes.
const kubeLabels = "projectcalico.org/kube-labels"

// relabel sets the labels of Kubernetes' Node on Calico's, and removes those that it set before.
func (k *etcdKeeper) relabel(ctx context.Context, n etcd.CalicoNode, want map[string]string) error {
	labels, annotations, differ := joinLabels(n.Labels, n.Annotations, want)
	if !differ {
		return nil
	}
	if err := k.store.Relabel(ctx, n, labels, annotations); err != nil && !datastore.Contended(err) {
		return err
	}
	return nil
}

// joinLabels returns the labels and annotations for Calico's Node. Labels of an administrator stay, unless Kubernetes'
// Node has a label of that name.
func joinLabels(have, annotations, want map[string]string) (labels, notes map[string]string, differ bool) {
	var before map[string]string
	_ = json.Unmarshal([]byte(annotations[kubeLabels]), &before) // invalid JSON names none
	labels = maps.Clone(have)
	if labels == nil {
		labels = map[string]string{}
	}
	for key := range before {
		delete(labels, key)
	}
	maps.Copy(labels, want)
	text, err := json.Marshal(want) // in the order of the keys, as Calico's
	if err != nil {
		return have, annotations, false // a map of strings always encodes
	}
	if notes = maps.Clone(annotations); notes == nil {
		notes = map[string]string{}
	}
	notes[kubeLabels] = string(text)
	return labels, notes, !maps.Equal(labels, have) || !maps.Equal(before, want)
}

// compact compacts etcd to the revision at the last compaction, so that watchers have a period to catch up.
func (k *etcdKeeper) compact(ctx context.Context, period time.Duration) error {
	if period <= 0 || time.Since(k.compacted) < period {
		return nil
	}
	now, err := k.store.Revision(ctx)
	if err != nil {
		return err
	}
	if k.revision > 0 {
		if err := k.store.Compact(ctx, k.revision); err != nil {
			return err
		}
		k.log.Info("compacted etcd", "revision", k.revision)
	}
	k.compacted, k.revision = time.Now(), now
	return nil
}
