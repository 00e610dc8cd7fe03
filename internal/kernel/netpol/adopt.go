package netpol

import (
	"encoding/binary"
	"fmt"
	"maps"
	"net/netip"
	"strings"

	"github.com/tortie-net/tortie/internal/kernel/nft"
	"github.com/tortie-net/tortie/internal/policy"
)

// sizeOf returns the size of the sets of members that a table has, 0 if it has none.
func sizeOf(content *nft.Content) (size uint32) {
	for _, name := range content.Sets() {
		var n uint32
		if _, err := fmt.Sscanf(name, "members4-%d", &n); err == nil {
			size = max(size, n)
		}
	}
	return size
}

// adopt returns the state of a table of an earlier process, or changed by another program, relative to the desired
// image.
func (e *Engine) adopt(content *nft.Content, want *image) *state {
	s := emptyState()
	exists, awake := content.Exists()
	if s.table = awake; !exists {
		return s
	}
	s.adoptChains(content, want)
	s.adoptSets(content, want)
	for d, set := range linkSets {
		for _, element := range content.Elements(set.Name) {
			s.links[d][strings.TrimRight(element.First, "\x00")] = element
		}
	}
	s.closed = content.Elements(closedSet)
	for _, set := range want.family {
		for _, element := range content.Elements(set.Name) {
			s.adoptMember(element.First)
		}
	}
	s.counts = counts(s.members)
	e.hold(s)
	return s
}

// adoptChains records which chains are right. A foreign rule may look for members of any set.
func (s *state) adoptChains(content *nft.Content, want *image) {
	s.ids = want.ids
	for _, name := range content.Chains() {
		c, wanted := want.chains[name]
		_, placed, same := content.HasChain(c)
		s.chains[name] = wanted && same
		s.rules[name] = content.Rules(name) > 0
		s.remake = s.remake || wanted && !placed
		if !wanted {
			s.ids = maps.Clone(s.ids)
			for _, ids := range want.members {
				for _, id := range ids {
					s.ids[id] = true
				}
			}
		}
	}
}

// adoptSets records which sets are right. Elements of links and members change, and are compared one by one.
func (s *state) adoptSets(content *nft.Content, want *image) {
	for _, name := range content.Sets() {
		set, wanted := want.sets[name]
		_, same := content.HasSet(set)
		s.remake = s.remake || wanted && !same
		s.sets[name] = wanted && same && (len(set.Elements) == 0 || content.SameElements(set))
	}
}

// adoptMember adds one element of a set of members.
func (s *state) adoptMember(key string) {
	const word = 4
	if len(key) < word {
		return
	}
	a, ok := netip.AddrFromSlice([]byte(key[word:]))
	if !ok {
		return
	}
	id := policy.SetID(binary.NativeEndian.Uint32([]byte(key[:word])))
	ids := s.members[a]
	at := len(ids)
	for at > 0 && ids[at-1] > id {
		at--
	}
	s.members[a] = append(ids[:at:at], append([]policy.SetID{id}, ids[at:]...)...)
}
