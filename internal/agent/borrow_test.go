package agent

import (
	"context"
	"errors"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tortie-net/tortie/internal/agent/desired"
	"github.com/tortie-net/tortie/internal/api"
	"github.com/tortie-net/tortie/internal/api/names"
	"github.com/tortie-net/tortie/internal/datastore"
	"github.com/tortie-net/tortie/internal/testkit/waittest"
)

func TestJudgeRecord(t *testing.T) {
	block := prefix("192.168.2.0/26")
	record := func(change func(*api.IPAMBlockSpec)) *api.IPAMBlock {
		at := func(i int) *int { return &i }
		b := &api.IPAMBlock{Spec: api.IPAMBlockSpec{
			Allocations: make([]*int, 64),
			Attributes: []api.AllocationAttribute{
				{Secondary: map[string]string{"node": "far"}}, {Secondary: map[string]string{"pod": "p"}},
				{Secondary: map[string]string{"node": "node2"}, AlternateOwnerAttrs: map[string]string{"node": "far"}},
				{Secondary: map[string]string{"node": "far"}, ReleasedAt: "2026-11-21T00:00:00Z"},
			},
		}}
		for i, attr := range []int{0, 1, 2, 3, 4, -1} {
			b.Spec.Allocations[10+i] = at(attr)
		}
		if change != nil {
			change(&b.Spec)
		}
		return b
	}
	for name, tc := range map[string]struct {
		addr, node string
		change     func(*api.IPAMBlockSpec)
		err        error
		want       string // "yes", "later ...", or part of the reason
	}{
		"the record says so":      {addr: "192.168.2.10", want: "yes"},
		"it names another":        {addr: "192.168.2.10", node: "node2", want: "in use on node far, not on node2"},
		"it names no node":        {addr: "192.168.2.11", want: "does not say on which node"},
		"a machine that moves":    {addr: "192.168.2.12", want: "yes"},
		"it was released":         {addr: "192.168.2.13", want: "does not assign the address"},
		"attributes that are not": {addr: "192.168.2.14", want: "does not assign the address"},
		"a negative place":        {addr: "192.168.2.15", want: "does not assign the address"},
		"a free address":          {addr: "192.168.2.20", want: "does not assign the address"},
		"a short record": {addr: "192.168.2.60", change: func(s *api.IPAMBlockSpec) { s.Allocations = s.Allocations[:16] },
			want: "does not assign the address"},
		"marked deleted": {addr: "192.168.2.10", change: func(s *api.IPAMBlockSpec) { s.Deleted = true }, want: "there is no record"},
		"no record":      {addr: "192.168.2.10", err: datastore.ErrNotFound, want: "there is no record"},
		"an API server that is away": {addr: "192.168.2.10", err: errors.New("connection refused"),
			want: "later the record of block 192.168.2.0/26 cannot be read: connection refused"},
	} {
		t.Run(name, func(t *testing.T) {
			c := desired.Claim{Addr: addr(tc.addr), Node: "far"}
			if tc.node != "" {
				c.Node = tc.node
			}
			v := judgeRecord(c, block, record(tc.change), tc.err)
			text := v.Why
			if v.Confirmed {
				text = "yes"
			}
			if v.Pending {
				text = "later " + text
			}
			if !strings.Contains(text, tc.want) {
				t.Errorf("%q, want %q", text, tc.want)
			}
		})
	}
}

func TestOrdinal(t *testing.T) {
	for _, tc := range []struct {
		block, addr string
		want        int
	}{
		{"192.168.2.64/26", "192.168.2.64", 0}, {"192.168.2.64/26", "192.168.2.127", 63}, {"192.168.2.64/26", "192.168.2.128", -1},
		{"10.0.0.0/20", "10.0.15.255", 4095}, {"10.0.0.0/8", "10.0.0.1", -1}, {"10.0.0.7/32", "10.0.0.7", 0},
		{"fd00::ff40/122", "fd00::ff7f", 63}, {"fd00::/116", "fd00::fff", 4095}, {"fd00::/122", "192.168.2.1", -1},
	} {
		if got := ordinal(prefix(tc.block), addr(tc.addr)); got != tc.want {
			t.Errorf("%s in %s: %d, want %d", tc.addr, tc.block, got, tc.want)
		}
	}
}

// readings is a datastore that counts reads, and fails on request.
type readings struct {
	obj  *api.IPAMBlock
	err  error
	read []string
}

func (r *readings) Get(_ context.Context, obj api.Resource) error {
	r.read = append(r.read, obj.GetMeta().Name)
	if r.err == nil {
		obj.(*api.IPAMBlock).Spec = r.obj.Spec
	}
	return r.err
}

func lentTo(node string) *api.IPAMBlock {
	first := 0
	b := &api.IPAMBlock{Spec: api.IPAMBlockSpec{Allocations: make([]*int, 64),
		Attributes: []api.AllocationAttribute{{Secondary: map[string]string{"node": node}}}}}
	b.Spec.Allocations[9], b.Spec.Allocations[10] = &first, &first
	return b
}

// A block is read once for all claims in it, a confirmed claim stands while the block cannot be read, and a claim that
// is no longer made is forgotten unless silence means nothing.
func TestRecords(t *testing.T) {
	block := prefix("192.168.2.0/26")
	one, two := desired.Claim{Addr: addr("192.168.2.9"), Node: "far"}, desired.Claim{Addr: addr("192.168.2.10"), Node: "far"}
	store := &readings{obj: lentTo("far")}
	r := newRecords(store)
	never := func(desired.Claim) bool { return false }
	settle := func() {
		for {
			by, b, _, ok := r.wanted.take(time.Now())
			if !ok {
				return
			}
			r.settle(t.Context(), by, b)
		}
	}
	now := time.Now()
	r.want(now, desired.Claims{one: {Block: block, By: "far"}, two: {Block: block, By: "far"}}, never)
	if v := r.verdicts()[one]; v.Confirmed || !v.Pending {
		t.Errorf("before it was read: %+v", v)
	}
	settle()
	if got := r.verdicts(); !got[one].Confirmed || !got[two].Confirmed || !slices.Equal(store.read, []string{names.Block(block)}) {
		t.Errorf("%+v after %v", got, store.read)
	}
	select {
	case <-r.changed:
	default:
		t.Error("nobody was woken")
	}
	r.want(now, desired.Claims{one: {Block: block, By: "far"}, two: {Block: block, By: "far"}}, never)
	if settle(); len(store.read) != 1 {
		t.Errorf("read again at once: %v", store.read)
	}

	store.err = errors.New("away")
	later := now.Add(recordAge + time.Minute)
	r.want(later, desired.Claims{one: {Block: block, By: "far"}, two: {Block: block, By: "far"}}, never)
	if settle(); len(store.read) != 2 || !r.verdicts()[one].Confirmed {
		t.Errorf("an API server that is away: %+v after %v", r.verdicts()[one], store.read)
	}

	store.err, store.obj = nil, lentTo("node2")
	r.want(later.Add(recordAge+time.Minute), desired.Claims{one: {Block: block, By: "far"}}, func(c desired.Claim) bool { return c == two })
	if settle(); r.verdicts()[one].Confirmed || r.verdicts()[one].Pending || len(r.verdicts()) != 2 {
		t.Errorf("given to another: %+v", r.verdicts())
	}
	r.want(later, nil, never)
	if got := r.verdicts(); len(got) != 0 {
		t.Errorf("nobody claims anything: %+v", got)
	}
	r.trust(desired.Claims{one: {Block: block, By: "far"}})
	if !r.verdicts()[one].Confirmed {
		t.Error("what an earlier agent has verified is not trusted")
	}
}

// flood returns claims of one node in as many blocks, none of which exists.
func flood(by string, n int) desired.Claims {
	claims := desired.Claims{}
	for i := range n {
		a := netip.AddrFrom4([4]byte{10, byte(i >> 10), byte(i >> 2), byte(i << 6)})
		claims[desired.Claim{Addr: a, Node: by}] = desired.Claimed{Block: netip.PrefixFrom(a, 26), By: by}
	}
	return claims
}

// fewBlocks has the records of some blocks.
type fewBlocks struct {
	mu   sync.Mutex
	has  map[string]*api.IPAMBlock
	read map[string]int
}

func (o *fewBlocks) Get(_ context.Context, obj api.Resource) error {
	o.mu.Lock()
	defer o.mu.Unlock()
	name := obj.GetMeta().Name
	o.read[name]++
	if b := o.has[name]; b != nil {
		obj.(*api.IPAMBlock).Spec = b.Spec
		return nil
	}
	return datastore.ErrNotFound
}

func (o *fewBlocks) count() (n int) {
	o.mu.Lock()
	defer o.mu.Unlock()
	for _, times := range o.read {
		n += times
	}
	return n
}

// A node that claims thousands of addresses costs the API server one read a second, and delays no other node's claim.
func TestAFloodOfClaimsDelaysNobody(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		block := prefix("192.168.2.0/26")
		honest := desired.Claim{Addr: addr("192.168.2.9"), Node: "node2"}
		store := &fewBlocks{has: map[string]*api.IPAMBlock{names.Block(block): lentTo("node2")}, read: map[string]int{}}
		r := newRecords(store)
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		go func() { ended <- r.run(ctx) }()
		claims := flood("thief", 4096)
		never := func(desired.Claim) bool { return false }
		r.want(time.Now(), claims, never)
		waittest.Advance(2 * time.Second) // for the thief to be known as one
		began, before := time.Now(), store.count()
		claims[honest] = desired.Claimed{Block: block, By: "node2"}
		for !r.verdicts()[honest].Confirmed && time.Since(began) < 10*time.Second {
			r.want(time.Now(), claims, never)
			waittest.Advance(10 * time.Millisecond)
		}
		if took := time.Since(began); took > 3*time.Second {
			t.Errorf("an honest claim was looked at after %s", took)
		}
		for time.Since(began) < 5*time.Second {
			r.want(time.Now(), claims, never)
			waittest.Advance(50 * time.Millisecond)
		}
		if n := store.count() - before; n > 7 || before > refusalsInARow+3 {
			t.Errorf("%d readings at first, and %d in the 5 seconds after", before, n)
		}
		if n := len(r.verdicts()); n > mostOpen+1 {
			t.Errorf("%d claims are remembered", n)
		}
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
}

// If there are more claims than are remembered, all are read in time: refused ones make room.
func TestRefusedClaimsMakeRoom(t *testing.T) {
	claims := flood("far", 3*mostOpen)
	store := &fewBlocks{read: map[string]int{}}
	r := newRecords(store)
	now := time.Now()
	for range 60 {
		r.want(now, claims, func(desired.Claim) bool { return false })
		for {
			by, b, _, ok := r.wanted.take(now)
			if !ok {
				break
			}
			r.settle(t.Context(), by, b)
			r.wanted.judge(now, by, true) // the pause is of no interest here
		}
		for c, known := range r.known {
			known.read = now
			r.known[c] = known
		}
		now = now.Add(refusedAge + time.Second)
	}
	if len(store.read) != len(claims) {
		t.Errorf("%d of %d claims were looked at", len(store.read), len(claims))
	}
}

// Several sources take turns, and a source that is refused has to wait.
func TestRota(t *testing.T) {
	var r fairQueue[int]
	now := time.Now()
	for i := range 1000 {
		r.add("much", i)
		r.add("much", i) // waits already
	}
	r.add("little", 1000)
	var order []string
	for range 4 {
		by, _, _, _ := r.take(now)
		order = append(order, by)
	}
	if got := strings.Join(order, " "); got != "much little much much" {
		t.Errorf("order: %s", got)
	}
	left := 0
	for by, _, _, ok := r.take(now); ok; by, _, _, ok = r.take(now) {
		left++
		r.judge(now, by, true)
	}
	if left != mostQueued-3 {
		t.Errorf("%d are left of %d", left, mostQueued)
	}
	r.add("much", 1)
	for range refusalsInARow + 20 {
		r.judge(now, "much", false)
	}
	if _, _, wait, ok := r.take(now); ok || wait != mostWait {
		t.Errorf("one that is refused: %v, to wait for %s", ok, wait)
	}
	if by, _, _, ok := r.take(now.Add(mostWait)); !ok || by != "much" {
		t.Errorf("after the wait: %q, %v", by, ok)
	}
	r.forget(now.Add(3 * mostWait))
	if len(r.sources) != 0 {
		t.Errorf("%d sources are remembered", len(r.sources))
	}
}
