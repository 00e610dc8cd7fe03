package policy

import (
	"fmt"
	"maps"
	"math"
	"net/netip"
	"slices"

	"github.com/tortie-net/tortie/internal/api/selector"
)

// What only Calico's policies have, in the same small world.

var (
	worldAccounts   = []string{"", "one", "two"}
	worldServices   = []Service{{"x", "s"}, {"y", "s"}, {"z", "gone"}}
	worldICMP       = []uint16{0, 255, 8 << 8, 8<<8 | 1, 8<<8 | 255, 3 << 8, 3<<8 | 4, lastPort}
	calicoSelectors = []string{
		"all()", "a == '1'", "b != '2'", "has(a) && b in {'1', '2'}", "!has(b)", "a == '1' || b == '1'", "projectcalico.org/namespace == 'x'",
		"projectcalico.org/namespace in {'y', 'z'} && a == '2'", "has(projectcalico.org/orchestrator)",
		"projectcalico.org/serviceaccount == 'one'", "pcns.a == '1'", "!has(pcns.b)", "pcsa.a == '1'", "pcsa.a != '1' && b == '1'",
		"pcns.projectcalico.org/name == 'z' && !(a == '2')",
	}
	calicoNamespaces = []string{"all()", "a == '1'", "a != '2'", "has(b)", "projectcalico.org/name in {'x', 'y'}"}
)

func parsed(text string) selector.Selector {
	s, err := selector.Parse(text)
	if err != nil {
		panic(err)
	}
	return s
}

func (w world) calicoPods() *Pods {
	p := &Pods{Calico: true, Labels: parsed(pick(w, calicoSelectors...))}
	switch w.IntN(4) {
	case 0:
		p.Namespace = pick(w, worldNamespaces...)
	case 1:
		p.Namespaces, _ = selector.ParseScoped(pick(w, calicoNamespaces...), hasNamespace)
	case 2:
		p.Scope = pick(w, Everywhere, Everywhere, Global)
	}
	p.Owner = pick(w, "", "x", "y")
	if w.chance(10) {
		p.Accounts = pick(w, []string{"", "one"}, []string{"one"}, []string{"two", "one"}, []string{"one,two"}, []string{"one two"}, []string{})
	}
	if w.chance(10) {
		p.AccountLabels = parsed(pick(w, "a == '1'", "b != '1'", "all()"))
	}
	return p
}

func (w world) nets() (all []netip.Prefix) {
	for range 1 + w.IntN(2) {
		all = append(all, netip.MustParsePrefix(pick(w, worldNets...)))
	}
	return all
}

func (w world) match() *Match {
	m := &Match{}
	if w.chance(30) {
		m.Nets = w.nets()
	}
	if w.chance(20) {
		m.NotNets = w.nets()
	}
	if w.chance(80) {
		m.Select, m.Not = w.calicoPods(), w.chance(40)
	}
	if w.chance(10) && m.Select != nil {
		m.Select.Calico = false
	}
	return m
}

// numbers are ports, or types and codes of ICMP.
func (w world) numbers() Port {
	if w.chance(25) {
		first := pick(w, worldICMP...)
		return Port{Protocol: pick[uint8](w, 1, 58), First: first, Last: max(first, pick(w, first, first|255, lastPort))}
	}
	return w.port()
}

func (w world) severalPorts(most int) (all []Port) {
	for range w.IntN(most) {
		all = append(all, w.numbers())
	}
	return all
}

func (w world) calicoRule(d Direction) Rule {
	r := Rule{Action: pick(w, Allow, Allow, Deny, Pass, Log), AnyPeer: w.chance(35), AnyPort: w.chance(50), HostPorts: w.chance(80)}
	if w.chance(25) {
		r.Family = pick[uint8](w, 4, 6)
	}
	for range w.IntN(3) {
		switch w.IntN(6) {
		case 0:
			r.Peers = append(r.Peers, w.peer(d))
		case 1:
			r.Peers = append(r.Peers, Peer{Service: &worldServices[w.IntN(len(worldServices))]})
		default:
			r.Peers = append(r.Peers, Peer{Match: w.match()})
		}
	}
	r.Ports = w.severalPorts(3)
	if w.chance(25) {
		r.Except = w.severalPorts(3)
	}
	if w.chance(20) {
		r.Sources = w.severalPorts(3)
	}
	if w.chance(15) {
		r.ExceptSources = w.severalPorts(3)
	}
	if w.chance(20) {
		r.Own = w.match()
	}
	return r
}

func (w world) calicoPolicy(i int) Policy {
	p := Policy{ID: ID{KindCalicoNetworkPolicy, pick(w, worldNamespaces...), fmt.Sprint(pick(w, "", "default."), i)},
		Order: pick(w, 1, 1000, 1000, math.Inf(1)), Called: fmt.Sprint(i)}
	p.Tier = pick(w, TierDefault, TierDefault, TierAdmin, Tier{Name: "strict", Order: 1500, End: Deny},
		Tier{Name: "late", Order: math.Inf(1), End: pick(w, Deny, Pass)}, Tier{Name: "gone", Order: math.Inf(1), End: Deny, Missing: true})
	p.Subject = *w.calicoPods()
	if p.Subject.Namespace = p.Namespace; w.chance(50) {
		p.ID, p.Subject = ID{Kind: KindCalicoGlobalNetworkPolicy, Name: p.Name}, *w.calicoPods()
	}
	for d := range p.Rules {
		p.Applies[d] = w.chance(70)
		for range w.IntN(5) {
			p.Rules[d] = append(p.Rules[d], w.calicoRule(Direction(d)))
		}
	}
	return p
}

// calicoState is a world with all kinds of policies.
func (w world) calicoState() State {
	s := w.state()
	s.Accounts, s.Services = map[Account]map[string]string{}, map[Service][]ServiceEndpoint{}
	for _, key := range slices.SortedFunc(maps.Keys(s.Pods), PodKey.compare) {
		pod := s.Pods[key]
		pod.Account = pick(w, worldAccounts...)
		if w.chance(10) {
			pod.Labels[pick(w, "pcns.a", "pcsa.a", labelNamespace, labelAccount)] = pick(w, "1", "x", "one")
		}
	}
	for _, ns := range worldNamespaces {
		for _, name := range worldAccounts[1:] {
			if w.chance(90) {
				s.Accounts[Account{ns, name}] = w.labels()
			}
		}
	}
	if w.chance(10) {
		s.Accounts = nil
	}
	for i := range w.IntN(4) {
		set := NetworkSet{Namespace: pick(w, "", "", "x", "y"), Name: fmt.Sprint(i), Labels: w.labels(), Nets: w.nets()}
		if w.chance(10) {
			set.Labels[pick(w, "pcns.a", labelAccount, labelOrchestrator)] = pick(w, "1", "one")
		}
		if w.chance(30) {
			set.Private, set.Wide = append(w.nets(), w.nets()...), w.IntN(3)
		}
		s.Sets = append(s.Sets, set)
	}
	for i := range w.IntN(3) {
		s.HostEndpoints = append(s.HostEndpoints, HostEndpoint{Name: fmt.Sprint(i), Labels: w.labels(), Addresses: w.someAddresses(),
			Ports: w.pod(PodKey{}).Ports, Inherits: []Account{{worldNamespaces[i], worldAccounts[i]}}})
	}
	for _, service := range worldServices[:2] {
		for _, a := range w.someAddresses() {
			at := pick(w, Packet{}, Packet{Protocol: TCP, Port: 80}, Packet{Protocol: UDP, Port: 53})
			s.Services[service] = append(s.Services[service], ServiceEndpoint{a, at.Protocol, at.Port})
		}
	}
	if w.chance(50) {
		s.Policies = nil
	}
	for i := range w.IntN(6) {
		s.Policies = append(s.Policies, w.calicoPolicy(i))
	}
	return s
}

func (w world) someAddresses() (all []netip.Addr) {
	for range 1 + w.IntN(2) {
		all = append(all, netip.MustParseAddr(pick(w, "10.0.0.3", "10.0.0.9", "192.0.2.1", "192.0.2.200", "fd00::2", "fd00::9", "2001:db8::1")))
	}
	return all
}

// worldPackets are those at which answers may change, with ports of the source by chance.
func (w world) packets() (all []Packet) {
	edges := []uint16{0, 1, 53, 54, 79, 80, 81, 82, 443, 480, 481, 843, 844, lastPort}
	for _, protocol := range []uint8{TCP, UDP, SCTP} {
		for _, port := range edges {
			all = append(all, Packet{protocol, port, pick(w, edges...)}, Packet{protocol, pick(w, edges...), port})
		}
	}
	for _, number := range append(worldICMP, 1, 8<<8|2, 7<<8|255, 9<<8, 3<<8|3, 3<<8|5) {
		all = append(all, Packet{Protocol: 1, Port: number}, Packet{Protocol: 58, Port: number})
	}
	return append(all, Packet{Protocol: 2})
}
