package policy

import (
	"net/netip"
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

// An address that may be a pod's is never allowed what it is denied as the pod's, in random worlds: emptying an annotation frees nobody.
func TestUnsureAddressesAreAllowedNoMore(t *testing.T) {
	asked, allowed := 0, 0
	for seed := range uint64(3000) {
		w := newWorld(seed)
		unsure := w.state()
		if seed%2 == 1 {
			unsure = w.calicoState()
		}
		sure := unsure
		sure.Pods = map[PodKey]*Pod{}
		for key, pod := range unsure.Pods {
			certain := *pod
			certain.Addresses, certain.Unsure = pod.claimed(), nil
			sure.Pods[key] = &certain
		}
		a, b := Compile(unsure), Compile(sure)
		for link, key := range unsure.Local {
			if pod := unsure.Pods[key]; pod == nil || len(pod.Unsure) > 0 {
				continue // its own addresses are certain
			}
			for _, peer := range unsure.Pods {
				for _, addr := range peer.Unsure {
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
	if asked < 10000 || allowed < 1000 || allowed > asked-100 {
		t.Errorf("%d of %d are allowed: the test shows little", allowed, asked)
	}
}
