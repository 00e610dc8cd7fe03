package ipamtool_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/tortie-net/tortie/internal/api"
	"github.com/tortie-net/tortie/internal/api/names"
	"github.com/tortie-net/tortie/internal/controllers/ipamtool"
	"github.com/tortie-net/tortie/internal/datastore"
	"github.com/tortie-net/tortie/internal/datastore/etcd"
	store "github.com/tortie-net/tortie/internal/datastore/kubernetes"
	"github.com/tortie-net/tortie/internal/ipam"
	"github.com/tortie-net/tortie/internal/ipam/audit"
	"github.com/tortie-net/tortie/internal/ipam/inventory"
	"github.com/tortie-net/tortie/internal/testkit/difftest"
	"github.com/tortie-net/tortie/internal/testkit/errtest"
	"github.com/tortie-net/tortie/internal/testkit/labstore"
	"github.com/tortie-net/tortie/internal/testkit/labtest"
)

// namespace is the namespace of these tests' pods.
const namespace = "default"

// world is a cluster: Nodes and Pods at a real API server, IPAM there too or in a real etcd.
type world struct {
	t      *testing.T
	store  datastore.Store  // of IPAM, as its administrator
	source inventory.Source // the tool's
	core   kubernetes.Interface
	ipam   *ipam.Client
}

// on runs a test against both datastores.
func on(t *testing.T, test func(*world)) {
	t.Run("kubernetes", func(t *testing.T) {
		own := asControllers(t)
		test(newWorld(t, labstore.Store(t), inventory.Source{IPAM: own, Cluster: own}))
	})
	t.Run("etcdv3", func(t *testing.T) {
		e := labtest.NewEtcd(t, false)
		s, err := etcd.New(etcd.Config{Endpoints: []string{e.Endpoint}})
		errtest.Must(t, err)
		test(newWorld(t, s, inventory.Source{IPAM: s, Cluster: asControllers(t)}))
	})
}

// asControllers returns a store with the rights of the controllers in the chart: the tool runs in their pod.
func asControllers(t *testing.T) datastore.Store {
	t.Helper()
	cfg := labtest.As(t, "tortie-kube-controllers")
	s, err := store.New(store.Config{Server: cfg.Host, CAData: cfg.CAData, Token: cfg.BearerToken, Group: labtest.Current(t)})
	errtest.Must(t, err)
	return s
}

// newWorld makes a cluster of two nodes with a tunnel and two pods each, in which nothing is wrong.
func newWorld(t *testing.T, store datastore.Store, source inventory.Source) *world {
	core, err := kubernetes.NewForConfig(labtest.RESTConfig(t))
	errtest.Must(t, err)
	w := &world{t: t, store: store, source: source, core: core, ipam: ipam.NewClient(store, time.Now)}
	w.wipe()
	t.Cleanup(w.wipe)
	ready := true
	w.create(&api.ClusterInformation{Meta: api.Meta{Name: "default"},
		Spec: api.ClusterInformationSpec{DatastoreReady: &ready, ClusterGUID: "0123"}})
	w.create(&api.IPPool{Meta: api.Meta{Name: "pool"}, Spec: api.IPPoolSpec{CIDR: "10.0.0.0/25", BlockSize: 28}})
	for _, node := range []string{"a", "b"} {
		tunnel := w.assign(names.TunnelHandle(node), node, map[string]string{"node": node, "type": inventory.TypeIPIP})
		n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: node,
			Annotations: map[string]string{api.AnnotationIPv4TunnelAddr: tunnel.String()}}}
		if _, err := core.CoreV1().Nodes().Create(t.Context(), n, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
		w.pod(node+"-1", node)
		w.pod(node+"-2", node)
	}
	return w
}

// wipe removes all that a test may have made.
func (w *world) wipe() {
	ctx := context.Background()
	for _, list := range []api.ResourceList{&api.IPPoolList{}, &api.IPAMBlockList{}, &api.IPAMHandleList{}, &api.BlockAffinityList{},
		&api.List[api.ClusterInformation, *api.ClusterInformation]{}} {
		errtest.Must(w.t, w.store.List(ctx, list, datastore.ListOptions{}))
		for _, obj := range items(list) {
			errtest.Must(w.t, w.store.Delete(ctx, obj))
		}
	}
	now := int64(0)
	pods, err := w.core.CoreV1().Pods(namespace).List(ctx, metav1.ListOptions{})
	errtest.Must(w.t, err)
	for _, p := range pods.Items {
		_ = w.core.CoreV1().Pods(namespace).Delete(ctx, p.Name, metav1.DeleteOptions{GracePeriodSeconds: &now})
	}
	for _, node := range []string{"a", "b", "c"} {
		if err := w.core.CoreV1().Nodes().Delete(ctx, node, metav1.DeleteOptions{}); err != nil && !apierrors.IsNotFound(err) {
			w.t.Fatal(err)
		}
	}
}

func items(list api.ResourceList) []api.Resource {
	var all []api.Resource
	switch l := list.(type) {
	case *api.IPPoolList:
		for i := range l.Items {
			all = append(all, &l.Items[i])
		}
	case *api.IPAMBlockList:
		for i := range l.Items {
			all = append(all, &l.Items[i])
		}
	case *api.IPAMHandleList:
		for i := range l.Items {
			all = append(all, &l.Items[i])
		}
	case *api.BlockAffinityList:
		for i := range l.Items {
			all = append(all, &l.Items[i])
		}
	case *api.List[api.ClusterInformation, *api.ClusterInformation]:
		for i := range l.Items {
			all = append(all, &l.Items[i])
		}
	}
	return all
}

func (w *world) create(obj api.Resource) {
	w.t.Helper()
	errtest.Must(w.t, w.store.Create(w.t.Context(), obj))
}

func (w *world) assign(handle, node string, attrs map[string]string, wanted ...netip.Addr) netip.Addr {
	w.t.Helper()
	got, err := w.ipam.Assign(w.t.Context(), ipam.Request{
		Owner: ipam.Owner{Handle: handle, Attrs: attrs}, Host: node, V4: true, Use: api.UseWorkload, Addresses: wanted,
	})
	errtest.Must(w.t, err)
	return got[0].Address
}

// pod starts a pod on a node, as plugin and kubelet do.
func (w *world) pod(name, node string, wanted ...netip.Addr) {
	w.t.Helper()
	pods := w.core.CoreV1().Pods(namespace)
	p, err := pods.Create(w.t.Context(), &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec:       corev1.PodSpec{NodeName: node, Containers: []corev1.Container{{Name: "c", Image: "none"}}},
	}, metav1.CreateOptions{})
	errtest.Must(w.t, err)
	a := w.assign("net."+name, node, podAttrs(name, node), wanted...)
	p.Status.PodIP, p.Status.PodIPs = a.String(), []corev1.PodIP{{IP: a.String()}}
	if _, err := pods.UpdateStatus(w.t.Context(), p, metav1.UpdateOptions{}); err != nil {
		w.t.Fatal(err)
	}
}

func podAttrs(name, node string) map[string]string {
	return map[string]string{"node": node, "namespace": namespace, "pod": name, "timestamp": time.Now().Add(-time.Hour).UTC().String()}
}

// kill removes a pod without a DEL.
func (w *world) kill(name string) {
	w.t.Helper()
	now := int64(0)
	errtest.Must(w.t, w.core.CoreV1().Pods(namespace).Delete(w.t.Context(), name, metav1.DeleteOptions{GracePeriodSeconds: &now}))
}

// run runs the tool, which must end with the exit code.
func (w *world) run(want int, args ...string) (stdout, stderr string) {
	w.t.Helper()
	var out, err bytes.Buffer
	code := ipamtool.Main(w.t.Context(), args, w.open, ipamtool.Output{Out: &out, Err: &err})
	if code != want {
		w.t.Errorf("ipam %s: exit code %d, want %d\n%s%s", strings.Join(args, " "), code, want, &out, &err)
	}
	return out.String(), err.String()
}

func (w *world) open(context.Context) (inventory.Source, error) {
	return w.source, nil
}

// kinds runs a check and returns what it finds.
func (w *world) kinds(want int, args ...string) []string {
	w.t.Helper()
	out, _ := w.run(want, append([]string{"check", "-o", "json", "-again", "0"}, args...)...)
	var found struct{ Findings []audit.Finding }
	if err := json.Unmarshal([]byte(out), &found); err != nil {
		w.t.Fatalf("%v: %s", err, out)
	}
	kinds := []string{}
	for _, f := range found.Findings {
		kinds = append(kinds, string(f.Kind))
	}
	slices.Sort(kinds)
	return kinds
}

// held returns what a handle holds.
func (w *world) held(handle string) []netip.Addr {
	w.t.Helper()
	addrs, err := w.ipam.Addresses(w.t.Context(), handle)
	errtest.Must(w.t, err)
	return addrs
}

// damage leaves what crashes and lost DELs leave.
func (w *world) damage() {
	w.kill("a-1")
	w.assign("net.a-2-old", "a", podAttrs("a-2", "a"))
	w.assign(names.TunnelHandle("c"), "a", map[string]string{"node": "c", "type": inventory.TypeIPIP})
	h := &api.IPAMHandle{Meta: api.Meta{Name: "net.b-1"}, Spec: api.IPAMHandleSpec{HandleID: "net.b-1"}}
	errtest.Must(w.t, w.store.Get(w.t.Context(), h))
	errtest.Must(w.t, w.store.Delete(w.t.Context(), h))
	w.create(claim("c", "10.0.0.112/28", api.AffinityPending))
}

// An address that was assigned a moment ago may belong to a pod whose status shows it soon: it is left alone.
func TestYoungAddress(t *testing.T) {
	on(t, func(w *world) {
		t := w.t
		attrs := podAttrs("a-2", "a")
		attrs["timestamp"] = time.Now().UTC().String()
		a := w.assign("net.a-2-new", "a", attrs)
		w.run(3, "check", "-again", "10ms", "-fix", "-yes")
		if out, _ := w.run(3, "release", a.String(), "-yes"); !strings.Contains(out, "its pod may be starting") {
			t.Errorf("refused: %s", out)
		}
		if len(w.held("net.a-2-new")) != 1 {
			t.Error("the address of an ADD that may be at work was freed")
		}
	})
}

func claim(node, cidr string, state api.AffinityState) *api.BlockAffinity {
	r := netip.MustParsePrefix(cidr)
	return &api.BlockAffinity{
		Meta: api.Meta{Name: names.Affinity(node, r), Labels: names.AffinityLabels(node, api.AffinityHost, r)},
		Spec: api.BlockAffinitySpec{State: state, Node: node, Type: api.AffinityHost, CIDR: cidr},
	}
}

// revisions returns the revisions of all IPAM objects.
func (w *world) revisions() string {
	w.t.Helper()
	var all []string
	for _, list := range []api.ResourceList{&api.IPAMBlockList{}, &api.IPAMHandleList{}, &api.BlockAffinityList{}} {
		errtest.Must(w.t, w.store.List(w.t.Context(), list, datastore.ListOptions{}))
		for _, obj := range items(list) {
			all = append(all, obj.GetMeta().Name+"="+obj.GetMeta().ResourceVersion)
		}
	}
	return strings.Join(all, " ")
}

// Errors are found, printed before they are repaired, and repaired; running pods lose nothing.
func TestCheckAndFix(t *testing.T) {
	on(t, func(w *world) {
		t := w.t
		if out, _ := w.run(0, "check"); !strings.HasPrefix(out, "nothing is wrong: 6 addresses held in 2 blocks") {
			t.Errorf("a cluster in which nothing is wrong: %s", out)
		}
		w.damage()
		want := []string{"address-no-pod", "address-not-its-pod", "claim-of-dead-node", "handle-missing", "tunnel-unused"}
		if got := w.kinds(3); !slices.Equal(got, want) {
			t.Errorf("found %v, want %v", got, want)
		}
		before := w.revisions()
		out, said := w.run(3, "check", "-again", "10ms", "-fix")
		for _, text := range []string{"default/a-1", "its pod is gone", "confirm", "BlockAffinity/c-10-0-0-112-28",
			"recount", "Nothing was changed"} {
			if text != "confirm" && !strings.Contains(out+said, text) {
				t.Errorf("the dry run does not say %q:\n%s%s", text, out, said)
			}
		}
		if w.revisions() != before {
			t.Error("a dry run has changed something")
		}
		w.run(0, "check", "-again", "10ms", "-fix", "-yes")
		if got := w.kinds(0); len(got) > 0 {
			t.Errorf("left after the fix: %v", got)
		}
		for _, live := range []string{"net.a-2", "net.b-1", "net.b-2", names.TunnelHandle("a"), names.TunnelHandle("b")} {
			if len(w.held(live)) != 1 {
				t.Errorf("%s holds %v", live, w.held(live))
			}
		}
	})
}

// What lasts only for a moment is not reported, and what the tool is about to free and somebody uses again is not
// freed.
func TestWhileTheClusterRuns(t *testing.T) {
	on(t, func(w *world) {
		t := w.t
		ctx, stop := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() { done <- w.churn(ctx) }()
		for i := range 8 {
			out, said := new(bytes.Buffer), new(bytes.Buffer)
			code := ipamtool.Main(t.Context(), []string{"check", "-again", "50ms", "-fix", "-yes"}, w.open, ipamtool.Output{Out: out, Err: said})
			if code == 1 || code == 2 || strings.Contains(out.String(), "danger ") {
				t.Errorf("run %d: exit code %d\n%s%s", i, code, out, said)
			}
		}
		stop()
		if err := <-done; err != nil {
			t.Error(err)
		}
		if got := w.kinds(0); len(got) > 0 && !slices.Equal(got, []string{"block-surplus"}) {
			t.Errorf("in the end: %v", got)
		}
	})
}

// churn starts and ends pods, and returns an error if one has lost its address.
func (w *world) churn(ctx context.Context) error {
	pods := w.core.CoreV1().Pods(namespace)
	for i := 0; ctx.Err() == nil; i++ {
		name, node := fmt.Sprintf("churn-%d", i), string(rune('a'+i%2))
		p, err := pods.Create(w.t.Context(), &corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{Name: name},
			Spec:       corev1.PodSpec{NodeName: node, Containers: []corev1.Container{{Name: "c", Image: "none"}}},
		}, metav1.CreateOptions{})
		if err != nil {
			return err
		}
		got, err := w.ipam.Assign(w.t.Context(),
			ipam.Request{Owner: ipam.Owner{Handle: "net." + name, Attrs: podAttrs(name, node)}, Host: node, V4: true, Use: api.UseWorkload})
		if err != nil {
			return err
		}
		p.Status.PodIP = got[0].Address.String()
		p.Status.PodIPs = []corev1.PodIP{{IP: p.Status.PodIP}}
		if _, err := pods.UpdateStatus(w.t.Context(), p, metav1.UpdateOptions{}); err != nil {
			return err
		}
		if err := w.ipam.Holds(w.t.Context(), ipam.Owner{Handle: "net." + name}, []netip.Addr{got[0].Address}); err != nil {
			return fmt.Errorf("a pod that lives: %w", err)
		}
		// As a kubelet does: the network is given back while the pod is being deleted, not before.
		if err := pods.Delete(w.t.Context(), name, metav1.DeleteOptions{}); err != nil {
			return err
		}
		if _, err := w.ipam.Release(w.t.Context(), "net."+name); err != nil {
			return err
		}
		now := int64(0)
		if err := pods.Delete(w.t.Context(), name, metav1.DeleteOptions{GracePeriodSeconds: &now}); err != nil {
			return err
		}
	}
	return nil
}

// Leaks of other kinds are mended, too: claims without labels and blocks without a claim, addresses without a handle.
func TestMends(t *testing.T) {
	on(t, func(w *world) {
		t := w.t
		w.assign("net.x", "a", map[string]string{"node": "a", "note": "x"})
		block := w.blockOf("a")
		a := claim("a", block.Spec.CIDR, api.AffinityConfirmed)
		errtest.Must(w.t, w.store.Get(t.Context(), a))
		errtest.Must(w.t, w.store.Delete(t.Context(), a))
		for i := range block.Spec.Attributes {
			if *block.Spec.Attributes[i].HandleID == "net.x" {
				block.Spec.Attributes[i].HandleID = nil
			}
		}
		errtest.Must(w.t, w.store.Update(t.Context(), block))
		h := &api.IPAMHandle{Meta: api.Meta{Name: "net.b-1"}, Spec: api.IPAMHandleSpec{HandleID: "net.b-1"}}
		errtest.Must(w.t, w.store.Get(t.Context(), h))
		h.Spec.Block["10.0.0.112/28"] = 3
		errtest.Must(w.t, w.store.Update(t.Context(), h))
		w.run(3, "check", "-again", "10ms")
		w.run(3, "check", "-again", "10ms", "-fix", "-yes") // the handle without an address is left
		if got := w.kinds(3); !slices.Equal(got, []string{"handle-empty"}) {
			t.Errorf("left after the fix: %v", got)
		}
	})
}

func (w *world) blockOf(node string) *api.IPAMBlock {
	w.t.Helper()
	var list api.IPAMBlockList
	errtest.Must(w.t, w.store.List(w.t.Context(), &list, datastore.ListOptions{}))
	for i := range list.Items {
		if a := list.Items[i].Spec.Affinity; a != nil && *a == names.HostAffinity(node) {
			return &list.Items[i]
		}
	}
	w.t.Fatalf("%s has no block", node)
	return nil
}

func TestShow(t *testing.T) {
	on(t, func(w *world) {
		t := w.t
		out, _ := w.run(0, "show", "-blocks")
		if !strings.Contains(out, "6 (4%)") || strings.Count(out, "/28") != 2 {
			t.Errorf("pools:\n%s", out)
		}
		a := w.held("net.a-1")[0]
		out, _ = w.run(0, "show", a.String())
		difftest.Contains(t, out, "pool", "owned by a; claim: confirmed", "pod default/a-1 on a", "net.a-1", "In use", "yes")
		w.kill("a-1")
		if out, _ = w.run(0, "show", a.String()); !strings.Contains(out, "its pod is gone; the controllers free it") ||
			!strings.Contains(out, "leak address-no-pod") {
			t.Errorf("the story of a leak:\n%s", out)
		}
		if out, _ = w.run(0, "show", "10.0.0.127", "192.168.1.1"); strings.Count(out, "nobody: it is free") != 2 ||
			!strings.Contains(out, "none has it") {
			t.Errorf("stories of free addresses:\n%s", out)
		}
		out, _ = w.run(0, "show", "-node", "b", "-o", "json")
		var got struct{ Addresses []ipamtool.Held }
		if err := json.Unmarshal([]byte(out), &got); err != nil || len(got.Addresses) != 3 {
			t.Errorf("of a node: %v\n%s", err, out)
		}
	})
}

func TestRelease(t *testing.T) {
	on(t, func(w *world) {
		t := w.t
		a := w.held("net.a-1")[0]
		out, _ := w.run(3, "release", "-yes", a.String())
		if !strings.Contains(out, "refused") || len(w.held("net.a-1")) != 1 {
			t.Errorf("the address of a live pod:\n%s", out)
		}
		w.kill("a-1")
		if _, said := w.run(0, "release", a.String()); !strings.Contains(said, "Nothing was changed") || len(w.held("net.a-1")) != 1 {
			t.Errorf("without -yes: %s", said)
		}
		w.run(0, "release", "-yes", a.String())
		if held := w.held("net.a-1"); len(held) > 0 {
			t.Errorf("freed, and held: %v", held)
		}
		w.run(1, "release", "-yes", a.String()) // it is free already
		w.run(3, "release", "-handle", "net.b-1")
		w.run(0, "release", "-handle", "net.b-1", "-force", "-yes")
		if got := w.kinds(4); !slices.Equal(got, []string{"pod-unallocated"}) {
			t.Errorf("after an address was freed by force: %v", got)
		}
		w.kill("b-1")
		w.kill("b-2")
		w.run(0, "release", "-node", "b", "-yes")
		if got := w.kinds(0); len(got) > 0 || len(w.held(names.TunnelHandle("b"))) != 1 {
			t.Errorf("after what a node has lost was freed: %v", got)
		}
	})
}

// What a report shows to be of nobody is freed; what somebody else has got since is not.
func TestReleaseByReport(t *testing.T) {
	on(t, func(w *world) {
		t := w.t
		first, second := t.TempDir()+"/first", t.TempDir()+"/second"
		w.kill("a-1")
		w.run(3, "audit", "-again", "0", "-report", first)
		w.kill("a-2")
		w.run(3, "audit", "-again", "0", "-report", second, "-o", "json")
		old := w.held("net.a-1")[0]
		if _, err := w.ipam.Release(t.Context(), "net.a-1"); err != nil {
			t.Fatal(err)
		}
		w.pod("next", "a", old)
		w.kill("next") // it leaks too, by another assignment
		if out, _ := w.run(0, "release", "-report", first, "-report", second, "-yes"); !strings.Contains(out, "nothing to free") {
			t.Errorf("an address that was assigned anew, and one that only one report shows:\n%s", out)
		}
		w.run(0, "release", "-report", second, "-yes")
		if len(w.held("net.next")) != 1 || len(w.held("net.a-2")) != 0 {
			t.Errorf("next holds %v, a-2 %v", w.held("net.next"), w.held("net.a-2"))
		}
	})
}

func TestUsage(t *testing.T) {
	never := func(context.Context) (inventory.Source, error) { return inventory.Source{}, errors.New("no cluster") }
	for _, tt := range []struct {
		args string
		code int
		said string
	}{
		{"", 2, "usage: kube-controllers ipam COMMAND"},
		{"-h", 0, "usage: kube-controllers ipam COMMAND"},
		{"check -h", 0, "danger  an address may be given twice"},
		{"nonsense", 2, `there is no command "nonsense"`},
		{"check x", 2, `unexpected argument "x"`},
		{"check -o yaml", 2, `-o "yaml": must be text or json`},
		{"check -yes", 2, "-yes goes with -fix"},
		{"check -fix -again 0s", 2, "needs a second look"},
		{"check -nonsense", 2, "flag provided but not defined"},
		{"show 10.0.0.300", 2, `"10.0.0.300" is no address`},
		{"release", 2, "name addresses, or give one of"},
		{"release 10.0.0.1 -node a", 2, "name addresses, or give one of"},
		{"release -node a -force", 2, "-force frees what is named one by one"},
		{"audit x", 2, `unexpected argument "x"`},
		{"check", 1, "no cluster"},
	} {
		var out bytes.Buffer
		code := ipamtool.Main(t.Context(), strings.Fields(tt.args), never, ipamtool.Output{Out: &out, Err: &out})
		if code != tt.code || !strings.Contains(out.String(), tt.said) {
			t.Errorf("ipam %s: exit code %d\n%s", tt.args, code, &out)
		}
	}
}
