package policy

import (
	"net/netip"
	"slices"
	"testing"

	"github.com/tortie-net/tortie/internal/api"
	"github.com/tortie-net/tortie/internal/testkit/errtest"
)

// An address that may be a pod's counts as the pod's to rules that deny, and as nobody's to rules that allow by who the peer is. What it may do by its number
// alone it does.
func TestUnsureAddresses(t *testing.T) {
	subject, peer, other := PodKey{"a", "subject"}, PodKey{"a", "peer"}, PodKey{"a", "other"}
	at := netip.MustParseAddr("10.0.0.2")
	state := State{
		Local: map[string]PodKey{"cali1": subject}, Namespaces: map[string]map[string]string{"a": {"team": "a"}},
		Pods: map[PodKey]*Pod{
			subject: {PodKey: subject, UID: "s", Addresses: []netip.Addr{netip.MustParseAddr("10.0.0.1")}},
			peer:    {PodKey: peer, UID: "p", Labels: map[string]string{"role": "x"}, Unsure: []netip.Addr{at}, Ports: []NamedPort{{"http", TCP, 80}}},
			other:   {PodKey: other, UID: "o", Addresses: []netip.Addr{netip.MustParseAddr("10.0.0.3")}, Ports: []NamedPort{{"web", TCP, 80}}},
		},
	}
	for rules, want := range map[string]bool{
		`{"action":"Allow","destination":{"selector":"role == 'x'"}}`:    false,
		`{"action":"Allow","destination":{"selector":"role == 'y'"}}`:    false,
		`{"action":"Allow","destination":{"notSelector":"role == 'x'"}}`: false,
		`{"action":"Allow","destination":{"notSelector":"role == 'y'"}}`: false,
		`{"action":"Allow","destination":{"nets":["10.0.0.0/8"]}}`:       true,
		`{"action":"Allow"}`: true,
		`{"action":"Allow","protocol":"TCP","destination":{"ports":[80]}}`:                                                                                            true,
		`{"action":"Allow","protocol":"TCP","destination":{"ports":["http"]}}`:                                                                                        false,
		`{"action":"Allow","protocol":"TCP","destination":{"nets":["10.0.0.0/8"],"ports":["http"]}}`:                                                                  false,
		`{"action":"Allow","protocol":"TCP","destination":{"notPorts":["http"]}}`:                                                                                     false,
		`{"action":"Allow","protocol":"TCP","destination":{"notPorts":["web"]}}`:                                                                                      false,
		`{"action":"Pass","destination":{"selector":"role == 'x'"}},{"action":"Allow"}`:                                                                               true,
		`{"action":"Pass","protocol":"TCP","destination":{"ports":["http"]}},{"action":"Allow"}`:                                                                      true,
		`{"action":"Pass","destination":{"selector":"role == 'y'"}},{"action":"Allow"}`:                                                                               true,
		`{"action":"Deny","destination":{"selector":"role == 'x'"}},{"action":"Allow"}`:                                                                               false,
		`{"action":"Deny","destination":{"selector":"role == 'y'"}},{"action":"Allow"}`:                                                                               true,
		`{"action":"Deny","destination":{"notSelector":"role == 'x'"}},{"action":"Allow"}`:                                                                            true,
		`{"action":"Deny","destination":{"notSelector":"role == 'y'"}},{"action":"Allow"}`:                                                                            false,
		`{"action":"Deny","protocol":"TCP","destination":{"ports":["http"]}},{"action":"Allow"}`:                                                                      false,
		`{"action":"Deny","protocol":"TCP","destination":{"ports":["web"]}},{"action":"Allow"}`:                                                                       true,
		`{"action":"Allow","protocol":"TCP","destination":{"ports":["http"]}},{"action":"Deny","protocol":"TCP","destination":{"ports":["http"]}},{"action":"Allow"}`: false,
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

// An address that may be a pod's is never allowed what it is denied as the pod's, in random worlds: neither emptying an annotation nor naming the address in
// that of another pod frees it.
func TestUnsureAddressesAreAllowedNoMore(t *testing.T) {
	asked, allowed, contested := 0, 0, 0
	for seed := range uint64(3000) {
		w := newWorld(seed)
		unsure := w.state()
		if seed%2 == 1 {
			unsure = w.calicoState()
		}
		a := Compile(unsure)
		for key, peer := range unsure.Pods {
			for _, addr := range peer.Unsure {
				if of := (Party{Address: addr}).known(unsure); !unsure.Pods[of.Pod].mayHave(addr.Unmap()) || !peer.mayHave(addr.Unmap()) {
					continue // it is certain
				}
				if len(unsure.others(Party{key, addr.Unmap()})) > 0 {
					contested++
				}
				b := Compile(certain(unsure, peer, addr))
				for link, key := range unsure.Local {
					if pod := unsure.Pods[key]; pod == nil || len(pod.Unsure) > 0 {
						continue // its own addresses are certain
					}
					for _, d := range []Direction{Ingress, Egress} {
						for _, port := range worldPorts {
							packet := Packet{Protocol: TCP, Port: port}
							asked++
							if !a.Decide(link, d, addr, packet).Allow {
								continue
							}
							if allowed++; !b.Decide(link, d, addr, packet).Allow {
								t.Fatalf("seed %d: %s %s %s %v: allowed, and denied to %s itself", seed, link, d, addr, packet, peer.PodKey)
							}
						}
					}
				}
			}
		}
	}
	if contested < 100 || asked < 10000 || allowed < 1000 || allowed > asked-100 {
		t.Errorf("%d of %d are allowed, %d have several pods: the test shows little", allowed, asked, contested)
	}
}

// Of two pods that may have an address what is denied to one counts, in each tier, and what is allowed by its number to both. A tier that leaves on what
// its rules do not match is followed by one that denies it.
func TestOneOfSeveralIsDenied(t *testing.T) {
	subject, at := PodKey{"a", "subject"}, netip.MustParseAddr("10.0.0.2")
	pod := func(name, role string) *Pod {
		return &Pod{PodKey: PodKey{"a", name}, UID: name, Labels: map[string]string{"role": role}, Unsure: []netip.Addr{at}}
	}
	state := State{
		Local: map[string]PodKey{"cali1": subject}, Namespaces: map[string]map[string]string{"a": {}},
		Pods: map[PodKey]*Pod{subject: {PodKey: subject, UID: "s", Addresses: []netip.Addr{netip.MustParseAddr("10.0.0.1")}}},
	}
	for _, names := range [][2]string{{"1", "2"}, {"2", "1"}} {
		for i, role := range []string{"x", "y"} {
			state.Pods[PodKey{"a", names[i]}] = pod(names[i], role)
		}
		for _, c := range []struct {
			rules, next string
			want        bool
		}{
			{denyOf("x"), allowAll, false},
			{denyOf("y"), allowAll, false},
			{denyOf("z"), allowAll, true},
			{passOf("x") + "," + denyOf("y"), allowAll, false},
			{passOf("y") + "," + denyOf("x"), allowAll, false},
			{passOf("x") + "," + allowAll, denyOf("z") + "," + allowAll, true},
			{passOf("x") + "," + allowAll, denyOf("x") + "," + allowAll, false},
			{passOf("x") + "," + allowAll, denyOf("y") + "," + allowAll, false},
			{passOf("x") + "," + passOf("y"), allowAll, true},
			{allowAll, denyOf("x"), true},
			{`{"action":"Allow","source":{"selector":"role in {'x','y'}"}}`, passOf("z"), false},
		} {
			state.Policies = []Policy{ingress(t, Tier{Name: "first", Order: 1, End: Pass}, c.rules), ingress(t, Tier{Name: "last", Order: 2, End: Deny}, c.next)}
			packet := Packet{Protocol: TCP, Port: 80}
			explained := Explain(state, Party{Address: at}, Party{Pod: subject}, packet).Allow
			judged, _ := NewJudge(Select(state), state.Pods).Judge("cali1", Ingress, at, packet)
			if got := Compile(state).Decide("cali1", Ingress, at, packet).Allow; got != c.want || explained != c.want || judged.Verdict.Allow != c.want {
				t.Errorf("%s, then %s: allowed %v, explained %v, judged %v, want %v", c.rules, c.next, got, explained, judged.Verdict.Allow, c.want)
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

// certain is the state in which a pod has an address, and no other has it.
func certain(s State, pod *Pod, addr netip.Addr) State {
	pods := map[PodKey]*Pod{}
	for key, other := range s.Pods {
		left := *other
		is := func(a netip.Addr) bool { return a.Unmap() == addr.Unmap() }
		left.Addresses, left.Unsure = slices.DeleteFunc(slices.Clone(other.Addresses), is), slices.DeleteFunc(slices.Clone(other.Unsure), is)
		if key == pod.PodKey {
			left.Addresses = append(left.Addresses, addr)
		}
		pods[key] = &left
	}
	s.Pods = pods
	return s
}
