package ipam

import (
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/tortie-net/tortie/internal/api"
	"github.com/tortie-net/tortie/internal/testkit/difftest"
	"github.com/tortie-net/tortie/internal/testkit/errtest"
)

func TestParsePool(t *testing.T) {
	for _, c := range []struct {
		name               string
		obj                *api.IPPool
		bits               int
		enabled, automatic bool
		uses               []api.AllowedUse
	}{
		{"defaults of IPv4", &api.IPPool{Spec: api.IPPoolSpec{CIDR: "10.0.0.0/16"}},
			26, true, true, []api.AllowedUse{api.UseWorkload, api.UseTunnel}},
		{"defaults of IPv6", &api.IPPool{Spec: api.IPPoolSpec{CIDR: "fd00::/48"}},
			122, true, true, []api.AllowedUse{api.UseWorkload, api.UseTunnel}},
		{"one block", &api.IPPool{Spec: api.IPPoolSpec{CIDR: "10.0.0.0/26"}},
			26, true, true, []api.AllowedUse{api.UseWorkload, api.UseTunnel}},
		{"all told", &api.IPPool{Spec: api.IPPoolSpec{CIDR: "10.0.0.0/16", BlockSize: 28, AssignmentMode: api.AssignManual,
			Disabled: true, AllowedUses: []api.AllowedUse{api.UseLoadBalancer}}},
			28, false, false, []api.AllowedUse{api.UseLoadBalancer}},
		{"being deleted", &api.IPPool{Meta: api.Meta{DeletionTimestamp: "2026-11-20T16:00:00Z"}, Spec: api.IPPoolSpec{CIDR: "10.0.0.0/16"}},
			26, false, true, []api.AllowedUse{api.UseWorkload, api.UseTunnel}},
		{"not allocatable", &api.IPPool{Spec: api.IPPoolSpec{CIDR: "10.0.0.0/16"}, Status: &api.IPPoolStatus{
			Conditions: []api.Condition{{Type: "Allocatable", Status: "False"}}}},
			26, false, true, []api.AllowedUse{api.UseWorkload, api.UseTunnel}},
		{"allocatable", &api.IPPool{Spec: api.IPPoolSpec{CIDR: "10.0.0.0/16"}, Status: &api.IPPoolStatus{
			Conditions: []api.Condition{{Type: "Other", Status: "False"}, {Type: "Allocatable", Status: "True"}}}},
			26, true, true, []api.AllowedUse{api.UseWorkload, api.UseTunnel}},
	} {
		t.Run(c.name, func(t *testing.T) {
			p := parsed(c.obj)
			errtest.Must(t, p.Err)
			if p.BlockBits != c.bits || p.Enabled != c.enabled || p.Automatic != c.automatic || p.CIDR.String() != c.obj.Spec.CIDR {
				t.Errorf("got %+v", p)
			}
			difftest.Want(t, "uses", c.uses, p.Uses)
		})
	}
}

func TestParsePoolRefusesMistakes(t *testing.T) {
	for _, c := range []struct {
		name string
		spec api.IPPoolSpec
		want string
	}{
		{"no range", api.IPPoolSpec{}, `spec.cidr ""`},
		{"no prefix", api.IPPoolSpec{CIDR: "10.0.0.0"}, `spec.cidr "10.0.0.0"`},
		{"host bits", api.IPPoolSpec{CIDR: "10.0.0.1/16"}, `spec.cidr "10.0.0.1/16"`},
		{"block too small", api.IPPoolSpec{CIDR: "10.0.0.0/16", BlockSize: 33}, "spec.blockSize 33 20 32"},
		{"block too large", api.IPPoolSpec{CIDR: "10.0.0.0/8", BlockSize: 19}, "spec.blockSize 19 20 32"},
		{"block negative", api.IPPoolSpec{CIDR: "10.0.0.0/8", BlockSize: -1}, "spec.blockSize -1"},
		{"block larger than the pool", api.IPPoolSpec{CIDR: "10.0.0.0/28"}, "spec.blockSize 26 20 32 /28"},
		{"IPv4's size in IPv6", api.IPPoolSpec{CIDR: "fd00::/48", BlockSize: 26}, "spec.blockSize 26 116 128"},
		{"nodes", api.IPPoolSpec{CIDR: "10.0.0.0/16", NodeSelector: "zone = 'a'"}, "spec.nodeSelector"},
		{"namespaces", api.IPPoolSpec{CIDR: "10.0.0.0/16", NamespaceSelector: "zone = 'a'"}, "spec.namespaceSelector"},
	} {
		t.Run(c.name, func(t *testing.T) {
			p := parsed(&api.IPPool{Meta: api.Meta{Name: "pool-a"}, Spec: c.spec})
			if want := "IPPool pool-a " + c.want; !errtest.Names(p.Err, want) {
				t.Errorf("error %v, want one that names %s", p.Err, want)
			}
			if p.Enabled || p.Reason != api.PoolInvalid || !strings.HasSuffix(p.Err.Error(), p.Why) {
				t.Errorf("judged %v %s %q", p.Enabled, p.Reason, p.Why)
			}
		})
	}
}

// TestParsePoolsJudges: the reason and whether it is enabled, for pools of one cluster.
func TestParsePoolsJudges(t *testing.T) {
	pool := func(name, cidr, created string, change ...func(*api.IPPool)) api.IPPool {
		return *poolObject(name, cidr, append(change, func(p *api.IPPool) { p.CreationTimestamp = created })...)
	}
	marked := func(reason string) func(*api.IPPool) {
		return func(p *api.IPPool) {
			p.Status = &api.IPPoolStatus{Conditions: []api.Condition{{Type: api.Allocatable, Status: "False", Reason: reason}}}
		}
	}
	objs := []api.IPPool{
		pool("young", "10.0.0.0/25", "2026-02-01"), pool("old", "10.0.0.0/24", "2026-01-01"),
		pool("beside-invalid", "10.78.0.0/24", "2026-02-01"), pool("misaligned", "10.78.0.33/24", "2026-01-01"),
		pool("off-and-invalid", "10.79.0.0/31", "2026-01-01", func(p *api.IPPool) { p.Spec.Disabled = true }),
		pool("off", "10.1.0.0/24", "2026-01-01", func(p *api.IPPool) { p.Spec.Disabled = true }), pool("over-off", "10.1.0.0/16", "2026-02-01"),
		pool("b", "10.2.0.0/24", "2026-01-01"), pool("a", "10.2.0.0/24", "2026-01-01"),
		pool("marked", "10.3.0.0/24", "2026-01-01", marked(api.PoolOverlap)),
		pool("enabled-again", "10.4.0.0/24", "2026-01-01", marked(api.PoolDisabled)),
		pool("corrected", "10.5.0.0/24", "2026-01-01", marked(api.PoolInvalid)),
	}
	said := func(status string) func(*api.IPPool) {
		return func(p *api.IPPool) {
			p.Status = &api.IPPoolStatus{Conditions: []api.Condition{{Type: "Other", Status: "True"}, {Type: api.Allocatable, Status: status}}}
		}
	}
	deleted := func(p *api.IPPool) { p.DeletionTimestamp = "2026-03-01" }
	// Of each range the pool has precedence that is the youngest.
	objs = append(objs,
		pool("in-use", "10.6.0.0/24", "2026-02-01", said("True")), pool("leaves-then", "10.6.0.0/16", "2026-01-01", deleted),
		pool("leaves", "10.7.0.0/24", "2026-02-01", deleted, said("False")), pool("refused", "10.7.0.0/16", "2026-01-01", said("False")),
		pool("refused-first", "10.8.0.0/24", "2026-02-01", marked(api.PoolDisabled)), pool("new", "10.8.0.0/16", "2026-01-01"),
	)
	want := map[string]string{
		"in-use": "OK true", "leaves-then": "Terminating false", "leaves": "Terminating false", "refused": "CIDROverlap false",
		"refused-first": "OK true", "new": "CIDROverlap false",
		"young": "CIDROverlap false", "old": "OK true", "beside-invalid": "OK true", "misaligned": "Invalid false", "off": "PoolDisabled false",
		"off-and-invalid": "PoolDisabled false",
		"over-off":        "CIDROverlap false", "b": "CIDROverlap false", "a": "OK true", "marked": "OK false",
		"enabled-again": "OK true", "corrected": "OK true",
	}
	for _, p := range ParsePools(objs) {
		if got := fmt.Sprint(p.Reason, " ", p.Enabled); got != want[p.Name] || p.Enabled != (p.Why == "") {
			t.Errorf("%s is %s (%q), want %s", p.Name, got, p.Why, want[p.Name])
		}
	}
}

// TestOverlapsAreNeverBothInUse: whatever is created, disabled and deleted, in whichever order conditions are written,
// no two pools that overlap are in use, a pool in use stays so, and conditions come to rest.
func TestOverlapsAreNeverBothInUse(t *testing.T) {
	for seed := range uint64(300) {
		r := rand.New(rand.NewPCG(seed, 33))
		var objs []api.IPPool
		for step := range 60 {
			switch i := r.IntN(len(objs) + 1); {
			case i == len(objs) || r.IntN(3) == 0:
				at := netip.PrefixFrom(netip.AddrFrom4([4]byte{10, 0, byte(r.IntN(4)) << 2, 0}), 20+r.IntN(4)).Masked()
				objs = append(objs, *poolObject(fmt.Sprint("pool-", step), at.String(), func(p *api.IPPool) {
					p.CreationTimestamp, p.Spec.Disabled = fmt.Sprintf("2026-01-%02d", 1+r.IntN(9)), r.IntN(4) == 0
				}))
			case r.IntN(2) == 0:
				objs[i].Spec.Disabled = !objs[i].Spec.Disabled
			case objs[i].DeletionTimestamp == "":
				objs[i].DeletionTimestamp = "2026-02-01"
			default:
				objs = slices.Delete(objs, i, i+1)
			}
			written := judgeOverlaps(t, objs, r.IntN(2) == 0)
			for rounds := 0; written && r.IntN(3) > 0; rounds++ {
				if written = judgeOverlaps(t, objs, false); rounds > len(objs) {
					t.Fatalf("seed %d: conditions of %d pools do not come to rest", seed, len(objs))
				}
			}
		}
	}
}

// judgeOverlaps writes the conditions of pools, some if half, and reports whether any has changed.
func judgeOverlaps(t *testing.T, objs []api.IPPool, half bool) (written bool) {
	t.Helper()
	inUse := func(p *api.IPPool) bool { return p.Status != nil && p.Status.Conditions[0].Status == "True" }
	pools := ParsePools(objs)
	for i := range pools {
		for j := range i {
			if pools[i].Reason == api.PoolOK && pools[j].Reason == api.PoolOK && pools[i].CIDR.Overlaps(pools[j].CIDR) {
				t.Fatalf("%+v and %+v are both in use", objs[i], objs[j])
			}
		}
		if o := &objs[i]; inUse(o) && pools[i].Reason == api.PoolOverlap {
			t.Fatalf("%+v was in use: %s", o, pools[i].Why)
		}
	}
	for i, p := range pools {
		status := map[bool]string{true: "True", false: "False"}[p.Reason == api.PoolOK]
		if o := &objs[i]; o.Status == nil || o.Status.Conditions[0].Status != status || o.Status.Conditions[0].Reason != p.Reason {
			if half && i%2 == 0 {
				continue
			}
			o.Status = &api.IPPoolStatus{Conditions: []api.Condition{{Type: api.Allocatable, Status: status, Reason: p.Reason}}}
			written = true
		}
	}
	return written
}

// TestRefusedPoolIsNamed: the error about a requested pool that exists never calls it missing.
func TestRefusedPoolIsNamed(t *testing.T) {
	st := newState(clock)
	st.storePools([]api.IPPool{*poolObject("bad", "10.78.0.33/24"), *poolObject("old", "10.0.0.0/24"), *poolObject("young", "10.0.0.0/25")})
	for wanted, text := range map[string]string{
		"bad": `bad spec.cidr "10.78.0.33/24"`, "10.78.0.33/24": `spec.cidr "10.78.0.33/24"`,
		"young": `young overlaps IPPool old`, "none": `none exist`,
	} {
		_, err := usablePools(st, &Request{PoolsV4: []string{wanted}, Use: api.UseWorkload}, false)
		if !errors.Is(err, ErrNoPool) || !errtest.Names(err, text) || wanted != "none" && strings.Contains(err.Error(), "does not exist") {
			t.Errorf("%s: %v, want %s", wanted, err, text)
		}
	}
}

func TestPoolBlocks(t *testing.T) {
	for _, c := range []struct {
		cidr  string
		size  int
		count uint64
		i     uint64
		want  string
	}{
		{"10.0.0.0/26", 26, 1, 0, "10.0.0.0/26"},
		{"10.0.0.0/16", 26, 1024, 1023, "10.0.255.192/26"},
		{"10.0.0.0/30", 32, 4, 3, "10.0.0.3/32"},
		{"0.0.0.0/0", 20, 1 << 20, 1<<20 - 1, "255.255.240.0/20"},
		{"fd00::/48", 122, 1 << 32, 1<<32 - 1, "fd00::3f:ffff:ffc0/122"},
		{"fd00::/122", 122, 1, 0, "fd00::/122"},
		{"fd00::/120", 122, 4, 3, "fd00::c0/122"},
		{"fd00::/104", 128, 1 << 24, 1<<24 - 1, "fd00::ff:ffff/128"},
	} {
		p := pool(t, "p", c.cidr, func(o *api.IPPool) { o.Spec.BlockSize = c.size })
		if got := p.blockCount(); got != c.count {
			t.Errorf("%s by /%d has %d blocks, want %d", c.cidr, c.size, got, c.count)
		}
		if got := p.block(c.i); got != cidr(c.want) {
			t.Errorf("block %d of %s is %s, want %s", c.i, c.cidr, got, c.want)
		}
	}
}

// The blocks between a block and the end of a reserved range are skipped at once, and never a block outside it.
func TestBlocksAfterEndsWithTheRange(t *testing.T) {
	p := pool(t, "p", "10.0.0.0/24", func(o *api.IPPool) { o.Spec.BlockSize = 28 })
	for _, c := range []struct {
		reserved string
		i, want  uint64
	}{
		{"10.0.0.0/28", 0, 0},
		{"10.0.0.0/26", 0, 3},
		{"10.0.0.0/26", 2, 1},
		{"10.0.0.64/26", 4, 3},
		{"10.0.0.64/26", 7, 0},
		{"10.0.0.0/24", 5, 10},
		{"10.0.0.0/8", 5, 1<<20 - 1 - 5},
		{"0.0.0.0/0", 15, 1<<28 - 1 - 15},
	} {
		if got := p.blocksAfter(c.i, cidr(c.reserved)); got != c.want {
			t.Errorf("%d blocks follow block %d in %s, want %d", got, c.i, c.reserved, c.want)
		}
	}
}

func TestUsablePools(t *testing.T) {
	disabled := func(p *api.IPPool) { p.Spec.Disabled = true }
	manual := func(p *api.IPPool) { p.Spec.AssignmentMode = api.AssignManual }
	zoneB := func(p *api.IPPool) { p.Spec.NodeSelector = "zone == 'b'" }
	team := func(p *api.IPPool) { p.Spec.NamespaceSelector = "team == 'x'" }
	tunnel := func(p *api.IPPool) { p.Spec.AllowedUses = []api.AllowedUse{api.UseTunnel} }
	pools := []Pool{
		pool(t, "a", "10.1.0.0/24"),
		pool(t, "b", "10.2.0.0/24"),
		pool(t, "disabled", "10.3.0.0/24", disabled),
		pool(t, "manual", "10.4.0.0/24", manual),
		pool(t, "nodes", "10.5.0.0/24", zoneB),
		pool(t, "team", "10.6.0.0/24", team),
		pool(t, "tunnel", "10.7.0.0/24", tunnel),
		pool(t, "v6", "fd00::/112"),
	}
	for _, c := range []struct {
		name      string
		wanted    []string
		zone      string
		namespace map[string]string
		use       api.AllowedUse
		v6        bool
		want      string
		err       string
	}{
		{name: "by default what selects the node and the namespace", want: "a b"},
		{name: "node selector", zone: "b", want: "a b nodes"},
		{name: "namespace selector", namespace: map[string]string{"team": "x"}, want: "a b team"},
		{name: "tunnel addresses have no namespace", use: api.UseTunnel, want: "a b tunnel"},
		{name: "no pool for the use", use: api.UseLoadBalancer, err: "a (spec.allowedUses has no LoadBalancer)"},
		{name: "IPv6", v6: true, want: "v6"},
		{name: "asked by name, in that order", wanted: []string{"b", "a"}, want: "b a"},
		{name: "asked by range", wanted: []string{"10.2.0.0/24"}, want: "b"},
		{name: "asked for a manual one", wanted: []string{"manual"}, want: "manual"},
		{name: "asked, selectors do not matter", wanted: []string{"nodes", "team"}, want: "nodes team"},
		{name: "asked for a disabled one", wanted: []string{"a", "disabled"}, err: "the given pool (disabled) cannot be used"},
		{name: "asked for an unknown one", wanted: []string{"a", "10.99.0.0/24"}, err: "the given pool (10.99.0.0/24) does not exist"},
		{name: "asked, uses do matter", wanted: []string{"tunnel"}, err: "spec.allowedUses"},
		{name: "asked for the other family", wanted: []string{"v6"}, err: "(v6)"},
	} {
		t.Run(c.name, func(t *testing.T) {
			st := &State{Pools: pools, NodeLabels: map[string]string{"zone": c.zone}, HaveLabels: true}
			req := &Request{Host: "node-a", Use: c.use, NamespaceLabels: c.namespace}
			if c.use == "" {
				req.Use = api.UseWorkload
			}
			if c.v6 {
				req.PoolsV6 = c.wanted
			} else {
				req.PoolsV4 = c.wanted
			}
			got, err := usablePools(st, req, c.v6)
			checkRefusal(t, err, ErrNoPool, c.err)
			var names []string
			for _, p := range got {
				names = append(names, p.Name)
			}
			difftest.Want(t, "pools", c.want, strings.Join(names, " "))
		})
	}
}

// The error has the reason for each pool.
func TestUsablePoolsSaysWhyNot(t *testing.T) {
	st := &State{HaveLabels: true, NodeLabels: map[string]string{"zone": "a"}}
	req := &Request{Host: "node-a", Use: api.UseWorkload}
	_, err := usablePools(st, req, false)
	checkRefusal(t, err, ErrNoPool, "IPv4 IPPool")
	_, err = usablePools(st, req, true)
	checkRefusal(t, err, ErrNoPool, "IPv6 IPPool")
	st.Pools = []Pool{
		pool(t, "one", "10.1.0.0/24", func(p *api.IPPool) { p.Spec.Disabled = true }),
		pool(t, "two", "10.2.0.0/24", func(p *api.IPPool) { p.Spec.AssignmentMode = api.AssignManual }),
		pool(t, "three", "10.3.0.0/24", func(p *api.IPPool) { p.Spec.NodeSelector = "zone == 'b'" }),
		pool(t, "four", "10.4.0.0/24", func(p *api.IPPool) { p.Spec.NamespaceSelector = "has(team)" }),
	}
	_, err = usablePools(st, req, false)
	checkRefusal(t, err, ErrNoPool, "Manual node-a")
	difftest.Contains(t, fmt.Sprint(err), "one (spec.disabled is true", "two (spec.assignmentMode", "three (spec.nodeSelector zone == 'b'",
		"four (spec.namespaceSelector has(team)")
}

// checkRefusal wants an error of a kind that contains each word of want, or none if want is empty.
func checkRefusal(t *testing.T, err, kind error, want string) {
	t.Helper()
	if want == "" {
		if err != nil {
			t.Errorf("error %v, want none", err)
		}
		return
	}
	if !errors.Is(err, kind) || !errtest.Names(err, want) {
		t.Errorf("error %v, want one of %q with %q", err, kind, want)
	}
}

// FuzzParsePool: no stored pool makes the parser panic, and one that it accepts is cut into blocks that lie in it.
func FuzzParsePool(f *testing.F) {
	for _, p := range []*api.IPPool{
		poolObject("a", "10.0.0.0/16"), poolObject("b", "fd00::/48"), {Spec: api.IPPoolSpec{CIDR: "::ffff:10.0.0.0/112", BlockSize: 120}},
	} {
		data, err := json.Marshal(p)
		errtest.Must(f, err)
		f.Add(data, uint64(3))
	}
	f.Fuzz(func(t *testing.T, data []byte, i uint64) {
		var obj api.IPPool
		if json.Unmarshal(data, &obj) != nil {
			return
		}
		p := parsed(&obj)
		if p.Err != nil {
			if !errtest.Names(p.Err, "IPPool "+obj.Name) {
				t.Errorf("error %q does not name pool %q", p.Err, obj.Name)
			}
			return
		}
		b := p.block(i % p.blockCount())
		if b != b.Masked() || !p.CIDR.Contains(b.Addr()) || b.Bits() < p.CIDR.Bits() || b.Addr().BitLen()-b.Bits() > maxBlockBits {
			t.Errorf("block %d of %s is %s", i%p.blockCount(), p.CIDR, b)
		}
		st := &State{Pools: []Pool{p}, Config: DefaultConfig(), Blocks: map[netip.Prefix]*Block{}, HaveCluster: true, Now: clock}
		req := &Request{Owner: owner("h"), Host: "node-a", V4: p.CIDR.Addr().Is4(), V6: p.CIDR.Addr().Is6(), Use: api.UseWorkload}
		plan, err := PlanAssign(st, req)
		if err == nil && !p.CIDR.Contains(plan.Assignments[0].Address) {
			t.Errorf("assigned %s outside of %s", plan.Assignments[0].Address, p.CIDR)
		}
	})
}
