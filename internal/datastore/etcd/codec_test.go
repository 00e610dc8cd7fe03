package etcd

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/tortie-net/tortie/internal/api"
	"github.com/tortie-net/tortie/internal/api/names"
	"github.com/tortie-net/tortie/internal/testkit/difftest"
	"github.com/tortie-net/tortie/internal/testkit/errtest"
)

func ptr[T any](v T) *T { return &v }

// Keys and values in the form in which Calico has them: read and written alike.
func TestCalicosForm(t *testing.T) {
	const resources = "/calico/resources/v3/projectcalico.org/"
	for _, c := range []struct {
		name, key, value string
		want             api.Resource
	}{
		{
			"block", "/calico/ipam/v2/assignment/ipv4/block/10.9.0.0-30",
			`{"cidr":"10.9.0.0/30","affinity":"host:n1","affinity_claim_time":"2026-01-02T03:04:05Z","allocations":[null,0,null,null],` +
				`"unallocated":[2,3,0],` +
				`"attributes":[{"handle_id":"k8s-pod-network.abc","secondary":{"node":"n1","pod":"p"}}],"sequenceNumber":1767322245000000003,` +
				`"sequenceNumberForAllocation":{"1":1767322245000000001},"deleted":false}`,
			&api.IPAMBlock{Meta: api.Meta{Name: "10-9-0-0-30"}, Spec: api.IPAMBlockSpec{
				CIDR: "10.9.0.0/30", Affinity: ptr("host:n1"), AffinityClaimTime: "2026-01-02T03:04:05Z", Allocations: []*int{nil, ptr(0), nil, nil},
				Unallocated: []int{2, 3, 0},
				Attributes: []api.AllocationAttribute{
					{HandleID: ptr("k8s-pod-network.abc"), Secondary: map[string]string{"node": "n1", "pod": "p"}},
				},
				SequenceNumber: 1767322245000000003, SequenceNumberForAllocation: map[string]uint64{"1": 1767322245000000001},
			}},
		},
		{
			"block that nobody owns", "/calico/ipam/v2/assignment/ipv6/block/fd80::-127",
			`{"cidr":"fd80::/127","affinity":null,"allocations":[null,null],"unallocated":[0,1],"attributes":[],"sequenceNumber":1,` +
				`"sequenceNumberForAllocation":{},"deleted":false}`,
			&api.IPAMBlock{Meta: api.Meta{Name: "fd80---127"}, Spec: api.IPAMBlockSpec{
				CIDR: "fd80::/127", Allocations: []*int{nil, nil}, Unallocated: []int{0, 1}, Attributes: []api.AllocationAttribute{},
				SequenceNumber: 1, SequenceNumberForAllocation: map[string]uint64{},
			}},
		},
		{
			"affinity", "/calico/ipam/v2/host/Node-1/ipv6/block/fd00:10:244::40-122", `{"state":"pendingDeletion","deleted":false}`,
			&api.BlockAffinity{
				Meta: api.Meta{Name: "Node-1-fd00-10-244--40-122", Labels: map[string]string{
					names.LabelHostnameHash: names.HostnameHash("Node-1"), names.LabelAffinityType: "host", names.LabelIPVersion: "6",
				}},
				Spec: api.BlockAffinitySpec{State: api.AffinityPendingDeletion, Node: "Node-1", Type: "host",
					CIDR: "fd00:10:244::40/122"},
			},
		},
		{
			"affinity of load balancers", "/calico/ipam/v2/virtual/load-balancer/ipv4/block/10.9.0.0-26", `{"state":"confirmed","deleted":false}`,
			&api.BlockAffinity{
				Meta: api.Meta{Name: "load-balancer-10-9-0-0-26", Labels: map[string]string{
					names.LabelHostnameHash: names.HostnameHash("load-balancer"), names.LabelAffinityType: "virtual", names.LabelIPVersion: "4",
				}},
				Spec: api.BlockAffinitySpec{State: api.AffinityConfirmed, Node: "load-balancer", Type: "virtual",
					CIDR: "10.9.0.0/26"},
			},
		},
		{
			"handle", "/calico/ipam/v2/handle/My_Net.3f2C", `{"block":{"10.9.0.0/26":2},"deleted":false}`,
			&api.IPAMHandle{Meta: api.Meta{Name: "my_net.3f2c"},
				Spec: api.IPAMHandleSpec{HandleID: "My_Net.3f2C", Block: map[string]int{"10.9.0.0/26": 2}}},
		},
		{
			"configuration", "/calico/ipam/v2/config", `{"strict_affinity":true,"maxBlocksPerHost":4}`,
			&api.IPAMConfig{Meta: api.Meta{Name: "default"}, Spec: api.IPAMConfigSpec{StrictAffinity: true, MaxBlocksPerHost: 4}},
		},
		{
			"configuration with all", "/calico/ipam/v2/config",
			`{"strict_affinity":true,"auto_allocate_blocks":true,"maxBlocksPerHost":4,"kubeVirtVMAddressPersistence":"Disabled",` +
				`"ipCooldownSeconds":30}`,
			&api.IPAMConfig{Meta: api.Meta{Name: "default"}, Spec: api.IPAMConfigSpec{
				StrictAffinity: true, AutoAllocateBlocks: true, MaxBlocksPerHost: 4, KubeVirtVMAddressPersistence: "Disabled", IPCooldownSeconds: 30,
			}},
		},
		{
			"pool", resources + "ippools/default-ipv4-ippool",
			`{"kind":"IPPool","apiVersion":"projectcalico.org/v3","metadata":{"name":"default-ipv4-ippool","uid":"0b0c",` +
				`"creationTimestamp":"2026-11-20T16:03:57Z"},` +
				`"spec":{"cidr":"10.244.0.0/16","blockSize":26,"ipipMode":"Always","vxlanMode":"Never","natOutgoing":true,"nodeSelector":"all()",` +
				`"allowedUses":["Workload","Tunnel"]}}`,
			&api.IPPool{
				Meta: api.Meta{Name: "default-ipv4-ippool", UID: "0b0c", CreationTimestamp: "2026-11-20T16:03:57Z"},
				Spec: api.IPPoolSpec{CIDR: "10.244.0.0/16", BlockSize: 26, IPIPMode: api.EncapAlways, VXLANMode: api.EncapNever, NATOutgoing: true,
					NodeSelector: "all()", AllowedUses: []api.AllowedUse{api.UseWorkload, api.UseTunnel}},
			},
		},
		{
			"reservation", resources + "ipreservations/r", `{"kind":"IPReservation","apiVersion":"projectcalico.org/v3","metadata":{"name":"r"},` +
				`"spec":{"reservedCIDRs":["10.244.0.1/32"]}}`,
			&api.IPReservation{Meta: api.Meta{Name: "r"}, Spec: api.IPReservationSpec{ReservedCIDRs: []string{"10.244.0.1/32"}}},
		},
		{
			"cluster information", resources + "clusterinformations/default",
			`{"kind":"ClusterInformation","apiVersion":"projectcalico.org/v3","metadata":{"name":"default"},"spec":{"clusterGUID":"c",` +
				`"datastoreReady":true}}`,
			&api.ClusterInformation{Meta: api.Meta{Name: "default"}, Spec: api.ClusterInformationSpec{ClusterGUID: "c", DatastoreReady: ptr(true)}},
		},
		{
			"endpoint of a pod", resources + "workloadendpoints/default/n--1-k8s-web--0-eth0",
			`{"kind":"WorkloadEndpoint","apiVersion":"projectcalico.org/v3","metadata":{"name":"n--1-k8s-web--0-eth0","namespace":"default",` +
				`"labels":{"projectcalico.org/orchestrator":"k8s"}},"spec":{"orchestrator":"k8s","node":"n-1","containerID":"abc",` +
				`"pod":"web-0","endpoint":"eth0",` +
				`"serviceAccountName":"sa","ipNetworks":["10.244.0.5/32"],"profiles":["kns.default"],"interfaceName":"cali0",` +
				`"mac":"ee:ee:ee:ee:ee:ee",` +
				`"ports":[{"name":"http","protocol":"TCP","port":80,"hostPort":0,"hostIP":""}]}}`,
			&api.WorkloadEndpoint{
				Meta: api.Meta{Name: "n--1-k8s-web--0-eth0", Namespace: "default", Labels: map[string]string{"projectcalico.org/orchestrator": "k8s"}},
				Spec: api.WorkloadEndpointSpec{
					Orchestrator: "k8s", Node: "n-1", ContainerID: "abc", Pod: "web-0", Endpoint: "eth0", ServiceAccountName: "sa",
					IPNetworks: []string{"10.244.0.5/32"}, Profiles: []string{"kns.default"}, InterfaceName: "cali0", MAC: "ee:ee:ee:ee:ee:ee",
					Ports: []api.EndpointPort{{Name: "http", Protocol: "TCP", Port: 80}},
				},
			},
		},
		{
			"profile of a network", resources + "profiles/net1",
			`{"kind":"Profile","apiVersion":"projectcalico.org/v3","metadata":{"name":"net1"},"spec":{"ingress":[{"action":"Allow",` +
				`"source":{"selector":"has(net1)"},` +
				`"destination":{}}],"egress":[{"action":"Allow","source":{},"destination":{}}],"labelsToApply":{"net1":""}}}`,
			&api.Profile{Meta: api.Meta{Name: "net1"}, Spec: api.ProfileSpec{
				Ingress:       []api.Rule{{Action: "Allow", Source: api.EntityRule{Selector: "has(net1)"}}},
				Egress:        []api.Rule{{Action: "Allow"}},
				LabelsToApply: map[string]string{"net1": ""},
			}},
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			got := api.NewLike(c.want)
			errtest.Must(t, decode(got, keyValue{key: c.key, value: []byte(c.value), revision: 12}))
			c.want.GetMeta().ResourceVersion = "12"
			difftest.Want(t, "object", c.want, got)
			if key, err := keyOf(got); err != nil || key != c.key {
				t.Errorf("key %s, %v, want %s", key, err, c.key)
			}
			text, err := encode(got)
			errtest.Must(t, err)
			difftest.Want(t, "value", c.value, string(text))
		})
	}
}

// Values of old Calicos are read too.
func TestOldForms(t *testing.T) {
	b := &api.IPAMBlock{}
	old := keyValue{key: "/calico/ipam/v2/assignment/ipv4/block/10.9.0.0-30", value: []byte(`{"cidr":"10.9.0.0/30","hostAffinity":"n1"}`)}
	if err := decode(b, old); err != nil || b.Spec.Affinity == nil || *b.Spec.Affinity != "host:n1" {
		t.Errorf("hostAffinity was read as %v, %v", b.Spec.Affinity, err)
	}
	a := &api.BlockAffinity{}
	if err := decode(a, keyValue{key: "/calico/ipam/v2/host/n/ipv4/block/10.9.0.0-26", value: []byte(`{}`)}); err != nil || !a.Confirmed() {
		t.Errorf("an empty affinity is not confirmed: %+v, %v", a, err)
	}
	n := &api.Node{}
	node := keyValue{key: "/calico/resources/v3/projectcalico.org/nodes/n",
		value: []byte(`{"metadata":{"name":"n","labels":{"a":"b"}},"status":{"podCIDRs":["10.0.0.0/24"]}}`)}
	if err := decode(n, node); err != nil || n.Labels["a"] != "b" || len(n.Spec.PodCIDRs) != 1 {
		t.Errorf("node %+v, %v", n, err)
	}
}

// Objects that have no key of their own are refused before anything is sent.
func TestNoKey(t *testing.T) {
	for want, obj := range map[string]api.Resource{
		"Pod Kubernetes":                         &api.Pod{Meta: api.Meta{Name: "p", Namespace: "n"}},
		`IPAMBlock "10-0-0-1-26"`:                &api.IPAMBlock{Meta: api.Meta{Name: "10-0-0-1-26"}},
		`spec.cidr ""`:                           &api.BlockAffinity{Meta: api.Meta{Name: "n-10-0-0-0-26"}},
		`spec.node "a/b"`:                        &api.BlockAffinity{Spec: api.BlockAffinitySpec{Node: "a/b", CIDR: "10.0.0.0/26"}},
		`spec.handleID "../x"`:                   &api.IPAMHandle{Spec: api.IPAMHandleSpec{HandleID: "../x"}},
		`IPAMConfig "other" "default"`:           &api.IPAMConfig{Meta: api.Meta{Name: "other"}},
		`IPPool metadata.name ""`:                &api.IPPool{},
		`WorkloadEndpoint metadata.namespace ""`: &api.WorkloadEndpoint{Meta: api.Meta{Name: "w"}},
	} {
		if key, err := keyOf(obj); !errtest.Names(err, want) {
			t.Errorf("%T %q: key %q, error %v, want %q", obj, obj.GetMeta().Name, key, err, want)
		}
	}
	if _, err := encode(&api.Node{Meta: api.Meta{Name: "n"}}); err == nil {
		t.Error("a Node would be written")
	}
}

func TestCarry(t *testing.T) {
	for _, c := range []struct{ name, raw, known, next, want string }{
		{"unknown stays", `{"a":1,"b":2}`, `{"a":1}`, `{"a":3}`, `{"a":3,"b":2}`},
		{"removed goes", `{"a":1,"b":2}`, `{"a":1,"b":2}`, `{"a":1}`, `{"a":1}`},
		{"inside", `{"s":{"a":1,"u":{"v":1}}}`, `{"s":{"a":1}}`, `{"s":{"a":2}}`, `{"s":{"a":2,"u":{"v":1}}}`},
		{"a default that was written out", `{"a":false}`, `{}`, `{"a":true}`, `{"a":true}`},
		{"arrays are whole", `{"l":[{"u":1}]}`, `{"l":[{}]}`, `{"l":[]}`, `{"l":[]}`},
		{"null", `{"s":null}`, `{"s":{}}`, `{"s":{"a":1}}`, `{"s":{"a":1}}`},
		{"no object", `7`, `{}`, `{"a":1}`, `{"a":1}`},
		{"numbers keep their digits", `{"n":1795190637820903757}`, `{}`, `{}`, `{"n":1795190637820903757}`},
	} {
		got, err := carry(json.RawMessage(c.raw), json.RawMessage(c.known), json.RawMessage(c.next))
		if err != nil || string(got) != c.want {
			t.Errorf("%s: %s, %v, want %s", c.name, got, err, c.want)
		}
	}
}

// Anything may be stored: it is refused or read, and an object that was read has a key again.
func FuzzDecode(f *testing.F) {
	f.Add("/calico/ipam/v2/assignment/ipv4/block/10.9.0.0-30", `{"cidr":"10.9.0.0/30","allocations":[null]}`)
	f.Add("/calico/ipam/v2/host/n/ipv4/block/10.9.0.0-26", `{"state":"confirmed"}`)
	f.Add("/calico/ipam/v2/handle/a.b", `{"block":null}`)
	f.Add("/calico/resources/v3/projectcalico.org/workloadendpoints/ns/w", `{"metadata":{"name":"other"}}`)
	f.Fuzz(func(t *testing.T, key, value string) {
		for _, obj := range []api.Resource{&api.IPAMBlock{}, &api.BlockAffinity{}, &api.IPAMHandle{}, &api.IPAMConfig{}, &api.IPPool{},
			&api.WorkloadEndpoint{}, &api.Node{}} {
			if !strings.HasPrefix(key, prefixFor(t, obj)) || !identify(api.NewLike(obj), key) {
				continue
			}
			if err := decode(obj, keyValue{key: key, value: []byte(value), revision: 1}); err != nil {
				continue
			}
			if again, err := keyOf(obj); err == nil && again != key {
				t.Errorf("%T from %q has key %q", obj, key, again)
			}
		}
	})
}

func prefixFor(t *testing.T, obj api.Resource) string {
	t.Helper()
	prefix, err := listPrefix(obj.ResourceType(), "")
	errtest.Must(t, err)
	return prefix
}

// FuzzWire: whatever an etcd server answers, reading it ends without a panic.
func FuzzWire(f *testing.F) {
	f.Add([]byte(message{}.number(3, 7).text(1, "a").sub(2, message{}.text(1, "k"))))
	f.Fuzz(func(_ *testing.T, data []byte) {
		// Errors are fine; a panic is not.
		_, _ = decodeRange(data)
		_, _ = decodeTxn(data)
		_, _ = decodeToken(data)
		_, _ = unframe(data)
	})
}
