package api

import (
	"encoding/json"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/tortie-net/tortie/internal/testkit/errtest"
)

func TestTypes(t *testing.T) {
	for _, c := range []struct {
		obj                Resource
		apiVersion, plural string
		namespaced         bool
	}{
		{(*IPPool)(nil), "crd.projectcalico.org/v1", "ippools", false},
		{(*IPReservation)(nil), "crd.projectcalico.org/v1", "ipreservations", false},
		{(*IPAMBlock)(nil), "crd.projectcalico.org/v1", "ipamblocks", false},
		{(*BlockAffinity)(nil), "crd.projectcalico.org/v1", "blockaffinities", false},
		{(*IPAMHandle)(nil), "crd.projectcalico.org/v1", "ipamhandles", false},
		{(*IPAMConfig)(nil), "crd.projectcalico.org/v1", "ipamconfigs", false},
		{(*ClusterInformation)(nil), "crd.projectcalico.org/v1", "clusterinformations", false},
		{(*BGPConfiguration)(nil), "crd.projectcalico.org/v1", "bgpconfigurations", false},
		{(*BGPPeer)(nil), "crd.projectcalico.org/v1", "bgppeers", false},
		{(*BGPFilter)(nil), "crd.projectcalico.org/v1", "bgpfilters", false},
		{(*FelixConfiguration)(nil), "crd.projectcalico.org/v1", "felixconfigurations", false},
		{(*CalicoNetworkPolicy)(nil), "crd.projectcalico.org/v1", "networkpolicies", true},
		{(*CalicoGlobalNetworkPolicy)(nil), "crd.projectcalico.org/v1", "globalnetworkpolicies", false},
		{(*CalicoTier)(nil), "crd.projectcalico.org/v1", "tiers", false},
		{(*CalicoNetworkSet)(nil), "crd.projectcalico.org/v1", "networksets", true},
		{(*CalicoGlobalNetworkSet)(nil), "crd.projectcalico.org/v1", "globalnetworksets", false},
		{(*CalicoHostEndpoint)(nil), "crd.projectcalico.org/v1", "hostendpoints", false},
		{(*CalicoStagedNetworkPolicy)(nil), "crd.projectcalico.org/v1", "stagednetworkpolicies", true},
		{(*CalicoStagedGlobalNetworkPolicy)(nil), "crd.projectcalico.org/v1", "stagedglobalnetworkpolicies", false},
		{(*CalicoStagedKubernetesNetworkPolicy)(nil), "crd.projectcalico.org/v1", "stagedkubernetesnetworkpolicies", true},
		{(*Node)(nil), "v1", "nodes", false},
		{(*Namespace)(nil), "v1", "namespaces", false},
		{(*Pod)(nil), "v1", "pods", true},
		{(*Secret)(nil), "v1", "secrets", true},
		{(*ConfigMap)(nil), "v1", "configmaps", true},
		{(*WorkloadEndpoint)(nil), "projectcalico.org/v3", "workloadendpoints", true},
		{(*Profile)(nil), "projectcalico.org/v3", "profiles", false},
		{(*NetworkPolicy)(nil), "networking.k8s.io/v1", "networkpolicies", true},
		{(*ClusterNetworkPolicy)(nil), "policy.networking.k8s.io/v1beta1", "clusternetworkpolicies", false},
		{&ClusterNetworkPolicy{APIVersion: "policy.networking.k8s.io/v1alpha2"},
			"policy.networking.k8s.io/v1alpha2", "clusternetworkpolicies", false},
		{&ClusterNetworkPolicy{APIVersion: "policy.networking.k8s.io/v1"}, "policy.networking.k8s.io/v1beta1", "clusternetworkpolicies", false},
	} {
		got := c.obj.ResourceType()
		if got.APIVersion() != c.apiVersion || got.Plural != c.plural || got.Namespaced != c.namespaced {
			t.Errorf("%T: %+v, want %s %s, namespaced %v", c.obj, got, c.apiVersion, c.plural, c.namespaced)
		}
	}
	if got := (&IPAMBlockList{}).ItemType().Kind; got != "IPAMBlock" {
		t.Errorf("the items of an IPAMBlockList are %s", got)
	}
}

// The two-phase marker is a string on an affinity, and a boolean on blocks and handles: Calico's schema refuses others.
func TestDeletionMarkers(t *testing.T) {
	for text, obj := range map[string]Deletable{
		`{"metadata":{},"spec":{"state":"","node":"","cidr":"","deleted":"true"}}`: &BlockAffinity{},
		`{"metadata":{},"spec":{"handleID":"","block":null,"deleted":true}}`:       &IPAMHandle{},
		`{"metadata":{},"spec":{"cidr":"","allocations":null,"unallocated":null,"attributes":null,"sequenceNumber":0,` +
			`"sequenceNumberForAllocation":null,"deleted":true,"strictAffinity":false}}`: &IPAMBlock{},
	} {
		if obj.MarkedDeleted() {
			t.Errorf("a new %T is marked", obj)
		}
		errtest.Must(t, json.Unmarshal([]byte(text), obj))
		got, err := json.Marshal(obj)
		errtest.Must(t, err)
		if d := cmp.Diff(text, string(got)); d != "" || !obj.MarkedDeleted() {
			t.Errorf("%T marked %v (-want +got):\n%s", obj, obj.MarkedDeleted(), d)
		}
	}
}

// Only a confirmed claim counts as ownership. Old data has no state, some clients write other values for "not deleted",
// and projectcalico.org/v3 has a boolean.
func TestAffinityConfirmed(t *testing.T) {
	for text, want := range map[string]bool{
		`{"state": "confirmed", "deleted": "false"}`:       true,
		`{"state": "confirmed", "deleted": ""}`:            true,
		`{"state": "confirmed", "deleted": "no"}`:          true,
		`{"state": "confirmed", "deleted": null}`:          true,
		`{"state": "confirmed", "deleted": false}`:         true,
		`{"state": "confirmed"}`:                           true,
		`{"deleted": "false"}`:                             true,
		`{"state": "pending", "deleted": "false"}`:         false,
		`{"state": "pendingDeletion", "deleted": "false"}`: false,
		`{"state": "confirmed", "deleted": "true"}`:        false,
		`{"state": "confirmed", "deleted": true}`:          false,
	} {
		var a BlockAffinity
		if err := json.Unmarshal([]byte(`{"spec": `+text+`}`), &a); err != nil || a.Confirmed() != want {
			t.Errorf("%s: confirmed %v (%v), want %v", text, a.Confirmed(), err, want)
		}
	}
}

// Lists decode only objects of their kind that are not marked deleted.
func TestListAdd(t *testing.T) {
	var list IPAMHandleList
	for _, name := range []string{"a", "marked", "b"} {
		item, ok := list.NewItem().(*IPAMHandle)
		if !ok {
			t.Fatalf("an item of an IPAMHandleList is a %T", list.NewItem())
		}
		item.Name, item.Spec.Deleted = name, name == "marked"
		list.Add(item)
	}
	list.Add(&IPPool{})
	if len(list.Items) != 2 || list.Items[0].Name != "a" || list.Items[1].Name != "b" {
		t.Errorf("items %+v, want a and b", list.Items)
	}
}

// Calico's schema takes one port as a number, too.
func TestPortRange(t *testing.T) {
	for text, want := range map[string][2]uint16{`"32768:65535"`: {32768, 65535}, `"80"`: {80, 80}, `80`: {80, 80}} {
		var r PortRange
		errtest.Must(t, json.Unmarshal([]byte(text), &r))
		if first, last, err := r.Ports(); err != nil || first != want[0] || last != want[1] {
			t.Errorf("%s: %d to %d, %v", text, first, last, err)
		}
	}
	for _, text := range []string{`"2:1"`, `"0"`, `"1:70000"`, `"x"`, `""`, `-1`, `1.5`} {
		var r PortRange
		errtest.Must(t, json.Unmarshal([]byte(text), &r))
		if first, last, err := r.Ports(); err == nil {
			t.Errorf("%s: %d to %d", text, first, last)
		}
	}
	var r PortRange
	if err := json.Unmarshal([]byte(`{}`), &r); err == nil {
		t.Error("an object was taken")
	}
}
