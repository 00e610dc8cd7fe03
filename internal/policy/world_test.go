package policy

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"net/netip"
	"slices"

	"github.com/tortie-net/tortie/internal/api"
	"github.com/tortie-net/tortie/internal/api/selector"
)

// world makes small clusters in which everything overlaps.
type world struct{ *rand.Rand }

func newWorld(seed uint64) world { return world{rand.New(rand.NewPCG(seed, 1))} }

func (w world) chance(percent int) bool { return w.IntN(100) < percent }

func pick[T any](w world, from ...T) T { return from[w.IntN(len(from))] }

var (
	worldNamespaces = []string{"x", "y", "z"}
	worldNames      = []string{"http", "dns"}
	worldPorts      = []uint16{53, 80, 81, 443}
	worldNets       = []string{"10.0.0.0/8", "10.0.0.0/29", "10.0.0.2/32", "10.0.0.4/30", "0.0.0.0/0", "::/0", "fd00::/125", "fd00::3/128",
		"192.0.2.0/24", "192.0.2.128/25"}
)

func (w world) labels() map[string]string {
	l := map[string]string{}
	for _, key := range []string{"a", "b"} {
		if w.chance(70) {
			l[key] = pick(w, "1", "2")
		}
	}
	return l
}

func (w world) selector() selector.Selector {
	var l api.LabelSelector
	for range w.IntN(3) {
		r := api.LabelSelectorRequirement{Key: pick(w, "a", "b"), Operator: pick(w, "In", "In", "NotIn", "Exists", "DoesNotExist")}
		if r.Operator == "In" || r.Operator == "NotIn" {
			r.Values = []string{pick(w, "1", "2")}
		}
		l.MatchExpressions = append(l.MatchExpressions, r)
	}
	s, err := selector.FromLabels(l)
	if err != nil {
		panic(err)
	}
	return s
}

func (w world) pod(key PodKey) *Pod {
	p := &Pod{PodKey: key, UID: key.String(), Labels: w.labels()}
	for range 1 + w.IntN(2) {
		p.Addresses = append(p.Addresses, netip.AddrFrom4([4]byte{10, 0, 0, byte(1 + w.IntN(8))}))
		if w.chance(50) {
			p.Addresses = append(p.Addresses, netip.AddrFrom16([16]byte{0: 0xfd, 15: byte(1 + w.IntN(8))}))
		}
	}
	if w.chance(25) {
		n := w.IntN(len(p.Addresses))
		p.Addresses, p.Unsure = p.Addresses[:n:n], p.Addresses[n:]
	}
	for range w.IntN(3) {
		p.Ports = append(p.Ports, NamedPort{pick(w, worldNames...), pick(w, TCP, UDP), pick(w, worldPorts...)})
	}
	return p
}

func (w world) pods() *Pods {
	p := &Pods{Labels: w.selector()}
	if w.chance(50) {
		p.Namespace = pick(w, worldNamespaces...)
	} else {
		p.Namespaces = w.selector()
	}
	return p
}

func (w world) peer(d Direction) Peer {
	switch {
	case w.chance(60):
		return Peer{Pods: w.pods()}
	case w.chance(20) && d == Egress:
		nodes := w.selector()
		return Peer{Nodes: &nodes}
	}
	p := Peer{Net: netip.MustParsePrefix(pick(w, worldNets...))}
	for range w.IntN(3) {
		p.Except = append(p.Except, netip.MustParsePrefix(pick(w, worldNets...)))
	}
	return p
}

func (w world) port() Port {
	switch w.IntN(4) {
	case 0:
		return Port{Protocol: pick(w, TCP, UDP, SCTP), Last: lastPort}
	case 1:
		return Port{Protocol: pick(w, 0, TCP, UDP), Name: pick(w, worldNames...)}
	}
	first := pick(w, worldPorts...)
	return Port{Protocol: pick(w, TCP, UDP), First: first, Last: first + pick[uint16](w, 0, 0, 1, 400, lastPort-443)}
}

func (w world) rule(d Direction, actions ...Action) Rule {
	r := Rule{Action: pick(w, actions...), AnyPeer: w.chance(10), AnyPort: w.chance(30)}
	for range w.IntN(4) {
		r.Peers = append(r.Peers, w.peer(d))
	}
	for range w.IntN(3) {
		r.Ports = append(r.Ports, w.port())
	}
	return r
}

func (w world) policy(i int) Policy {
	p := Policy{ID: ID{KindNetworkPolicy, pick(w, worldNamespaces...), fmt.Sprint(i)}, Tier: TierDefault, Order: networkPolicyOrder}
	actions := []Action{Allow}
	p.Subject = Pods{Namespace: p.Namespace, Labels: w.selector()}
	if w.chance(60) {
		p.ID = ID{Kind: KindClusterNetworkPolicy, Name: fmt.Sprint(i)}
		p.Tier = pick(w, TierAdmin, TierAdmin, TierBaseline, Tier{Name: "strict", Order: 1500, End: Deny})
		p.Order, p.Subject, actions = float64(w.IntN(3)), *w.pods(), []Action{Allow, Deny, Pass}
	}
	if w.chance(10) {
		actions = []Action{Allow}
	}
	for d := range p.Rules {
		p.Applies[d] = w.chance(70)
		for range w.IntN(5) {
			p.Rules[d] = append(p.Rules[d], w.rule(Direction(d), actions...))
		}
	}
	return p
}

func (w world) state() State {
	s := State{Local: map[string]PodKey{}, Pods: map[PodKey]*Pod{}, Namespaces: map[string]map[string]string{}, Nodes: map[string]Node{}}
	for _, ns := range worldNamespaces {
		if w.chance(95) {
			s.Namespaces[ns] = w.labels()
		}
		for _, name := range []string{"p", "q", "r"} {
			key := PodKey{ns, name}
			if w.chance(80) {
				s.Pods[key] = w.pod(key)
			}
			if w.chance(30) {
				s.Local["cali"+ns+name] = key
			}
		}
	}
	s.Nodes["n"] = Node{w.labels(), []netip.Addr{netip.MustParseAddr("192.0.2.1"), netip.MustParseAddr("fd00::9")}}
	s.Nodes["m"] = Node{w.labels(), []netip.Addr{netip.MustParseAddr("192.0.2.129")}}
	for i := range w.IntN(8) {
		s.Policies = append(s.Policies, w.policy(i))
	}
	return s
}

// addresses are those at which any answer of a world may change.
func worldAddresses() (all []netip.Addr) {
	for i := range 10 {
		all = append(all, netip.AddrFrom4([4]byte{10, 0, 0, byte(i)}), netip.AddrFrom16([16]byte{0: 0xfd, 15: byte(i)}))
	}
	for _, a := range []string{"0.0.0.0", "9.255.255.255", "11.0.0.0", "255.255.255.255", "::", "fe80::1", "192.0.2.1", "192.0.2.2",
		"192.0.2.129", "192.0.2.130"} {
		all = append(all, netip.MustParseAddr(a))
	}
	return all
}

// moveLink makes a pod local, whether there is one or not, or no longer local.
func (w world) moveLink(s *State) {
	key := PodKey{pick(w, worldNamespaces...), pick(w, "p", "q", "r", "s", "t")}
	link := "cali" + key.Namespace + key.Name
	s.Local = maps.Clone(s.Local)
	if _, there := s.Local[link]; there {
		delete(s.Local, link)
	} else {
		s.Local[link] = key
	}
}

// move changes one pod, or makes or removes one.
func (w world) move(s *State) PodKey {
	key := PodKey{pick(w, worldNamespaces...), pick(w, "p", "q", "r", "s", "t")}
	s.Pods = maps.Clone(s.Pods)
	old := s.Pods[key]
	defer func() {
		if p := s.Pods[key]; p != nil && s.Services != nil {
			p.Account = pick(w, worldAccounts...)
		}
	}()
	switch w.IntN(4) {
	case 0:
		delete(s.Pods, key)
	case 1:
		p := w.pod(key)
		if old != nil {
			p.Addresses, p.Unsure, p.Ports = old.Addresses, old.Unsure, old.Ports
		}
		s.Pods[key] = p
	case 2:
		p := w.pod(key)
		for _, other := range s.Pods { // takes the address of another, which may keep it or go
			p.Addresses = slices.Clone(other.Addresses)
			break
		}
		s.Pods[key] = p
	default:
		s.Pods[key] = w.pod(key)
	}
	return key
}
