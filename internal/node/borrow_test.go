package node

import (
	"context"
	"errors"
	"log/slog"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/tortie-net/tortie/internal/api"
	"github.com/tortie-net/tortie/internal/datastore"
	"github.com/tortie-net/tortie/internal/desired"
	"github.com/tortie-net/tortie/internal/names"
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
		"the record says so":         {addr: "192.168.2.10", want: "yes"},
		"it names another":           {addr: "192.168.2.10", node: "node2", want: "in use on node far, not on node2"},
		"it names no node":           {addr: "192.168.2.11", want: "yes"},
		"a machine that moves":       {addr: "192.168.2.12", want: "yes"},
		"it was released":            {addr: "192.168.2.13", want: "nobody has the address"},
		"attributes that are not":    {addr: "192.168.2.14", want: "nobody has the address"},
		"a negative place":           {addr: "192.168.2.15", want: "nobody has the address"},
		"a free address":             {addr: "192.168.2.20", want: "nobody has the address"},
		"a short record":             {addr: "192.168.2.60", change: func(s *api.IPAMBlockSpec) { s.Allocations = s.Allocations[:16] }, want: "nobody has the address"},
		"marked deleted":             {addr: "192.168.2.10", change: func(s *api.IPAMBlockSpec) { s.Deleted = true }, want: "there is no record"},
		"no record":                  {addr: "192.168.2.10", err: datastore.ErrNotFound, want: "there is no record"},
		"an API server that is away": {addr: "192.168.2.10", err: errors.New("connection refused"), want: "later the record of block 192.168.2.0/26 cannot be read: connection refused"},
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

// readings are a datastore that counts, and fails when it is told to.
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
	b := &api.IPAMBlock{Spec: api.IPAMBlockSpec{Allocations: make([]*int, 64), Attributes: []api.AllocationAttribute{{Secondary: map[string]string{"node": node}}}}}
	b.Spec.Allocations[9], b.Spec.Allocations[10] = &first, &first
	return b
}

// A block is read once for all claims in it, what was confirmed stands while it cannot be read, and a claim that nobody makes any
// more is forgotten unless silence means nothing.
func TestRecords(t *testing.T) {
	block := prefix("192.168.2.0/26")
	one, two := desired.Claim{Addr: addr("192.168.2.9"), Node: "far"}, desired.Claim{Addr: addr("192.168.2.10"), Node: "far"}
	store := &readings{obj: lentTo("far")}
	r := newRecords(store, slog.New(slog.DiscardHandler))
	never := func(desired.Claim) bool { return false }
	settle := func() {
		for b := range r.take() {
			r.settle(t.Context(), b)
		}
	}
	now := time.Now()
	r.want(now, map[desired.Claim]netip.Prefix{one: block, two: block}, never)
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
	r.want(now, map[desired.Claim]netip.Prefix{one: block, two: block}, never)
	if settle(); len(store.read) != 1 {
		t.Errorf("read again at once: %v", store.read)
	}

	store.err = errors.New("away")
	later := now.Add(recordAge + time.Minute)
	r.want(later, map[desired.Claim]netip.Prefix{one: block, two: block}, never)
	if settle(); len(store.read) != 2 || !r.verdicts()[one].Confirmed {
		t.Errorf("an API server that is away: %+v after %v", r.verdicts()[one], store.read)
	}

	store.err, store.obj = nil, lentTo("node2")
	r.want(later.Add(recordAge+time.Minute), map[desired.Claim]netip.Prefix{one: block}, func(c desired.Claim) bool { return c == two })
	if settle(); r.verdicts()[one].Confirmed || r.verdicts()[one].Pending || len(r.verdicts()) != 2 {
		t.Errorf("given to another: %+v", r.verdicts())
	}
	r.want(later, nil, never)
	if got := r.verdicts(); len(got) != 0 {
		t.Errorf("nobody claims anything: %+v", got)
	}
	r.trust(map[desired.Claim]netip.Prefix{one: block})
	if !r.verdicts()[one].Confirmed {
		t.Error("what an earlier agent has verified is not trusted")
	}
}

func TestAFloodOfClaimsIsBounded(t *testing.T) {
	r := newRecords(&readings{obj: lentTo("far")}, slog.New(slog.DiscardHandler))
	claims := map[desired.Claim]netip.Prefix{}
	for i := range 3 * mostClaims {
		a := netip.AddrFrom4([4]byte{10, byte(i >> 10), byte(i >> 2), byte(i << 6)})
		claims[desired.Claim{Addr: a, Node: "far"}] = netip.PrefixFrom(a, 26)
	}
	r.want(time.Now(), claims, func(desired.Claim) bool { return false })
	if len(r.verdicts()) != mostClaims || len(r.take()) != mostClaims {
		t.Errorf("%d claims are remembered", len(r.verdicts()))
	}
}
