package policy

import (
	"maps"
	"net/netip"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
)

var sameAddresses = cmpopts.EquateComparable(netip.Addr{})

// compare asserts that the Ruleset decides every connection as the policies themselves do. Denials by policies that
// share a verdict name the kind only.
func compare(t *testing.T, s State, r *Ruleset) {
	t.Helper()
	var packets []Packet
	for _, protocol := range []uint8{1, TCP, UDP, SCTP} {
		for _, port := range []uint16{0, 1, 53, 54, 79, 80, 81, 82, 443, 480, 481, 843, 844, lastPort} {
			packets = append(packets, Packet{Protocol: protocol, Port: port})
		}
	}
	comparePackets(t, s, r, func() []Packet { return packets })
}

// comparePackets asks for packets for each address.
func comparePackets(t *testing.T, s State, r *Ruleset, packets func() []Packet) {
	t.Helper()
	s.Policies = ordered(s.Policies)
	for _, addr := range worldAddresses() {
		peer := Party{Address: addr}.known(s)
		for _, link := range slices.Sorted(maps.Keys(s.Local)) {
			if s.Pods[s.Local[link]] == nil {
				continue
			}
			for _, packet := range packets() {
				comparePacket(t, s, r, link, connection{Ingress, peer, s.Pods[peer.Pod], s.others(peer), packet, nil})
				comparePacket(t, s, r, link, connection{Egress, peer, s.Pods[peer.Pod], s.others(peer), packet, nil})
			}
		}
	}
}

func comparePacket(t *testing.T, s State, r *Ruleset, link string, c connection) {
	t.Helper()
	key, addr := s.Local[link], c.peer.Address
	j := judge(s, s.Pods[key], c)
	got := r.Decide(link, c.direction, addr, c.Packet)
	same := got == j.Verdict || len(c.others) > 0 && !got.Allow && !j.Verdict.Allow || // several policies may deny it
		!got.Allow && !j.Verdict.Allow && got.By == ID{Kind: j.Verdict.By.Kind}
	if !same {
		t.Fatalf("%s of %v with %v, %+v: %+v, want %+v by %+v", c.direction, key, c.peer, c.Packet, got, j.Verdict, j)
	}
	if logs := r.Logs(link, c.direction, addr, c.Packet); !slices.Equal(logs, j.Logs) {
		t.Fatalf("%s of %v with %v, %+v: logged by %+v, want %+v", c.direction, key, c.peer, c.Packet, logs, j.Logs)
	}
}

func FuzzCompile(f *testing.F) {
	for seed := range uint64(40) {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, seed uint64) {
		s := newWorld(seed).state()
		c := Compile(s)
		compare(t, s, &c.Ruleset)
		if t.Failed() {
			t.Logf("seed %d", seed)
		}
		again := newWorld(seed).state()
		slices.Reverse(again.Policies)
		if d := cmp.Diff(c.Ruleset, Compile(again).Ruleset, sameAddresses); d != "" {
			t.Errorf("an equal state gives another Ruleset:\n%s", d)
		}
	})
}

func FuzzCalico(f *testing.F) {
	f.Add(uint64(51180)) // a selector that needs a label the pod lacks, and reads labels that are not known
	for seed := range uint64(100) {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, seed uint64) {
		w := newWorld(seed)
		s := w.calicoState()
		c := Compile(s)
		all := w.packets()
		comparePackets(t, s, &c.Ruleset, func() []Packet { return []Packet{pick(w, all...), pick(w, all...), pick(w, all...)} })
		again := newWorld(seed).calicoState()
		slices.Reverse(again.Policies)
		slices.Reverse(again.Sets)
		slices.Reverse(again.HostEndpoints)
		if d := cmp.Diff(c.Ruleset, Compile(again).Ruleset, sameAddresses); d != "" {
			t.Errorf("an equal state gives another Ruleset:\n%s", d)
		}
	})
}

// used returns the Ruleset without what no pod or host endpoint uses.
func used(c *Compiled) Ruleset {
	r := c.Ruleset
	keys, sets, nets := map[string]bool{}, map[SetID]bool{}, map[string]bool{}
	for _, e := range r.Endpoints {
		keys[e.Programs[Ingress]], keys[e.Programs[Egress]] = true, true
	}
	for _, h := range r.Hosts {
		for _, both := range h.Programs {
			keys[both[Ingress]], keys[both[Egress]] = true, true
		}
	}
	if r.Programs = maps.Clone(r.Programs); !c.Unused() {
		return r
	}
	maps.DeleteFunc(r.Programs, func(key string, p Program) bool {
		if keys[key] {
			p.lists(func(l *List) {
				for _, s := range l.Steps {
					sets[s.Set], nets[s.Nets] = true, true
				}
			})
		}
		return !keys[key]
	})
	r.Nets = maps.Clone(r.Nets)
	maps.DeleteFunc(r.Nets, func(key string, _ []Range) bool { return !nets[key] })
	members := map[netip.Addr][]SetID{}
	for a, ids := range r.Members {
		if ids = slices.DeleteFunc(slices.Clone(ids), func(id SetID) bool { return !sets[id] }); len(ids) > 0 {
			members[a] = ids
		}
	}
	r.Members = members
	return r
}

func FuzzUpdate(f *testing.F) {
	for seed := range uint64(40) {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, seed uint64) {
		w := newWorld(seed)
		s := w.state()
		if w.chance(50) {
			s = w.calicoState()
		}
		c := Compile(s)
		for range 30 {
			var changed []PodKey
			for range 1 + w.IntN(2) {
				changed = append(changed, w.move(&s))
			}
			if w.chance(30) {
				w.moveLink(&s)
			}
			want := Compile(s)
			before, endpoints := maps.Clone(c.Members), maps.Clone(c.Endpoints)
			touched, ok := c.Update(s, changed)
			if !ok {
				checkTouched(t, before, c.Members, nil)
				if !maps.Equal(endpoints, c.Endpoints) {
					t.Fatalf("after %v: not done, but Endpoints %v became %v", changed, endpoints, c.Endpoints)
				}
				c = Compile(s)
				continue
			}
			checkTouched(t, before, c.Members, touched)
			if d := cmp.Diff(want.Ruleset, used(c), sameAddresses); d != "" {
				t.Fatalf("after %v, touched %v (-from scratch +updated):\n%s", changed, touched, d)
			}
		}
	})
}
