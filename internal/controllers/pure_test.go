package controllers

import (
	"math"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/tortie-net/tortie/internal/api"
	"github.com/tortie-net/tortie/internal/app/config"
	"github.com/tortie-net/tortie/internal/ipam"
	"github.com/tortie-net/tortie/internal/ipam/inventory"
	"github.com/tortie-net/tortie/internal/testkit/difftest"
)

func pool(name, cidr string) api.IPPool {
	return api.IPPool{Meta: api.Meta{Name: name, UID: name, CreationTimestamp: "2026-01-01T00:00:00Z"}, Spec: api.IPPoolSpec{CIDR: cidr}}
}

func TestMeasure(t *testing.T) {
	at := netip.MustParseAddr
	v := inventory.View{
		Pools: []api.IPPool{pool("four", "10.0.0.0/24"), pool("six", "fd00::/64"), pool("broken", "10.0.0.1/24")},
		Reservations: []api.IPReservation{
			{Spec: api.IPReservationSpec{ReservedCIDRs: []string{"10.0.0.0/30", "10.0.0.1", "10.9.0.0/16", "odd"}}},
		},
		Blocks: []inventory.Block{
			{CIDR: netip.MustParsePrefix("10.0.0.0/26"), Affinity: "host:a", Allocations: []inventory.Allocation{
				{Address: at("10.0.0.4"), Class: inventory.OfPod, Node: "a"}, {Address: at("10.0.0.5"), Class: inventory.OfPod, Node: "b"},
				{Address: at("10.0.0.6"), Class: inventory.Windows}, {Address: at("10.0.0.7"), Released: time.Now()},
			}},
			{CIDR: netip.MustParsePrefix("10.7.0.0/26"),
				Allocations: []inventory.Allocation{{Address: at("10.7.0.1"), Class: inventory.Tunnel, Node: "a"}}},
			{CIDR: netip.MustParsePrefix("10.0.0.64/26"), Damage: damage{}},
		},
	}
	u := Measure(&v)
	want := []PoolUsage{
		{Name: "four", UID: "four", CIDR: netip.MustParsePrefix("10.0.0.0/24"), Size: 256, Reserved: 4, InUse: 4, Room: 3, Enabled: true},
		{Name: "six", UID: "six", CIDR: netip.MustParsePrefix("fd00::/64"), Size: math.Exp2(64), Room: math.Exp2(58), Enabled: true},
	}
	difftest.Want(t, "pools", want, u.Pools)
	if u.InUse[share{"four", "a"}] != 1 || u.InUse[share{"four", "b"}] != 1 || u.Borrowed[share{"four", "b"}] != 1 ||
		u.Cooling[share{"four", "a"}] != 1 || u.InUse[share{noPool, "a"}] != 1 || u.Blocks[share{noPool, ""}] != 1 ||
		u.Damaged != 1 || len(u.Borrowed) != 1 {
		t.Errorf("%+v", u)
	}
}

type damage struct{}

func (damage) Error() string { return "damaged" }

func TestForecast(t *testing.T) {
	for _, tc := range []struct {
		what      string
		inUse     []int // every five minutes
		want      string
		exhausted bool
	}{
		{"an empty pool", []int{0, 0, 0}, "", false},
		{"a full one", []int{100}, "100 of 100 addresses are in use: pods get none", true},
		{"a nearly full one", []int{91}, "91 of 100 addresses are in use: 91 %", false},
		{"one that is steady", []int{80, 80, 80, 80}, "", false},
		{"one that empties", []int{85, 80, 75}, "", false},
		{"a burst", []int{10, 60}, "", false},
		{"one that fills fast", []int{40, 50, 60, 70}, "the rest is gone in less than half an hour", false},
		{"one that fills", []int{50, 51, 52, 53}, "the rest is gone in about 4 hours", false},
		{"one that fills slowly", []int{50, 50, 50, 51}, "", false},
		{"one that fills and has room", []int{1, 10, 20, 30}, "", false},
	} {
		f, now := Forecast{}, time.Date(2026, 11, 22, 0, 0, 0, 0, time.UTC)
		var got []Warning
		for _, n := range tc.inUse {
			got = f.Look(&Usage{Pools: []PoolUsage{{Name: "p", UID: "u", Size: 100, InUse: n, Enabled: true}}}, now)
			now = now.Add(5 * time.Minute)
		}
		switch {
		case tc.want == "" && len(got) > 0:
			t.Errorf("%s: %q", tc.what, got[0].Text)
		case tc.want != "" && (len(got) != 1 || !strings.Contains(got[0].Text, tc.want) || got[0].Exhausted != tc.exhausted):
			t.Errorf("%s: %+v, want %q", tc.what, got, tc.want)
		}
	}
	f := Forecast{}
	if got := f.Look(&Usage{Pools: []PoolUsage{{Name: "p", UID: "u", Size: 100, InUse: 100}}}, time.Now()); len(got) > 0 {
		t.Errorf("a disabled pool: %+v", got)
	}
	for i := range 500 {
		f.Look(&Usage{Pools: []PoolUsage{{UID: "u", Size: 100}}}, time.Unix(int64(i)*60, 0))
	}
	if n := len(f.samples["u"]); n > 62 {
		t.Errorf("%d samples are kept", n)
	}
}

func TestPoolConditions(t *testing.T) {
	old, young, off, gone := pool("old", "10.0.0.0/16"), pool("young", "10.0.1.0/24"), pool("off", "10.1.0.0/16"), pool("gone", "10.2.0.0/16")
	young.CreationTimestamp, off.Spec.Disabled, gone.DeletionTimestamp = "2026-02-01T00:00:00Z", true, "2026-02-02T00:00:00Z"
	all := []api.IPPool{old, young, off, gone}
	all = append(all, pool("bad", "10.78.0.33/24"))
	wants := map[string]string{"old": "True OK", "young": "False CIDROverlap", "off": "False PoolDisabled",
		"gone": "False Terminating", "bad": "False Invalid"}
	conditions := map[string]api.Condition{}
	for _, p := range ipam.ParsePools(all) {
		conditions[p.Name] = condition(&p)
		if c := conditions[p.Name]; c.Status+" "+c.Reason != wants[p.Name] {
			t.Errorf("%s: %+v, want %s", p.Name, c, wants[p.Name])
		}
	}
	now := time.Date(2026, 11, 22, 0, 0, 0, 0, time.UTC)
	other := api.Condition{Type: "Other", Status: "True"}
	first, differs := withCondition([]api.Condition{other}, conditions["old"], now)
	if !differs || len(first) != 2 || first[0] != other || first[1].LastTransitionTime == "" {
		t.Errorf("%+v", first)
	}
	if _, differs := withCondition(first, conditions["old"], now.Add(time.Hour)); differs {
		t.Error("what is so already is written again")
	}
	next, differs := withCondition(first, conditions["off"], now.Add(time.Hour))
	if !differs || next[1].LastTransitionTime == first[1].LastTransitionTime {
		t.Errorf("%+v", next)
	}
}

// An Event reports once that a pool is not in use although its spec has no error.
func TestPoolEvents(t *testing.T) {
	all := []api.IPPool{pool("old", "10.0.0.0/16"), pool("young", "10.0.1.0/24"), pool("bad", "10.78.0.33/24"), pool("off", "10.1.0.0/16")}
	all[1].CreationTimestamp, all[3].Spec.Disabled = "2026-02-01T00:00:00Z", true
	var said []string
	s := poolStatus{told: map[string]string{},
		warn: func(about api.ObjectReference, reason, _ string) { said = append(said, about.Name+" "+reason) }}
	for range 2 {
		for i, p := range ipam.ParsePools(all) {
			s.tell(&all[i], &p)
		}
	}
	difftest.Want(t, "Events", []string{"young CIDROverlap", "bad InvalidPool"}, said)
}

func TestSettings(t *testing.T) {
	minute := time.Minute
	no := false
	obj := defaultConfiguration()
	off, asked := HostSettings{Auto: disabled, Default: true}, &api.AutoHostEndpointConfig{AutoCreate: enabled,
		CreateDefaultHostEndpoint: disabled}
	for _, tc := range []struct {
		what string
		env  config.Controllers
		obj  *api.KubeControllersConfiguration
		want Settings
		err  string
	}{
		{"nothing", config.Controllers{}, nil,
			Settings{5 * time.Minute, 15 * time.Minute, 10 * time.Minute, true, HostSettings{Default: true}, api.AllServices}, ""},
		{"Calico's defaults", config.Controllers{}, obj,
			Settings{5 * time.Minute, 15 * time.Minute, 10 * time.Minute, true, off, api.AllServices}, ""},
		{"the environment wins", config.Controllers{Grace: &minute, Compaction: new(time.Duration), SyncLabels: &no, HostEndpoints: enabled}, obj,
			Settings{5 * time.Minute, time.Minute, 0, false, HostSettings{Auto: enabled, Default: true}, api.AllServices}, ""},
		{"the object", config.Controllers{}, &api.KubeControllersConfiguration{Spec: api.KubeControllersConfigurationSpec{
			Controllers: api.ControllersConfig{Node: &api.NodeControllerConfig{LeakGracePeriod: "0s", ReconcilerPeriod: "soon",
				SyncLabels: "Disabled", HostEndpoint: asked},
				LoadBalancer: &api.LoadBalancerControllerConfig{AssignIPs: api.RequestedServicesOnly}},
		}}, Settings{5 * time.Minute, 0, 10 * time.Minute, false, HostSettings{Auto: enabled}, api.RequestedServicesOnly},
			`spec.controllers.node.reconcilerPeriod "soon"`},
		{"Services by a word that is none", config.Controllers{}, &api.KubeControllersConfiguration{Spec: api.KubeControllersConfigurationSpec{
			Controllers: api.ControllersConfig{LoadBalancer: &api.LoadBalancerControllerConfig{AssignIPs: "None"}},
		}}, Settings{5 * time.Minute, 15 * time.Minute, 10 * time.Minute, true, HostSettings{Auto: disabled, Default: true}, ""},
			`spec.controllers.loadBalancer.assignIPs "None"`},
		{"a word that is none", config.Controllers{}, &api.KubeControllersConfiguration{Spec: api.KubeControllersConfigurationSpec{
			Controllers: api.ControllersConfig{Node: &api.NodeControllerConfig{HostEndpoint: &api.AutoHostEndpointConfig{AutoCreate: "yes"}}},
		}}, Settings{5 * time.Minute, 15 * time.Minute, 10 * time.Minute, true, HostSettings{Default: true}, api.AllServices},
			`spec.controllers.node.hostEndpoint.autoCreate "yes"`},
	} {
		got, err := effective(&tc.env, tc.obj)
		if !cmp.Equal(got, tc.want) || (err == nil) != (tc.err == "") || err != nil && !strings.Contains(err.Error(), tc.err) {
			t.Errorf("%s: %+v, %v; want %+v", tc.what, got, err, tc.want)
		}
	}
	s := Settings{AssignIPs: api.AllServices, Hosts: HostSettings{Auto: enabled, Templates: []api.HostEndpointTemplate{{GenerateName: "t"}}}}
	want := &api.AutoHostEndpointConfig{AutoCreate: enabled, CreateDefaultHostEndpoint: disabled, Templates: s.Hosts.Templates}
	difftest.Want(t, "in the status", want, s.running().Controllers.Node.HostEndpoint)
}

func TestJoinLabels(t *testing.T) {
	labels, notes, differ := joinLabels(map[string]string{"mine": "1", "zone": "a", "old": "x"},
		map[string]string{kubeLabels: `{"zone":"a","old":"x"}`, "n": "n"}, map[string]string{"zone": "b"})
	if d := cmp.Diff(map[string]string{"mine": "1", "zone": "b"}, labels); d != "" || !differ {
		t.Errorf("labels (-want +got):\n%s", d)
	}
	difftest.Want(t, "annotations", map[string]string{kubeLabels: `{"zone":"b"}`, "n": "n"}, notes)
	if _, _, differ := joinLabels(labels, notes, map[string]string{"zone": "b"}); differ {
		t.Error("what is so already is written again")
	}
}

// After passes that failed the next one waits for longer each time, within bounds, although something is due. Without a
// failure it comes within the period, half of the grace, or a second after something is due.
func TestPauseAfter(t *testing.T) {
	s := Settings{Period: 5 * time.Minute, Grace: 15 * time.Minute}
	for _, tt := range []struct {
		name        string
		failed      int
		due         bool
		least, most time.Duration
	}{
		{"nothing due", 0, false, 5 * time.Minute, 5 * time.Minute},
		{"something due", 0, true, time.Second, time.Second},
		{"one failure", 1, true, time.Second, 3 * time.Second},
		{"three failures", 3, true, 4 * time.Second, 12 * time.Second},
		{"a hundred failures", 100, true, 15 * time.Second, 45 * time.Second},
	} {
		t.Run(tt.name, func(t *testing.T) {
			c := &Controllers{failed: tt.failed}
			if tt.due {
				c.again = time.Now().Add(-time.Hour)
			}
			for range 100 {
				if d := c.pauseAfter(s); d < tt.least || d > tt.most {
					t.Fatalf("%v, want %v to %v", d, tt.least, tt.most)
				}
			}
		})
	}
	if d := (&Controllers{}).pauseAfter(Settings{Period: 5 * time.Minute, Grace: 4 * time.Second}); d != 2*time.Second {
		t.Errorf("with a grace of 4 s: %v, want half of it", d)
	}
}
