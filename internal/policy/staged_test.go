package policy

import (
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/tortie-net/tortie/internal/api"
)

func TestStagedAction(t *testing.T) {
	for action, want := range map[string]struct {
		tried, deletes bool
		err            string
	}{
		"": {tried: true}, "Set": {tried: true}, "Delete": {tried: true, deletes: true}, "Learn": {}, "Ignore": {},
		"set": {err: `spec.stagedAction "set"`},
	} {
		o := &api.CalicoStagedNetworkPolicy{Meta: api.Meta{Namespace: "shop", Name: "default.web"},
			Spec: api.CalicoStagedNetworkPolicySpec{StagedAction: action}}
		o.Spec.Called = "web"
		s, tried, err := FromStagedNetworkPolicy(o, nil)
		if tried != want.tried || s.Delete != want.deletes || (err != nil) != (want.err != "") ||
			err != nil && !strings.Contains(err.Error(), want.err) {
			t.Errorf("%q: %v, %+v, %v", action, tried, s, err)
		}
		if s.By != (ID{"StagedNetworkPolicy", "shop", "default.web"}) || s.ID != (ID{KindCalicoNetworkPolicy, "shop", "default.web"}) {
			t.Errorf("%q: %v for %v", action, s.By, s.ID)
		}
		if shown := s.Shown(); err == nil && shown != (ID{KindCalicoNetworkPolicy, "shop", "web"}) {
			t.Errorf("%q: for %v", action, shown)
		}
	}
	o := &api.CalicoStagedGlobalNetworkPolicy{Spec: api.CalicoStagedGlobalNetworkPolicySpec{}}
	o.Spec.Selector = "a =="
	if s, tried, err := FromStagedGlobalNetworkPolicy(o, nil); tried || err == nil {
		t.Errorf("an unreadable selector: %+v, %v, %v", s, tried, err)
	}
}

// A staged policy is for the policy of its kind and namespace that Calico's clients know by its name.
func TestStage(t *testing.T) {
	named := func(kind, namespace, name string) Policy { return Policy{ID: ID{kind, namespace, name}} }
	set := func(p Policy) Staged { return Staged{By: ID{"Staged", p.Namespace, p.Name}, Policy: p} }
	remove := func(p Policy) Staged { s := set(p); s.Delete = true; return s }
	web, other := named(KindCalicoNetworkPolicy, "shop", "web"), named(KindCalicoNetworkPolicy, "shop", "default.web")
	prefixed := other
	prefixed.Called = "web"
	plain := named(KindNetworkPolicy, "shop", "default.web")
	for name, c := range map[string]struct {
		in     Policy
		staged Staged
		want   []ID
		by     []ID
	}{
		"a new one": {web, set(named(KindCalicoNetworkPolicy, "shop", "db")), []ID{web.ID, {KindCalicoNetworkPolicy, "shop", "db"}},
			[]ID{{KindCalicoNetworkPolicy, "shop", "db"}}},
		"in the place":          {prefixed, set(web), []ID{web.ID}, []ID{web.ID, prefixed.ID}},
		"deleted":               {web, remove(prefixed), nil, []ID{web.ID}},
		"of another name":       {other, remove(web), []ID{other.ID}, nil},
		"of another name, new":  {web, set(other), []ID{web.ID, other.ID}, []ID{other.ID}},
		"nothing to delete":     {web, remove(named(KindCalicoNetworkPolicy, "shop", "db")), []ID{web.ID}, nil},
		"of another namespace":  {web, remove(named(KindCalicoNetworkPolicy, "bank", "web")), []ID{web.ID}, nil},
		"of another kind":       {web, remove(named(KindCalicoGlobalNetworkPolicy, "shop", "web")), []ID{web.ID}, nil},
		"Kubernetes' have none": {plain, remove(named(KindNetworkPolicy, "shop", "web")), []ID{plain.ID}, nil},
	} {
		before := State{Policies: []Policy{c.in}}
		after, by := WithStaged(before, []Staged{c.staged})
		var ids, froms []ID
		for _, p := range after.Policies {
			ids = append(ids, p.ID)
		}
		for id := range by {
			froms = append(froms, id)
		}
		slices.SortFunc(froms, func(a, b ID) int { return b.compare(a) })
		if !slices.Equal(ids, c.want) || !slices.Equal(froms, c.by) || len(before.Policies) != 1 {
			t.Errorf("%s: %v, %v", name, ids, froms)
		}
	}
}

// Policies of equal order come by the names that Calico's clients show.
func TestEqualOrders(t *testing.T) {
	of := func(kind, namespace, name, called string) Policy {
		return Policy{ID: ID{kind, namespace, name}, Called: called}
	}
	want := []Policy{
		of(KindCalicoNetworkPolicy, "shop", "default.web", ""), of(KindCalicoNetworkPolicy, "shop", "first", ""),
		of(KindCalicoGlobalNetworkPolicy, "", "default.web", "web"), of(KindCalicoNetworkPolicy, "shop", "web", "web"),
	}
	got := ordered([]Policy{want[2], want[3], want[1], want[0]})
	for i := range want {
		if got[i].ID != want[i].ID {
			t.Errorf("place %d: %s, want %s", i, got[i].ID, want[i].ID)
		}
	}
}

// An address is the local pod's; pods of other nodes come, change and go.
func TestJudgeKnowsAddresses(t *testing.T) {
	addr := netip.MustParseAddr("10.0.0.1")
	pod := func(name string, addrs ...netip.Addr) *Pod {
		return &Pod{PodKey: PodKey{"n", name}, Addresses: addrs}
	}
	state := State{Local: map[string]PodKey{"cali1": {"n", "z-local"}}, Pods: map[PodKey]*Pod{}, Sets: []NetworkSet{
		{Namespace: "n", Name: "wide", Nets: []netip.Prefix{netip.MustParsePrefix("192.0.2.0/24")}},
		{Name: "narrow", Nets: []netip.Prefix{netip.MustParsePrefix("192.0.2.7/32")}},
	}}
	j := NewJudge(Select(state), map[PodKey]*Pod{{"n", "z-local"}: pod("z-local", addr)})
	want := func(a netip.Addr, name, link string) {
		t.Helper()
		p, at := j.Pod(a)
		if got := ""; at != link || (p == nil) != (name == "") || p != nil && p.Name != name {
			t.Errorf("%s: %v%s by %q", a, p, got, at)
		}
	}
	want(addr, "z-local", "cali1")
	other := netip.MustParseAddr("fd00::1")
	j.Replace(map[PodKey]*Pod{{"n", "far"}: pod("far", addr, other)})
	want(addr, "z-local", "cali1")
	want(other, "far", "")
	j.Replace(map[PodKey]*Pod{{"n", "far"}: pod("far")})
	want(other, "", "")
	for text, want := range map[string]PodKey{"192.0.2.7": {"", "narrow"}, "192.0.2.8": {"n", "wide"}} {
		if set, ok := j.Set(netip.MustParseAddr(text)); !ok || set != want {
			t.Errorf("%s: %v", text, set)
		}
	}
	if set, ok := j.Set(addr); ok {
		t.Errorf("%s is in %v", addr, set)
	}
}
