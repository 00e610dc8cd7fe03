package desired

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/tortie-net/tortie/internal/api"
	"github.com/tortie-net/tortie/internal/cluster/state"
	"github.com/tortie-net/tortie/internal/kernel/wireguard"
	"github.com/tortie-net/tortie/internal/testkit/desiredtest"
)

// kernel returns a device with a key, and a moment-old handshakes with the given keys.
func kernel(now time.Time, own byte, answered ...byte) *wireguard.State {
	s := &wireguard.State{Public: key(own), Handshakes: map[wireguard.Key]time.Time{}}
	for _, k := range answered {
		s.Handshakes[key(k)] = now.Add(-time.Second)
	}
	return s
}

// decided describes what a node does with its second device.
func decided(s *Snapshot) string {
	var words []string
	if t := s.crypt[0].turn; t.second {
		words = append(words, map[bool]string{false: "same key", true: "own key"}[t.own])
		for what, is := range map[string]bool{"anew": t.begin, "take": t.take} {
			if is {
				words = append(words, what)
			}
		}
		if len(t.waiting) > 0 {
			words = append(words, fmt.Sprint("waits for ", t.waiting))
		}
	}
	for _, name := range slices.Sorted(maps.Keys(s.crypt[0].peers)) {
		if p := s.crypt[0].peers[name]; p.next != (wireguard.Key{}) {
			words = append(words, fmt.Sprintf("%s has %d", name, p.next[0]))
			if p.second {
				words = append(words, "by it")
			}
		}
	}
	return strings.Join(words, ", ")
}

// The node has key 1, node2 key 2 and far key 9. The first two change theirs to the tenfold.
func TestRotation(t *testing.T) {
	const none = ""
	now := time.Now()
	type step struct {
		after         time.Duration
		main, next    [2]byte // of node2 and far; 0: none
		rotate        bool
		first, second *wireguard.State // handshakes get the step's time
		want          string
	}
	kept, tenfold := [2]byte{2, 9}, [2]byte{20, 9}
	at := func(own byte, answered ...byte) *wireguard.State { return kernel(time.Time{}, own, answered...) }
	for name, steps := range map[string][]step{
		"nothing to do": {{0, kept, kept, false, at(1, 2, 9), nil, none}},
		"own change": {
			{0, kept, kept, true, at(1, 2, 9), nil, none}, // others may begin
			{time.Minute, kept, kept, true, at(1, 2, 9), nil, "own key, anew"},
			{time.Second, kept, kept, true, at(1, 2, 9), at(10), "own key, waits for [far node2], far has 9, node2 has 2"},
			{time.Second, kept, kept, true, at(1, 2, 9), at(10, 2), "own key, waits for [far], far has 9, node2 has 2, by it"},
			{time.Hour, kept, kept, true, at(1, 2, 9), at(10, 2), "own key, waits for [far], far has 9, node2 has 2, by it"},
			{time.Second, kept, kept, true, at(1, 2, 9), at(10, 2, 9), "own key, far has 9, by it, node2 has 2, by it"},
			{followTime, kept, kept, true, at(1, 2, 9), at(10, 2, 9), "own key, take, far has 9, by it, node2 has 2, by it"},
			{time.Second, kept, kept, false, at(10), at(10, 2, 9), "same key, far has 9, by it, node2 has 2, by it"},
			{time.Second, kept, kept, false, at(10, 2), at(10, 2, 9), "same key, far has 9, by it, node2 has 2"},
			{time.Second, kept, kept, false, at(10, 2, 9), at(10, 2, 9), "same key, far has 9, node2 has 2"},
			{retireTime - 1, kept, kept, false, at(10, 2, 9), at(10, 2, 9), "same key, far has 9, node2 has 2"},
			{1, kept, kept, false, at(10, 2, 9), at(10, 2, 9), "far has 9, node2 has 2"},
		},
		"those that are not reached, and those that take no part, are not waited for": {
			{0, kept, [2]byte{2, 0}, true, at(1, 9), at(10), "own key, node2 has 2"},
			{followTime, kept, [2]byte{2, 0}, true, at(1, 9), at(10), "own key, take, node2 has 2"},
		},
		"another's change": {
			{0, kept, tenfold, true, at(1, 2, 9), nil, "same key, node2 has 20"},
			{time.Hour / 2, kept, tenfold, true, at(1, 2, 9), at(1), "same key, node2 has 20"},
			{time.Second, kept, tenfold, true, at(1, 2, 9), at(1, 20), "same key, node2 has 20, by it"},
			{time.Hour, kept, tenfold, true, at(1, 2, 9), at(1, 20), "same key, node2 has 20, by it"},
			{time.Second, tenfold, tenfold, true, at(1, 9), at(1, 20), "same key, node2 has 20, by it"},
			{time.Second, tenfold, tenfold, true, at(1, 20, 9), at(1, 20), "same key, node2 has 20"},
			{followTime, tenfold, tenfold, true, at(1, 20, 9), at(1, 20), "own key, anew, node2 has 20"},
		},
		"another's change that never ends": {
			{0, kept, tenfold, false, at(1, 2, 9), nil, "same key, node2 has 20"},
			{turnTime, kept, tenfold, false, at(1, 2, 9), at(1), "same key"},
			{retireTime, kept, tenfold, false, at(1, 2, 9), at(1), none},
		},
		"another's next key that is ever new": {
			{0, kept, tenfold, true, at(1, 2, 9), nil, "same key, node2 has 20"},
			{turnTime - time.Minute, kept, [2]byte{21, 9}, true, at(1, 2, 9), at(1), "same key, node2 has 21"},
			{time.Minute, kept, [2]byte{22, 9}, true, at(1, 2, 9), at(1), "same key"},
			{followTime, kept, [2]byte{23, 9}, true, at(1, 2, 9), at(1), "own key, anew"},
		},
		"another's change that answers and never ends": {
			{0, kept, tenfold, true, at(1, 2, 9), nil, "same key, node2 has 20"},
			{longTurn - time.Second, kept, tenfold, true, at(1, 2, 9), at(1, 20), "same key, node2 has 20, by it"},
			{time.Second, kept, tenfold, true, at(1, 2, 9), at(1, 20), "same key, node2 has 20"},
			{followTime, kept, tenfold, true, at(1, 2, 9), at(1, 20), "own key, anew, node2 has 20"},
		},
		"another's change on the next day": {
			{0, kept, tenfold, false, at(1, 2, 9), nil, "same key, node2 has 20"},
			{turnTime, kept, tenfold, false, at(1, 2, 9), at(1), "same key"},
			{countTime, kept, tenfold, false, at(1, 2, 9), at(1), "same key, node2 has 20"},
		},
		"two at one time": {
			{0, kept, tenfold, true, at(1, 2, 9), at(10, 9), "own key, waits for [node2], far has 9, by it, node2 has 20"},
			{time.Second, kept, tenfold, true, at(1, 2, 9), at(10, 9, 20), "own key, far has 9, by it, node2 has 20, by it"},
			{followTime, kept, tenfold, true, at(1, 2, 9), at(10, 9, 20), "own key, take, far has 9, by it, node2 has 20, by it"},
			{time.Second, kept, tenfold, false, at(10, 2, 9), at(10, 9, 20), "same key, far has 9, node2 has 20, by it"},
		},
	} {
		var c Crypts
		for i, st := range steps {
			now = now.Add(st.after)
			s := crypted(t, func(w *state.Cluster) {
				for at, n := range []int{0, 2} {
					w.Nodes[n].Annotations[api.AnnotationWireGuardKey] = key(st.main[at]).String()
					if next := st.next[at]; next != 0 {
						w.Nodes[n].Annotations[api.AnnotationWireGuardNextKey] = key(next).String()
					}
				}
			})
			s.Felix.WireGuard.On[1], s.Self.RotateKeys[0] = false, st.rotate
			states := [2]wireguard.State{*st.first}
			states[0].Second = st.second
			for _, device := range []*wireguard.State{st.first, cmp.Or(st.second, st.first)} {
				for k := range device.Handshakes {
					device.Handshakes[k] = now
				}
			}
			c.Follow(s, states, now)
			if got := decided(s); got != st.want {
				t.Errorf("%s, step %d: %s; want %s", name, i, got, st.want)
			}
		}
	}
}

// A node with a due key that has waited too long for its turn names the nodes ahead; before that it reports nothing.
func TestUnrotated(t *testing.T) {
	began := time.Unix(10000, 0)
	var c Crypts
	for i, step := range []struct {
		after time.Duration
		want  string
	}{{0, ""}, {rotationPatience, ""},
		{rotationPatience + 3*rotationTurn, "wireguard.cali: a new key is due since 1970-01-01T02:46:40Z, and nodes (1), such as node2, "}} {
		now := began.Add(step.after)
		s := crypted(t, func(w *state.Cluster) { w.Nodes[0].Annotations[api.AnnotationWireGuardNextKey] = key(20).String() })
		s.Felix.WireGuard.On[1], s.Self.RotateKeys[0] = false, true
		c.Follow(s, [2]wireguard.State{*kernel(now, 1, 2, 9)}, now)
		if got := fmt.Sprint(texts(s.Unrotated(now))); !strings.HasPrefix(got, "["+step.want) || step.want == "" && got != "[]" {
			t.Errorf("step %d: %s; want %s", i, got, step.want)
		}
	}
}

// Routes and peers of the second device: an ended session is not used, nor a session of another key.
func TestSecondDevice(t *testing.T) {
	now := time.Unix(10000, 0)
	for name, tt := range map[string]struct {
		second *wireguard.State
		want   string
	}{
		"none":     {nil, "192.168.2.0/26 dev wireguard.cali"},
		"answered": {kernel(now, 1, 20), "192.168.2.0/26 dev wireguard.next"},
		"long ago": {kernel(now.Add(-wireguard.SessionTime), 1, 20), "192.168.2.0/26 dev wireguard.cali"},
		"old key":  {kernel(now, 1, 2), "192.168.2.0/26 dev wireguard.cali"},
	} {
		s := crypted(t, func(w *state.Cluster) { w.Nodes[0].Annotations[api.AnnotationWireGuardNextKey] = key(20).String() })
		var c Crypts
		states := answered(2, 9)
		states[0].Second = tt.second
		c.Follow(s, states, now)
		j := s.By(Grounds{})
		accepted, _ := j.Accept(nil, nil)
		peers, second, ways := j.Encrypted(false, accepted)
		if got := fmt.Sprint(ways); !strings.Contains(got, tt.want) || !strings.Contains(got, "192.168.9.0/26 dev wireguard.cali") {
			t.Errorf("%s: %s", name, got)
		}
		want := "10.0.0.2:51822 [10.0.0.2/32 192.168.2.0/26]"
		if len(peers) != 2 || len(second) != 1 || second[0].Key != key(20) || fmt.Sprint(second[0].Endpoint, " ", second[0].Allowed) != want {
			t.Errorf("%s: peers %v, of the second device %v", name, peers, second)
		}
		d := s.SecondWireGuard(false)
		if d == nil || !d.Second || !d.SameKey || d.Port != 51822 || s.SecondWireGuard(true) != nil ||
			!slices.Contains(s.Host().Tunnels, wireguard.Second4) {
			t.Errorf("%s: device %+v, tunnels %v", name, d, s.Host().Tunnels)
		}
	}
}

// The ports of second devices lie beside WireGuard's configured ports.
func TestSecondPorts(t *testing.T) {
	for ports, want := range map[[2]uint16][2]uint16{
		{}: {51822, 51823}, {7, 5}: {8, 9}, {65535, 65530}: {65528, 65529}, {65534, 65533}: {65531, 65532}, {1, 65533}: {65534, 65535},
		{65535, 65535}: {65533, 65534}, {3, 65534}: {1, 2}, {2, 65534}: {3, 4}, {65535, 2}: {3, 4}, {65534, 1}: {2, 3}, {1, 65535}: {2, 3},
	} {
		w := WireGuard{Port: ports}
		if got := [2]uint16{w.secondPort(0), w.secondPort(1)}; got != want {
			t.Errorf("%v: %v, want %v", ports, got, want)
		}
	}
}

// A node that announces another node's next key, before that node announces it as its key, does not own it.
func TestNextKeyIsItsNodes(t *testing.T) {
	now := time.Unix(1000, 0)
	known := Announcements{}
	var v View
	for i, says := range []map[string]string{
		{api.AnnotationWireGuardKey: key(2).String(), api.AnnotationWireGuardNextKey: key(2).String()},
		{api.AnnotationWireGuardKey: key(2).String(), api.AnnotationWireGuardNextKey: key(20).String()},
		{api.AnnotationWireGuardKey: key(20).String(), api.AnnotationWireGuardNextKey: key(20).String()},
	} {
		v.Update(now, Self{Name: "node1"}, desiredtest.World(func(w *state.Cluster) {
			maps.Copy(w.Nodes[0].Annotations, says)
			w.Nodes[0].CreationTimestamp, w.Nodes[2].CreationTimestamp = "2026-01-02T00:00:00Z", "2026-01-01T00:00:00Z"
			if i == 1 { // the thief is early
				w.Nodes, _ = known.Believe(w.Nodes, "node1", now)
				now = now.Add(time.Millisecond)
			}
			if i > 0 {
				w.Nodes[2].Annotations[api.AnnotationWireGuardKey] = key(20).String()
			}
			said := w.Nodes
			for range 2 { // a key that has changed is believed later
				w.Nodes, _ = known.Believe(said, "node1", now)
				now = now.Add(changeGrace)
			}
			v.Evidence.Known = known
		}))
	}
	near, _ := v.Base.Member("node2")
	far, _ := v.Base.Member("far")
	if near.Keys[0] != key(20) || near.Next[0] != key(20) || far.Keys[0] != (wireguard.Key{}) {
		t.Errorf("node2 has %v, %v; far %v", near.Keys[0], near.Next[0], far.Keys[0])
	}
}

func TestKeyDue(t *testing.T) {
	now, day := time.Unix(1e9, 0), 24*time.Hour
	for name, tt := range map[string]struct {
		since, asked time.Time
		age          time.Duration
		want         bool
	}{
		"never":             {now.Add(-1000 * day), time.Time{}, 0, false},
		"young":             {now.Add(-10 * day), time.Time{}, 10 * day, false},
		"old":               {now.Add(-11 * day), time.Time{}, 10 * day, true},
		"asked for":         {now.Add(-time.Second), now, 0, true},
		"got since":         {now, now.Add(-time.Second), 0, false},
		"age is not known":  {time.Time{}, now, day, false},
		"a tenth is spread": {now.Add(-10*day - 12*time.Hour), time.Time{}, 10 * day, true},
	} {
		if got := KeyDue(wireguard.Key{0x7f}, tt.since, tt.asked, tt.age, now); got != tt.want {
			t.Errorf("%s: %v", name, got)
		}
	}
	if KeyDue(wireguard.Key{}, now.Add(-day), now, day, now) {
		t.Error("a key that is none")
	}
}
