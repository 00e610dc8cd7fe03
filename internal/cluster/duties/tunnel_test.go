package duties

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/tortie-net/tortie/internal/api"
	"github.com/tortie-net/tortie/internal/api/names"
	"github.com/tortie-net/tortie/internal/datastore"
	"github.com/tortie-net/tortie/internal/datastore/kubernetes"
	"github.com/tortie-net/tortie/internal/ipam"
	"github.com/tortie-net/tortie/internal/testkit/difftest"
	"github.com/tortie-net/tortie/internal/testkit/errtest"
	"github.com/tortie-net/tortie/internal/testkit/labstore"
	"github.com/tortie-net/tortie/internal/testkit/labtest"
)

func prefixes(texts ...string) []netip.Prefix {
	var out []netip.Prefix
	for _, text := range texts {
		out = append(out, netip.MustParsePrefix(text))
	}
	return out
}

// pool makes an IPPool that goes with the test, with all that was made in it.
func pool(t *testing.T, store *kubernetes.Store, name, cidr string, blockSize int) {
	t.Helper()
	labstore.Make(t, store,
		&api.IPPool{Meta: api.Meta{Name: name}, Spec: api.IPPoolSpec{CIDR: cidr, BlockSize: blockSize, IPIPMode: api.EncapAlways}})
	emptied(t, store)
}

// emptied removes all of IPAM at the end of the test.
func emptied(t *testing.T, store *kubernetes.Store) {
	t.Helper()
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
		defer cancel()
		var blocks api.IPAMBlockList
		var handles api.IPAMHandleList
		var affinities api.BlockAffinityList
		for _, list := range []api.ResourceList{&blocks, &handles, &affinities} {
			if err := store.List(ctx, list, datastore.ListOptions{}); err != nil {
				t.Error(err)
			}
		}
		for i := range blocks.Items {
			_ = store.Delete(ctx, &blocks.Items[i])
		}
		for i := range handles.Items {
			_ = store.Delete(ctx, &handles.Items[i])
		}
		for i := range affinities.Items {
			_ = store.Delete(ctx, &affinities.Items[i])
		}
	})
}

func held(t *testing.T, store datastore.Store, node string) []netip.Addr {
	t.Helper()
	addrs, err := ipam.NewClient(store, time.Now).Addresses(t.Context(), names.TunnelHandle(node))
	errtest.Must(t, err)
	return addrs
}

func TestTunnelAddressSurvivesAndFollowsThePools(t *testing.T) {
	store := labstore.Store(t)
	aNode(t, store, "tunnel-node", nil)
	pool(t, store, "tunnel-a", "10.79.0.0/24", 26)
	pool(t, store, "tunnel-b", "10.80.0.0/24", 26)
	keep := prefixes("10.79.0.0/24", "10.80.0.0/24")
	assign := func(ranges ...netip.Prefix) netip.Addr {
		t.Helper()
		agent := NewTunnel(ipam.NewClient(store, time.Now), IPIP, "tunnel-node", time.Now) // a new one each time
		a, err := agent.Address(t.Context(), TunnelInput{Ranges: Ranges{Assign: ranges, Keep: keep}})
		errtest.Must(t, err)
		return a
	}
	first := assign(keep[0])
	if !keep[0].Contains(first) {
		t.Fatalf("address %s is not in the pool", first)
	}
	if again := assign(keep[1], keep[0]); again != first {
		t.Errorf("the next agent got %s instead of %s", again, first)
	}
	moved := assign(keep[1])
	if !keep[1].Contains(moved) {
		t.Errorf("after the pool was replaced the address is %s", moved)
	}
	if held := held(t, store, "tunnel-node"); len(held) != 1 || held[0] != moved {
		t.Errorf("the handle holds %v; want %s alone", held, moved)
	}
	if kept := assign(); kept != moved {
		t.Errorf("with all pools disabled the address is %s, want %s to stay", kept, moved)
	}
	keep = keep[:1] // its pool is gone
	if none := assign(); none.IsValid() {
		t.Errorf("without a pool the address is %s", none)
	}
	if held := held(t, store, "tunnel-node"); len(held) > 0 {
		t.Errorf("the handle still holds %v", held)
	}
}

// allocation is a block's entry for the address in the Node's annotation.
type allocation struct {
	handle string
	attrs  map[string]string
	cools  bool
}

func ptr[T any](v T) *T { return &v }

// Each row is a case that Calico's agent distinguishes, see docs/design/agent.md: IPAM's entry for the address in the
// Node's annotation, and the result.
func TestTunnelAddressAgainstIPAM(t *testing.T) {
	const node, noted = "table-node", "10.85.0.5"
	ours := names.TunnelHandle(node)
	attrs := map[string]string{"node": node, "type": IPIP.mark}
	inPool, elsewhere, none := prefixes("10.85.0.0/24"), prefixes("10.86.0.0/24"), []netip.Prefix(nil)
	for name, c := range map[string]struct {
		at     *allocation // nil: free
		handle bool        // the IPAMHandle is there
		from   []netip.Prefix
		want   string // the address; empty: none; *: another
		unsure bool   // a pool cannot be read
		holder string // who holds the noted address afterwards; "nobody", or "" for: it is free
	}{
		"held": {at: &allocation{handle: ours, attrs: attrs}, handle: true, from: inPool,
			want: noted, holder: ours},
		"held, and its handle object is lost": {at: &allocation{handle: ours, attrs: attrs}, from: inPool, want: noted, holder: ours},
		"ours by its attributes":              {at: &allocation{attrs: attrs}, from: inPool, want: noted, holder: ours},
		"ours, by another handle":             {at: &allocation{handle: "other", attrs: attrs}, from: inPool, want: noted, holder: ours},
		"before there were handles":           {at: &allocation{}, from: inPool, want: noted, holder: ours},
		"not allocated":                       {from: inPool, want: "*"},
		"cooling down":                        {at: &allocation{cools: true}, from: inPool, want: "*", holder: "nobody"},
		"a pod's": {at: &allocation{handle: "pod", attrs: map[string]string{"pod": "p", "node": node}},
			from: inPool, want: "*", holder: "pod"},
		"a handle without attributes": {at: &allocation{handle: "pod"}, from: inPool, want: "*", holder: "pod"},
		"another node's tunnel": {at: &allocation{handle: names.TunnelHandle("n2"),
			attrs: map[string]string{"node": "n2", "type": IPIP.mark}}, from: inPool, want: "*", holder: names.TunnelHandle("n2")},
		"in the wrong pool":                 {at: &allocation{handle: ours, attrs: attrs}, handle: true, from: elsewhere, want: "*"},
		"before handles, in the wrong pool": {at: &allocation{}, from: elsewhere, want: "*"},
		"of a pool that cannot be read": {at: &allocation{handle: ours, attrs: attrs}, handle: true, from: none, unsure: true,
			want: noted, holder: ours},
		"not needed any more":                   {at: &allocation{handle: ours, attrs: attrs}, handle: true, from: none},
		"not needed, its handle object is lost": {at: &allocation{handle: ours, attrs: attrs}, from: none},
		"not needed, before handles":            {at: &allocation{}, from: none},
		"not needed, a pod's": {at: &allocation{handle: "pod", attrs: map[string]string{"pod": "p"}},
			from: none, holder: "pod"},
	} {
		t.Run(name, func(t *testing.T) {
			store := labstore.Store(t)
			aNode(t, store, node, nil)
			pool(t, store, "table-a", "10.85.0.0/24", 29)
			pool(t, store, "table-b", "10.86.0.0/24", 29)
			prepare(t, store, node, c.at, c.handle)
			if c.at != nil && c.at.cools {
				spec := api.IPAMConfigSpec{AutoAllocateBlocks: true, IPCooldownSeconds: 600}
				labstore.Make(t, store, &api.IPAMConfig{Meta: api.Meta{Name: api.DefaultName}, Spec: spec})
			}
			agent := NewTunnel(ipam.NewClient(store, time.Now), IPIP, node, time.Now)
			in := TunnelInput{Ranges: Ranges{Assign: c.from, Keep: c.from}, Noted: noted, Unsure: c.unsure}
			got, err := agent.Address(t.Context(), in)
			errtest.Must(t, err)
			switch {
			case c.want == "*" && (!got.IsValid() || got.String() == noted || !c.from[0].Contains(got)):
				t.Errorf("address %s, want another of %s", got, c.from)
			case c.want != "*" && text(got) != c.want:
				t.Errorf("address %q, want %q", text(got), c.want)
			}
			if holder := holderOf(t, store, noted); holder != c.holder {
				t.Errorf("the noted address is held by %q, want %q", holder, c.holder)
			}
			var want []netip.Addr
			if got.IsValid() {
				want = []netip.Addr{got}
			}
			difftest.Want(t, "the handle holds", want, held(t, store, node))
		})
	}
}

// prepare makes the block 10.85.0.0/29 with an allocation of 10.85.0.5.
func prepare(t *testing.T, store *kubernetes.Store, node string, at *allocation, handle bool) {
	t.Helper()
	cidr := netip.MustParsePrefix("10.85.0.0/29")
	spec := api.IPAMBlockSpec{
		CIDR: cidr.String(), Affinity: ptr("host:" + node), Allocations: make([]*int, 8), Unallocated: []int{0, 1, 2, 3, 4, 5, 6, 7},
		Attributes: []api.AllocationAttribute{}, SequenceNumberForAllocation: map[string]uint64{},
	}
	if at != nil {
		a := api.AllocationAttribute{Secondary: at.attrs}
		if at.handle != "" {
			a.HandleID = &at.handle
		}
		if at.cools {
			a.ReleasedAt = time.Now().UTC().Format(time.RFC3339)
		}
		spec.Attributes, spec.Allocations[5] = []api.AllocationAttribute{a}, ptr(0)
		spec.Unallocated = []int{0, 1, 2, 3, 4, 6, 7}
	} else {
		spec.Unallocated = []int{0, 1, 2, 3, 4, 6, 7, 5}
	}
	objects := []api.Resource{
		&api.IPAMBlock{Meta: api.Meta{Name: names.Block(cidr)}, Spec: spec},
		&api.BlockAffinity{
			Meta: api.Meta{Name: names.Affinity(node, cidr), Labels: names.AffinityLabels(node, api.AffinityHost, cidr)},
			Spec: api.BlockAffinitySpec{State: api.AffinityConfirmed, Node: node, Type: api.AffinityHost, CIDR: cidr.String()},
		},
	}
	if handle {
		objects = append(objects, &api.IPAMHandle{Meta: api.Meta{Name: names.Handle(at.handle)},
			Spec: api.IPAMHandleSpec{HandleID: at.handle, Block: map[string]int{cidr.String(): 1}}})
	}
	for _, obj := range objects {
		errtest.Must(t, store.Create(t.Context(), obj))
	}
}

// holderOf returns the handle that an address of 10.85.0.0/29 is held by.
func holderOf(t *testing.T, store *kubernetes.Store, addr string) string {
	t.Helper()
	b := &api.IPAMBlock{Meta: api.Meta{Name: "10-85-0-0-29"}}
	errtest.Must(t, store.Get(t.Context(), b))
	at := b.Spec.Allocations[netip.MustParseAddr(addr).As4()[3]]
	switch {
	case at == nil:
		return ""
	case b.Spec.Attributes[*at].HandleID == nil:
		return "nobody"
	}
	return *b.Spec.Attributes[*at].HandleID
}

// counting counts what is asked of a store.
type counting struct {
	datastore.Store
	gets atomic.Int32
}

func (c *counting) Get(ctx context.Context, obj api.Resource) error {
	c.gets.Add(1)
	return c.Store.Get(ctx, obj)
}

// The datastore is asked when something has happened, and only then.
func TestTunnelAddressIsLookedUpAgain(t *testing.T) {
	plain := labstore.Store(t)
	aNode(t, plain, "again-node", nil)
	pool(t, plain, "again", "10.87.0.0/24", 29)
	store := &counting{Store: plain}
	now := time.Date(2026, 11, 21, 12, 0, 0, 0, time.UTC)
	client := ipam.NewClient(store, time.Now)
	agent := NewTunnel(client, IPIP, "again-node", func() time.Time { return now })
	in := TunnelInput{Ranges: Ranges{Assign: prefixes("10.87.0.0/24"), Keep: prefixes("10.87.0.0/24")}, UID: "1"}
	step := func(what string, asks bool) netip.Addr {
		t.Helper()
		store.gets.Store(0)
		a, err := agent.Address(t.Context(), in)
		if err != nil {
			t.Fatalf("%s: %v", what, err)
		}
		if n := store.gets.Load(); (n > 0) != asks {
			t.Errorf("%s: %d GETs, want some: %v", what, n, asks)
		}
		return a
	}
	first := step("the first pass", true)
	step("the next", false)
	in.Noted = first.String()
	step("the Node says it", false)
	in.Noted = "10.87.0.200"
	if a := step("somebody changed the annotation", true); a != first {
		t.Errorf("address %s, want %s still", a, first)
	}
	in.Noted = ""
	if a := step("somebody removed it", true); a != first {
		t.Errorf("address %s, want %s still", a, first)
	}
	in.Noted = first.String()
	in.Blocks = prefixes("10.87.0.0/29")
	step("a block came", true)
	now = now.Add(time.Hour)
	step("an hour later", false)

	// The Node is deleted, its address is collected and given to a pod, and the Node is there again.
	if _, err := client.Release(t.Context(), names.TunnelHandle("again-node")); err != nil {
		t.Fatal(err)
	}
	pod := ipam.Request{Owner: ipam.Owner{Handle: "again-pod"}, Host: "again-node", Use: api.UseWorkload, Addresses: []netip.Addr{first}}
	if _, err := client.Assign(t.Context(), pod); err != nil {
		t.Fatal(err)
	}
	in.UID, in.Noted = "2", ""
	second := step("another Node of that name", true)
	if second == first || !second.IsValid() {
		t.Fatalf("address %s, and a pod has %s", second, first)
	}
	in.Noted = second.String()
	step("at once", false)
	// Who collects had begun before the Node came back.
	if _, err := client.Release(t.Context(), names.TunnelHandle("again-node")); err != nil {
		t.Fatal(err)
	}
	now = now.Add(doubtPause)
	third := step("in doubt", true)
	if got := held(t, plain, "again-node"); len(got) != 1 || got[0] != third {
		t.Errorf("the handle holds %v, the agent says %s", got, third)
	}
	now = now.Add(doubtTime)
	in.Noted = third.String()
	step("the doubt is over", false)
}

// A garbage collector that found a Node gone cannot free its tunnel address once an agent has renewed it for the next
// Node. An agent that has done so writes nothing when it restarts.
func TestTunnelAddressIsTakenOver(t *testing.T) {
	store := labstore.Store(t)
	aNode(t, store, "over-node", nil)
	pool(t, store, "over", "10.86.0.0/24", 29)
	client := ipam.NewClient(store, time.Now)
	in := TunnelInput{Ranges: Ranges{Assign: prefixes("10.86.0.0/24")}, UID: "1"}
	running := NewTunnel(client, IPIP, "over-node", time.Now)
	address := func(what string, agent *Tunnel) netip.Addr {
		t.Helper()
		a, err := agent.Address(t.Context(), in)
		if err != nil || !a.IsValid() {
			t.Fatalf("%s: %s, %v", what, a, err)
		}
		return a
	}
	addr := address("the first Node", running)
	in.Noted = addr.String()
	block := func() *api.IPAMBlock {
		t.Helper()
		b := &api.IPAMBlock{Meta: api.Meta{Name: names.Block(netip.PrefixFrom(addr, 29).Masked())}}
		errtest.Must(t, store.Get(t.Context(), b))
		return b
	}
	expire := func() []int {
		t.Helper()
		b := block()
		decided := ipam.Expired{Handle: names.TunnelHandle("over-node"), Addresses: map[netip.Addr]ipam.Assigned{
			addr: {Block: netip.MustParsePrefix(b.Spec.CIDR), Sequence: b.Spec.SequenceNumberForAllocation[strconv.Itoa(int(addr.As4()[3]%8))]},
		}}
		if a := address("another Node of that name", running); a != addr {
			t.Fatalf("the tunnel has %s, not %s", a, addr)
		}
		done, err := client.Expire(t.Context(), api.IPAMConfigSpec{}, []ipam.Expired{decided})
		errtest.Must(t, err)
		return done
	}
	in.UID = "2"
	if done := expire(); len(done) > 0 || len(held(t, store, "over-node")) != 1 {
		t.Error("what the running agent has taken over was freed")
	}
	// An agent that has just been started, by a Node that has the annotations of the one before.
	running, in.UID = NewTunnel(client, IPIP, "over-node", time.Now), "3"
	if done := expire(); len(done) > 0 || len(held(t, store, "over-node")) != 1 {
		t.Error("what a new agent has taken over was freed")
	}
	before := block().ResourceVersion
	in.Known = true
	if a := address("a restart", NewTunnel(client, IPIP, "over-node", time.Now)); a != addr || block().ResourceVersion != before {
		t.Errorf("a restart has %s, not %s, or has written the block", a, addr)
	}
	if done := expire(); len(done) != 1 {
		t.Error("an agent that knows its Node has taken an address over")
	}
}

// A Node that goes away before its address is written on it leaves nothing behind.
func TestTunnelAddressOfANodeThatIsGone(t *testing.T) {
	store := labstore.Store(t)
	n := aNode(t, store, "gone-node", nil)
	pool(t, store, "gone", "10.88.0.0/24", 29)
	agent := NewTunnel(ipam.NewClient(store, time.Now), IPIP, n.Name, time.Now)
	in := TunnelInput{Ranges: Ranges{Assign: prefixes("10.88.0.0/24")}}
	addr, err := agent.Address(t.Context(), in)
	errtest.Must(t, err)
	errtest.Must(t, store.Delete(t.Context(), read(t, store, n.Name)))
	err = Announce(t.Context(), store, nil, n.Name, map[string]string{api.AnnotationIPv4TunnelAddr: addr.String()})
	if !isNotFound(err) {
		t.Fatalf("announced on a Node that is gone: %v", err)
	}
	errtest.Must(t, agent.Abandon(t.Context()))
	if held := held(t, store, n.Name); len(held) > 0 {
		t.Errorf("the handle still holds %v", held)
	}
	aNode(t, store, n.Name, nil)
	if addr, err = agent.Address(t.Context(), in); err != nil || !addr.IsValid() {
		t.Fatalf("the Node is back: %s, %v", addr, err)
	}
	in.Noted = addr.String()
	if _, err := agent.Address(t.Context(), in); err != nil {
		t.Fatal(err)
	}
	if err := agent.Abandon(t.Context()); err != nil { // in the Node's annotation: left to the collector
		t.Fatal(err)
	}
	if held := held(t, store, n.Name); len(held) != 1 {
		t.Errorf("an address that the Node says was released: %v", held)
	}
}

// errKilled is what an agent gets that is killed between two writes.
var errKilled = errors.New("killed")

// mortal is a store that fails after some writes.
type mortal struct {
	datastore.Store
	left atomic.Int32
}

func (m *mortal) write(do func() error) error {
	if m.left.Add(-1) < 0 {
		return errKilled
	}
	return do()
}

func (m *mortal) Create(ctx context.Context, obj api.Resource) error {
	return m.write(func() error { return m.Store.Create(ctx, obj) })
}

func (m *mortal) Update(ctx context.Context, obj api.Resource) error {
	return m.write(func() error { return m.Store.Update(ctx, obj) })
}

func (m *mortal) Delete(ctx context.Context, obj api.Resource) error {
	return m.write(func() error { return m.Store.Delete(ctx, obj) })
}

// Twenty agents are killed at any write, while their pools change and their Nodes are replaced. No two ever have one
// address. In the end each handle holds one, and nothing else is held.
func TestTunnelAddressesOfManyNodes(t *testing.T) {
	store := labstore.Store(t)
	pool(t, store, "many-a", "10.89.0.0/24", 28)
	pool(t, store, "many-b", "10.90.0.0/24", 28)
	a, b := prefixes("10.89.0.0/24"), prefixes("10.90.0.0/24")
	both := slices.Concat(a, b)
	seed := time.Now().UnixNano()
	t.Logf("seed %d", seed)
	final := make([]netip.Addr, 20)
	var nodes sync.WaitGroup
	for i := range final {
		name := fmt.Sprintf("many-%d", i)
		aNode(t, store, name, nil)
		nodes.Go(func() {
			random := rand.New(rand.NewPCG(uint64(seed), uint64(i)))
			noted := ""
			for range 8 {
				m := &mortal{Store: store}
				m.left.Store(random.Int32N(8))
				agent := NewTunnel(ipam.NewClient(m, time.Now), IPIP, name, time.Now)
				ranges := [][]netip.Prefix{a, b, both, nil}[random.IntN(4)]
				addr, err := agent.Address(t.Context(), TunnelInput{Ranges: Ranges{Assign: ranges, Keep: both}, Noted: noted})
				if err == nil && random.IntN(3) > 0 { // else it is killed before it writes the annotation
					noted = text(addr)
				} else if err != nil && !errors.Is(err, errKilled) {
					t.Errorf("%s: %v", name, err)
				}
			}
			agent := NewTunnel(ipam.NewClient(store, time.Now), IPIP, name, time.Now)
			var err error
			if final[i], err = agent.Address(t.Context(), TunnelInput{Ranges: Ranges{Assign: both, Keep: both}, Noted: noted}); err != nil {
				t.Errorf("%s: %v", name, err)
			}
		})
	}
	nodes.Wait()
	checkAddresses(t, store, final)
}

func checkAddresses(t *testing.T, store *kubernetes.Store, final []netip.Addr) {
	t.Helper()
	want := map[string]netip.Addr{}
	for i, addr := range final {
		name := fmt.Sprintf("many-%d", i)
		if got := held(t, store, name); len(got) != 1 || got[0] != addr {
			t.Errorf("%s has %s, and its handle holds %v", name, addr, got)
		}
		want[names.TunnelHandle(name)] = addr
	}
	var blocks api.IPAMBlockList
	errtest.Must(t, store.List(t.Context(), &blocks, datastore.ListOptions{}))
	got := map[string]netip.Addr{}
	for _, b := range blocks.Items {
		first := netip.MustParsePrefix(b.Spec.CIDR).Addr().As4()
		for ordinal, at := range b.Spec.Allocations {
			if at == nil {
				continue
			}
			addr := first
			addr[3] += byte(ordinal)
			handle := b.Spec.Attributes[*at].HandleID
			if handle == nil || got[*handle].IsValid() {
				t.Errorf("%s is held once too often, or by nobody: %+v", netip.AddrFrom4(addr), b.Spec.Attributes[*at])
				continue
			}
			got[*handle] = netip.AddrFrom4(addr)
		}
	}
	difftest.Want(t, "who holds what", want, got)
}

// All that a restarted agent asks for its duties, when everything is as it should be: its handle and the block that it
// names.
func TestRequestsOfASteadyStart(t *testing.T) {
	proxy := labtest.NewProxy(t)
	store := labstore.At(t, proxy.Kubeconfig())
	nothingThere(t, store)
	aNode(t, store, "steady-node", nil)
	pool(t, store, "steady", "10.91.0.0/24", 29)
	want := Cluster{Type: []string{"k8s", "bgp"}}
	start := func(again bool) { // of an agent with a file about the Node, or without
		t.Helper()
		seen := read(t, store, "steady-node") // in place of the watches
		there := found(t, store)
		var own api.BlockAffinityList
		errtest.Must(t, store.List(t.Context(), &own, datastore.ListOptions{Host: seen.Name}))
		proxy.Reset()
		agent := NewTunnel(ipam.NewClient(store, time.Now), IPIP, seen.Name, time.Now)
		ranges := Ranges{Assign: prefixes("10.91.0.0/24"), Keep: prefixes("10.91.0.0/24")}
		addr, err := agent.Address(t.Context(),
			TunnelInput{Ranges: ranges, UID: seen.UID, Known: again, Noted: seen.Annotations[api.AnnotationIPv4TunnelAddr]})
		errtest.Must(t, errors.Join(err,
			SetUp(t.Context(), store, want, there),
			LabelAffinities(t.Context(), store, own.Items),
			Announce(t.Context(), store, seen.Annotations, seen.Name, map[string]string{api.AnnotationIPv4TunnelAddr: text(addr)}),
			NewAvailability(store, seen.Name, time.Now).Sync(t.Context(), seen.Status.Conditions, nil),
		))
	}
	start(false)
	start(true)
	difftest.Want(t, "requests", map[string]int{"get ipamhandles": 1, "get ipamblocks": 1}, proxy.Requests())
}

// Each kind of tunnel has an address, a handle and a mark of its own, as Calico writes them; one that is released
// leaves the others.
func TestTunnelKinds(t *testing.T) {
	store := labstore.Store(t)
	aNode(t, store, "kinds-node", nil)
	pool(t, store, "kinds-4", "10.78.0.0/24", 26)
	labstore.Make(t, store,
		&api.IPPool{Meta: api.Meta{Name: "kinds-6"}, Spec: api.IPPoolSpec{CIDR: "fd78::/112", BlockSize: 122, VXLANMode: api.EncapAlways}})
	client := ipam.NewClient(store, time.Now)
	ranges := map[bool][]netip.Prefix{false: prefixes("10.78.0.0/24"), true: prefixes("fd78::/112")}
	handles := map[string]TunnelKind{"ipip-tunnel-addr-kinds-node": IPIP, "vxlan-tunnel-addr-kinds-node": VXLAN,
		"vxlan-v6-tunnel-addr-kinds-node": VXLANv6}
	for handle, kind := range handles {
		addr, err := NewTunnel(client, kind, "kinds-node", time.Now).Address(t.Context(),
			TunnelInput{Ranges: Ranges{Assign: ranges[kind.v6], Keep: ranges[kind.v6]}})
		errtest.Must(t, err)
		held, err := client.Addresses(t.Context(), handle)
		if err != nil || !slices.Equal(held, []netip.Addr{addr}) || addr.Is6() != kind.v6 {
			t.Errorf("%s holds %v, %v; want %s", handle, held, err, addr)
		}
	}
	var blocks api.IPAMBlockList
	errtest.Must(t, store.List(t.Context(), &blocks, datastore.ListOptions{}))
	marks := map[string]string{}
	for _, b := range blocks.Items {
		for _, a := range b.Spec.Attributes {
			if a.HandleID != nil && a.Secondary["node"] == "kinds-node" {
				marks[*a.HandleID] = a.Secondary["type"]
			}
		}
	}
	want := map[string]string{"ipip-tunnel-addr-kinds-node": "ipipTunnelAddress", "vxlan-tunnel-addr-kinds-node": "vxlanTunnelAddress",
		"vxlan-v6-tunnel-addr-kinds-node": "vxlanV6TunnelAddress"}
	difftest.Want(t, "marks in IPAM", want, marks)
	if none, err := NewTunnel(client, VXLAN, "kinds-node", time.Now).Address(t.Context(), TunnelInput{}); err != nil || none.IsValid() {
		t.Errorf("no pool encapsulates: %s, %v", none, err)
	}
	for handle, kind := range handles {
		held, err := client.Addresses(t.Context(), handle)
		if err != nil || len(held) == 0 != (kind.mark == VXLAN.mark) {
			t.Errorf("%s holds %v, %v", handle, held, err)
		}
	}
}

// Another program has taken the name of a node's handle, by an ID in capitals: the node reports it, removes the object,
// and continues.
func TestTunnelHandleThatWasTaken(t *testing.T) {
	store := labstore.Store(t)
	pool(t, store, "taken", "10.121.7.0/24", 26)
	for _, kind := range []TunnelKind{IPIP, VXLAN} {
		id := kind.handle("taken-node")
		squat := &api.IPAMHandle{
			Meta: api.Meta{Name: names.Handle(id), Annotations: map[string]string{names.AnnotationNode: "thief"}},
			Spec: api.IPAMHandleSpec{HandleID: strings.ToUpper(id[:4]) + id[4:], Block: map[string]int{}},
		}
		labstore.Forget(t, store, &api.IPAMHandle{Meta: api.Meta{Name: names.Handle(id)}, Spec: api.IPAMHandleSpec{HandleID: id}})
		errtest.Must(t, store.Create(t.Context(), squat))
		tunnel := NewTunnel(ipam.NewClient(store, time.Now), kind, "taken-node", time.Now)
		in := TunnelInput{Ranges: Ranges{Assign: prefixes("10.121.7.0/24")}, UID: "u"}
		if _, err := tunnel.Address(t.Context(), in); !errors.Is(err, ipam.ErrForeignHandle) {
			t.Errorf("%s: the first look: error %v, want %v", kind.device, err, ipam.ErrForeignHandle)
		}
		addr, err := tunnel.Address(t.Context(), in)
		if err != nil || !addr.IsValid() {
			t.Fatalf("%s: the second look: address %v, error %v", kind.device, addr, err)
		}
		h := &api.IPAMHandle{Meta: api.Meta{Name: names.Handle(id)}, Spec: api.IPAMHandleSpec{HandleID: id}}
		if err := store.Get(t.Context(), h); err != nil || h.Spec.HandleID != id || h.Annotations[names.AnnotationNode] != "taken-node" {
			t.Errorf("%s: the handle is %+v, error %v", kind.device, h, err)
		}
	}
}
