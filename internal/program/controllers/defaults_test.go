package controllers

import (
	"errors"
	"fmt"
	"slices"
	"testing"

	"github.com/tortie-net/tortie/internal/api"
	"github.com/tortie-net/tortie/internal/datastore"
	"github.com/tortie-net/tortie/internal/datastore/kubernetes"
	"github.com/tortie-net/tortie/internal/testkit/errtest"
	"github.com/tortie-net/tortie/internal/testkit/labtest"
)

// ranges returns the ranges of all pools.
func (w *world) ranges() []string {
	w.t.Helper()
	var pools api.IPPoolList
	errtest.Must(w.t, w.store.List(w.t.Context(), &pools, datastore.ListOptions{}))
	var all []string
	for _, p := range pools.Items {
		all = append(all, p.Name+" "+p.Spec.CIDR)
	}
	slices.Sort(all)
	return all
}

func (w *world) removePools() {
	w.t.Helper()
	var pools api.IPPoolList
	errtest.Must(w.t, w.store.List(w.t.Context(), &pools, datastore.ListOptions{}))
	for i := range pools.Items {
		errtest.Must(w.t, w.store.Delete(w.t.Context(), &pools.Items[i]))
	}
}

// The leader makes the pools of a cluster without any: by the rights of the chart, with kubeadm's range or one without
// nodes, not while the datastore is locked, when nothing is collected either, and not again after they were removed.
func TestDefaultPools(t *testing.T) {
	t.Parallel()
	w := newWorld(t, audited(t))
	w.node("lan")
	lost := w.assign("lost", "lan", "lost")
	w.removePools()
	info := &api.ClusterInformation{Meta: api.Meta{Name: api.DefaultName}}
	locked := func(is bool) {
		t.Helper()
		errtest.Must(t, w.store.Get(t.Context(), info))
		ready := !is
		info.Spec.DatastoreReady = &ready
		errtest.Must(t, w.store.Update(t.Context(), info))
	}
	has := func(want ...string) func() error {
		return func() error {
			if have := w.ranges(); !slices.Equal(have, want) {
				return fmt.Errorf("pools %v, want %v", have, want)
			}
			return nil
		}
	}
	lan := &api.Node{Meta: api.Meta{Name: "lan"}}
	patch := kubernetes.Patch{Status: map[string]any{"addresses": []api.NodeAddress{{Type: "InternalIP", Address: "192.168.1.5"}}}}
	errtest.Must(t, w.store.PatchStatus(t.Context(), lan, patch, false))
	locked(true)
	p := w.start("one", "", "CALICO_IPV6POOL_CIDR=none", "RECONCILER_PERIOD=1s")
	leads(t, p)
	eventually(t, func() error {
		s, err := p.status()
		if err == nil && !s.Locked {
			err = errors.New("the lock is not seen yet")
		}
		return err
	})
	lock := labtest.InGroupText(t, `tortie_datastore_locked{group="crd.projectcalico.org/v1"} `)
	eventually(t, func() error { return p.has(lock + "1") })
	p.passes(5)
	if err := has()(); err != nil {
		t.Errorf("while the datastore is locked: %v", err)
	}
	v := w.view()
	w.stays("whoever holds one while the datastore is locked", &v, "k8s-pod-network.lost", lost)
	locked(false)
	eventually(t, has("default-ipv4-ippool 172.16.0.0/16"))
	eventually(t, func() error { return p.has(lock + "0") })
	w.removePools()
	w.node("another") // a change to look at
	// It is collected by views that have all that was there before.
	empty := &api.IPAMHandle{Meta: api.Meta{Name: "empty"},
		Spec: api.IPAMHandleSpec{HandleID: "empty", Block: map[string]int{"10.44.9.0/26": 1}}}
	w.create(empty)
	eventually(t, func() error {
		if v := w.view(); len(v.Handles) > 0 {
			return fmt.Errorf("%d handles are left", len(v.Handles))
		}
		return nil
	})
	if err := has()(); err != nil {
		t.Errorf("after somebody has removed them: %v", err)
	}
	p.kill()

	m := &api.ConfigMap{Meta: api.Meta{Namespace: "kube-system", Name: "kubeadm-config"}, Data: map[string]string{
		"ClusterConfiguration": "networking:\n  podSubnet: 10.99.0.0/16\n",
	}}
	w.create(m)
	w.start("two", "", "CALICO_IPV6POOL_CIDR=fd99::/48")
	w.start("three", "", "CALICO_IPV6POOL_CIDR=fd99::/48")
	eventually(t, has("default-ipv4-ippool 10.99.0.0/16", "default-ipv6-ippool fd99::/48"))
}
