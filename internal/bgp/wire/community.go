package wire

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// Community is a community of RFC 1997, two numbers of 16 bits, or a large one of RFC 8092, three of 32 bits.
// Communities are compared by ==, and their zero value is 0:0.
type Community struct {
	Large   bool
	A, B, C uint32 // C is of a large one only
}

// Well-known communities of RFC 1997, 8326, 7999, 3765 and 9494.
var (
	GracefulShutdown  = wellKnown(0)
	Blackhole         = wellKnown(666)
	NoExport          = wellKnown(0xff01)
	NoAdvertise       = wellKnown(0xff02)
	NoExportSubconfed = wellKnown(0xff03)
	NoPeer            = wellKnown(0xff04)
	LLGRStale         = wellKnown(6)
)

func wellKnown(number uint32) Community { return Community{A: 0xffff, B: number} }

// ParseCommunity reads "aa:nn", or "aa:nn:mm" for a large community, of decimal numbers.
func ParseCommunity(text string) (Community, error) {
	parts := strings.Split(text, ":")
	bits := 16
	if len(parts) == 3 {
		bits = 32
	} else if len(parts) != 2 {
		return Community{},
			fmt.Errorf("%q is no community: write two numbers up to 65535, or three up to 4294967295, with colons between them", text)
	}
	c := Community{Large: bits == 32}
	for i, field := range []*uint32{&c.A, &c.B, &c.C}[:len(parts)] {
		n, err := strconv.ParseUint(parts[i], 10, bits)
		if err != nil || strings.HasPrefix(parts[i], "+") {
			return Community{}, fmt.Errorf("%q is no community: %q must be a number from 0 to %d", text, parts[i], uint64(1)<<bits-1)
		}
		*field = uint32(n)
	}
	return c, nil
}

func (c Community) String() string {
	if c.Large {
		return fmt.Sprintf("%d:%d:%d", c.A, c.B, c.C)
	}
	return fmt.Sprintf("%d:%d", c.A, c.B)
}

// append writes the community as in its attribute.
func (c Community) append(b []byte) []byte {
	if !c.Large {
		return binary.BigEndian.AppendUint32(b, c.A<<16|c.B&0xffff)
	}
	b = binary.BigEndian.AppendUint32(b, c.A)
	b = binary.BigEndian.AppendUint32(b, c.B)
	return binary.BigEndian.AppendUint32(b, c.C)
}

// Communities holds the communities of a path, as in its attributes.
type Communities struct{ standard, large []byte }

// Lengths of a community in its attribute.
const (
	standardLen = 4
	largeLen    = 12
)

// NewCommunities returns the communities of list, sorted and each once.
func NewCommunities(list ...Community) Communities { return Communities{}.with(list) }

// of returns the value of c's kind of attribute, and the length of one community in it.
func (l Communities) of(c Community) ([]byte, int) {
	if c.Large {
		return l.large, largeLen
	}
	return l.standard, standardLen
}

// Has reports whether c is in l.
func (l Communities) Has(c Community) bool {
	var raw [largeLen]byte
	want := c.append(raw[:0])
	value, size := l.of(c)
	for ; len(value) >= size; value = value[size:] {
		if bytes.Equal(value[:size], want) {
			return true
		}
	}
	return false
}

// Empty reports whether l has no communities.
func (l Communities) Empty() bool { return len(l.standard)+len(l.large) == 0 }

// List returns the communities in their order, standard ones first.
func (l Communities) List() []Community {
	var list []Community
	for v := l.standard; len(v) >= standardLen; v = v[standardLen:] {
		list = append(list, Community{A: uint32(binary.BigEndian.Uint16(v)), B: uint32(binary.BigEndian.Uint16(v[2:]))})
	}
	for v := l.large; len(v) >= largeLen; v = v[largeLen:] {
		list = append(list,
			Community{Large: true, A: binary.BigEndian.Uint32(v), B: binary.BigEndian.Uint32(v[4:]), C: binary.BigEndian.Uint32(v[8:])})
	}
	return list
}

// String returns the communities sorted, standard ones first, with spaces between them.
func (l Communities) String() string {
	list := l.List()
	slices.SortFunc(list, Community.compare)
	words := make([]string, 0, len(list))
	for _, c := range slices.Compact(list) {
		words = append(words, c.String())
	}
	return strings.Join(words, " ")
}

// compare orders standard communities before large ones, then by their numbers.
func (c Community) compare(other Community) int {
	if c.Large != other.Large {
		if other.Large {
			return -1
		}
		return 1
	}
	return slices.Compare([]uint32{c.A, c.B, c.C}, []uint32{other.A, other.B, other.C})
}

// with returns the union with add. An attribute that grows is sorted, without duplicates; the other one stays as it
// was.
func (l Communities) with(add []Community) Communities {
	var fresh [2]bool // standard, large
	for _, c := range add {
		if !l.Has(c) {
			fresh[index(c)] = true
		}
	}
	if fresh == [2]bool{} {
		return l
	}
	list := append(l.List(), add...)
	slices.SortFunc(list, Community.compare)
	var values [2][]byte
	for _, c := range slices.Compact(list) {
		values[index(c)] = c.append(values[index(c)])
	}
	if fresh[0] {
		l.standard = values[0]
	}
	if fresh[1] {
		l.large = values[1]
	}
	return l
}

func index(c Community) int {
	if c.Large {
		return 1
	}
	return 0
}
