package bgp

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"hash/fnv"
	"maps"
	"math/rand/v2"
	"net/netip"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/osrg/gobgp/v3/pkg/packet/bgp"

	"github.com/tortie-net/tortie/internal/bgp/wire"
)

// heardPath is a path as GoBGP's decoder reads it, as text: the model for the editor's messages.
type heardPath struct {
	hop, path, communities, large, others string
	localPref                             int64 // -1: there is none
}

// heard are the paths that a peer has after some messages.
type heard map[netip.Prefix]heardPath

// takes applies a message by GoBGP's decoder. Withdrawals of a message come before its announcements.
func (in heard) takes(t *testing.T, raw []byte, family bgp.RouteFamily) {
	t.Helper()
	gobgpTakes(t, raw, family)
	m, err := bgp.ParseBGPMessage(raw)
	if err != nil {
		t.Fatalf("% x: %v", raw, err)
	}
	body, ok := m.Body.(*bgp.BGPUpdate)
	if !ok {
		return
	}
	is := heardPath{localPref: -1}
	var withdrawn, announced []bgp.AddrPrefixInterface
	for _, n := range body.WithdrawnRoutes {
		withdrawn = append(withdrawn, n)
	}
	for _, n := range body.NLRI {
		announced = append(announced, n)
	}
	for _, a := range body.PathAttributes {
		switch a := a.(type) {
		case *bgp.PathAttributeMpReachNLRI:
			is.hop, announced = a.Nexthop.String(), a.Value
		case *bgp.PathAttributeMpUnreachNLRI:
			withdrawn = a.Value
		case *bgp.PathAttributeNextHop:
			is.hop = a.Value.String()
		case *bgp.PathAttributeAsPath:
			is.path = numbersOf(a)
		case *bgp.PathAttributeLocalPref:
			is.localPref = int64(a.Value)
		case *bgp.PathAttributeCommunities:
			is.communities = sortedText(a.Value)
		case *bgp.PathAttributeLargeCommunities:
			is.large = sortedText(a.Values)
		default:
			raw, _ := a.Serialize()
			is.others += fmt.Sprintf("%x ", raw)
		}
	}
	for _, n := range withdrawn {
		delete(in, netip.MustParsePrefix(n.String()))
	}
	for _, n := range announced {
		in[netip.MustParsePrefix(n.String())] = is
	}
}

func numbersOf(a *bgp.PathAttributeAsPath) string {
	var text string
	for _, segment := range a.Value {
		if segment.GetType() == bgp.BGP_ASPATH_ATTR_TYPE_SEQ {
			text += fmt.Sprintln(segment.GetAS())
		} else {
			text += fmt.Sprintln("set", segment.GetAS())
		}
	}
	// Two sequences in a row are as one.
	return string(bytes.ReplaceAll([]byte(text), []byte("]\n["), []byte(" ")))
}

// sortedText is a list as text, sorted, and each once: duplicates are without a meaning.
func sortedText[T any](list []T) string {
	words := make([]string, 0, len(list))
	for _, v := range list {
		words = append(words, fmt.Sprint(v))
	}
	slices.Sort(words)
	return fmt.Sprint(slices.Compact(words))
}

// whims are the changes that a test decides on, by prefix.
var whims = []wire.Change{
	{}, {}, {Withdraw: true}, {SetLocalPref: true, LocalPref: 7}, {SetLocalPref: true, LocalPref: 100},
	{Add: []wire.Community{{A: 64512, B: 7}}},
	{Add: []wire.Community{wire.NoExport, {Large: true, A: 1, B: 2, C: 3}, {A: 64512, B: 7}}},
	{Prepend: []uint32{4200000000, 7}},
	{Prepend: []uint32{1, 2, 3, 4, 5, 6, 7, 8, 9}, SetLocalPref: true, Add: []wire.Community{wire.NoPeer}},
}

// whim returns one of whims, always the same for a prefix.
func whim(seed uint64, p netip.Prefix) wire.Change {
	h := fnv.New64a()
	raw, _ := p.MarshalBinary()
	_, _ = h.Write(binary.BigEndian.AppendUint64(raw, seed))
	c := whims[h.Sum64()%uint64(len(whims))]
	if h.Sum64()>>32%5 == 0 {
		c.NextHop = addr("10.9.9.9")
		if p.Addr().Is6() {
			c.NextHop = addr("fd09::9")
		}
	}
	return c
}

// after returns the path after a change, by the model.
func (is heardPath) after(c wire.Change, own int) heardPath {
	if c.SetLocalPref {
		is.localPref = int64(c.LocalPref)
	}
	if c.NextHop.IsValid() {
		is.hop = c.NextHop.String()
	}
	if len(c.Prepend) > 0 {
		is.path = prepended(is.path, c.Prepend, own)
	}
	var small, big []string
	for _, n := range c.Add {
		if n.Large {
			big = append(big, n.String())
		} else {
			small = append(small, fmt.Sprint(n.A<<16|n.B))
		}
	}
	is.communities, is.large = unionText(is.communities, small), unionText(is.large, big)
	return is
}

func unionText(list string, add []string) string {
	if len(add) == 0 {
		return list
	}
	words := add
	if list != "" {
		words = append(words, wordsIn(list)...)
	}
	return sortedText(words)
}

func wordsIn(list string) []string {
	var words []string
	for _, w := range bytes.Fields(bytes.Trim([]byte(list), "[]")) {
		words = append(words, string(w))
	}
	return words
}

func prepended(path string, numbers []uint32, own int) string {
	words := wordsIn(fmt.Sprint(numbers))
	if len(path) == 0 || path[0] != '[' {
		return fmt.Sprintf("%s\n%s", words, path)
	}
	end := bytes.IndexByte([]byte(path), ']')
	head := wordsIn(path[:end+1])
	return fmt.Sprint(slices.Insert(head, min(own, len(head)), words...)) + path[end+1:]
}

// madeUp returns the random UPDATE of a seed, sometimes of maximal size.
func madeUp(seed uint64, six bool) []byte {
	r := rand.New(rand.NewPCG(seed, 1))
	list := func(n int) []byte {
		var b []byte
		for range n {
			bits := byte(r.IntN(33))
			if six {
				bits = byte(r.IntN(129))
			}
			b = append(b, bits)
			for range (int(bits) + 7) / 8 {
				b = append(b, byte(r.IntN(3)))
			}
		}
		return b
	}
	attribute := func(kind byte, value []byte) []byte {
		flag := map[byte]byte{1: 0x50, 2: 0x50, 3: 0x50, 4: 0x90, 5: 0x50, 8: 0xd0, 14: 0x90, 15: 0x90, 32: 0xd0}[kind]
		return append([]byte{flag, kind, byte(len(value) >> 8), byte(len(value))}, value...)
	}
	numbers := func(n int) []byte {
		var b []byte
		for range n {
			b = binary.BigEndian.AppendUint32(b, uint32(1+r.IntN(9)))
		}
		return b
	}
	count := 1 + r.IntN(4)
	if r.IntN(4) == 0 {
		count = r.IntN(200)
	}
	attributes := attribute(1, []byte{byte(r.IntN(3))})
	var path []byte
	for range r.IntN(3) {
		n := 1 + r.IntN(4)
		if r.IntN(5) == 0 {
			n = 200 + r.IntN(56)
		}
		path = append(append(path, byte(1+r.IntN(2)), byte(n)), numbers(n)...)
	}
	attributes = append(attributes, attribute(2, path)...)
	if r.IntN(2) == 0 {
		attributes = append(attributes, attribute(8, numbers(1+r.IntN(60)))...)
	}
	if r.IntN(2) == 0 {
		attributes = append(attributes, attribute(32, numbers(3*(1+r.IntN(30))))...)
	}
	if r.IntN(2) == 0 {
		attributes = append(attributes, attribute(5, numbers(1))...)
	}
	withdrawn, reachable := list(r.IntN(3)), list(count)
	if six {
		hop := append([]byte{0, 2, 1, 16}, addr("fd00::2").AsSlice()...)
		attributes = append(attributes, attribute(14, slices.Concat(hop, []byte{0}, reachable))...)
		attributes = append(attributes, attribute(15, append([]byte{0, 2, 1}, withdrawn...))...)
		withdrawn, reachable = nil, nil
	} else {
		attributes = append(attributes, attribute(3, []byte{10, 0, 0, 2})...)
	}
	return message(2, binary.BigEndian.AppendUint16(nil, uint16(len(withdrawn))), withdrawn,
		binary.BigEndian.AppendUint16(nil, uint16(len(attributes))), attributes, reachable)
}

// FuzzEdit: the messages of an editor are valid for GoBGP, none is too long, and a peer that reads them has the paths
// of the model: each prefix as its change made it, and no withdrawn one. Edited again with the same decisions but
// without prepending, they stay the same.
func FuzzEdit(f *testing.F) {
	for i := range uint64(40) {
		f.Add(i%2 == 0, i%3 == 0, i, []byte(nil))
	}
	f.Add(false, false, uint64(0), message(2, []byte{0, 0, 0, 0}))
	f.Fuzz(func(t *testing.T, six, own bool, seed uint64, stream []byte) {
		rules := wire.Rules{ASN: 64512, LocalASN: 64512, LocalID: addr("10.0.0.1"), Families: wire.OnlyIPv4, MaxPrefixes: 10000}
		if six {
			rules.Families = wire.OnlyIPv6
		}
		session := wire.NewSession(rules)
		editor := &wire.Editor{Family: rules.Families.All()[0]}
		if own {
			editor.OwnAS = 1
		}
		r, buf := bytes.NewReader(slices.Concat(hello, madeUp(seed, six), stream)), make([]byte, wire.MaxLen)
		for {
			m, err := wire.Read(r, buf)
			if err != nil {
				return
			}
			v := session.Check(m)
			if v.Reset != nil {
				return
			}
			for part := range wire.Messages(v.Pass) {
				editIsModel(t, editor, part, seed)
			}
		}
	})
}

// editIsModel edits one message and compares.
func editIsModel(t *testing.T, editor *wire.Editor, message []byte, seed uint64) {
	t.Helper()
	family := bgp.RF_IPv4_UC
	if editor.Family == wire.IPv6 {
		family = bgp.RF_IPv6_UC
	}
	if wire.TypeOf(message) != wire.Update {
		return
	}
	// Both models start without earlier paths.
	everything := heard{}
	want, got := heard{}, heard{}
	everything.takes(t, message, family)
	decided := map[netip.Prefix]int{}
	before := editor.TooLong
	edited, err := editor.Edit(message, func(p netip.Prefix, _ *wire.Attributes) wire.Change {
		decided[p]++
		return whim(seed, p)
	})
	if err != nil {
		t.Fatalf("% x: %v", message, err)
	}
	if len(decided) != len(everything) {
		t.Fatalf("% x: decided about %d prefixes of %d", message, len(decided), len(everything))
	}
	for p, is := range everything {
		if c := whim(seed, p); !c.Withdraw {
			want[p] = is.after(c, editor.OwnAS)
		}
	}
	for _, m := range edited {
		if len(m) > wire.MaxLen {
			t.Fatalf("a message of %d bytes", len(m))
		}
		got.takes(t, m, family)
	}
	if editor.TooLong != before {
		maps.DeleteFunc(want, func(p netip.Prefix, _ heardPath) bool { _, ok := got[p]; return !ok })
	}
	if d := cmp.Diff(want, got, cmp.AllowUnexported(heardPath{}), cmp.Comparer(func(a, b netip.Prefix) bool { return a == b })); d != "" {
		t.Fatalf("% x edited to % x\n(-want +got):\n%s", message, edited, d)
	}
	stays(t, editor, edited, seed)
}

// stays edits messages again, without prepending, and requires that they stay the same.
func stays(t *testing.T, editor *wire.Editor, edited [][]byte, seed uint64) {
	t.Helper()
	again := &wire.Editor{Family: editor.Family, OwnAS: editor.OwnAS}
	for _, m := range edited {
		same, err := again.Edit(m, func(p netip.Prefix, _ *wire.Attributes) wire.Change {
			c := whim(seed, p)
			c.Prepend = nil
			if c.Withdraw {
				t.Fatalf("%s is still announced", p)
			}
			return c
		})
		if err != nil || len(same) != 1 || !bytes.Equal(same[0], m) {
			t.Fatalf("% x became % x, %v", m, same, err)
		}
	}
}
