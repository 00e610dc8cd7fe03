package ipam

import (
	"bytes"
	"context"
	"encoding/json"
	"net/netip"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"sigs.k8s.io/yaml"

	"github.com/tortie-net/tortie/internal/api"
	"github.com/tortie-net/tortie/internal/api/names"
	"github.com/tortie-net/tortie/internal/datastore"
	"github.com/tortie-net/tortie/internal/testkit/datastoretest"
	"github.com/tortie-net/tortie/internal/testkit/difftest"
	"github.com/tortie-net/tortie/internal/testkit/errtest"
)

// The objects in testdata are a real Calico's after this history: gold-node claims a block, the first
// address is assigned and released, then pod web-1 gets the second; ipamblock-…-after-del is after web-1's deletion.
const (
	goldenNode  = "gold-node"
	goldenBlock = "192.168.154.0/26"
	goldenPod   = "k8s-pod-network.3f1d9c8a7b6e5d4c3b2a190817263544536271809fabcdef0123456789abcdef"
)

func TestObjectsEqualCalicos(t *testing.T) {
	ctx := t.Context()
	store := datastoretest.NewFake()
	// The number of nanoseconds that Calico began to count from; it starts to look for blocks elsewhere than we do, so the
	// claim is there already.
	client := NewClient(store, func() time.Time { return time.Unix(0, 1795190637820903754) })
	mustCreate(t, store, goldenPool(t), &api.Node{Meta: api.Meta{Name: goldenNode}}, newAffinity(goldenNode, cidr(goldenBlock)))

	first := goldenRequest("k8s-pod-network.first", nil)
	if _, err := client.Assign(ctx, first); err != nil {
		t.Fatal(err)
	}
	if _, err := client.Release(ctx, first.Handle); err != nil {
		t.Fatal(err)
	}
	got, err := client.Assign(ctx, goldenRequest(goldenPod, map[string]string{
		"namespace": "golden", "node": goldenNode, "pod": "web-1", "timestamp": "2026-11-20 16:04:32.68279702 +0000 UTC",
	}))
	errtest.Must(t, err)
	want := []Assignment{{Address: netip.MustParseAddr("192.168.154.1"), Block: cidr(goldenBlock)}}
	difftest.Want(t, "assigned", want, got)
	equalsGolden(t, store, "ipamblock-192-168-154-0-26.yaml", &api.IPAMBlock{})
	equalsGolden(t, store, "blockaffinity-gold-node-192-168-154-0-26.yaml", &api.BlockAffinity{})
	equalsGolden(t, store, "ipamhandle.yaml", &api.IPAMHandle{})

	if _, err := client.Release(ctx, goldenPod); err != nil {
		t.Fatal(err)
	}
	equalsGolden(t, store, "ipamblock-192-168-154-0-26-after-del.yaml", &api.IPAMBlock{})
	equalsGolden(t, store, "blockaffinity-gold-node-192-168-154-0-26.yaml", &api.BlockAffinity{})
	var handles api.IPAMHandleList
	if err := store.List(ctx, &handles, datastore.ListOptions{}); err != nil || len(handles.Items) != 0 {
		t.Errorf("handles after the release: %v, %v, want none", handles.Items, err)
	}
}

// Calico's stored objects are accepted and, written back unchanged, are the same: no field is lost.
func TestCalicosObjectsSurviveReadAndWrite(t *testing.T) {
	for file, obj := range map[string]api.Resource{
		"ipamblock-192-168-154-0-26.yaml":               &api.IPAMBlock{},
		"ipamblock-192-168-154-0-26-after-del.yaml":     &api.IPAMBlock{},
		"blockaffinity-gold-node-192-168-154-0-26.yaml": &api.BlockAffinity{},
		"ipamhandle.yaml":                               &api.IPAMHandle{},
		"ippool.yaml":                                   &api.IPPool{},
	} {
		t.Run(file, func(t *testing.T) {
			readGolden(t, file, obj)
			if block, ok := obj.(*api.IPAMBlock); ok {
				if _, err := ParseBlock(block); err != nil {
					t.Fatal(err)
				}
			}
			if d := cmp.Diff(goldenMap(t, file), asMap(t, obj)); d != "" {
				t.Errorf("object (-calico's +ours):\n%s", d)
			}
		})
	}
}

func goldenRequest(handle string, attrs map[string]string) Request {
	return Request{Owner: Owner{Handle: handle, Attrs: attrs}, Host: goldenNode, V4: true, Use: api.UseWorkload}
}

func goldenPool(t *testing.T) *api.IPPool {
	t.Helper()
	p := &api.IPPool{}
	readGolden(t, "ippool.yaml", p)
	return p
}

// equalsGolden compares the stored object of the golden one's name with it.
func equalsGolden(t *testing.T, store datastore.Store, file string, obj api.Resource) {
	t.Helper()
	readGolden(t, file, obj)
	if err := store.Get(context.Background(), obj); err != nil {
		t.Error(err)
		return
	}
	want := goldenMap(t, file)
	if _, ok := obj.(*api.IPAMHandle); ok { // the one thing that Calico does not write
		want["metadata"].(map[string]any)["annotations"].(map[string]any)[names.AnnotationNode] = goldenNode
	}
	if d := cmp.Diff(want, asMap(t, obj)); d != "" {
		t.Errorf("%s (-calico's +ours):\n%s", file, d)
	}
}

func readGolden(t *testing.T, file string, into any) {
	t.Helper()
	text, err := os.ReadFile(filepath.Join("testdata", file))
	errtest.Must(t, err)
	if err := yaml.Unmarshal(text, into); err != nil {
		t.Fatalf("%s: %v", file, err)
	}
}

// goldenMap returns a golden object without fields that differ from run to run, and without the kind, which a Go type
// is.
func goldenMap(t *testing.T, file string) map[string]any {
	t.Helper()
	text, err := os.ReadFile(filepath.Join("testdata", file))
	errtest.Must(t, err)
	data, err := yaml.YAMLToJSON(text)
	if err != nil {
		t.Fatalf("%s: %v", file, err)
	}
	m := decodeMap(t, data)
	delete(m, "apiVersion")
	delete(m, "kind")
	return m
}

func asMap(t *testing.T, obj api.Resource) map[string]any {
	t.Helper()
	data, err := json.Marshal(obj)
	errtest.Must(t, err)
	return decodeMap(t, data)
}

// decodeMap keeps numbers as text: a float64 does not hold all digits of a sequence number.
func decodeMap(t *testing.T, data []byte) map[string]any {
	t.Helper()
	var m map[string]any
	d := json.NewDecoder(bytes.NewReader(data))
	d.UseNumber()
	errtest.Must(t, d.Decode(&m))
	if meta, ok := m["metadata"].(map[string]any); ok {
		for _, k := range []string{"uid", "resourceVersion", "creationTimestamp", "generation"} {
			delete(meta, k)
		}
	}
	return m
}

func mustCreate(t testing.TB, store datastore.Store, objs ...api.Resource) {
	t.Helper()
	for _, obj := range objs {
		errtest.Must(t, store.Create(context.Background(), obj))
	}
}
