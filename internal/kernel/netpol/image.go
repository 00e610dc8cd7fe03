package netpol

import (
	"encoding/binary"
	"net/netip"
	"slices"

	"github.com/tortie-net/tortie/internal/kernel/nft"
	"github.com/tortie-net/tortie/internal/policy"
)

// image is the desired content of the table.
type image struct {
	chains  map[string]nft.Chain
	sets    map[string]nft.Set // with their elements, if these are fixed
	links   [2]map[string]nft.Element
	closed  bool
	members map[netip.Addr][]policy.SetID
	family  [2]nft.Set            // the sets of members
	ids     map[policy.SetID]bool // that rules look for
}

// state is the present content of the table.
type state struct {
	table  bool // it exists and is not dormant
	remake bool // something is in the wrong place: the table must be made anew
	// chains and sets are the existing ones: false if their rules or elements are not the wanted ones.
	chains, sets map[string]bool
	rules        map[string]bool // chains as read: whether they have rules
	links        [2]map[string]nft.Element
	closed       []nft.Element
	members      map[netip.Addr][]policy.SetID
	counts       [2]int // of elements with members, by family
	ids          map[policy.SetID]bool
}

func emptyState() *state {
	return &state{chains: map[string]bool{}, sets: map[string]bool{}, rules: map[string]bool{},
		links: [2]map[string]nft.Element{{}, {}}, members: map[netip.Addr][]policy.SetID{}, ids: map[policy.SetID]bool{}}
}

// familyOf returns the index of an address's family.
func familyOf(a netip.Addr) int {
	if a.Is4() {
		return 0
	}
	return 1
}

// memberKey returns the key of an address in a set of members.
func memberKey(id policy.SetID, a netip.Addr) string {
	var room [20]byte
	b := binary.NativeEndian.AppendUint32(room[:0], uint32(id))
	if a.Is4() {
		four := a.As4()
		return string(append(b, four[:]...))
	}
	sixteen := a.As16()
	return string(append(b, sixteen[:]...))
}

// move is an element that is added to, or deleted from, a set of members. A first load has 20 for each pod.
type move struct {
	at int32 // index of the address in moves
	id policy.SetID
}

// compareIDs calls gone and added for ids in only one of two ascending lists.
func compareIDs(have, want []policy.SetID, gone, added func(policy.SetID)) {
	if len(have) == len(want) && len(have) > 0 && &have[0] == &want[0] {
		return // most are the same lists as before
	}
	for len(have) > 0 || len(want) > 0 {
		switch {
		case len(want) == 0 || len(have) > 0 && have[0] < want[0]:
			gone(have[0])
			have = have[1:]
		case len(have) == 0 || want[0] < have[0]:
			added(want[0])
			want = want[1:]
		default:
			have, want = have[1:], want[1:]
		}
	}
}

// moves are changes of members. No rule of the old programs looks for early ones, no rule of the new programs for late
// ones.
type moves struct {
	addrs                    []netip.Addr
	early, added, gone, late []move
}

// compare adds the moves of one address.
func (m *moves) compare(a netip.Addr, have, want []policy.SetID, old, new map[policy.SetID]bool) {
	at := int32(len(m.addrs))
	m.addrs = append(m.addrs, a)
	compareIDs(have, want, func(id policy.SetID) {
		if new[id] {
			m.gone = append(m.gone, move{at, id})
		} else {
			m.late = append(m.late, move{at, id})
		}
	}, func(id policy.SetID) {
		if old[id] {
			m.added = append(m.added, move{at, id})
		} else {
			m.early = append(m.early, move{at, id})
		}
	})
}

// elements returns the elements of moves in a family.
func (m *moves) elements(of []move, family int) []nft.Element {
	list := make([]nft.Element, 0, len(of))
	for _, o := range of {
		if a := m.addrs[o.at]; familyOf(a) == family {
			list = append(list, nft.Element{First: memberKey(o.id, a)})
		}
	}
	return list
}

// sizeFor returns a size for the sets of members with room to grow: whenever they are full, all chains are made anew.
func sizeFor(need int) uint32 {
	const least = 4096
	size := uint32(least)
	for int(size) < 2*need {
		size *= 2
	}
	return size
}

// counts returns how many elements the sets of members need, by family.
func counts(members map[netip.Addr][]policy.SetID) (n [2]int) {
	for a, ids := range members {
		n[familyOf(a)] += len(ids)
	}
	return n
}

func most(n [2]int) int { return slices.Max(n[:]) }
