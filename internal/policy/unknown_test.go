package policy

import (
	"net/netip"
	"testing"
)

// A Log matches only what is certain: an address that may be a pod's is not logged as the pod's.
func TestUnsureAddressesAreNotLogged(t *testing.T) {
	subject, peer, at := PodKey{"a", "subject"}, PodKey{"a", "peer"}, netip.MustParseAddr("10.0.0.2")
	for _, certain := range []bool{false, true} {
		p := &Pod{PodKey: peer, UID: "p", Labels: map[string]string{"role": "x"}, Unsure: []netip.Addr{at}}
		if certain {
			p.Addresses, p.Unsure = p.Unsure, nil
		}
		state := State{
			Local: map[string]PodKey{"cali1": subject}, Namespaces: map[string]map[string]string{"a": {}},
			Pods:     map[PodKey]*Pod{subject: {PodKey: subject, UID: "s"}, peer: p},
			Policies: []Policy{ingress(t, TierDefault, `{"action":"Log","source":{"selector":"role == 'x'"}},`+allowAll)},
		}
		if logs := Compile(state).Logs("cali1", Ingress, at, Packet{Protocol: TCP, Port: 80}); len(logs) > 0 != certain {
			t.Errorf("certain %v: logged by %v", certain, logs)
		}
	}
}

// A selector that reads no unknown label has its answer, whatever the answer for unknown labels.
func TestOwnLabelsAreKnown(t *testing.T) {
	pod := &Pod{PodKey: PodKey{"unknown", "pod"}, Account: "robot", Labels: map[string]string{"role": "x"}}
	for text, is := range map[string]struct{ selected, known bool }{
		"role == 'x'": {true, true}, "role == 'y'": {false, true}, "pcns.env == 'dev'": {false, false},
		"pcsa.team == 'red'": {false, false}, "!has(pcns.env)": {true, false},
	} {
		p := &Pods{Calico: true, Labels: parsed(text)}
		for _, unknown := range []bool{false, true} {
			want := is.selected
			if !is.known {
				want = unknown
			}
			if got := p.selects(directory{}, pod, unknown); got != want {
				t.Errorf("%s, asked for %v: %v, want %v", text, unknown, got, want)
			}
		}
	}
}

// An address that is certainly a pod's is so, though it is also among those that may be.
func TestCertainAddresses(t *testing.T) {
	a, b := netip.MustParseAddr("10.0.0.1"), netip.MustParseAddr("10.0.0.2")
	p := &Pod{Addresses: []netip.Addr{a}, Unsure: []netip.Addr{a, b}}
	if p.mayHave(a) || !p.mayHave(b) || len(p.claimed()) != 2 {
		t.Errorf("may have %v: %v, %v: %v; claims %v", a, p.mayHave(a), b, p.mayHave(b), p.claimed())
	}
}

// Surplus networks count unchanged for policies of their own namespace, and widened for other policies that would be
// open without them.
func TestWhomNetworksCountFor(t *testing.T) {
	for _, c := range []struct {
		set                         setNetworks
		own, ownDoubt, other, doubt bool
	}{
		{setNetworks{}, true, true, true, true}, {setNetworks{owned: true}, true, true, false, false},
		{setNetworks{wide: true}, false, false, false, true},
	} {
		c.set.namespace = "a"
		if c.set.counts("a", false) != c.own || c.set.counts("a", true) != c.ownDoubt ||
			c.set.counts("b", false) != c.other || c.set.counts("b", true) != c.doubt {
			t.Errorf("%+v counts wrongly", c)
		}
	}
	private := func(namespace, net string) NetworkSet {
		return NetworkSet{Namespace: namespace, Private: []netip.Prefix{netip.MustParsePrefix(net)}, Wide: 1}
	}
	x := newNetworkSets(State{Namespaces: map[string]map[string]string{"a": {}, "b": {}}, Sets: []NetworkSet{
		private("a", "192.0.2.0/24"), private("b", "198.51.100.0/24"),
	}})
	for owner, at := range map[string]string{"a": "192.0.2.1", "b": "198.51.100.1"} {
		for _, of := range []string{"a", "b"} {
			if got := x.selects(&Pods{Calico: true, Labels: parsed("all()"), Owner: of},
				false).nets.contains(netip.MustParseAddr(at)); got != (of == owner) {
				t.Errorf("private networks of %s are selected by a policy of %s: %v", owner, of, got)
			}
		}
	}
}

// Sets where one of several possible pods must match differ from sets where all must match.
func TestStagesOfOneAndOfAll(t *testing.T) {
	s := newSets(newTerms(directory{}))
	rules := []stageRule{{terms: []int32{s.terms.add(anyPod)}, nets: none, outer: none, value: 1}}
	all, one := s.stage(rules, false, false), s.stage(rules, false, true)
	if all == one || all.sets[1] == one.sets[1] || one != s.stage(rules, false, true) {
		t.Errorf("sets %v and %v", all.sets, one.sets)
	}
}

// Behind a Pass a Deny comes where it reads what may not be known, and in a sequence where it is of those that may have
// an address.
func TestDoubtfulPasses(t *testing.T) {
	web, nets := []Port{{Name: "web", Protocol: TCP}}, []netip.Prefix{netip.MustParsePrefix("10.0.0.0/8")}
	of := func(p Pods) []Peer { return []Peer{{Pods: &p}} }
	match := func(m Match) []Peer { return []Peer{{Match: &m}} }
	for name, c := range map[string]struct {
		rule          Rule
		doubts, alone bool
	}{
		"anyone":                  {Rule{AnyPeer: true}, false, false},
		"networks":                {Rule{Peers: match(Match{Nets: nets})}, false, false},
		"pods of a namespace":     {Rule{Peers: of(Pods{Namespace: "a"})}, false, true},
		"pods of some namespaces": {Rule{Peers: of(Pods{Namespaces: parsed("env == 'dev'")})}, true, true},
		"labels in a namespace": {
			Rule{Peers: match(Match{Select: &Pods{Calico: true, Namespace: "a", Labels: parsed("role == 'x'")}})}, false, true,
		},
		"labels of the namespace": {
			Rule{Peers: match(Match{Select: &Pods{Calico: true, Namespace: "a", Labels: parsed("pcns.env == 'dev'")}})}, true, true,
		},
		"labels of the account": {
			Rule{Peers: match(Match{Select: &Pods{Calico: true, Namespace: "a", Labels: parsed("pcsa.team == 'red'")}})}, true, true,
		},
		"sets of all namespaces":   {Rule{Peers: match(Match{Select: &Pods{Calico: true}})}, true, true},
		"the own end":              {Rule{AnyPeer: true, Own: &Match{}}, true, true},
		"a named port":             {Rule{AnyPeer: true, Ports: web}, false, true},
		"a named notPort":          {Rule{AnyPeer: true, AnyPort: true, Except: web}, false, true},
		"a source's named port":    {Rule{AnyPeer: true, Sources: web}, false, true},
		"a source's named notPort": {Rule{AnyPeer: true, ExceptSources: web}, false, true},
	} {
		for _, action := range []Action{Allow, Deny, Pass, Log} {
			c.rule.Action = action
			if got, alone := c.rule.doubtful(false), c.rule.doubtful(true); got != (c.doubts && action == Pass) ||
				alone != (c.alone && action == Pass) {
				t.Errorf("%s, action %d: %v, in a sequence %v", name, action, got, alone)
			}
		}
	}
}

// Terms with other pods are in other sets: a Deny's sets include pods that unknown labels may select, and addresses
// that may be a pod's.
func TestTermsAreToldApart(t *testing.T) {
	x := newTerms(directory{})
	of := Pods{Calico: true, Labels: parsed("pcns.env == 'dev'")}
	seen := map[digest]term{}
	for _, unknown := range []bool{false, true} {
		for _, negated := range []bool{false, true} {
			for _, unsure := range []bool{false, true} {
				one := anyPod
				one.pods, one.negated, one.unsure = x.pods.add(of, unknown), negated, unsure
				if before, known := seen[x.digest(one)]; known {
					t.Errorf("%+v has the digest of %+v", one, before)
				}
				seen[x.digest(one)] = one
			}
		}
	}
}

// For an address that two pods may have a denial of one counts, the first of two denials; what is left to the following
// rules precedes what is allowed.
func TestStricter(t *testing.T) {
	for _, c := range [][3]uint8{{0, 0, 0}, {0, 1, 0}, {1, 1, 1}, {0, 2, 2}, {1, 2, 2}, {1, 3, 3}, {2, 3, 2}, {2, 2, 2}} {
		if stricter(c[0], c[1]) != c[2] || stricter(c[1], c[0]) != c[2] {
			t.Errorf("of %d and %d: %d and %d, want %d", c[0], c[1], stricter(c[0], c[1]), stricter(c[1], c[0]), c[2])
		}
	}
}

func TestAllBut(t *testing.T) {
	web, not := []Port{{Name: "web"}}, &Match{Not: true}
	for name, c := range map[string]struct {
		rule            Rule
		ingress, egress bool
	}{
		"nothing":          {Rule{Own: &Match{}, Peers: []Peer{{Match: &Match{}}, {Pods: &Pods{}}}}, false, false},
		"the own end":      {Rule{Own: not}, true, true},
		"a peer":           {Rule{Peers: []Peer{{Pods: &Pods{}}, {Match: not}}}, true, true},
		"a port":           {Rule{Except: web}, false, true},
		"a source's port":  {Rule{ExceptSources: web}, true, false},
		"ports by numbers": {Rule{Except: []Port{{First: 1, Last: 2}}, Ports: web}, false, false},
	} {
		if c.rule.AllBut(Ingress) != c.ingress || c.rule.AllBut(Egress) != c.egress {
			t.Errorf("all but %s: %v, %v", name, c.rule.AllBut(Ingress), c.rule.AllBut(Egress))
		}
	}
}

// Pods share no program where the Deny behind a Pass is of one of them alone.
func TestDenyBehindAPassOfTheOwnEnd(t *testing.T) {
	all, half, none := PodKey{"a", "all"}, PodKey{"a", "half"}, PodKey{"a", "none"}
	in, out := netip.MustParseAddr("10.0.0.1"), netip.MustParseAddr("192.0.2.1")
	p := ingress(t, TierDefault, `{"action":"Pass","destination":{"nets":["10.0.0.0/8"]}},`+allowAll)
	local := map[string]PodKey{"cali1": all, "cali2": half, "cali3": none}
	state := State{Local: local, Namespaces: map[string]map[string]string{"a": {}}, Policies: []Policy{p}, Pods: map[PodKey]*Pod{
		all: {PodKey: all, Addresses: []netip.Addr{in}}, half: {PodKey: half, Addresses: []netip.Addr{in, out}},
		none: {PodKey: none, Addresses: []netip.Addr{out}},
	}}
	c := Compile(state)
	for link, want := range map[string]bool{"cali1": true, "cali2": false, "cali3": true} {
		if got := c.Decide(link, Ingress, hostsOwn, Packet{Protocol: TCP, Port: 80}).Allow; got != want {
			t.Errorf("%s: allowed %v, want %v", link, got, want)
		}
	}
}

// A policy that may select a host endpoint, by unknown labels, denies there what it denies, logs nothing and leaves all
// else to other policies. It decides nothing for pods.
func TestPoliciesThatMaySelectAHost(t *testing.T) {
	anyone := Rule{Action: Log, AnyPeer: true, AnyPort: true}
	port := Rule{Action: Deny, AnyPeer: true, Ports: []Port{{Protocol: TCP, First: 81, Last: 81}}}
	p := Policy{
		ID: ID{Kind: KindCalicoGlobalNetworkPolicy, Name: "p"}, Tier: TierDefault, PreDNAT: true,
		Subject: Pods{Calico: true, Labels: parsed("pcns.env == 'dev'")}, Applies: [2]bool{Ingress: true},
		Rules: [2][]Rule{Ingress: {anyone, port}},
	}
	h := HostEndpoint{Name: "h", Node: "n", Interface: "eth0", Inherits: []Account{{Namespace: "unknown"}}}
	pod := PodKey{"unknown", "pod"}
	state := State{
		Node: "n", HostEndpoints: []HostEndpoint{h}, Policies: []Policy{p}, Local: map[string]PodKey{"cali1": pod},
		Pods: map[PodKey]*Pod{pod: {PodKey: pod}},
	}
	if !state.SelectsHost(&p, &h) {
		t.Error("does not select the host endpoint, though it may")
	}
	if d := p.denying(false); d.Rules[Ingress][0].AnyPeer || !d.Rules[Ingress][1].AnyPeer {
		t.Errorf("denying: %+v", d.Rules)
	}
	c := Compile(state)
	for number, want := range map[uint16]bool{80: true, 81: false} {
		if got := c.DecideHost("eth0", Untranslated, Ingress, hostsOwn, hostsOwn, Packet{Protocol: TCP, Port: number}).Allow; got != want {
			t.Errorf("port %d: allowed %v, want %v", number, got, want)
		}
	}
	if _, known := c.Endpoints["cali1"]; !known {
		t.Error("a pod waits for labels that a policy of host endpoints reads")
	}
}

// A pod that comes while it is not known which policies select it changes more than its own endpoint, and so do labels
// that become known.
func TestUpdateOfWhatIsNotKnown(t *testing.T) {
	old, next := PodKey{"a", "old"}, PodKey{"b", "next"}
	p := ingress(t, TierDefault, allowAll)
	p.Subject = Pods{Calico: true, Namespaces: parsed("env == 'dev'")}
	state := State{
		Local: map[string]PodKey{"cali1": old}, Namespaces: map[string]map[string]string{"a": {"env": "dev"}}, Policies: []Policy{p},
		Pods: map[PodKey]*Pod{old: {PodKey: old, Account: "robot"}},
	}
	c := Compile(state)
	state.Local, state.Pods = map[string]PodKey{"cali1": old, "cali2": next}, map[PodKey]*Pod{old: state.Pods[old], next: {PodKey: next}}
	if _, ok := c.Update(state, []PodKey{next}); ok {
		t.Errorf("endpoints %v", c.Endpoints)
	}
	state.Local, state.Pods = map[string]PodKey{"cali1": old}, map[PodKey]*Pod{old: state.Pods[old]}
	c = Compile(state)
	if _, ok := c.Update(state, []PodKey{old}); !ok {
		t.Error("nothing has changed")
	}
	state.Accounts = map[Account]map[string]string{}
	if _, ok := c.Update(state, []PodKey{old}); ok {
		t.Error("labels of service accounts that are known now change nothing")
	}
}

// What a host endpoint's own end reads is of interest, and so are all pods where a named port may be of a set's
// addresses.
func TestInterestInWhatMayBe(t *testing.T) {
	own := Rule{Action: Allow, AnyPeer: true, AnyPort: true, Own: &Match{Select: &Pods{Calico: true, Namespace: "a"}}}
	p := Policy{
		ID: ID{Kind: KindCalicoGlobalNetworkPolicy, Name: "p"}, Tier: TierDefault, Subject: Pods{Calico: true}, Applies: [2]bool{Ingress: true},
		Rules: [2][]Rule{Ingress: {own}},
	}
	state := State{Node: "n", Policies: []Policy{p}, Namespaces: map[string]map[string]string{"a": {}}}
	for _, hosts := range []bool{false, true} {
		if hosts {
			state.HostEndpoints = []HostEndpoint{{Name: "h", Node: "n", Interface: "eth0"}}
		}
		if all, one := state.Interest(), state.InterestOf(Ingress, own); len(all.Namespaces) == 1 != hosts || len(one.Namespaces) == 1 != hosts {
			t.Errorf("host endpoints %v: interest in %v, of the rule in %v", hosts, all, one)
		}
	}
	sets := &Pods{Calico: true, Namespace: "unknown", Labels: parsed("pcns.env == 'dev'")}
	named := Rule{Action: Allow, Ports: []Port{{Name: "web"}}, Peers: []Peer{{Match: &Match{Select: sets}}}}
	state.Sets = []NetworkSet{{Namespace: "unknown", Nets: []netip.Prefix{netip.MustParsePrefix("192.0.2.0/24")}}}
	if got := state.InterestOf(Egress, named); !got.All {
		t.Errorf("interest in %v, though a set may be selected", got)
	}
	for _, i := range [][2]Interest{{{All: true}, {}}, {{}, {All: true}}} {
		if !i[0].And(i[1]).All {
			t.Errorf("%v: not in all", i)
		}
	}
}

// What may be a pod's is explained as denied to a rule that allows the pod.
func TestUnsureAddressesAreExplained(t *testing.T) {
	subject, peer, at := PodKey{"a", "subject"}, PodKey{"a", "peer"}, netip.MustParseAddr("10.0.0.2")
	p := ingress(t, TierDefault, allowAll)
	p.Rules[Ingress] = []Rule{{Action: Allow, AnyPort: true, Peers: []Peer{{Pods: &Pods{Namespace: "a"}}}}}
	state := State{Local: map[string]PodKey{"cali1": subject}, Namespaces: map[string]map[string]string{"a": {}}, Policies: []Policy{p},
		Pods: map[PodKey]*Pod{subject: {PodKey: subject}, peer: {PodKey: peer, Unsure: []netip.Addr{at}}}}
	packet := Packet{Protocol: TCP, Port: 80}
	if Explain(state, Party{Address: at}, Party{Pod: subject}, packet).Allow || Compile(state).Decide("cali1", Ingress, at, packet).Allow {
		t.Error("what may be the peer's is allowed")
	}
}

// A named port that is denied to a set with unknown labels is denied to a pod of another namespace at an address of the
// set.
func TestNamedPortsOfSetsThatMayBeSelected(t *testing.T) {
	subject, other, at := PodKey{"a", "subject"}, PodKey{"b", "other"}, netip.MustParseAddr("10.0.0.2")
	p := ingress(t, TierDefault, allowAll)
	selected := &Pods{Calico: true, Namespace: "unknown", Labels: parsed("pcns.env == 'dev'")}
	p.Rules[Ingress] = append([]Rule{
		{Action: Deny, AnyPort: true, Sources: []Port{{Name: "web"}}, Peers: []Peer{{Match: &Match{Select: selected}}}},
	}, p.Rules[Ingress]...)
	state := State{
		Local: map[string]PodKey{"cali1": subject}, Namespaces: map[string]map[string]string{"a": {}, "b": {}}, Policies: []Policy{p},
		Sets: []NetworkSet{{Namespace: "unknown", Nets: []netip.Prefix{netip.MustParsePrefix("10.0.0.0/8")}}},
		Pods: map[PodKey]*Pod{
			subject: {PodKey: subject}, other: {PodKey: other, Addresses: []netip.Addr{at}, Ports: []NamedPort{{"web", TCP, 80}}},
		},
	}
	for port, want := range map[uint16]bool{80: false, 81: true} {
		if got := Compile(state).Decide("cali1", Ingress, at, Packet{Protocol: TCP, Port: 1, SourcePort: port}).Allow; got != want {
			t.Errorf("from port %d: allowed %v, want %v", port, got, want)
		}
	}
}
