package controllers

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"math/rand/v2"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/tortie-net/tortie/internal/api"
	"github.com/tortie-net/tortie/internal/controllers/loadbalancer"
	"github.com/tortie-net/tortie/internal/datastore"
	"github.com/tortie-net/tortie/internal/datastore/kubernetes"
	"github.com/tortie-net/tortie/internal/ipam"
	"github.com/tortie-net/tortie/internal/ipam/audit"
	"github.com/tortie-net/tortie/internal/ipam/inventory"
	"github.com/tortie-net/tortie/internal/testkit/datastoretest"
	"github.com/tortie-net/tortie/internal/testkit/errtest"
)

// patched is a datastore with the balancer's patches of Services.
type patched struct{ datastore.Store }

func (p patched) PatchTested(ctx context.Context, obj api.Resource, ops []kubernetes.Operation) error {
	s := &api.Service{Meta: *obj.GetMeta()}
	if err := p.Get(ctx, s); err != nil {
		return err
	}
	for _, op := range ops {
		index, isRemoval := strings.CutPrefix(op.Path, "/status/loadBalancer/ingress/")
		switch {
		case op.Path == "/metadata/resourceVersion" && op.Value != s.ResourceVersion:
			return datastore.ErrConflict
		case op.Path == "/status/loadBalancer":
			s.Status.LoadBalancer = op.Value.(api.LoadBalancerStatus)
		case isRemoval:
			at, err := strconv.Atoi(index)
			if err != nil {
				return err
			}
			s.Status.LoadBalancer.Ingress = slices.Delete(s.Status.LoadBalancer.Ingress, at, at+1)
		}
	}
	return p.Update(ctx, s)
}

// services are the Services of a history in which leaders die.
type services struct {
	t     *testing.T
	seed  uint64
	rng   *rand.Rand
	store *datastoretest.Fake
	said  map[string]string // by the Service: the last Event
}

func newServices(t *testing.T, seed uint64) *services {
	h := &services{t: t, seed: seed, rng: rand.New(rand.NewPCG(seed, 0)), store: datastoretest.NewFake(), said: map[string]string{}}
	yes := true
	h.create(&api.ClusterInformation{Meta: api.Meta{Name: api.DefaultName}, Spec: api.ClusterInformationSpec{DatastoreReady: &yes}})
	h.pool("a", "10.9.0.0/28", 30)
	h.pool("b", "10.9.1.0/28", 30)
	h.pool("six", "fd09::/124", 126)
	return h
}

func (h *services) create(obj api.Resource) { errtest.Must(h.t, h.store.Create(h.t.Context(), obj)) }

func (h *services) pool(name, cidr string, size int) {
	h.create(&api.IPPool{Meta: api.Meta{Name: name}, Spec: api.IPPoolSpec{
		CIDR: cidr, BlockSize: size, AllowedUses: []api.AllowedUse{api.UseLoadBalancer}, NodeSelector: "all()",
	}})
}

// view is what the watches would show.
func (h *services) view() *balanceView {
	all, err := inventory.ReadIPAM(h.t.Context(), h.store, time.Now)
	errtest.Must(h.t, err)
	v := &balanceView{pools: all.Pools, blocks: all.Blocks}
	for _, s := range h.list() {
		if s.Spec.Type == api.ServiceLoadBalancer {
			v.services = append(v.services, s)
		}
	}
	v.hasHandle = func(name string) bool {
		return slices.ContainsFunc(all.Handles, func(x inventory.Handle) bool { return x.Name == name })
	}
	return v
}

func (h *services) list() (all []*api.Service) {
	var list api.List[api.Service, *api.Service]
	errtest.Must(h.t, h.store.List(h.t.Context(), &list, datastore.ListOptions{}))
	for i := range list.Items {
		all = append(all, &list.Items[i])
	}
	return all
}

// leader is a new process.
func (h *services) leader(hook datastoretest.Hook) *balancer {
	session := patched{h.store.Session(hook)}
	return &balancer{
		services: session, ipam: ipam.NewClient(session, time.Now), log: slog.New(slog.DiscardHandler),
		warn: func(about api.ObjectReference, _, text string) { h.said[about.Name] = text },
	}
}

// crashing has the process die at a random request, also when that is under way.
func (h *services) crashing() datastoretest.Hook {
	at := 1 + h.rng.IntN(25)
	how := []datastoretest.Fault{datastoretest.Crash, datastoretest.CrashAfter, datastoretest.CrashLate}[h.rng.IntN(3)]
	return func(_ context.Context, r datastoretest.Request) datastoretest.Fault {
		switch {
		case r.N != at:
			return datastoretest.None
		case how == datastoretest.CrashLate && r.Verb == "POST": // nothing can guard a creation that lands after its release
			return datastoretest.CrashAfter
		}
		return how
	}
}

// happen is one change of a Service.
func (h *services) happen() {
	name := fmt.Sprint("s", h.rng.IntN(10))
	s := &api.Service{Meta: api.Meta{Namespace: "d", Name: name}}
	err := h.store.Get(h.t.Context(), s)
	if errors.Is(err, datastore.ErrNotFound) {
		s.Spec = api.ServiceSpec{Type: api.ServiceLoadBalancer, IPFamilies: []string{"IPv4"}, IPFamilyPolicy: "SingleStack"}
		if h.rng.IntN(2) == 0 {
			s.Spec.IPFamilies, s.Spec.IPFamilyPolicy = []string{"IPv4", "IPv6"}, []string{"PreferDualStack", "RequireDualStack"}[h.rng.IntN(2)]
		}
		h.create(s)
		return
	}
	errtest.Must(h.t, err)
	switch h.rng.IntN(5) {
	case 0:
		errtest.Must(h.t, h.store.Delete(h.t.Context(), s))
		return
	case 1: // the API server empties the status then
		s.Spec.Type, s.Status = api.ServiceClusterIP, api.ServiceStatus{}
	case 2:
		s.Spec.Type = api.ServiceLoadBalancer
		s.Annotations = map[string]string{api.AnnotationServicePoolsV4: `["` + []string{"a", "b"}[h.rng.IntN(2)] + `"]`}
	case 3:
		s.Annotations = map[string]string{api.AnnotationServiceAddresses: fmt.Sprintf(`["10.9.0.%d"]`, h.rng.IntN(16))}
	case 4:
		s.Annotations = nil
	}
	errtest.Must(h.t, h.store.Update(h.t.Context(), s))
}

// check compares statuses with IPAM: what a status shows its Service's handle holds, once.
func (h *services) check(what string) {
	h.t.Helper()
	held := holders(h.view().blocks)
	owner := map[netip.Addr]string{}
	for handle, holder := range held {
		for _, a := range holder.addresses {
			if owner[a] != "" {
				h.t.Fatalf("seed %d: %s: %s is held twice", h.seed, what, a)
			}
			owner[a] = handle
		}
	}
	for _, s := range h.list() {
		for _, entry := range s.Status.LoadBalancer.Ingress {
			if a := netip.MustParseAddr(entry.IP); owner[a] != loadbalancer.Handle(s) {
				h.t.Fatalf("seed %d: %s: %s shows %s, which is held by %q", h.seed, what, s.Name, a, owner[a])
			}
		}
	}
}

// settle has a leader that lives work until nothing changes.
func (h *services) settle() {
	b := h.leader(nil)
	for range 4 {
		h.store.LandLate()
		errtest.Must(h.t, b.look(h.t.Context(), h.view(), false))
		b.refused = nil
	}
}

// complete checks that each Service has what it asks for, and that nothing else is held.
func (h *services) complete() {
	h.t.Helper()
	h.check("in the end")
	v := h.view()
	pools, held := loadbalancer.ReadPools(v.pools), holders(v.blocks)
	for _, s := range v.services {
		wish, err := loadbalancer.Read(s)
		errtest.Must(h.t, err)
		var keep, drop []netip.Addr
		if x := held[loadbalancer.Handle(s)]; x != nil {
			keep, drop = wish.Split(x.addresses, &pools)
		}
		switch {
		case len(drop) > 0 || !loadbalancer.Shows(s, keep):
			h.t.Errorf("seed %d: %s keeps %s, drops %s, shows %v", h.seed, s.Name, keep, drop, s.Status)
		case len(keep) < len(wish.Families) && h.said[s.Name] == "":
			h.t.Errorf("seed %d: %s has %s only, and no Event says why", h.seed, s.Name, keep)
		case len(keep) == 1 && len(wish.Families) == 2 && s.Spec.IPFamilyPolicy == "RequireDualStack" && s.Annotations == nil:
			h.t.Errorf("seed %d: %s requires both families and has %s", h.seed, s.Name, keep)
		}
		delete(held, loadbalancer.Handle(s))
	}
	if len(held) > 0 {
		h.t.Errorf("seed %d: held for no Service: %v", h.seed, held)
	}
	all, err := inventory.Read(h.t.Context(), inventory.Source{IPAM: h.store, Cluster: h.store}, time.Now)
	errtest.Must(h.t, err)
	for _, f := range audit.Check(&all) {
		// What is empty is collected after the grace period.
		if f.Kind != audit.HandleEmpty && f.Kind != audit.BlockSurplus && f.Kind != audit.ClaimPending {
			h.t.Errorf("seed %d: %+v", h.seed, f)
		}
	}
}

// Services come, change and go while leaders die at any request: no two ever show one address, and in the end each
// Service has one address of each family, or an Event with the reason.
func TestServicesThroughDeathsOfTheLeader(t *testing.T) {
	seeds := uint64(100)
	if testing.Short() {
		seeds = 20
	}
	for seed := range seeds {
		h := newServices(t, seed)
		for range 30 {
			old := h.view()
			for range 1 + h.rng.IntN(4) {
				h.happen()
			}
			if h.rng.IntN(3) > 0 {
				old = h.view()
			}
			b := h.leader(h.crashing())
			_ = b.look(t.Context(), old, false) // it may be dead
			h.store.LandLate()
			h.check("after the death of a leader")
		}
		h.settle()
		h.complete()
	}
}

// The oldest of the Services that request an address has it (by name among those of one age), and the others' Events
// name it. When it releases the address the next oldest gets it, not a later Service.
func TestOlderServiceWins(t *testing.T) {
	for seed := range uint64(20) {
		h := newServices(t, seed)
		add := func(name, created string) *api.Service {
			s := &api.Service{
				Meta: api.Meta{Namespace: "d", Name: name, CreationTimestamp: created,
					Annotations: map[string]string{api.AnnotationServiceAddresses: `["10.9.0.7"]`}},
				Spec: api.ServiceSpec{Type: api.ServiceLoadBalancer, IPFamilies: []string{"IPv4"}},
			}
			h.create(s)
			return s
		}
		b := h.leader(nil)
		has := func(owner string, others ...string) {
			t.Helper()
			errtest.Must(t, b.look(t.Context(), h.view(), false))
			for _, s := range h.list() {
				if got := loadbalancer.Shows(s, []netip.Addr{netip.MustParseAddr("10.9.0.7")}); got != (s.Name == owner) {
					t.Fatalf("seed %d: %s has the address: %t, and %s is the oldest", seed, s.Name, got, owner)
				}
			}
			for _, name := range others {
				if !strings.Contains(h.said[name], "Service d/"+owner) || strings.Contains(h.said[name], "lb-") {
					t.Fatalf("seed %d: the Event of %s is %q", seed, name, h.said[name])
				}
			}
		}
		add("b", "2026-11-28T10:00:01Z")
		add("c", "2026-11-28T10:00:01Z")
		oldest := add("d", "2026-11-28T10:00:00Z")
		has("d", "b", "c")
		errtest.Must(t, h.store.Get(t.Context(), oldest))
		errtest.Must(t, h.store.Delete(t.Context(), oldest))
		errtest.Must(t, b.look(t.Context(), h.view(), false)) // which releases the address
		add("a", "2026-11-28T10:00:02Z")
		has("b", "a", "c")
	}
}

// Two families, one without a pool.
func TestServicesOfTwoFamilies(t *testing.T) {
	h := newServices(t, 0)
	six := &api.IPPool{Meta: api.Meta{Name: "six"}}
	errtest.Must(t, h.store.Get(t.Context(), six))
	errtest.Must(t, h.store.Delete(t.Context(), six))
	want := map[string]int{"SingleStack": 1, "PreferDualStack": 1, "RequireDualStack": 0}
	for policy := range want {
		s := &api.Service{Meta: api.Meta{Namespace: "d", Name: strings.ToLower(policy)}, Spec: api.ServiceSpec{
			Type: api.ServiceLoadBalancer, IPFamilies: []string{"IPv4", "IPv6"}, IPFamilyPolicy: policy,
		}}
		if policy == "SingleStack" {
			s.Spec.IPFamilies = s.Spec.IPFamilies[:1]
		}
		h.create(s)
	}
	h.settle()
	h.complete()
	for _, s := range h.list() {
		if n := len(s.Status.LoadBalancer.Ingress); n != want[s.Spec.IPFamilyPolicy] {
			t.Errorf("%s has %v, want %d", s.Name, s.Status, want[s.Spec.IPFamilyPolicy])
		}
		if said := h.said[s.Name]; strings.Contains(said, "IPv6") != (s.Spec.IPFamilyPolicy != "SingleStack") {
			t.Errorf("the Event of %s says %q", s.Name, said)
		}
	}
	h.pool("six", "fd09::/124", 126)
	h.settle()
	h.complete()
	for _, s := range h.list() {
		if n := len(s.Status.LoadBalancer.Ingress); n != len(s.Spec.IPFamilies) {
			t.Errorf("%s has %v after the IPv6 pool came", s.Name, s.Status)
		}
	}
}

// An annotation of Calico's that has no effect on a Service is named, and the Service gets its address.
func TestServicesWithUnreadAnnotations(t *testing.T) {
	h := newServices(t, 0)
	s := &api.Service{
		Meta: api.Meta{Namespace: "d", Name: "s",
			Annotations: map[string]string{"projectcalico.org/loadBalancerIP": `["10.9.0.7"]`, "other.org/x": "y"}},
		Spec: api.ServiceSpec{Type: api.ServiceLoadBalancer, IPFamilies: []string{"IPv4"}},
	}
	h.create(s)
	h.settle()
	errtest.Must(t, h.store.Get(t.Context(), s))
	if said := h.said["s"]; len(s.Status.LoadBalancer.Ingress) != 1 ||
		!strings.Contains(said, "annotation projectcalico.org/loadBalancerIP of the Service has no effect") {
		t.Errorf("status %v, Event %q", s.Status, said)
	}
}

// The status of a Service that is ours is ours alone.
func TestStatusIsWrittenWhole(t *testing.T) {
	h := newServices(t, 0)
	s := &api.Service{Meta: api.Meta{Namespace: "d", Name: "s"},
		Spec: api.ServiceSpec{Type: api.ServiceLoadBalancer, IPFamilies: []string{"IPv4"}}}
	h.create(s)
	h.settle()
	errtest.Must(t, h.store.Get(t.Context(), s))
	want := slices.Clone(s.Status.LoadBalancer.Ingress)
	s.Status.LoadBalancer.Ingress = append(s.Status.LoadBalancer.Ingress, api.LoadBalancerIngress{IP: "192.0.2.1"})
	errtest.Must(t, h.store.Update(t.Context(), s))
	h.settle()
	errtest.Must(t, h.store.Get(t.Context(), s))
	if len(want) != 1 || !slices.Equal(s.Status.LoadBalancer.Ingress, want) {
		t.Errorf("status %v, want %v", s.Status, want)
	}
}

// A Service of another controller keeps its status, and one that had addresses of pools loses these alone.
func TestServicesOfOthers(t *testing.T) {
	h := newServices(t, 0)
	foreign := "metallb"
	s := &api.Service{Meta: api.Meta{Namespace: "d", Name: "s"},
		Spec: api.ServiceSpec{Type: api.ServiceLoadBalancer, IPFamilies: []string{"IPv4"}}}
	h.create(s)
	h.settle()
	errtest.Must(t, h.store.Get(t.Context(), s))
	if len(s.Status.LoadBalancer.Ingress) != 1 {
		t.Fatalf("status %v", s.Status)
	}
	s.Spec.LoadBalancerClass = &foreign
	s.Status.LoadBalancer.Ingress = append([]api.LoadBalancerIngress{{IP: "192.0.2.1"}}, s.Status.LoadBalancer.Ingress...)
	errtest.Must(t, h.store.Update(t.Context(), s))
	h.settle()
	errtest.Must(t, h.store.Get(t.Context(), s))
	if !slices.Equal(s.Status.LoadBalancer.Ingress, []api.LoadBalancerIngress{{IP: "192.0.2.1"}}) || len(holders(h.view().blocks)) > 0 {
		t.Errorf("status %v, held %v", s.Status, holders(h.view().blocks))
	}
}

// The address of a deleted pool is hidden before it is released.
func TestPoolOfServicesGoes(t *testing.T) {
	h := newServices(t, 0)
	s := &api.Service{Meta: api.Meta{Namespace: "d", Name: "s"},
		Spec: api.ServiceSpec{Type: api.ServiceLoadBalancer, IPFamilies: []string{"IPv4"}}}
	h.create(s)
	h.settle()
	for _, name := range []string{"a", "b", "six"} {
		pool := &api.IPPool{Meta: api.Meta{Name: name}}
		errtest.Must(t, h.store.Get(t.Context(), pool))
		errtest.Must(t, h.store.Delete(t.Context(), pool))
	}
	h.settle()
	h.check("without pools")
	errtest.Must(t, h.store.Get(t.Context(), s))
	if len(s.Status.LoadBalancer.Ingress) > 0 || len(holders(h.view().blocks)) > 0 {
		t.Errorf("status %v, held %v, want none", s.Status, holders(h.view().blocks))
	}
}

// What a node writes of Services moves and hides no address of theirs: in a block of its own, or with its name in the
// Services' block.
func TestNodesSayNothingOfServices(t *testing.T) {
	h := newServices(t, 0)
	first := &api.Service{Meta: api.Meta{Namespace: "d", Name: "first"},
		Spec: api.ServiceSpec{Type: api.ServiceLoadBalancer, IPFamilies: []string{"IPv4"}}}
	s := &api.Service{Meta: api.Meta{Namespace: "d", Name: "s"}, Spec: first.Spec}
	for _, one := range []*api.Service{first, s} {
		h.create(one)
		h.settle()
		errtest.Must(t, h.store.Get(t.Context(), one))
	}
	errtest.Must(t, h.store.Delete(t.Context(), first)) // a lower address is free
	h.settle()
	shown, handle := s.Status.LoadBalancer.Ingress[0].IP, loadbalancer.Handle(s)
	said := map[string]string{"service": "s", "namespace": "d", "type": api.ServiceLoadBalancer}
	own, other, zero := api.AffinityHost+":thief", "lb-other", 0
	h.create(&api.IPAMBlock{Meta: api.Meta{Name: "10-9-0-0-27"}, Spec: api.IPAMBlockSpec{
		CIDR: "10.9.0.0/27", Affinity: &own, Allocations: slices.Repeat([]*int{&zero}, 32),
		Attributes: []api.AllocationAttribute{{HandleID: &other, Secondary: said}},
	}})
	var blocks api.IPAMBlockList
	errtest.Must(t, h.store.List(t.Context(), &blocks, datastore.ListOptions{}))
	for i := range blocks.Items {
		b := &blocks.Items[i]
		if b.Spec.Affinity == nil || *b.Spec.Affinity == own || !strings.HasPrefix(b.Spec.CIDR, "10.") {
			continue
		}
		at := len(b.Spec.Attributes)
		for ordinal := range b.Spec.Allocations {
			if b.Spec.Allocations[ordinal] == nil {
				b.Spec.Allocations[ordinal] = &at
			}
		}
		b.Spec.Unallocated = nil
		b.Spec.Attributes = append(b.Spec.Attributes, api.AllocationAttribute{HandleID: &handle, Secondary: maps.Clone(said)})
		b.Spec.Attributes[at].Secondary["node"] = "thief"
		errtest.Must(t, h.store.Update(t.Context(), b))
	}
	h.settle()
	errtest.Must(t, h.store.Get(t.Context(), s))
	if !slices.Equal(s.Status.LoadBalancer.Ingress, []api.LoadBalancerIngress{{IP: shown}}) {
		t.Errorf("status %v, want %s as before", s.Status, shown)
	}
	h.check("after what the node wrote")
}

// Statuses show addresses that no block has, as after a copy that missed them: each Service gets its own again, unless
// another one holds it, or shows it too, or the address may not be assigned any more. What is no pool's stays unknown.
func TestServicesKeepTheAddressesThatTheyShow(t *testing.T) {
	h := newServices(t, 0)
	both := []string{"IPv4", "IPv6"}
	add := func(name string, families []string, shown ...string) {
		s := &api.Service{Meta: api.Meta{Namespace: "d", Name: name},
			Spec: api.ServiceSpec{Type: api.ServiceLoadBalancer, IPFamilies: families}}
		for _, a := range shown {
			s.Status.LoadBalancer.Ingress = append(s.Status.LoadBalancer.Ingress, api.LoadBalancerIngress{IP: a})
		}
		h.create(s)
	}
	h.create(&api.IPReservation{Meta: api.Meta{Name: "later"}, Spec: api.IPReservationSpec{ReservedCIDRs: []string{"10.9.0.10/32"}}})
	holder := &api.Service{Meta: api.Meta{Namespace: "d", Name: "holder", Annotations: map[string]string{
		api.AnnotationServiceAddresses: `["10.9.0.3"]`}}, Spec: api.ServiceSpec{Type: api.ServiceLoadBalancer, IPFamilies: both[:1]}}
	h.create(holder)
	h.settle()
	add("one", both[:1], "10.9.0.9")
	add("two", both, "10.9.1.5", "fd09::9")
	add("half", both, "10.9.1.7")
	add("held", both[:1], "10.9.0.3")
	add("twin", both[:1], "10.9.0.6")
	add("twin2", both[:1], "10.9.0.6")
	add("reserved", both[:1], "10.9.0.10")
	add("foreign", both[:1], "192.0.2.1")
	h.settle()
	h.complete()
	shown := map[string]string{}
	for _, s := range h.list() {
		for _, entry := range s.Status.LoadBalancer.Ingress {
			shown[s.Name] += entry.IP + " "
		}
	}
	for name, want := range map[string]string{"holder": "10.9.0.3 ", "one": "10.9.0.9 ", "two": "10.9.1.5 fd09::9 "} {
		if shown[name] != want {
			t.Errorf("%s shows %q, want %q", name, shown[name], want)
		}
	}
	if !strings.HasPrefix(shown["half"], "10.9.1.7 fd09::") {
		t.Errorf("half shows %q", shown["half"])
	}
}
