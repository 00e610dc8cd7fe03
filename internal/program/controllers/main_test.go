package controllers

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/tortie-net/tortie/internal/api"
	"github.com/tortie-net/tortie/internal/api/groups"
	"github.com/tortie-net/tortie/internal/api/names"
	"github.com/tortie-net/tortie/internal/controllers"
	"github.com/tortie-net/tortie/internal/datastore/etcd"
	"github.com/tortie-net/tortie/internal/ipam"
	"github.com/tortie-net/tortie/internal/ipam/inventory"
	"github.com/tortie-net/tortie/internal/testkit/errtest"
	"github.com/tortie-net/tortie/internal/testkit/labtest"
	"github.com/tortie-net/tortie/internal/testkit/tier"
)

// Everything that nodes and pods leave behind is removed, and all in use stays: with the real program, as the chart's
// account, on the real API server.
func TestWhatIsLeftBehindGoes(t *testing.T) {
	t.Parallel()
	w := newWorld(t, audited(t))
	w.node("a", "b", "c")
	type pod struct {
		what, handle string
		addresses    []netip.Addr
	}
	var live, dead []pod
	keeps := func(what, handle string, addresses []netip.Addr) { live = append(live, pod{what, handle, addresses}) }
	loses := func(what, handle string, addresses []netip.Addr) { dead = append(dead, pod{what, handle, addresses}) }
	const network = "k8s-pod-network."

	keeps("a standalone pod", network+"of-alone", w.run("alone", "a"))
	odd := w.assign("of-odd", "a", "odd")
	w.pod("odd", "a", corev1.PodRunning, odd[0].String(), strings.ToUpper(odd[1].StringExpanded()))
	keeps("a pod whose IPv6 address is written in another way", network+"of-odd", odd)
	starting := w.assign("of-starting", "a", "starting")
	w.pod("starting", "a", "")
	keeps("a pod that has not said anything yet", network+"of-starting", starting)
	keeps("a live node's tunnel", names.TunnelHandle("a"),
		w.give(names.TunnelHandle("a"), "a", map[string]string{"node": "a", "type": inventory.TypeIPIP}, api.UseTunnel))

	loses("a pod that is gone", network+"lost", w.assign("lost", "a", "lost"))
	job := w.assign("of-job", "a", "job")
	w.pod("job", "a", corev1.PodSucceeded, texts(job)...)
	loses("a completed Job's pod", network+"of-job", job)
	loses("the container before of a pod that runs", network+"before", w.assign("before", "a", "alone"))
	w.pod("moved", "c", corev1.PodRunning, "10.44.255.1")
	loses("a StatefulSet's pod that is on another node by now", network+"moved", w.assign("moved", "a", "moved"))

	loses("a pod of a node that dies", network+"on-b", w.assign("on-b", "b", "on-b"))
	loses("its tunnel", names.TunnelHandle("b"),
		w.give(names.TunnelHandle("b"), "b", map[string]string{"node": "b", "type": inventory.TypeIPIP}, api.UseTunnel))
	w.deleteNode("b")

	w.create(&api.IPAMHandle{Meta: api.Meta{Name: network + "empty"},
		Spec: api.IPAMHandleSpec{HandleID: network + "empty", Block: map[string]int{"10.44.9.0/26": 1}}})
	w.create(
		affinity("c", "10.44.77.0/26", api.AffinityPending), affinity("c", "10.44.78.0/26", api.AffinityPendingDeletion),
		affinity("gone", "10.44.79.0/26", api.AffinityConfirmed),
	)
	p := w.start("one", "")
	eventually(t, func() error {
		v := w.view()
		taken := held(&v)
		for _, d := range dead {
			for _, a := range d.addresses {
				if taken[a] == d.handle {
					return fmt.Errorf("%s still holds %s", d.what, a)
				}
			}
		}
		if len(v.Handles) != len(live) {
			return fmt.Errorf("%d handles, want %d", len(v.Handles), len(live))
		}
		for _, a := range v.Affinities {
			if a.Spec.Node != "a" || !a.Confirmed() {
				return fmt.Errorf("affinity %s of %s is left %s", a.Name, a.Spec.Node, a.Spec.State)
			}
		}
		for i := range v.Blocks {
			if node, _ := v.Blocks[i].Owner(); node != "a" {
				return fmt.Errorf("block %s of %s is left", v.Blocks[i].CIDR, v.Blocks[i].Affinity)
			}
		}
		return nil
	})
	// When addresses that are unused from now on are freed, others that wrongly count as unused would be freed, too.
	later := w.assign("later", "a", "later")
	eventually(t, func() error {
		v := w.view()
		if _, taken := held(&v)[later[0]]; taken {
			return fmt.Errorf("%s is still taken", later[0])
		}
		return nil
	})
	p.passes(1) // which ends after the sweep of that address
	v := w.view()
	for _, l := range live {
		w.stays(l.what, &v, l.handle, l.addresses)
	}
	w.checkOrder(p)
}

func affinity(node, cidr string, state api.AffinityState) *api.BlockAffinity {
	p := netip.MustParsePrefix(cidr)
	return &api.BlockAffinity{
		Meta: api.Meta{Name: names.Affinity(node, p)}, // without labels, as Calico wrote them before 3.31
		Spec: api.BlockAffinitySpec{State: state, Node: node, CIDR: cidr, Type: api.AffinityHost},
	}
}

// checkOrder checks the objects that the controllers keep in order, and their reports.
func (w *world) checkOrder(p *process) {
	w.t.Helper()
	pool := &api.IPPool{Meta: api.Meta{Name: "v4"}}
	errtest.Must(w.t, w.store.Get(w.t.Context(), pool))
	if pool.Status == nil || len(pool.Status.Conditions) != 1 || pool.Status.Conditions[0].Status != "True" ||
		pool.Status.Conditions[0].Reason != "OK" {
		w.t.Errorf("pool's status: %+v", pool.Status)
	}
	settings := &api.KubeControllersConfiguration{Meta: api.Meta{Name: api.DefaultName}}
	errtest.Must(w.t, w.store.Get(w.t.Context(), settings))
	if settings.Spec.Controllers.Node == nil || settings.Spec.Controllers.Node.LeakGracePeriod != "15m0s" {
		w.t.Errorf("KubeControllersConfiguration: %+v", settings.Spec)
	}
	if s := settings.Status; s == nil || s.RunningConfig.Controllers.Node.LeakGracePeriod != "4s" ||
		s.EnvironmentVars["TORTIE_LEAK_GRACE_PERIOD"] != "4s" {
		w.t.Errorf("its status: %+v", s)
	}
	tier := &api.CalicoTier{Meta: api.Meta{Name: names.TierDefault}}
	if errtest.Must(w.t, w.store.Get(w.t.Context(), tier)); tier.Spec.Order == nil || *tier.Spec.Order != 1e6 ||
		tier.Spec.DefaultAction != "Deny" {
		w.t.Errorf("Tier default: %+v", tier.Spec)
	}
	metrics, err := p.get("/metrics")
	errtest.Must(w.t, err)
	for _, want := range []string{
		`ipam_ippool_size{ippool="v4"} 65536`, `ipam_allocations_in_use{ippool="v4",node="a"} 4`, `ipam_blocks{ippool="v6",node="a"} 1`,
		"ipam_allocations_gc_reclamations 13", "tortie_controllers_leading 1", `tortie_ipam_gc_freed_total{node="b"} 3`,
		"ipam_allocations_per_node",
	} {
		if !strings.Contains(metrics, want) {
			w.t.Errorf("no %s in\n%s", want, metrics)
		}
	}
	for _, path := range []string{"/livez", "/readyz"} {
		if _, err := p.get(path); err != nil {
			w.t.Error(err)
		}
	}
}

// A pool is reported before it is exhausted. The pool is so small that one more pod fills nine tenths.
func TestPoolsAreToldOfBeforeTheyAreExhausted(t *testing.T) {
	tier.All(t)
	t.Parallel()
	w := newWorld(t, audited(t))
	w.node("a")
	old := &api.IPPool{Meta: api.Meta{Name: "v4"}}
	errtest.Must(t, w.store.Get(t.Context(), old))
	errtest.Must(t, w.store.Delete(t.Context(), old))
	w.create(&api.IPPool{Meta: api.Meta{Name: "small"}, Spec: api.IPPoolSpec{CIDR: "10.45.0.0/28", BlockSize: 28}})
	w.create(&api.IPPool{Meta: api.Meta{Name: "twin"}, Spec: api.IPPoolSpec{CIDR: "10.45.0.0/27", Disabled: true}})
	for i := range 15 {
		w.run(fmt.Sprintf("p%d", i), "a")
	}
	w.start("one", "")
	eventually(t, func() error {
		list, err := w.core.CoreV1().Events("default").List(t.Context(), metav1.ListOptions{})
		if err != nil {
			return err
		}
		if !slices.ContainsFunc(list.Items, func(e corev1.Event) bool {
			return e.Reason == "PoolExhausting" && e.InvolvedObject.Name == "small" && strings.Contains(e.Message, "15 of 16 addresses are in use")
		}) {
			return fmt.Errorf("no event: %+v", list.Items)
		}
		twin := &api.IPPool{Meta: api.Meta{Name: "twin"}}
		if err := w.store.Get(t.Context(), twin); err != nil || twin.Status == nil || twin.Status.Conditions[0].Reason != api.PoolDisabled {
			return fmt.Errorf("twin: %+v, %w", twin.Status, err)
		}
		return nil
	})
}

// After a leader was killed at any moment, the other continues where it ended; nothing is freed twice, nothing stays.
func TestALeaderIsKilled(t *testing.T) {
	t.Parallel()
	w := newWorld(t, audited(t))
	w.node("a", "b")
	live := w.run("live", "a")
	for i := range 60 {
		w.assign(fmt.Sprintf("lost%d", i), "a", fmt.Sprintf("lost%d", i))
	}
	// So slow that a sweep takes seconds.
	slow := "TORTIE_API_RATE=10"
	two := []*process{w.start("one", "", slow), w.start("two", "", slow)}
	leader := leads(t, two...)
	eventually(t, func() error {
		if v := w.view(); len(v.Handles) > 55 {
			return fmt.Errorf("%d handles: the sweep has not begun", len(v.Handles))
		}
		return nil
	})
	leader.kill()
	v := w.view()
	t.Logf("%s was killed with %d handles left", leader.name, len(v.Handles))
	next := w.start("three", "", slow)
	eventually(t, func() error {
		if v := w.view(); len(v.Handles) != 1 || len(held(&v)) != 2 {
			return fmt.Errorf("%d handles and %d addresses are left", len(v.Handles), len(held(&v)))
		}
		return nil
	})
	v = w.view()
	w.stays("a live pod", &v, "k8s-pod-network.of-live", live)
	for _, p := range append(two, next) {
		if strings.Contains(p.log.String(), "looked unused and is not") {
			t.Errorf("%s was about to free a live address", p.name)
		}
	}
}

// The controllers keep their state when the API server is killed: former observations count, and nothing is freed
// without current data.
func TestTheAPIServerIsAway(t *testing.T) {
	t.Parallel()
	server := labtest.NewServer(t) // one that has just started knows no roles, and refuses everything for a moment
	w := newWorld(t, server)
	w.node("a")
	live := w.run("live", "a")
	lost := w.assign("lost", "a", "lost")
	p := w.start("one", "", "TORTIE_LEAK_GRACE_PERIOD=12s")
	leads(t, p)
	says := func(what string, so func(controllers.Status) bool) {
		t.Helper()
		eventually(t, func() error {
			s, err := p.status()
			if err == nil && !so(s) {
				err = fmt.Errorf("not yet %s: %+v", what, s)
			}
			return err
		})
	}
	says("seen unused", func(s controllers.Status) bool { return s.Candidates["a"] == len(lost) })
	errtest.Must(t, server.Kill())
	says("due without being known", func(s controllers.Status) bool { return strings.Contains(s.Error, "the watches may be behind") })
	if _, err := p.get("/livez"); err != nil {
		t.Errorf("without an API server: %v", err)
	}
	if s, err := p.status(); err != nil || s.Freed != 0 {
		t.Errorf("status without an API server: %+v, %v", s, err)
	}
	errtest.Must(t, server.Start())
	eventually(t, func() error {
		v := w.view()
		if _, taken := held(&v)[lost[0]]; taken {
			return fmt.Errorf("%s is still taken", lost[0])
		}
		return nil
	})
	v := w.view()
	w.stays("a live pod", &v, "k8s-pod-network.of-live", live)
}

// As long as nothing is due the API server receives only watches and requests for the Lease, one request in ten minutes
// for the other group, and in projectcalico.org/v3 two requests in each pass that detect Calico's programs. A server
// that answers 429, or late, is not pressed, and in the end all is done.
func TestRequests(t *testing.T) {
	t.Parallel()
	server := taken(t, labtest.Group(t))
	proxy := labtest.NewProxyTo(t, server.Kubeconfig())
	w := newWorld(t, server)
	w.node("a")
	live := w.run("live", "a")
	p := w.start("one", proxy.Kubeconfig(), "RECONCILER_PERIOD=1s")
	leads(t, p)
	looks := map[string]int{} // of a pass
	if labtest.Group(t) == groups.V3 {
		looks = map[string]int{"list deployments": 1, "list validatingwebhookconfigurations": 1,
			"list mutatingwebhookconfigurations": 1}
	}
	// others returns the requests of so many passes, without those for the Lease and looks.
	others := func(passes int) map[string]int {
		before, err := p.status()
		errtest.Must(t, err)
		proxy.Reset()
		p.passes(passes)
		found := maps.Clone(proxy.Requests())
		after, err := p.status()
		errtest.Must(t, err)
		maps.DeleteFunc(found, func(request string, n int) bool {
			return strings.HasSuffix(request, " leases") || n <= looks[request]*(after.Passes-before.Passes+1)
		})
		return found
	}
	eventually(t, func() error { // the work after a start
		if found := others(2); len(found) > 0 {
			return fmt.Errorf("still %v", found)
		}
		return nil
	})
	if found := others(8); len(found) > 0 {
		t.Errorf("%v although nothing is due", found)
	}

	proxy.Fault(func(request string) (int, time.Duration) {
		if strings.HasSuffix(request, " leases") {
			return 0, 0
		}
		return http.StatusTooManyRequests, 0
	})
	for i := range 40 {
		w.assign(fmt.Sprintf("lost%d", i), "a", fmt.Sprintf("lost%d", i))
	}
	eventually(t, func() error {
		s, err := p.status()
		if err == nil && s.Error == "" {
			err = errors.New("no pass has failed yet")
		}
		return err
	})
	refused := 0
	for request, n := range others(2) {
		if !strings.HasPrefix(request, "list") {
			refused += n
		}
	}
	if v := w.view(); len(v.Handles) != 41 || refused == 0 || refused > 60 {
		t.Errorf("%d handles after %d refused requests of two passes", len(v.Handles), refused)
	}
	proxy.Fault(func(string) (int, time.Duration) { return 0, time.Second })
	proxy.Reset()
	eventually(t, func() error {
		if v := w.view(); len(v.Handles) != 1 || len(held(&v)) != 2 {
			return fmt.Errorf("%d handles and %d addresses are left", len(v.Handles), len(held(&v)))
		}
		return nil
	})
	// 40 containers with two addresses each: one write for each block, one delete for each handle, and no look at each
	// pod.
	requests := proxy.Requests()
	if requests["update ipamblocks"] > 4 || requests["delete ipamhandles"] > 45 || requests["get pods"] > 8 || requests["list pods"] > 8 {
		t.Errorf("requests: %v", requests)
	}
	v := w.view()
	w.stays("a live pod", &v, "k8s-pod-network.of-live", live)
}

// Addresses in etcd are collected too, by the nodes and pods in the Kubernetes API. Calico's own nodes are kept like
// Kubernetes'.
func TestAddressesInEtcd(t *testing.T) {
	tier.All(t)
	t.Parallel()
	e := labtest.NewEtcd(t, false)
	store, err := etcd.New(etcd.Config{Endpoints: []string{e.Endpoint}})
	errtest.Must(t, err)
	w := newWorld(t, audited(t))
	w.ipam = ipam.NewClient(store, time.Now)
	yes := true
	for _, obj := range []api.Resource{
		&api.ClusterInformation{Meta: api.Meta{Name: api.DefaultName}, Spec: api.ClusterInformationSpec{DatastoreReady: &yes}},
		&api.IPPool{Meta: api.Meta{Name: "v4"}, Spec: api.IPPoolSpec{CIDR: "10.44.0.0/16"}},
		&api.IPPool{Meta: api.Meta{Name: "v6"}, Spec: api.IPPoolSpec{CIDR: "fd44::/48"}},
	} {
		errtest.Must(t, store.Create(t.Context(), obj))
	}
	w.create(&api.Node{Meta: api.Meta{Name: "a", Labels: map[string]string{"zone": "z"}}})
	w.node("b")
	for _, name := range []string{"a", "b"} {
		calicoNode(t, e, name)
	}
	live := w.run("live", "a")
	w.assign("lost", "a", "lost")
	w.assign("on-b", "b", "on-b")
	w.deleteNode("b")
	p := w.start("one", "", "DATASTORE_TYPE=etcdv3", "ETCD_ENDPOINTS="+e.Endpoint, "COMPACTION_PERIOD=2s", "RECONCILER_PERIOD=1s")
	read := func() inventory.View {
		v, err := inventory.Read(t.Context(), inventory.Source{IPAM: store, Cluster: w.store}, time.Now)
		errtest.Must(t, err)
		return v
	}
	eventually(t, func() error {
		if v := read(); len(v.Handles) != 1 || len(held(&v)) != 2 || len(v.Affinities) != 2 {
			return fmt.Errorf("%d handles, %d addresses and %d affinities are left", len(v.Handles), len(held(&v)), len(v.Affinities))
		}
		if !strings.Contains(p.log.String(), "compacted etcd") {
			return fmt.Errorf("etcd is not compacted")
		}
		nodes, err := store.CalicoNodes(t.Context())
		if err != nil || len(nodes) != 1 || nodes[0].Name != "a" || nodes[0].Labels["zone"] != "z" || nodes[0].Labels["mine"] != "1" {
			return fmt.Errorf("Calico's nodes: %+v, %w", nodes, err)
		}
		return nil
	})
	v := read()
	w.stays("a live pod", &v, "k8s-pod-network.of-live", live)
	own := &api.KubeControllersConfiguration{Meta: api.Meta{Name: api.DefaultName}}
	errtest.Must(t, store.Get(t.Context(), own))
	own.Spec.LogSeverityScreen = "Debug"
	errtest.Must(t, store.Update(t.Context(), own))
	eventually(t, func() error {
		found, err := w.namedFields()
		if err == nil && !slices.Equal(found[own.UID], []string{"spec.logSeverityScreen"}) {
			err = fmt.Errorf("the Events name %q of %q", found, own.UID)
		}
		return err
	})
}

// calicoNode writes Calico's Node in etcd for a Kubernetes Node of the same name, as calico-node does.
func calicoNode(t *testing.T, e *labtest.Etcd, name string) {
	t.Helper()
	value := fmt.Sprintf(`{"kind":"Node","apiVersion":"projectcalico.org/v3","metadata":{"name":%q,"uid":%[1]q,"labels":{"mine":"1"}},`+
		`"spec":{"orchRefs":[{"nodeName":%[1]q,"orchestrator":"k8s"}]},"status":{}}`, name)
	body, err := json.Marshal(map[string][]byte{"key": []byte("/calico/resources/v3/projectcalico.org/nodes/" + name), "value": []byte(value)})
	errtest.Must(t, err)
	resp, err := http.Post(e.Endpoint+"/v3/kv/put", "application/json", bytes.NewReader(body))
	errtest.Must(t, err)
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		t.Fatalf("write Calico's Node %s: %s", name, resp.Status)
	}
}
