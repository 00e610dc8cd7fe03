package policy

import (
	"net/netip"
	"slices"
	"testing"

	"github.com/tortie-net/tortie/internal/api"
	"github.com/tortie-net/tortie/internal/testkit/errtest"
	"github.com/tortie-net/tortie/internal/testkit/tier"
)

// To rules that deny, an address that may be a pod's counts as the pod's and as no pod's; to rules that allow by the
// peer's identity, as neither. What its number alone allows is allowed.
func TestUnsureAddresses(t *testing.T) {
	subject, peer, other := PodKey{"a", "subject"}, PodKey{"a", "peer"}, PodKey{"a", "other"}
	at := netip.MustParseAddr("10.0.0.2")
	state := State{
		Local: map[string]PodKey{"cali1": subject}, Namespaces: map[string]map[string]string{"a": {"team": "a"}},
		Pods: map[PodKey]*Pod{
			subject: {PodKey: subject, UID: "s", Addresses: []netip.Addr{netip.MustParseAddr("10.0.0.1")}},
			peer: {PodKey: peer, UID: "p", Labels: map[string]string{"role": "x"}, Unsure: []netip.Addr{at},
				Ports: []NamedPort{{"http", TCP, 80}}},
			other: {PodKey: other, UID: "o", Addresses: []netip.Addr{netip.MustParseAddr("10.0.0.3")}, Ports: []NamedPort{{"web", TCP, 80}}},
		},
	}
	for rules, want := range map[string]bool{
		`{"action":"Allow","destination":{"selector":"role == 'x'"}}`:    false,
		`{"action":"Allow","destination":{"selector":"role == 'y'"}}`:    false,
		`{"action":"Allow","destination":{"notSelector":"role == 'x'"}}`: false,
		`{"action":"Allow","destination":{"notSelector":"role == 'y'"}}`: false,
		`{"action":"Allow","destination":{"nets":["10.0.0.0/8"]}}`:       true,
		`{"action":"Allow"}`: true,
		`{"action":"Allow","protocol":"TCP",` +
			`"destination":{"ports":[80]}}`: true,
		`{"action":"Allow","protocol":"TCP",` +
			`"destination":{"ports":["http"]}}`: false,
		`{"action":"Allow","protocol":"TCP","destination":{"nets":["10.0.0.0/8"],` +
			`"ports":["http"]}}`: false,
		`{"action":"Allow","protocol":"TCP",` +
			`"destination":{"notPorts":["http"]}}`: false,
		`{"action":"Allow","protocol":"TCP",` +
			`"destination":{"notPorts":["web"]}}`: false,
		`{"action":"Pass","destination":{"selector":"role == 'x'"}},` +
			`{"action":"Allow"}`: true,
		`{"action":"Pass","protocol":"TCP","destination":{"ports":["http"]}},` +
			`{"action":"Allow"}`: true,
		`{"action":"Pass","destination":{"selector":"role == 'y'"}},` +
			`{"action":"Allow"}`: true,
		`{"action":"Deny","destination":{"selector":"role == 'x'"}},` +
			`{"action":"Allow"}`: false,
		`{"action":"Deny","destination":{"selector":"role == 'y'"}},` +
			`{"action":"Allow"}`: true,
		`{"action":"Pass","destination":{"selector":"role == 'x'"}},` +
			`{"action":"Deny"}`: false,
		`{"action":"Deny","destination":{"notSelector":"role == 'x'"}},` +
			`{"action":"Allow"}`: true,
		`{"action":"Deny","destination":{"notSelector":"role == 'y'"}},` +
			`{"action":"Allow"}`: false,
		`{"action":"Deny","protocol":"TCP","destination":{"ports":["http"]}},` +
			`{"action":"Allow"}`: false,
		`{"action":"Deny","protocol":"TCP","destination":{"nets":["10.0.0.0/8"],"ports":["http"]}},` +
			`{"action":"Allow"}`: false,
		`{"action":"Deny","protocol":"TCP","destination":{"notPorts":["http"]}},` +
			`{"action":"Allow"}`: false,
		`{"action":"Deny","protocol":"TCP","destination":{"ports":["web"]}},` +
			`{"action":"Allow"}`: true,
		`{"action":"Allow","protocol":"TCP","destination":{"ports":["http"]}},{"action":"Deny","protocol":"TCP",` +
			`"destination":{"ports":["http"]}},{"action":"Allow"}`: false,
	} {
		var n api.CalicoNetworkPolicy
		n.Namespace, n.Name = "a", "egress"
		decode(t, `{"types":["Egress"],"egress":[`+rules+`]}`, &n.Spec)
		p, err := FromCalicoNetworkPolicy(&n, nil)
		errtest.Must(t, err)
		state.Policies = []Policy{p}
		packet := Packet{Protocol: TCP, Port: 80}
		if got := Compile(state).Decide("cali1", Egress, at, packet).Allow; got != want {
			t.Errorf("%s: allowed %v, want %v", rules, got, want)
		}
		if got := Explain(state, Party{Pod: subject}, Party{Address: at}, packet).Allow; got != want {
			t.Errorf("%s: explained as allowed %v, want %v", rules, got, want)
		}
	}
}

// An address that may be a pod's is never allowed what it is denied as the pod's, nor as no pod's, in random worlds:
// neither emptying an annotation nor naming the address in another pod's annotation frees it.
func TestUnsureAddressesAreAllowedNoMore(t *testing.T) {
	var pods, hosts tally
	for seed := range tier.Size[uint64](400, 2000) {
		w := newWorld(seed)
		unsure := w.state()
		if seed%2 == 1 {
			unsure = w.hostState()
		}
		a := Compile(unsure)
		for _, addr := range worldAddresses() {
			owner := unsure.Pods[Party{Address: addr}.known(unsure).Pod]
			if owner == nil || !owner.mayHave(addr) {
				continue // it is certain
			}
			others := unsure.others(Party{owner.PodKey, addr})
			for _, is := range append(others, owner) {
				b := Compile(certain(unsure, is, addr))
				count := func(n *tally, allowed, ofIs bool, what ...any) {
					if n.asked++; allowed {
						n.allowed++
					}
					if len(others) > 1 {
						n.contested++
					}
					if allowed && !ofIs {
						t.Fatalf("seed %d: %v %v: allowed, and denied to %v itself", seed, addr, what, is)
					}
				}
				for _, d := range []Direction{Ingress, Egress} {
					for _, port := range worldPorts {
						packet := Packet{Protocol: TCP, Port: port}
						for link, key := range unsure.Local {
							if pod := unsure.Pods[key]; pod != nil && len(pod.Unsure) == 0 { // its own addresses are certain
								count(&pods, a.Decide(link, d, addr, packet).Allow, b.Decide(link, d, addr, packet).Allow, link, d, packet)
							}
						}
						for stage := range Stages {
							for _, ends := range [][2]netip.Addr{{addr, hostsOwn}, {hostsOwn, addr}} {
								x, y := a.DecideHost("eth0", stage, d, ends[0], ends[1], packet), b.DecideHost("eth0", stage, d, ends[0], ends[1], packet)
								count(&hosts, x.Allow, y.Allow && (y.Final || !x.Final), stage, d, ends, packet)
							}
						}
					}
				}
			}
		}
	}
	for _, n := range []tally{pods, hosts} {
		if n.contested < 1000 || n.asked < 10000 || n.allowed < 1000 || n.allowed > n.asked-1000 {
			t.Errorf("%+v: the test shows little", n)
		}
	}
}

// tally counts packets.
type tally struct{ asked, allowed, contested int }

// hostsOwn is an address of no pod.
var hostsOwn = netip.MustParseAddr("192.0.2.1")

// hostState is a calicoState with a host endpoint that policies select.
func (w world) hostState() State {
	s := w.calicoState()
	s.Node = "n"
	s.HostEndpoints = append(s.HostEndpoints,
		HostEndpoint{Name: "own", Labels: w.labels(), Node: "n", Interface: "eth0", Allows: w.chance(50)})
	for i := range s.Sets {
		if s.Sets[i].Namespace == "" { // only others' networks are private
			s.Sets[i].Private = nil
		}
	}
	for i := range s.Policies {
		p := &s.Policies[i]
		if p.Subject.Calico && w.chance(80) {
			p.ID, p.Subject = ID{Kind: KindCalicoGlobalNetworkPolicy, Name: p.Name}, Pods{Calico: true}
			p.Forward, p.PreDNAT, p.NoTrack = w.chance(60), w.chance(20), w.chance(20)
		}
	}
	return s
}

// For a host endpoint the policies and the programs decide the same, also for addresses that may be several pods', or
// no pod's.
func TestHostsAreJudgedAsCompiled(t *testing.T) {
	asked, sequences := 0, 0
	for seed := uint64(8000); seed < 9000; seed++ {
		w := newWorld(seed)
		s := w.hostState()
		selection := Select(s)
		c, j := selection.Compile(), NewJudge(selection, s.Pods)
		all, addresses := w.packets(), worldAddresses()
		for stage := range Stages {
			for d := range Egress + 1 {
				if len(c.Programs[c.Hosts["eth0"].Programs[stage][d]].Sequence) > 0 {
					sequences++
				}
				for range 60 {
					own, peer, packet := pick(w, addresses...), pick(w, addresses...), pick(w, all...)
					judged, _ := j.JudgeHost("eth0", stage, d, own, peer, packet)
					got, want := c.DecideHost("eth0", stage, d, own, peer, packet), judged.Verdict
					if own.Is4() != peer.Is4() {
						continue
					}
					if asked++; got.Allow != want.Allow || got.Final != want.Final || got.NoTrack != want.NoTrack {
						t.Fatalf("seed %d, stage %d, %s from %v to %v, %+v: %+v, judged %+v", seed, stage, d, peer, own, packet, got, judged)
					}
				}
			}
		}
	}
	if sequences < 500 {
		t.Errorf("only %d programs are sequences", sequences)
	}
}

// If two pods may have an address, a denial of one counts, in each tier, and what its number allows is allowed to both.
// A tier that passes on what its rules do not match is followed by one that denies it. Where rules of a host endpoint
// are a sequence each counts by itself, and a Pass of one of the two denies.
func TestOneOfSeveralIsDenied(t *testing.T) {
	subject, at := PodKey{"a", "subject"}, netip.MustParseAddr("10.0.0.2")
	pod := func(name, role string) *Pod {
		return &Pod{PodKey: PodKey{"a", name}, UID: name, Labels: map[string]string{"role": role}, Unsure: []netip.Addr{at}}
	}
	state := State{
		Node: "n", HostEndpoints: []HostEndpoint{{Name: "h", Node: "n", Interface: "eth0"}},
		Local: map[string]PodKey{"cali1": subject}, Namespaces: map[string]map[string]string{"a": {}},
		Pods: map[PodKey]*Pod{subject: {PodKey: subject, UID: "s", Addresses: []netip.Addr{netip.MustParseAddr("10.0.0.1")}}},
	}
	for _, names := range [][2]string{{"1", "2"}, {"2", "1"}} {
		for i, role := range []string{"x", "y"} {
			state.Pods[PodKey{"a", names[i]}] = pod(names[i], role)
		}
		for _, c := range []struct {
			rules, next string
			want, alone bool
		}{
			{denyOf("x"), allowAll, false, false},
			{denyOf("y"), allowAll, false, false},
			{denyOf("z"), allowAll, true, true},
			{`{"action":"Allow","source":{"selector":"role == 'y'"}},` + denyOf("y") + "," + allowAll, allowAll, false, false},
			{passOf("x") + "," + denyOf("y"), allowAll, false, false},
			{passOf("y") + "," + denyOf("x"), allowAll, false, false},
			{passOf("x") + "," + allowAll, denyOf("z") + "," + allowAll, true, false},
			{passOf("x") + "," + allowAll, denyOf("x") + "," + allowAll, false, false},
			{passOf("x") + "," + allowAll, denyOf("y") + "," + allowAll, false, false},
			{passOf("x") + "," + passOf("y"), allowAll, true, false},
			{allowAll, denyOf("x"), true, true},
			{`{"action":"Allow","source":{"selector":"role in {'x','y'}"}}`, passOf("z"), false, false},
		} {
			state.Policies = []Policy{ingress(t, Tier{Name: "first", Order: 1, End: Pass}, c.rules),
				ingress(t, Tier{Name: "last", Order: 2, End: Deny}, c.next)}
			packet := Packet{Protocol: TCP, Port: 80}
			explained := Explain(state, Party{Address: at}, Party{Pod: subject}, packet).Allow
			judged, _ := NewJudge(Select(state), state.Pods).Judge("cali1", Ingress, at, packet)
			if got := Compile(state).Decide("cali1", Ingress, at, packet).Allow; got != c.want || explained != c.want ||
				judged.Verdict.Allow != c.want {
				t.Errorf("%s, then %s: allowed %v, explained %v, judged %v, want %v", c.rules, c.next, got, explained, judged.Verdict.Allow, c.want)
			}
			for i := range state.Policies {
				p := &state.Policies[i]
				p.ID, p.Subject, p.Forward = ID{Kind: KindCalicoGlobalNetworkPolicy, Name: p.Name}, Pods{Calico: true}, true
				p.Rules[Ingress][0].Own = &Match{}
			}
			for _, stage := range []Stage{Terminal, Forwarded} {
				if got := Compile(state).DecideHost("eth0", stage, Ingress, hostsOwn, at, packet).Allow; got != c.alone {
					t.Errorf("%s, then %s, stage %d of the host endpoint: allowed %v, want %v", c.rules, c.next, stage, got, c.alone)
				}
			}
		}
	}
}

const allowAll = `{"action":"Allow"}`

func denyOf(role string) string {
	return `{"action":"Deny","source":{"selector":"role == '` + role + `'"}}`
}

func passOf(role string) string {
	return `{"action":"Pass","source":{"selector":"role == '` + role + `'"}}`
}

// ingress is a policy of a tier for the pods of namespace a.
func ingress(t *testing.T, tier Tier, rules string) Policy {
	t.Helper()
	var n api.CalicoNetworkPolicy
	n.Namespace, n.Name = "a", tier.Name+".policy"
	decode(t, `{"tier":"`+tier.Name+`","types":["Ingress"],"ingress":[`+rules+`]}`, &n.Spec)
	p, err := FromCalicoNetworkPolicy(&n, map[string]Tier{tier.Name: tier})
	errtest.Must(t, err)
	return p
}

// certain is the state in which a pod has an address, or none if it is nil, and no other has it.
func certain(s State, pod *Pod, addr netip.Addr) State {
	pods := map[PodKey]*Pod{}
	for key, other := range s.Pods {
		left := *other
		is := func(a netip.Addr) bool { return a.Unmap() == addr.Unmap() }
		left.Addresses, left.Unsure = slices.DeleteFunc(slices.Clone(other.Addresses), is), slices.DeleteFunc(slices.Clone(other.Unsure), is)
		if pod != nil && key == pod.PodKey {
			left.Addresses = append(left.Addresses, addr)
		}
		pods[key] = &left
	}
	s.Pods = pods
	return s
}
