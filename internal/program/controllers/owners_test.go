package controllers

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"github.com/tortie-net/tortie/internal/api"
	"github.com/tortie-net/tortie/internal/api/groups"
	"github.com/tortie-net/tortie/internal/datastore"
	"github.com/tortie-net/tortie/internal/testkit/errtest"
	"github.com/tortie-net/tortie/internal/testkit/labtest"
)

// Calico's finalizers.
const ofPools, ofTiers = "projectcalico.org/ippool-finalizer", "projectcalico.org/tier-controller"

// newWorldV3 is a cluster of projectcalico.org/v3.
func newWorldV3(t *testing.T) (*world, *labtest.Server) {
	t.Helper()
	server := auditedOf(t, groups.V3)
	return newWorldOf(t, server, groups.In(groups.V3)), server
}

// is returns an error unless an object has a condition, as in "True OK", followed by finalizers; want is empty for an
// object that is gone.
func is(err error, m *api.Meta, conditions []api.Condition, want string) error {
	if errors.Is(err, datastore.ErrNotFound) && want == "" {
		return nil
	}
	if err != nil {
		return err
	}
	got := []string{}
	for _, c := range conditions {
		got = append(got, c.Status, c.Reason)
	}
	if m.Foreign != nil {
		got = append(got, m.Finalizers...)
	}
	if have := strings.Join(got, " "); have != want || want == "" {
		return fmt.Errorf("%s is %q, want %q", m.Name, have, want)
	}
	return nil
}

func (w *world) poolIs(name, want string) func() error {
	return func() error {
		p := &api.IPPool{Meta: api.Meta{Name: name}}
		err := w.store.Get(w.t.Context(), p)
		if p.Status == nil {
			p.Status = &api.IPPoolStatus{}
		}
		return is(err, &p.Meta, p.Status.Conditions, want)
	}
}

func (w *world) tierIs(name, want string) func() error {
	return func() error {
		tier := &api.CalicoTier{Meta: api.Meta{Name: name}}
		err := w.store.Get(w.t.Context(), tier)
		if tier.Status == nil {
			tier.Status = &api.CalicoTierStatus{}
		}
		return is(err, &tier.Meta, tier.Status.Conditions, want)
	}
}

// remove asks for the deletion of an object.
func (w *world) remove(obj api.Resource) {
	w.t.Helper()
	errtest.Must(w.t, w.store.Get(w.t.Context(), obj))
	errtest.Must(w.t, w.store.Delete(w.t.Context(), obj))
}

// writes returns the number of write requests of kinds, as in "patch ippools".
func writes(t *testing.T, server *labtest.Server, kinds ...string) (n int) {
	t.Helper()
	for _, r := range server.AuditedRequests(t) {
		if slices.Contains(kinds, r.Verb+" "+r.Resource) {
			n++
		}
	}
	return n
}

// A deleted pool of projectcalico.org/v3 stays until its last address is free, whatever created it, and one that
// Calico's controllers have left behind is removed.
func TestPoolsStayWhileInUse(t *testing.T) {
	t.Parallel()
	w, server := newWorldV3(t)
	w.node("a")
	w.run("stays", "a")
	w.assign("idle", "a", "idle")
	left := func(name, cidr string, finalizers ...string) {
		w.create(&api.IPPool{Meta: api.Meta{Name: name, Foreign: &api.Foreign{Finalizers: finalizers}}, Spec: api.IPPoolSpec{CIDR: cidr}})
	}
	left("left", "10.46.0.0/16", ofPools)
	left("others", "10.47.0.0/16", ofPools, "example.org/keep")
	left("zz-over", "10.44.4.0/22", ofPools)
	left("off", "10.48.0.0/16")
	off := &api.IPPool{Meta: api.Meta{Name: "off"}}
	errtest.Must(t, w.store.Get(t.Context(), off))
	off.Spec.Disabled = true
	errtest.Must(t, w.store.Update(t.Context(), off))
	w.remove(&api.IPPool{Meta: api.Meta{Name: "left"}})
	w.remove(&api.IPPool{Meta: api.Meta{Name: "others"}})

	p := w.start("one", "", "RECONCILER_PERIOD=1s")
	eventually(t, w.poolIs("left", ""))
	eventually(t, w.poolIs("others", "False Terminating example.org/keep"))
	eventually(t, w.poolIs("zz-over", "False CIDROverlap"))
	eventually(t, w.poolIs("off", "False PoolDisabled"))
	eventually(t, w.poolIs("v4", "True OK "+ofPools))
	eventually(t, w.poolIs("v6", "True OK "+ofPools))
	kinds := []string{"patch ippools", "update ippools/status"}
	before := writes(t, server, kinds...)
	p.passes(3)
	if n := writes(t, server, kinds...) - before; n != 0 {
		t.Errorf("%d writes though all is right", n)
	}

	w.remove(&api.IPPool{Meta: api.Meta{Name: "v4"}})
	eventually(t, w.poolIs("v4", "False Terminating "+ofPools))
	p.passes(3)
	errtest.Must(t, w.poolIs("v4", "False Terminating "+ofPools)())
	errtest.Must(t, w.poolIs("zz-over", "False CIDROverlap")())
	v := w.view()
	if len(heldBy(&v, "k8s-pod-network.of-stays")) != 2 {
		t.Error("the pod has lost an address")
	}
	_, err := w.ipam.Release(t.Context(), "k8s-pod-network.of-stays")
	errtest.Must(t, err)
	_, err = w.ipam.Release(t.Context(), "k8s-pod-network.idle")
	errtest.Must(t, err)
	eventually(t, w.poolIs("v4", ""))
	eventually(t, w.poolIs("zz-over", "True OK "+ofPools))
	if v := w.view(); len(v.Blocks) != 1 || !v.Blocks[0].CIDR.Addr().Is6() {
		t.Errorf("blocks are left: %v", v.Blocks)
	}
}

// A deleted tier of projectcalico.org/v3 stays as long as a policy names it, and its status shows that. The built-in
// tiers exist.
func TestTiersStayWhileInUse(t *testing.T) {
	t.Parallel()
	w, server := newWorldV3(t)
	tier := func(name string, finalizers ...string) *api.CalicoTier {
		order := 7.0
		return &api.CalicoTier{Meta: api.Meta{Name: name, Foreign: &api.Foreign{Finalizers: finalizers}}, Spec: api.CalicoTierSpec{Order: &order}}
	}
	w.create(tier("left", ofTiers), tier("platform"))
	w.remove(tier("left"))
	global := &api.CalicoGlobalNetworkPolicy{Meta: api.Meta{Name: "g"}}
	global.Spec.Tier = "platform"
	staged := &api.CalicoStagedNetworkPolicy{Meta: api.Meta{Name: "s", Namespace: corev1.NamespaceDefault}}
	staged.Spec.Tier = "platform"
	w.create(global, staged)

	w.start("one", "", "RECONCILER_PERIOD=1s", "TORTIE_POLICY=on")
	eventually(t, w.tierIs("left", ""))
	for _, name := range []string{"default", "kube-admin", "kube-baseline", "platform"} {
		eventually(t, w.tierIs(name, ofTiers))
	}
	w.remove(tier("platform"))
	eventually(t, w.tierIs("platform", "False Terminating "+ofTiers))
	w.remove(global)
	one := func() error {
		got := &api.CalicoTier{Meta: api.Meta{Name: "platform"}}
		if err := w.store.Get(t.Context(), got); err != nil || got.Status == nil || !strings.Contains(got.Status.Conditions[0].Message, ": 1;") {
			return fmt.Errorf("status %+v, %w", got.Status, err)
		}
		return nil
	}
	eventually(t, one)
	w.remove(staged)
	eventually(t, w.tierIs("platform", ""))
	if n := writes(t, server, "patch tiers/status"); n != 2 {
		t.Errorf("%d writes of the status, want one for each number of policies", n)
	}
}
