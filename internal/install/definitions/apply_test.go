package definitions_test

import (
	"context"
	"net/http"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	"sigs.k8s.io/yaml"

	"github.com/tortie-net/tortie/internal/install/definitions"
	"github.com/tortie-net/tortie/internal/testkit/difftest"
	"github.com/tortie-net/tortie/internal/testkit/errtest"
	"github.com/tortie-net/tortie/internal/testkit/labtest"
)

const current, previous = "../../../charts/tortie/definitions/v1", "testdata/previous"

// cluster is a real API server without our definitions, and the lines printed while some were applied.
type cluster struct {
	cfg    *rest.Config
	client dynamic.Interface

	mu   sync.Mutex // guards told
	told []string
}

func newCluster(t *testing.T) *cluster {
	t.Helper()
	cfg, err := clientcmd.BuildConfigFromFlags("", labtest.NewBareServer(t).Kubeconfig())
	errtest.Must(t, err)
	cfg.QPS, cfg.Burst = 100, 200
	client, err := dynamic.NewForConfig(cfg)
	errtest.Must(t, err)
	return &cluster{cfg: cfg, client: client}
}

func read(t *testing.T, dir string) []*unstructured.Unstructured {
	t.Helper()
	all, err := definitions.Read(os.DirFS(dir))
	errtest.Must(t, err)
	return all
}

// apply applies definitions and returns the printed lines.
func (c *cluster) apply(t *testing.T, all []*unstructured.Unstructured) string {
	t.Helper()
	c.mu.Lock()
	c.told = nil
	c.mu.Unlock()
	a, err := definitions.NewApplier(c.cfg, func(line string) {
		c.mu.Lock()
		defer c.mu.Unlock()
		c.told = append(c.told, line)
	})
	errtest.Must(t, err)
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	errtest.Must(t, a.Apply(ctx, all))
	c.mu.Lock()
	defer c.mu.Unlock()
	return strings.Join(c.told, "\n")
}

func gvr(plural string) schema.GroupVersionResource {
	return schema.GroupVersionResource{Group: "crd.projectcalico.org", Version: "v1", Resource: plural}
}

func (c *cluster) kind(plural string) dynamic.ResourceInterface {
	return c.client.Resource(gvr(plural))
}

func (c *cluster) create(t *testing.T, plural, text string) *unstructured.Unstructured {
	t.Helper()
	obj := &unstructured.Unstructured{}
	json, err := yaml.YAMLToJSON([]byte("{apiVersion: crd.projectcalico.org/v1, " + strings.TrimPrefix(text, "{")))
	if err == nil {
		err = obj.UnmarshalJSON(json)
	}
	errtest.Must(t, err)
	made, err := c.kind(plural).Create(t.Context(), obj, metav1.CreateOptions{})
	errtest.Must(t, err)
	return made
}

func (c *cluster) definitions() dynamic.ResourceInterface {
	return c.client.Resource(schema.GroupVersionResource{Group: "apiextensions.k8s.io", Version: "v1", Resource: "customresourcedefinitions"})
}

func (c *cluster) definition(t *testing.T, plural string) *unstructured.Unstructured {
	t.Helper()
	d, err := c.definitions().Get(t.Context(), plural+".crd.projectcalico.org", metav1.GetOptions{})
	errtest.Must(t, err)
	return d
}

// objects are what a cluster of the previous version holds, by resource.
var objects = map[string]string{
	"ippools": "{kind: IPPool, metadata: {name: default}, spec: {cidr: 10.244.0.0/16, blockSize: 26, ipipMode: " +
		"Always, natOutgoing: true}}",
	"ipamblocks": "{kind: IPAMBlock, metadata: {name: 10-244-0-0-26}, spec: {cidr: 10.244.0.0/26, affinity: 'host:n1', " +
		"allocations: [0, null], attributes: [{handle_id: h}], unallocated: [1], strictAffinity: false, deleted: false, sequenceNumber: 7, " +
		"sequenceNumberForAllocation: {'0': 6}, ofANewerCalico: kept}}",
	"ipamhandles": "{kind: IPAMHandle, metadata: {name: h}, spec: {handleID: h, block: {10.244.0.0/26: 1}}}",
	"blockaffinities": "{kind: BlockAffinity, metadata: {name: n1-10-244-0-0-26}, spec: {cidr: 10.244.0.0/26, node: n1, state: " +
		"confirmed, deleted: 'false'}}",
	"bgpconfigurations": "{kind: BGPConfiguration, metadata: {name: default}, spec: {asNumber: 64600, listenPort: 180, " +
		"programClusterRoutes: Enabled}}",
	"felixconfigurations": "{kind: FelixConfiguration, metadata: {name: default}, spec: {ipipMTU: 1400, bpfLogFilters: {all: tcp}, " +
		"routeTableRanges: [{min: 1, max: 9}]}}",
}

// TestUpgrade applies this version's definitions to a cluster with the previous version's definitions and objects:
// every object stays as it was, and is served all the time.
func TestUpgrade(t *testing.T) {
	c := newCluster(t)
	c.apply(t, read(t, previous))
	before := map[string]*unstructured.Unstructured{}
	for plural, text := range objects {
		before[plural] = c.create(t, plural, text)
	}
	stop := c.readAll(t)
	told := c.apply(t, read(t, current))
	stop()
	for plural := range objects {
		after, err := c.kind(plural).Get(t.Context(), before[plural].GetName(), metav1.GetOptions{})
		errtest.Must(t, err)
		if diff := cmp.Diff(before[plural].Object, after.Object); diff != "" {
			t.Errorf("%s has changed:\n%s", plural, diff)
		}
		// And it can be written, with all its fields.
		after.SetLabels(map[string]string{"touched": "yes"})
		written, err := c.kind(plural).Update(t.Context(), after, metav1.UpdateOptions{FieldValidation: "Strict"})
		if err != nil {
			t.Errorf("%s: %v", plural, err)
			continue
		}
		if diff := cmp.Diff(before[plural].Object["spec"], written.Object["spec"]); diff != "" {
			t.Errorf("%s lost something when it was written:\n%s", plural, diff)
		}
	}
	difftest.Contains(t, told, "bgppeers.crd.projectcalico.org: created", "bgpconfigurations.crd.projectcalico.org: brought up to date")
	c.rulesAreNew(t)
	c.helmAgrees(t)
	revision := c.definition(t, "ippools").GetResourceVersion()
	if again := c.apply(t, read(t, current)); strings.Count(again, "\n") > 0 {
		t.Errorf("once more: %s", again)
	}
	if now := c.definition(t, "ippools").GetResourceVersion(); now != revision {
		t.Errorf("the definition was written although it was right: revision %s, was %s", now, revision)
	}
}

// helmAgrees applies the definitions without force, as Helm 4 does when the chart is installed once more.
func (c *cluster) helmAgrees(t *testing.T) {
	t.Helper()
	all := c.definitions()
	for _, d := range read(t, current) {
		if _, err := all.Apply(t.Context(), d.GetName(), d, metav1.ApplyOptions{FieldManager: "helm"}); err != nil {
			t.Error(err)
		}
	}
}

// rulesAreNew checks a rule that the previous version did not have.
func (c *cluster) rulesAreNew(t *testing.T) {
	t.Helper()
	patch := []byte(`{"spec":{"bindMode":"Everywhere"}}`)
	_, err := c.kind("bgpconfigurations").Patch(t.Context(), "default", "application/merge-patch+json", patch, metav1.PatchOptions{})
	if err == nil || !strings.Contains(err.Error(), "bindMode") {
		t.Errorf("a value that this version's definition refuses: %v", err)
	}
}

// readAll reads the objects again and again until stop is called; a read that fails fails the test.
func (c *cluster) readAll(t *testing.T) (stop func()) {
	ctx, cancel := context.WithCancel(t.Context())
	var reading sync.WaitGroup
	for plural := range objects {
		reading.Go(func() {
			for tick := time.Tick(20 * time.Millisecond); ctx.Err() == nil; <-tick {
				if list, err := c.kind(plural).List(ctx, metav1.ListOptions{}); ctx.Err() == nil && (err != nil || len(list.Items) != 1) {
					t.Errorf("%s during the upgrade: %v", plural, err)
				}
			}
		})
	}
	return func() { cancel(); reading.Wait() }
}

// TestCalicosStay has another installation's definitions: one with all that is needed and more, one that lacks a field
// and a value. The first is not written. The second gets the two, and keeps all that it had.
func TestCalicosStay(t *testing.T) {
	c := newCluster(t)
	all := read(t, current)
	var theirs []*unstructured.Unstructured
	for _, d := range all {
		d := d.DeepCopy()
		d.SetLabels(nil)
		fields := []string{"schema", "openAPIV3Schema", "properties", "spec", "properties"}
		switch d.GetName() {
		case "ippools.crd.projectcalico.org":
			change(t, d, func(v map[string]any) {
				set(t, v, map[string]any{"type": "string", "maxLength": int64(5)}, append(fields, "theirOwn")...)
			})
		case "ipreservations.crd.projectcalico.org":
			change(t, d, func(v map[string]any) {
				set(t, v, map[string]any{"type": "string"}, append(fields, "theirOwn")...)
				unstructured.RemoveNestedField(v, append(fields, "reservedCIDRs")...)
			})
		default:
			continue
		}
		theirs = append(theirs, d)
	}
	c.apply(t, theirs)
	pool := c.create(t, "ippools", "{kind: IPPool, metadata: {name: theirs}, spec: {cidr: 10.1.0.0/16, theirOwn: abc}}")
	revision := c.definition(t, "ippools").GetResourceVersion()
	told := c.apply(t, all)
	difftest.Contains(t, told, "ippools.crd.projectcalico.org: of another installation, left as it is",
		"ipreservations.crd.projectcalico.org: of another installation, extended")
	if now := c.definition(t, "ippools").GetResourceVersion(); now != revision {
		t.Error("a definition that has all was written")
	}
	after, err := c.kind("ippools").Get(t.Context(), "theirs", metav1.GetOptions{})
	if err != nil || !cmp.Equal(pool.Object, after.Object) {
		t.Errorf("their pool, %v:\n%s", err, cmp.Diff(pool.Object, after.Object))
	}
	c.create(t, "ipreservations", "{kind: IPReservation, metadata: {name: both}, spec: {reservedCIDRs: [10.1.0.1/32], theirOwn: abc}}")
	c.deleted(t, all)
	both, err := c.kind("ipreservations").Get(t.Context(), "both", metav1.GetOptions{})
	errtest.Must(t, err)
	want := map[string]any{"reservedCIDRs": []any{"10.1.0.1/32"}, "theirOwn": "abc"}
	difftest.Want(t, "an object of both", want, both.Object["spec"])
}

// deleted deletes a definition that a finalizer keeps: it does not count as present, and is made anew once it is gone.
func (c *cluster) deleted(t *testing.T, all []*unstructured.Unstructured) {
	t.Helper()
	const name = "bgpfilters.crd.projectcalico.org"
	finalizers := func(names string) {
		t.Helper()
		_, err := c.definitions().Patch(t.Context(), name, types.MergePatchType,
			[]byte(`{"metadata":{"finalizers":[`+names+`]}}`), metav1.PatchOptions{})
		errtest.Must(t, err)
	}
	finalizers(`"example.org/slow"`)
	before := c.definition(t, "bgpfilters").GetUID()
	errtest.Must(t, c.definitions().Delete(t.Context(), name, metav1.DeleteOptions{}))
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	asked, cfg := 0, rest.CopyConfig(c.cfg)
	cfg.Wrap(func(next http.RoundTripper) http.RoundTripper {
		return answers(func(r *http.Request) (*http.Response, error) {
			if strings.HasSuffix(r.URL.Path, name) {
				if asked++; asked == 2 {
					cancel() // as the end of the time for it
				}
			}
			return next.RoundTrip(r)
		})
	})
	a, err := definitions.NewApplier(cfg, func(string) {})
	errtest.Must(t, err)
	if err := a.Apply(ctx, all); err == nil || !strings.Contains(err.Error(), name+": context canceled: it is being deleted") {
		t.Errorf("error %v, want that it is being deleted", err)
	}
	finalizers("")
	c.apply(t, all)
	if c.definition(t, "bgpfilters").GetUID() == before {
		t.Error("the definition was not made anew")
	}
}

type answers func(*http.Request) (*http.Response, error)

func (a answers) RoundTrip(r *http.Request) (*http.Response, error) { return a(r) }

func change(t *testing.T, d *unstructured.Unstructured, f func(version map[string]any)) {
	t.Helper()
	versions, _, err := unstructured.NestedSlice(d.Object, "spec", "versions")
	errtest.Must(t, err)
	f(versions[0].(map[string]any))
	set(t, d.Object, versions, "spec", "versions")
}

func set(t *testing.T, obj map[string]any, value any, path ...string) {
	t.Helper()
	errtest.Must(t, unstructured.SetNestedField(obj, value, path...))
}
