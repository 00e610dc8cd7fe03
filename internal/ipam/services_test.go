package ipam

import (
	"fmt"
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"sigs.k8s.io/yaml"

	"github.com/tortie-net/tortie/internal/api"
	"github.com/tortie-net/tortie/internal/api/names"
	"github.com/tortie-net/tortie/internal/datastore"
	"github.com/tortie-net/tortie/internal/testkit/datastoretest"
	"github.com/tortie-net/tortie/internal/testkit/errtest"
)

// The objects of a Service as Calico's documentation of its formats has them.
const (
	serviceBlock = `
metadata: {name: 10-9-0-0-30, annotations: {projectcalico.org/metadata: '{}'}}
spec:
  cidr: 10.9.0.0/30
  affinity: virtual:load-balancer
  affinityClaimTime: "2026-11-20T16:03:57Z"
  allocations: [0, null, null, null]
  unallocated: [1, 2, 3]
  attributes:
    - handle_id: lb-n3RSblXrcle9kQQOZqcqKi0mSFrp4XmbDa1Zk5Vr0
      secondary: {namespace: shop, service: web, type: LoadBalancer, timestamp: 2026-11-20 16:03:57.820903754 +0000 UTC}
  sequenceNumber: 1795190637820903755
  sequenceNumberForAllocation: {"0": 1795190637820903754}
  strictAffinity: false
  deleted: false
`
	serviceAffinity = `
metadata:
  name: load-balancer-10-9-0-0-30
  labels: {projectcalico.org/affinity-type: virtual,
      projectcalico.org/hostname-hash: TAU2RK2F2FG7MIS72DPZYC6FJ3U3BIWIDZAMUTQY7ZXMSKQZ5GSQ, projectcalico.org/ip-version: "4"}
  annotations:
    projectcalico.org/metadata: '{"labels":{"projectcalico.org/affinity-type":"virtual",` +
		`"projectcalico.org/hostname-hash":"TAU2RK2F2FG7MIS72DPZYC6FJ3U3BIWIDZAMUTQY7ZXMSKQZ5GSQ","projectcalico.org/ip-version":"4"}}'
spec: {state: confirmed, node: load-balancer, type: virtual, cidr: 10.9.0.0/30, deleted: "false"}
`
	serviceHandle = `
metadata: {name: lb-n3rsblxrcle9kqqozqcqki0msfrp4xmbda1zk5vr0, annotations: {projectcalico.org/metadata: '{}'}}
spec: {handleID: lb-n3RSblXrcle9kQQOZqcqKi0mSFrp4XmbDa1Zk5Vr0, block: {10.9.0.0/30: 1}, deleted: false}
`
)

func servicePool(name, cidr string) *api.IPPool {
	return poolObject(name, cidr, func(p *api.IPPool) { p.Spec.AllowedUses = []api.AllowedUse{api.UseLoadBalancer} })
}

func serviceRequest(name string) Request {
	return Request{
		Owner: Owner{Handle: names.ServiceHandle("shop", name, "7C0F4E2a-0000-4000-8000-00000000abcd"), Attrs: map[string]string{
			"namespace": "shop", "service": name, "type": "LoadBalancer", "timestamp": clock.String(),
		}},
		Host: names.LoadBalancer, V4: true, Use: api.UseLoadBalancer, AnyNamespace: true,
	}
}

func TestObjectsOfServicesEqualCalicos(t *testing.T) {
	store := datastoretest.NewFake()
	mustCreate(t, store, servicePool("lb", "10.9.0.0/30"))
	req := serviceRequest("web")
	_, _, err := client(store).AssignEach(t.Context(), req)
	errtest.Must(t, err)
	for text, obj := range map[string]api.Resource{
		serviceBlock:    &api.IPAMBlock{Meta: api.Meta{Name: "10-9-0-0-30"}},
		serviceAffinity: &api.BlockAffinity{Meta: api.Meta{Name: "load-balancer-10-9-0-0-30"}},
		serviceHandle:   &api.IPAMHandle{Meta: api.Meta{Name: names.Handle(req.Handle)}},
	} {
		errtest.Must(t, store.Get(t.Context(), obj))
		data, err := yaml.YAMLToJSON([]byte(text))
		errtest.Must(t, err)
		if d := cmp.Diff(decodeMap(t, data), asMap(t, obj)); d != "" {
			t.Errorf("%T (-calico's +ours):\n%s", obj, d)
		}
	}
}

// assignAll assigns addresses of both families to Services, ten at a time, and returns the holder of each.
func assignAll(t *testing.T, c *Client, services []string) map[netip.Addr]string {
	t.Helper()
	holder := map[netip.Addr]string{}
	for rest := services; len(rest) > 0; {
		req := serviceRequest(rest[0])
		req.V6 = true
		for _, name := range rest[1:min(len(rest), 10)] {
			req.Also = append(req.Also, serviceRequest(name).Owner)
		}
		got, _, err := c.AssignEach(t.Context(), req)
		errtest.Must(t, err)
		for i, of := range got {
			if len(of) != 2 || of[0].Address.Is6() || !of[1].Address.Is6() {
				t.Fatalf("%s got %v, want one address of each family", rest[i], of)
			}
			for _, a := range of {
				if holder[a.Address] != "" {
					t.Fatalf("%s is %s's and %s's", a.Address, holder[a.Address], rest[i])
				}
				holder[a.Address] = rest[i]
			}
		}
		rest = rest[len(got):]
	}
	return holder
}

// Services get addresses, from any number of blocks, and release all of them.
func TestServices(t *testing.T) {
	store := datastoretest.NewFake()
	mustCreate(t, store, servicePool("lb", "10.9.0.0/24"), servicePool("lb6", "fd09::/120"), poolObject("pods", "10.0.0.0/24"))
	c := client(store)
	var services []string
	for i := range 200 { // more blocks than a node may own
		services = append(services, fmt.Sprint("s", i))
	}
	holder := assignAll(t, c, services)
	again, _, err := c.AssignEach(t.Context(), serviceRequest("s7"))
	if err != nil || holder[again[0][0].Address] != "s7" {
		t.Fatalf("s7 holds %v, %v: want what it held", again, err)
	}
	only := serviceRequest("s7").Owner
	only.Only = []netip.Addr{again[0][0].Address}
	freed, err := c.ReleaseOwned(t.Context(), only)
	held, err2 := c.Addresses(t.Context(), only.Handle)
	if err != nil || err2 != nil || len(freed) != 1 || freed[0] != only.Only[0] || len(held) != 1 || !held[0].Is6() {
		t.Fatalf("released %v, %v; holds %v, %v: want %v released, the other kept", freed, err, held, err2, only.Only)
	}
	for _, name := range services {
		_, err := c.Release(t.Context(), serviceRequest(name).Handle)
		errtest.Must(t, err)
	}
	idle := NewClient(store, func() time.Time { return clock.Add(time.Hour) })
	var blocks api.IPAMBlockList
	errtest.Must(t, store.List(t.Context(), &blocks, datastore.ListOptions{}))
	for i := range blocks.Items {
		if gone, err := idle.ReleaseBlock(t.Context(), DefaultConfig(), blocks.Items[i].Meta); !gone || err != nil {
			t.Fatalf("block %s: %v, %v", blocks.Items[i].Name, gone, err)
		}
	}
	var claims api.BlockAffinityList
	errtest.Must(t, store.List(t.Context(), &claims, datastore.ListOptions{}))
	if len(claims.Items) > 0 {
		t.Errorf("affinities %v are left", claims.Items)
	}
}

// A further owner with an existing handle is left to a request of its own, and nothing is lost.
func TestAssignEachMeetsAHandle(t *testing.T) {
	store := datastoretest.NewFake()
	mustCreate(t, store, servicePool("lb", "10.9.0.0/24"))
	mustCreate(t, store, newHandle(serviceRequest("b").Handle))
	req := serviceRequest("a")
	req.Also = []Owner{serviceRequest("b").Owner, serviceRequest("c").Owner}
	got, _, err := client(store).AssignEach(t.Context(), req)
	if err != nil || len(got) != 1 {
		t.Fatalf("%v, %v: want the address of the first one", got, err)
	}
	for _, name := range []string{"b", "c"} {
		_, _, err := client(store).AssignEach(t.Context(), serviceRequest(name))
		errtest.Must(t, err)
	}
}

// A block that is known to be full is not read while there is room elsewhere, and is before a request is refused.
func TestAssignEachBesideFullBlocks(t *testing.T) {
	store := datastoretest.NewFake()
	mustCreate(t, store, servicePool("lb", "10.9.0.0/29"))
	c := client(store)
	assign := func(name string, full []netip.Prefix) []netip.Prefix {
		t.Helper()
		req := serviceRequest(name)
		req.Full = full
		_, now, err := c.AssignEach(t.Context(), req)
		errtest.Must(t, err)
		return now
	}
	var full []netip.Prefix
	for _, name := range []string{"a", "b", "c", "d"} {
		full = append(full, assign(name, full)...)
	}
	if len(full) != 1 {
		t.Fatalf("full are %v, want the one block that has served four Services", full)
	}
	_, err := c.Release(t.Context(), serviceRequest("a").Handle)
	errtest.Must(t, err)
	for _, name := range []string{"e", "f", "g", "h"} {
		full = append(full, assign(name, full)...)
	}
	if len(full) != 2 {
		t.Errorf("full are %v, want both blocks: the second one has served four Services", full)
	}
	if now := assign("i", full); !slices.Equal(now, full[:1]) {
		t.Errorf("%v is full again, want %v, where an address had become free", now, full[:1])
	}
}
