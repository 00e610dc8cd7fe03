package ipam

import (
	"context"
	"fmt"
	"net/netip"
	"testing"
	"time"

	"github.com/tortie-net/tortie/internal/api"
	"github.com/tortie-net/tortie/internal/datastore"
	"github.com/tortie-net/tortie/internal/testkit/datastoretest"
	"github.com/tortie-net/tortie/internal/testkit/difftest"
	"github.com/tortie-net/tortie/internal/testkit/errtest"
)

// aged returns a block that was claimed before the clock's time.
func aged(b *Block, age time.Duration) *Block {
	b.obj.Spec.AffinityClaimTime = clock.Add(-age).Format(time.RFC3339)
	return b
}

func TestPlanReclaim(t *testing.T) {
	rest := []*Block{stored("10.0.0.0/30", "node-b", "x"), stored("10.0.0.8/29", "node-b", "x")}
	virtual := aged(stored("10.0.0.4/30", "node-b"), time.Hour)
	virtual.obj.Spec.Affinity = ptr("virtual:load-balancer")
	cooled := aged(stored("10.0.0.4/30", "node-b", "y"), time.Hour)
	cooled.ReleaseHandle("y", Cooldown{clock, time.Hour})
	noTime := stored("10.0.0.4/30", "node-b")
	noTime.obj.Spec.AffinityClaimTime = ""
	borrowed := planCase{want: "10.0.0.1 from 10.0.0.0/30", writes: []string{"create handle h 10.0.0.0/30=1",
		"update block 10.0.0.0/30 host:node-b [0:x 1:h . .]"}}
	reclaimed := planCase{needs: "to reclaim 10.0.0.4/30"}
	for _, c := range []struct {
		name   string
		b      *Block
		change func(*planCase)
		want   planCase
	}{
		{name: "empty for a minute", b: aged(stored("10.0.0.4/30", "node-b"), time.Minute), want: reclaimed},
		{name: "of a Calico that notes no time", b: noTime, want: reclaimed},
		{name: "of nobody", b: stored("10.0.0.4/30", ""), want: reclaimed},
		{name: "with addresses that Windows reserves", b: aged(stored("10.0.0.4/30", "node-b", windowsReserved), time.Hour), want: reclaimed},
		{name: "claimed a moment ago", b: aged(stored("10.0.0.4/30", "node-b"), 59*time.Second), want: borrowed},
		{name: "in use", b: aged(stored("10.0.0.4/30", "node-b", "y"), time.Hour), want: borrowed},
		{name: "with an address that cools down", b: cooled, want: borrowed},
		{name: "of a load balancer", b: virtual, want: borrowed},
		{name: "that could not be taken", b: aged(stored("10.0.0.4/30", "node-b"), time.Hour), want: borrowed,
			change: func(c *planCase) { c.needed = cidrs("10.0.0.4/30") }},
		{name: "all reserved", b: aged(stored("10.0.0.4/30", "node-b"), time.Hour), want: borrowed,
			change: func(c *planCase) { c.reserved = cidrs("10.0.0.4/30") }},
		{name: "nobody may claim", b: aged(stored("10.0.0.4/30", "node-b"), time.Hour), want: borrowed,
			change: func(c *planCase) { c.config = func(cfg *api.IPAMConfigSpec) { cfg.AutoAllocateBlocks = false } }},
	} {
		pc := c.want
		pc.name, pc.blocks, pc.cluster = c.name, append([]*Block{c.b}, rest...), true
		if c.change != nil {
			c.change(&pc)
		}
		// node-a starts its search at its own place: which block is borrowed from must not depend on it.
		if pc.needs == "" {
			pc.blocks = []*Block{rest[0], c.b, stored("10.0.0.8/29", "node-b", "x", "x", "x", "x", "x", "x", "x", "x")}
			pc.reserved = append(pc.reserved, cidr("10.0.0.4/30"))
		}
		run(t, []planCase{pc})
	}
}

func reclaimScene(t *testing.T) *datastoretest.Fake {
	store := seeded(t, poolObject("tiny", "10.5.0.0/30"), claimed("node-b", "10.5.0.0/30", confirmed),
		aged(stored("10.5.0.0/30", "node-b"), time.Hour).obj)
	return store
}

func fromTiny(handle string) Request {
	req := podRequest("node-a", handle)
	req.PoolsV4 = []string{"tiny"}
	return req
}

func TestReclaim(t *testing.T) {
	store := reclaimScene(t)
	var r recorder
	got, err := client(store.Session(r.hook)).Assign(t.Context(), fromTiny("h"))
	errtest.Must(t, err)
	want := []string{
		"PUT BlockAffinity node-b-10-5-0-0-30", "DELETE IPAMBlock 10-5-0-0-30", "DELETE BlockAffinity node-b-10-5-0-0-30",
	}
	difftest.Want(t, "the first writes", want, r.writes[:3])
	errtest.Must(t, audit(store, map[string][]netip.Addr{"h": addresses(got)}))
	b, err := readContents(store)
	errtest.Must(t, err)
	if !b.blocks[0].OwnedBy("node-a") || len(b.affinities) != 1 {
		t.Errorf("after the reclaim:\n%s", dump(store))
	}
}

// fenced refuses to change claims of other hosts, as the chart's fencing does.
type fenced struct {
	datastore.Store
	host string
}

func (f fenced) Update(ctx context.Context, obj api.Resource) error {
	if a, ok := obj.(*api.BlockAffinity); ok && a.Spec.Node != f.host {
		return fmt.Errorf("claim of %s: %w", a.Spec.Node, datastore.ErrUnauthorized)
	}
	return f.Store.Update(ctx, obj)
}

// Where nodes are fenced only the owner gives a block up: others borrow from it.
func TestReclaimIsRefused(t *testing.T) {
	store := reclaimScene(t)
	got, err := client(fenced{store, "node-a"}).Assign(t.Context(), fromTiny("h"))
	errtest.Must(t, err)
	errtest.Must(t, audit(store, map[string][]netip.Addr{"h": addresses(got)}))
	c, err := readContents(store)
	errtest.Must(t, err)
	if !c.blocks[0].OwnedBy("node-b") || len(c.affinities) != 1 {
		t.Errorf("after the refusal:\n%s", dump(store))
	}
}

// The owner starts to use its block while it is being taken: whoever writes the block first has it, and the owner keeps
// its claim if that is the owner.
func TestReclaimMeetsTheOwner(t *testing.T) {
	for _, at := range []string{
		"GET BlockAffinity node-b-10-5-0-0-30", "PUT BlockAffinity node-b-10-5-0-0-30", "DELETE IPAMBlock 10-5-0-0-30",
		"DELETE BlockAffinity node-b-10-5-0-0-30", "POST IPAMBlock 10-5-0-0-30",
	} {
		t.Run(at, func(t *testing.T) {
			store := reclaimScene(t)
			live := map[string][]netip.Addr{}
			met := false
			s := store.Session(func(ctx context.Context, r datastoretest.Request) datastoretest.Fault {
				if r.String() != at || met {
					return datastoretest.None
				}
				met = true
				req := fromTiny("faster")
				req.Host = "node-b"
				got, err := client(store).Assign(ctx, req)
				errtest.Must(t, err)
				live["faster"] = addresses(got)
				return datastoretest.None
			})
			got, err := client(s).Assign(t.Context(), fromTiny("h"))
			errtest.Must(t, err)
			if !met {
				t.Fatalf("%s was not requested", at)
			}
			live["h"] = addresses(got)
			errtest.Must(t, audit(store, live))
			c, err := readContents(store)
			errtest.Must(t, err)
			owner, _ := c.blocks[0].host()
			for _, a := range c.affinities {
				if a.Spec.Node == owner && !a.Confirmed() {
					t.Errorf("the owner's claim was left %s", a.Spec.State)
				}
			}
		})
	}
}

// A host that its pool no longer selects gives up a block with the last address in it, if the pool is known.
func TestReleaseLeavesUnselectedPools(t *testing.T) {
	rack := func(p *api.IPPool) { p.Spec.NodeSelector = "rack == 'r2'" }
	for _, c := range []struct {
		name    string
		known   func(*Known)
		handles []string
		gone    bool
	}{
		{name: "not selected", gone: true},
		{name: "selected", known: func(k *Known) { k.NodeLabels = map[string]string{"rack": "r2"} }},
		{name: "not selected, and in use", handles: []string{"other"}},
		{name: "cooling down", known: func(k *Known) { k.Config.IPCooldownSeconds = 60 }},
	} {
		t.Run(c.name, func(t *testing.T) {
			store := seeded(t, poolObject("racked", "10.5.0.0/30", rack), claimed("node-a", "10.5.0.0/30", confirmed),
				stored("10.5.0.0/30", "node-a", append(c.handles, "h")...).obj, storedHandle("h", "10.5.0.0/30=1"))
			for _, h := range c.handles {
				mustCreate(t, store, storedHandle(h, "10.5.0.0/30=1"))
			}
			known := knownTo(t, store, "node-a")
			if c.known != nil {
				c.known(known)
			}
			_, err := client(store).ReleaseKnowing(t.Context(), Owner{Handle: "h"}, "node-a", known)
			errtest.Must(t, err)
			contents, err := readContents(store)
			errtest.Must(t, err)
			if gone := len(contents.blocks) == 0 && len(contents.affinities) == 0; gone != c.gone {
				t.Errorf("the block was given up: %v, want %v\n%s", gone, c.gone, dump(store))
			}
		})
	}
}

func TestGiveUpRefusesWhatIsUsed(t *testing.T) {
	store := reclaimScene(t)
	old := aged(stored("10.5.0.0/30", "node-b"), time.Hour)
	if err := client(store).releaseBlock(t.Context(), old); !datastore.Contended(err) {
		t.Errorf("of a block as it was once: error %v, want a conflict", err)
	}
	req := fromTiny("x")
	req.Host = "node-b"
	got := mustAssign(t, store, req)
	read, err := client(store).readBlocks(t.Context(), cidrs("10.5.0.0/30"))
	errtest.Must(t, err)
	if err := client(store).releaseBlock(t.Context(), read[0].block); !datastore.Contended(err) {
		t.Errorf("of a block in use: error %v, want a conflict", err)
	}
	errtest.Must(t, audit(store, map[string][]netip.Addr{"x": got}))
}
