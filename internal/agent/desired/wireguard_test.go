package desired

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/tortie-net/tortie/internal/api"
	"github.com/tortie-net/tortie/internal/app/nodeaddr"
	"github.com/tortie-net/tortie/internal/cluster/state"
	"github.com/tortie-net/tortie/internal/kernel/wireguard"
	"github.com/tortie-net/tortie/internal/testkit/desiredtest"
	"github.com/tortie-net/tortie/internal/testkit/difftest"
)

func key(n byte) wireguard.Key { return wireguard.Key{n, 31: 1} }

// crypted returns a dual-stack snapshot with WireGuard on, in which node2 and far have keys, 2 and 9.
func crypted(t *testing.T, change func(*state.Cluster)) *Snapshot {
	t.Helper()
	s := dual(t, api.EncapNever, api.EncapNever, api.EncapNever, func(w *state.Cluster) {
		for i, annotation := range KeyAnnotations {
			w.Nodes[0].Annotations[annotation], w.Nodes[2].Annotations[annotation] = key(2+10*byte(i)).String(), key(9+10*byte(i)).String()
		}
		w.Affinities = append(w.Affinities, claim("far", "192.168.9.0/26", ""), claim("far", "fd44::9:0/122", ""))
		if change != nil {
			change(w)
		}
	})
	s.Felix.WireGuard.On = [2]bool{true, true}
	return s
}

// answered returns devices that have handshakes with all peers.
func answered(keys ...byte) [2]wireguard.State {
	one := wireguard.State{Public: key(1), Handshakes: map[wireguard.Key]time.Time{}}
	for _, k := range keys {
		one.Handshakes[key(k)] = time.Unix(1, 0)
	}
	return [2]wireguard.State{one, one}
}

// encrypted describes the result of Encrypted.
func encrypted(s *Snapshot, v6 bool, g Grounds) (lines []string) {
	j := s.By(g)
	accepted, _ := j.Accept(nil, nil)
	peers, _, ways := j.Encrypted(v6, accepted)
	slices.SortFunc(peers, func(a, b wireguard.Peer) int { return int(a.Key[0]) - int(b.Key[0]) })
	for _, p := range peers {
		lines = append(lines, fmt.Sprint(p.Key[0], " ", p.Endpoint, " ", p.Allowed))
	}
	for _, r := range ways {
		lines = append(lines, r.String())
	}
	return lines
}

func TestEncrypted(t *testing.T) {
	borrowed := Grounds{Held: []Claim{{Addr: addr("192.168.2.9"), Node: "far"}},
		Borrowed: map[Claim]Verdict{{Addr: addr("192.168.2.9"), Node: "far"}: {Confirmed: true}}}
	peer2, peer9 := "2 10.0.0.2:51820 [10.0.0.2/32 192.168.2.0/26]", "9 10.9.0.9:51820 [10.9.0.9/32 192.168.9.0/26]"
	way2, way9 := "192.168.2.0/26 dev wireguard.cali", "192.168.9.0/26 dev wireguard.cali"
	without := func(n int) func(*state.Cluster) {
		return func(w *state.Cluster) { delete(w.Nodes[n].Annotations, api.AnnotationWireGuardKey) }
	}
	for name, tt := range map[string]struct {
		cluster func(*state.Cluster)
		change  func(*Snapshot)
		states  [2]wireguard.State
		v6      bool
		grounds Grounds
		want    []string
	}{
		"all have keys":        {nil, nil, answered(2, 9), false, Grounds{}, []string{peer2, peer9, way2, way9}},
		"one has not answered": {nil, nil, answered(2), false, Grounds{}, []string{peer2, peer9, way2}},
		"one has no key":       {without(2), nil, answered(2, 9), false, Grounds{}, []string{peer2, way2}},
		"IPv6": {nil, nil, answered(12, 19), true, Grounds{}, []string{
			"12 [fd00::2]:51821 [fd00::2/128 fd44::2:0/122]", "19 [fd09::9]:51821 [fd09::9/128 fd44::9:0/122]", "fd44::2:0/122 dev wg-v6.cali",
			"fd44::9:0/122 dev wg-v6.cali",
		}},
		"off": {nil, func(s *Snapshot) { s.Felix.WireGuard.On[0] = false }, answered(2, 9), false, Grounds{}, nil},
		"port": {nil, func(s *Snapshot) { s.Felix.WireGuard.Port[0] = 7 }, answered(), false, Grounds{},
			[]string{"2 10.0.0.2:7 [10.0.0.2/32 192.168.2.0/26]", "9 10.9.0.9:7 [10.9.0.9/32 192.168.9.0/26]"}},
		"a borrowed address is its node's": {nil, nil, answered(2, 9), false, borrowed, []string{
			peer2, "9 10.9.0.9:51820 [10.9.0.9/32 192.168.2.9/32 192.168.9.0/26]", way2, "192.168.2.9/32 dev wireguard.cali", way9,
		}},
		"one borrowed by a node without a key is left to the main table": {without(2), nil, answered(2), false, borrowed,
			[]string{peer2, way2, "throw 192.168.2.9/32"}},
		"so is an own pod's": {without(2), func(s *Snapshot) { s.Self.Pods = rangeless("192.168.2.5", "192.168.1.3") }, answered(2),
			false, Grounds{}, []string{peer2, way2, "throw 192.168.2.5/32"}},
		"a key that is this node's own": {func(w *state.Cluster) { w.Nodes[2].Annotations[api.AnnotationWireGuardKey] = key(1).String() }, nil,
			answered(2, 9), false, Grounds{}, []string{peer2, way2}},
		"required": {without(2), func(s *Snapshot) { s.Self.RequireEncryption, s.Self.Pods = true, rangeless("192.168.2.5") }, answered(),
			false, borrowed, []string{
				peer2, way2, "throw 192.168.1.0/26", "throw 192.168.1.64/26", "throw 192.168.2.5/32", "prohibit 192.168.0.0/16",
				"prohibit 192.168.2.9/32", "prohibit 192.168.9.0/26",
			}},
		"required, of the other family too": {nil, func(s *Snapshot) {
			s.Self.RequireEncryption, s.Felix.WireGuard.On = true, [2]bool{true, false}
		}, answered(2, 9), true, Grounds{}, []string{
			"prohibit fd44::/48",
		}},
		"required, and off": {nil, func(s *Snapshot) { s.Self.RequireEncryption, s.Felix.WireGuard.On = true, [2]bool{} },
			answered(2, 9), true, Grounds{}, nil},
		"required, with nodes in a pool": {without(2), func(s *Snapshot) {
			s.Self.RequireEncryption, s.Self.APIServer = true, rangeless("192.168.77.1", "10.1.1.1")
			s.Self.Found = append(s.Self.Found, nodeaddr.Candidate{Addr: prefix("192.168.78.2/24"), Link: "eth7"})
		}, answered(), false, Grounds{}, []string{
			peer2, way2, "throw 192.168.1.0/26", "throw 192.168.1.64/26", "prohibit 192.168.0.0/16", "throw 192.168.77.1/32",
			"throw 192.168.78.0/24", "prohibit 192.168.9.0/26",
		}},
	} {
		s := crypted(t, tt.cluster)
		if tt.change != nil {
			tt.change(s)
		}
		var c Crypts
		c.Follow(s, tt.states, time.Unix(1000, 0))
		difftest.Want(t, name, tt.want, encrypted(s, tt.v6, tt.grounds))
	}
}

// Of two nodes that announce one key the first keeps it, even if the other Node is older and the agent starts anew. An
// invalid key is named.
func TestKeys(t *testing.T) {
	now := time.Unix(1000, 0)
	w := func(first, second string) (s Snapshot, problems string) {
		known := Announcements{}
		var v View
		for i, keys := range [][2]string{{first, ""}, {first, second}} {
			v.Update(now, Self{Name: "node1"}, desiredtest.World(func(w *state.Cluster) {
				w.Nodes[2].Annotations[api.AnnotationWireGuardKey], w.Nodes[0].Annotations[api.AnnotationWireGuardKey] = keys[0], keys[1]
				w.Nodes[2].CreationTimestamp, w.Nodes[0].CreationTimestamp = "2026-01-02T00:00:00Z", "2026-01-01T00:00:00Z"
				w.Nodes, _ = known.Believe(w.Nodes, "node1", now.Add(time.Duration(i)*time.Minute))
				v.Evidence.Known = known
			}))
		}
		next := Announcements{} // of the agent's successor
		next.Recall(v.Base.ToKeep(v.Cluster.Nodes))
		var after View
		after.Update(now, Self{Name: "node1"}, desiredtest.World(func(w *state.Cluster) {
			w.Nodes, _ = next.Believe(v.Cluster.Nodes, "node1", now.Add(time.Hour))
			after.Evidence.Known = next
		}))
		for _, m := range after.Base.Others {
			if before, _ := v.Base.Member(m.Name); before.Keys != m.Keys {
				t.Errorf("%s has the keys %v after a restart, before %v", m.Name, m.Keys, before.Keys)
			}
		}
		return v.Base, strings.Join(texts(v.Problems), "\n")
	}
	s, problems := w(key(5).String(), key(5).String())
	near, _ := s.Member("node2")
	far, _ := s.Member("far")
	if far.Keys[0] != key(5) || near.Keys[0] != (wireguard.Key{}) ||
		!strings.Contains(problems, "Node node2: its key for WireGuard is that of node far") {
		t.Errorf("%v, %v, %s", near.Keys, far.Keys, problems)
	}
	s, problems = w("nonsense", key(5).String())
	near, _ = s.Member("node2")
	if near.Keys[0] != key(5) ||
		!strings.Contains(problems, `Node far: annotation projectcalico.org/WireguardPublicKey "nonsense" is no key`) {
		t.Errorf("%v, %s", near.Keys, problems)
	}
}

// Packets to a peer become encrypted, and stop being so.
func TestCryptsFollow(t *testing.T) {
	var c Crypts
	now := time.Unix(1000, 0)
	step := func(after time.Duration, on bool, key2 byte, states [2]wireguard.State, want string, again bool) {
		t.Helper()
		now = now.Add(after)
		s := crypted(t, func(w *state.Cluster) {
			delete(w.Nodes[2].Annotations, api.AnnotationWireGuardKey)
			if w.Nodes[0].Annotations[api.AnnotationWireGuardKey] = key(key2).String(); key2 == 0 {
				delete(w.Nodes[0].Annotations, api.AnnotationWireGuardKey)
			}
		})
		s.Felix.WireGuard.On = [2]bool{on, false}
		pause := c.Follow(s, states, now)
		got := "off"
		if d := s.WireGuard(false); d != nil {
			got = strings.Join(encrypted(s, false, Grounds{}), ", ")
		}
		if got = strings.ReplaceAll(got, " 10.0.0.2:51820 [10.0.0.2/32 192.168.2.0/26]", ""); got != want || (pause > 0) != again {
			t.Errorf("after %v: %s, again in %v; want %s, %v", now.Sub(time.Unix(1000, 0)), got, pause, want, again)
		}
	}
	const way = ", 192.168.2.0/26 dev wireguard.cali"
	step(0, false, 2, answered(), "off", false)
	step(time.Second, true, 2, answered(), "2", true)
	step(time.Second, true, 2, answered(2), "2"+way, false)
	step(time.Hour, true, 2, answered(), "2"+way, false) // the device was made anew
	step(time.Second, true, 3, answered(), "3", true)
	step(patience, true, 3, answered(), "3"+way, false)
	step(time.Second, true, 0, answered(3), "3", true) // packets from it are still received
	step(followTime/2, true, 3, answered(3), "3"+way, false)
	step(time.Second, true, 0, answered(3), "3", true)
	step(followTime, true, 0, answered(3), "", false)
	step(time.Second, true, 3, answered(3), "3"+way, false)
	step(time.Second, false, 3, answered(3), "3", true)
	step(followTime/2, true, 3, answered(3), "3"+way, false)
	step(time.Second, false, 3, answered(3), "3", true)
	step(followTime, false, 3, answered(3), "off", false)
}

// A key that a node has given up belongs to the node that has it now.
func TestKeyMoves(t *testing.T) {
	var c Crypts
	c.Follow(crypted(t, nil), answered(2, 9), time.Unix(1000, 0))
	s := crypted(t, func(w *state.Cluster) {
		delete(w.Nodes[0].Annotations, api.AnnotationWireGuardKey)
		w.Nodes[2].Annotations[api.AnnotationWireGuardKey] = key(2).String()
	})
	c.Follow(s, answered(2, 9), time.Unix(1001, 0))
	difftest.Want(t, "moved", []string{"2 10.9.0.9:51820 [10.9.0.9/32 192.168.9.0/26]", "192.168.9.0/26 dev wireguard.cali"},
		encrypted(s, false, Grounds{}))
}

func TestWireGuardDevice(t *testing.T) {
	s := crypted(t, nil)
	s.Self.WireGuard = addr("192.168.1.9")
	var c Crypts
	c.Follow(s, answered(2), time.Unix(1000, 0))
	difftest.Want(t, "device", &wireguard.Device{Port: 51820, MTU: 1440, Addr: addr("192.168.1.9")}, s.WireGuard(false))
	if ports := s.Guard().WireGuardPorts; !slices.Equal(ports, []uint16{51820, 51821, 51822, 51823}) ||
		!slices.Equal(s.HostRules().WireGuardPorts, ports) {
		t.Errorf("ports %v", ports)
	}
	if got := s.Host().Tunnels; !slices.Contains(got, wireguard.Device4) || s.PodMTU() != 1440 || !s.Announces(false) || !s.Announces(true) {
		t.Errorf("tunnels %v, MTU of pods %d", got, s.PodMTU())
	}
	assign, keep := s.TunnelRanges(WireGuardTunnel6)
	if want := rangesOf("fd44::/48"); !slices.Equal(assign, want) || !slices.Equal(keep, want) {
		t.Errorf("addresses from %v, kept in %v", assign, keep)
	}
	reports := s.CryptReports()
	if len(reports) != 2 || reports[0].Encrypted != 1 || !slices.Equal(reports[0].Clear, []string{"far"}) || len(reports[1].Clear) != 2 {
		t.Errorf("%+v", reports)
	}
	s.Felix.WireGuard.MTU = [2]int{1300, 9000}
	if s.WireGuard(false).MTU != 1300 || s.WireGuard(true).MTU != 8920 {
		t.Errorf("MTUs %d, %d", s.WireGuard(false).MTU, s.WireGuard(true).MTU)
	}
	s.Felix.WireGuard = WireGuard{}
	if assign, keep := s.TunnelRanges(WireGuardTunnel); assign != nil || keep != nil || s.PodMTU() != 1500 || s.WireGuard(false) != nil {
		t.Errorf("off: %v, %v, %d", assign, keep, s.PodMTU())
	}
}

// Encryption of packets between nodes is refused by name.
func TestHostEncryption(t *testing.T) {
	f, problems := ParseFelix(api.FelixConfigurationSpec{WireguardEnabled: ptr(true), WireguardHostEncryptionEnabled: ptr(true)}, Felix{})
	if len(problems) != 1 ||
		!strings.Contains(problems[0].Error(), `spec.wireguardHostEncryptionEnabled "true": must be false`) || !f.WireGuard.On[0] {
		t.Errorf("%v, %+v", problems, f.WireGuard)
	}
}

func rangeless(texts ...string) (all []netip.Addr) {
	for _, text := range texts {
		all = append(all, addr(text))
	}
	return all
}
