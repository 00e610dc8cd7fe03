package ipam

import (
	"encoding/json"
	"net/netip"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/tortie-net/tortie/internal/api"
	"github.com/tortie-net/tortie/internal/datastore"
	"github.com/tortie-net/tortie/internal/testkit/datastoretest"
	"github.com/tortie-net/tortie/internal/testkit/errtest"
)

// FuzzStoredObjects: whatever the stored objects contain, an operation does not panic, assigns no address that another
// owner holds, frees no other owner's, and an error that is not about the pool's room names an object.
func FuzzStoredObjects(f *testing.F) {
	for _, seed := range []struct {
		kind byte
		json string
	}{
		{0, `{"spec":{"cidr":"10.0.0.12/30","affinity":"host:node-a","allocations":[0,null,null,null],"unallocated":[1,2,3],` +
			`"attributes":[{"handle_id":"x","secondary":{"node":"node-a","timestamp":"now"}}]}}`},
		{0, `{"spec":{"cidr":"10.0.0.12/30","affinity":"host:node-a","allocations":[0,-1],"unallocated":[7,7],"attributes":null}}`},
		{0, `{"spec":{"cidr":"10.0.0.12/30","affinity":"host:node-a","allocations":[0,0,0,0],"unallocated":null,` +
			`"attributes":[{"releasedAt":"2026-01-02T03:04:05Z"}]}}`},
		{0, `{"spec":{"cidr":"10.0.0.12/30","allocations":[0,null,null,1],"unallocated":[1,2],"attributes":[{"releasedAt":"soon",` +
			`"handle_id":"h"},null]}}`},
		{0, `{"spec":{"cidr":"0.0.0.0/0","affinity":"virtual:load-balancer","allocations":[],"unallocated":[],"attributes":[]}}`},
		{1, `{"spec":{"handleID":"net.h","block":{"10.0.0.12/30":-1,"10.0.0.13/30":2,"fd00::/126":9,"x":1}}}`},
		{1, `{"spec":{"handleID":"other","block":null}}`},
		{2, `{"spec":{"state":"confirmed","node":"node-a","cidr":"10.0.0.12/30","deleted":"false"}}`},
		{2, `{"spec":{"state":"what","node":"node-a","cidr":"10.0.0.0/8","deleted":"perhaps"}}`},
		{3, `{"spec":{"cidr":"10.0.0.0/28","blockSize":-3,"nodeSelector":"a ==","allowedUses":["Dance"]}}`},
		{3, `{"spec":{"cidr":"::ffff:10.0.0.0/120","blockSize":128,"assignmentMode":"Sometimes"}}`},
		{4, `{"spec":{"maxBlocksPerHost":-1,"ipCooldownSeconds":-9}}`},
		{4, `{"spec":{"maxBlocksPerHost":1,"ipCooldownSeconds":1200,"autoAllocateBlocks":true}}`},
		{5, `{"spec":{"reservedCIDRs":["10.0.0.12/31","::/0","","10.0.0.0/-1"]}}`},
	} {
		f.Add(seed.kind, []byte(seed.json), byte(0), []byte("{}"))
	}
	f.Add(byte(0), []byte(`{"spec":{"cidr":"10.0.0.12/30","affinity":"host:node-a","allocations":[0,null,null,null],"unallocated":[1,2,3],`+
		`"attributes":[{"handle_id":"net.h","secondary":{"node":"node-a"}}]}}`), byte(1),
		[]byte(`{"spec":{"handleID":"net.h","block":{"10.0.0.12/30":1}}}`))
	f.Fuzz(func(t *testing.T, kind byte, data []byte, kind2 byte, data2 []byte) {
		synctest.Test(t, func(t *testing.T) { // so that a hundred tries take no time
			store := datastoretest.NewFake()
			if !put(t, store, kind, data) || !put(t, store, kind2, data2) {
				return
			}
			_ = store.Create(t.Context(), poolObject("pool-a", "10.0.0.0/28")) // unless the fuzzer has made one
			use(t, store)
		})
	})
}

// put stores an object of a kind under the name by which operations find it, if it can be decoded at all.
func put(t *testing.T, store datastore.Store, kind byte, data []byte) bool {
	obj := []api.Resource{&api.IPAMBlock{}, &api.IPAMHandle{}, &api.BlockAffinity{}, &api.IPPool{}, &api.IPAMConfig{},
		&api.IPReservation{}}[kind%6]
	if json.Unmarshal(data, obj) != nil {
		return false
	}
	m := obj.GetMeta()
	*m = api.Meta{Name: []string{"10-0-0-12-30", "net.h", "node-a-10-0-0-12-30", "pool-a", api.DefaultName, "r"}[kind%6], Labels: m.Labels}
	if a, ok := obj.(*api.BlockAffinity); ok {
		a.Labels = newAffinity("node-a", cidr("10.0.0.12/30")).Labels
	}
	return store.Create(t.Context(), obj) == nil
}

// use runs every operation and checks that each previous holder of an address still holds it, and alone.
func use(t *testing.T, store datastore.Store) {
	before := intactHolders(t, store)
	c := client(store)
	for _, do := range []func() error{
		func() error { return c.Room(t.Context(), podRequest("node-a", ""), nil) },
		func() error { return assignPod("net.h")(t.Context(), c) },
		func() error {
			return begin(knownTo(t, store, "node-a"), podRequest("node-a", "net.new"))(t.Context(), c)
		},
		func() error { return assignExplicitly(t, c, "net.wish", "10.0.0.14") },
		func() error { return releasePod("net.h")(t.Context(), c) },
		func() error { return releasePod("net.new")(t.Context(), c) },
		func() error {
			_, err := c.Collect(t.Context(), Collection{Host: "node-b", Network: "net"})
			return err
		},
	} {
		if err := do(); err != nil && !Refused(err) && !namesObject(err) {
			t.Errorf("error %v names no object", err)
		}
		after := intactHolders(t, store)
		for a, handle := range before {
			if handle != "net.h" && after[a] != handle {
				t.Errorf("%s was held by %q, and now by %q", a, handle, after[a])
			}
		}
	}
}

func assignExplicitly(t *testing.T, c *Client, handle, addr string) error {
	req := podRequest("node-a", handle)
	asks(addr)(&req)
	_, err := c.Assign(t.Context(), req)
	return err
}

func namesObject(err error) bool {
	for _, kind := range []string{"IPAMBlock", "IPAMHandle", "BlockAffinity", "IPPool", "IPReservation", "ipamhandles", "nodes/"} {
		if strings.Contains(err.Error(), kind) {
			return true
		}
	}
	return false
}

// intactHolders returns the holders of the addresses in readable blocks.
func intactHolders(t *testing.T, store datastore.Store) map[netip.Addr]string {
	var list api.IPAMBlockList
	errtest.Must(t, store.List(t.Context(), &list, datastore.ListOptions{}))
	held := map[netip.Addr]string{}
	for i := range list.Items {
		b, err := ParseBlock(&list.Items[i])
		if err != nil {
			continue
		}
		for ordinal, at := range b.obj.Spec.Allocations {
			if at == nil || b.obj.Spec.Attributes[*at].ReleasedAt != "" {
				continue
			}
			handle := "nobody"
			if h := b.obj.Spec.Attributes[*at].HandleID; h != nil {
				handle = *h
			}
			if other, taken := held[b.addr(ordinal)]; taken {
				t.Errorf("%s is held by %s and by %s", b.addr(ordinal), other, handle)
			}
			held[b.addr(ordinal)] = handle
		}
	}
	return held
}
