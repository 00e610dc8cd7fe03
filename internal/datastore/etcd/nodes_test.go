package etcd

import (
	"encoding/json"
	"errors"
	"testing"

	"github.com/tortie-net/tortie/internal/datastore"
	"github.com/tortie-net/tortie/internal/testkit/errtest"
	"github.com/tortie-net/tortie/internal/testkit/labtest"
)

// Calico's nodes are read, relabelled without other changes, and deleted, each guarded by the revision read.
func TestCalicoNodes(t *testing.T) {
	s := open(t, config(labtest.NewEtcd(t, false)))
	const key = "/calico/resources/v3/projectcalico.org/nodes/one"
	put(t, s, key, `{"kind":"Node","apiVersion":"projectcalico.org/v3","metadata":{"name":"one","uid":"u","labels":{"mine":"1"}},`+
		`"spec":{"bgp":{"ipv4Address":"10.0.0.1/24"},"orchRefs":[{"nodeName":"kube-one","orchestrator":"k8s"}]},"status":{}}`)
	read := func() CalicoNode {
		nodes, err := s.CalicoNodes(t.Context())
		if err != nil || len(nodes) != 1 {
			t.Fatalf("%+v, %v", nodes, err)
		}
		return nodes[0]
	}
	n := read()
	if n.Name != "one" || n.Kubernetes != "kube-one" || n.Labels["mine"] != "1" {
		t.Errorf("%+v", n)
	}
	errtest.Must(t, s.Relabel(t.Context(), n, map[string]string{"zone": "a"}, map[string]string{"note": "x"}))
	if err := s.Relabel(t.Context(), n, nil, nil); !errors.Is(err, datastore.ErrConflict) {
		t.Errorf("a write over somebody else's: %v", err)
	}
	if err := s.DeleteNode(t.Context(), n); !errors.Is(err, datastore.ErrConflict) {
		t.Errorf("a deletion of what has changed: %v", err)
	}
	n = read()
	var obj struct {
		Metadata struct{ UID string }
		Spec     struct{ BGP struct{ IPv4Address string } }
	}
	if err := json.Unmarshal(n.value, &obj); err != nil || obj.Metadata.UID != "u" || obj.Spec.BGP.IPv4Address != "10.0.0.1/24" ||
		n.Labels["zone"] != "a" || n.Annotations["note"] != "x" {
		t.Errorf("%s, %v", n.value, err)
	}
	errtest.Must(t, s.DeleteNode(t.Context(), n))
	if nodes, err := s.CalicoNodes(t.Context()); err != nil || len(nodes) > 0 {
		t.Errorf("%+v, %v", nodes, err)
	}
}

// Compaction drops history and keeps current keys; a second one to the same revision is no error.
func TestCompact(t *testing.T) {
	s := open(t, config(labtest.NewEtcd(t, false)))
	for _, value := range []string{"1", "2", "3"} {
		put(t, s, "/some/key", value)
	}
	revision, err := s.Revision(t.Context())
	if err != nil || revision < 4 {
		t.Fatalf("revision %d, %v", revision, err)
	}
	for range 2 {
		errtest.Must(t, s.Compact(t.Context(), revision))
	}
	kv, err := s.read(t.Context(), "/some/key")
	if err != nil || string(kv.value) != "3" {
		t.Errorf("%q, %v", kv.value, err)
	}
}
