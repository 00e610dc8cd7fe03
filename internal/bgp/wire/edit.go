package wire

import (
	"cmp"
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"slices"
)

// Attributes are the path attributes of the prefixes that an UPDATE announces. They are slices of the message and must
// not be kept.
type Attributes struct {
	NextHop netip.Addr
	// Via is the next hop that the path came with: the Editor's Via, else its Stamp's, else NextHop.
	Via         netip.Addr
	Path        ASPath
	Communities Communities
	// LocalPref is valid if HasLocalPref, MED if HasMED.
	LocalPref, MED       uint32
	HasLocalPref, HasMED bool
	Origin               uint8
}

// Change is the edit of one announced prefix. The zero value changes nothing.
type Change struct {
	// Withdraw withdraws the prefix; other fields are ignored then.
	Withdraw bool
	// SetLocalPref makes LocalPref its LOCAL_PREF.
	SetLocalPref bool
	LocalPref    uint32
	// NextHop, if valid, has the prefix' family.
	NextHop netip.Addr
	// Prepend are AS numbers to put before the path, Add communities to add.
	Prepend []uint32
	Add     []Community
}

// Editor rewrites UPDATEs. One goroutine may use it at a time.
type Editor struct {
	Family Family
	// OwnAS is how many AS numbers at the head of each AS_PATH the speaker behind has put there for this session, 1
	// towards another AS. Attributes hides them, and Prepend puts numbers behind them.
	OwnAS int
	// Via, if valid, is the next hop that the paths of the next message had before the speaker behind replaced it.
	Via netip.Addr
	// TooLong counts prefixes that were withdrawn because additions made them too long for a message.
	TooLong int

	attributes Attributes
	groups     []group // of the last message; their memory is reused
	writer     writer
}

// group is a change and its prefixes.
type group struct {
	change   Change
	prefixes []byte
}

// errNotEdited: Edit cannot rewrite the message. Neither Session.Check nor the speaker behind makes such a message.
var errNotEdited = errors.New("not an UPDATE that can be rewritten")

// Edit returns the messages that replace a whole valid UPDATE with AS numbers of four octets, from Session.Check or the
// speaker behind. It returns other and unchanged messages as they came. It calls decide once for each announced prefix,
// with the same attributes. Withdrawals and End-of-RIB stay. The messages are valid until the next call. An error means
// that the message is no such UPDATE, or that a next hop has the other family.
func (e *Editor) Edit(message []byte, decide func(netip.Prefix, *Attributes) Change) ([][]byte, error) {
	if TypeOf(message) != Update {
		return e.writer.as(message), nil
	}
	u, err := cutUpdate(message, e.Family)
	if err != nil {
		return nil, err
	}
	if err := e.attributes.read(&u, e.Family, e.OwnAS); err != nil {
		return nil, err
	}
	e.attributes.Via = cmp.Or(e.Via, e.attributes.Via, e.attributes.NextHop)
	if len(u.announced) == 0 {
		return e.writer.as(message), nil
	}
	if _, err := readPrefixes(u.withdrawn, e.Family); err != nil {
		return nil, err
	}
	if err := e.sort(u.announced, decide); err != nil {
		return nil, err
	}
	if len(e.groups) == 1 && e.groups[0].change.none() {
		return e.writer.as(message), nil
	}
	return e.write(&u), nil
}

// keptGroups bounds the memory kept for the next message.
const keptGroups = 8

// sort decides on each prefix and groups prefixes by their change.
func (e *Editor) sort(announced []byte, decide func(netip.Prefix, *Attributes) Change) error {
	if e.groups = e.groups[:0]; cap(e.groups) > keptGroups {
		e.groups = nil
	}
	for rest := announced; len(rest) > 0; {
		prefix, raw, after, err := cutPrefix(rest, e.Family)
		if err != nil {
			return err
		}
		rest = after
		change := decide(prefix, &e.attributes)
		if hop := change.NextHop; hop.IsValid() && FamilyOf(hop) != e.Family {
			return fmt.Errorf("%w: next hop %s on a session of %s", errNotEdited, hop, e.Family)
		}
		g := e.group(change.effect(&e.attributes))
		g.prefixes = append(g.prefixes, raw...)
	}
	return nil
}

// group returns the group of a change, new if there was none.
func (e *Editor) group(change Change) *group {
	for i := range e.groups {
		if e.groups[i].change.equal(&change) {
			return &e.groups[i]
		}
	}
	n := len(e.groups)
	e.groups = slices.Grow(e.groups, 1)[:n+1]
	g := &e.groups[n]
	g.change, g.prefixes = change, g.prefixes[:0]
	return g
}

// write writes withdrawals first: a prefix that the message withdraws and announces is announced in the end.
func (e *Editor) write(u *update) [][]byte {
	w := &e.writer
	w.start(e.Family)
	withdrawn := slices.Clone(u.withdrawn)
	for i := range e.groups {
		g := &e.groups[i]
		if !g.change.Withdraw && !w.fits(u, &e.attributes, &g.change) {
			g.change = Change{Withdraw: true}
			e.TooLong += countPrefixes(g.prefixes)
		}
		if g.change.Withdraw {
			withdrawn = append(withdrawn, g.prefixes...)
		}
	}
	w.withdraw(withdrawn)
	for i := range e.groups {
		if g := &e.groups[i]; !g.change.Withdraw {
			w.announce(u, &e.attributes, g)
		}
	}
	return w.finish()
}

// none reports whether c changes nothing.
func (c *Change) none() bool {
	return !c.Withdraw && !c.SetLocalPref && !c.NextHop.IsValid() && len(c.Prepend)+len(c.Add) == 0
}

// effect drops the parts of a change that make no difference to a path with these attributes.
func (c Change) effect(a *Attributes) Change {
	if c.Withdraw {
		return Change{Withdraw: true}
	}
	if !c.SetLocalPref || (a.HasLocalPref && a.LocalPref == c.LocalPref) {
		c.SetLocalPref, c.LocalPref = false, 0
	}
	if c.NextHop == a.NextHop {
		c.NextHop = netip.Addr{}
	}
	if !slices.ContainsFunc(c.Add, func(n Community) bool { return !a.Communities.Has(n) }) {
		c.Add = nil
	}
	return c
}

func (c *Change) equal(o *Change) bool {
	return c.Withdraw == o.Withdraw && c.SetLocalPref == o.SetLocalPref && c.LocalPref == o.LocalPref && c.NextHop == o.NextHop &&
		slices.Equal(c.Prepend, o.Prepend) && slices.Equal(c.Add, o.Add)
}

// Equal reports whether both are the same change.
func (c Change) Equal(o Change) bool { return c.equal(&o) }

// update holds the parts of an UPDATE: lists of prefixes and of attributes, as in the message.
type update struct{ withdrawn, attributes, announced []byte }

// cutUpdate finds the parts. IPv4 prefixes are outside of attributes, IPv6 prefixes inside.
func cutUpdate(message []byte, family Family) (update, error) {
	b := body(message)
	withdrawn, b, ok := cutCounted(b)
	if !ok {
		return update{}, fmt.Errorf("%w: withdrawn routes do not fit", errNotEdited)
	}
	attributes, announced, ok := cutCounted(b)
	if !ok {
		return update{}, fmt.Errorf("%w: path attributes do not fit", errNotEdited)
	}
	u := update{withdrawn: withdrawn, attributes: attributes, announced: announced}
	if family == IPv4 {
		return u, nil
	}
	if len(withdrawn)+len(announced) > 0 {
		return update{}, fmt.Errorf("%w: IPv4 prefixes on a session of %s", errNotEdited, family)
	}
	return u, nil
}

// cutCounted splits off the bytes that a length of two octets counts.
func cutCounted(b []byte) (counted, rest []byte, ok bool) {
	if len(b) < 2 || len(b)-2 < int(binary.BigEndian.Uint16(b)) {
		return nil, nil, false
	}
	end := 2 + int(binary.BigEndian.Uint16(b))
	return b[2:end], b[end:], true
}

// cutPrefix splits the first prefix of a list off.
func cutPrefix(b []byte, family Family) (prefix netip.Prefix, raw, rest []byte, err error) {
	bits := int(b[0])
	length := 1 + (bits+7)/8
	if bits > 8*family.bytes() || len(b) < length {
		return netip.Prefix{}, nil, nil, fmt.Errorf("%w: %w", errNotEdited, errNetwork)
	}
	var octets [16]byte
	copy(octets[:], b[1:length])
	addr := netip.AddrFrom16(octets)
	if family == IPv4 {
		addr = netip.AddrFrom4([4]byte(octets[:4]))
	}
	return netip.PrefixFrom(addr, bits).Masked(), b[:length], b[length:], nil
}

func countPrefixes(b []byte) int {
	n := 0
	for ; len(b) > 0; n++ {
		b = b[1+(int(b[0])+7)/8:]
	}
	return n
}

// read reads the attributes, which hold the prefixes for IPv6.
func (a *Attributes) read(u *update, family Family, ownAS int) error {
	*a = Attributes{Path: ASPath{own: ownAS}}
	for rest := u.attributes; len(rest) > 0; {
		_, kind, value, after, ok := cutAttribute(rest)
		if !ok || !a.set(u, family, kind, value) {
			return fmt.Errorf("%w: %s is malformed", errNotEdited, kind)
		}
		rest = after
	}
	return nil
}

// set sets one attribute and reports whether it has the form of its kind.
func (a *Attributes) set(u *update, family Family, kind attribute, value []byte) bool {
	switch kind {
	case attrMPReach:
		return family != IPv4 && a.setReachable(u, family, value)
	case attrMPUnreach:
		if family == IPv4 || len(value) < 3 {
			return len(value) == 3 // End-of-RIB
		}
		u.withdrawn = value[3:]
		return Family(binary.BigEndian.Uint16(value)) == family && value[2] == unicast
	case attrASPath:
		a.Path.segments = value
		return wholeSegments(value)
	case attrNextHop:
		if family == IPv4 {
			a.NextHop, _ = netip.AddrFromSlice(value)
		}
		return len(value) == 4
	case attrOrigin, attrMED, attrLocalPref, attrCommunities, attrLargeCommunity:
		return fits(kind, value) && a.setPlain(kind, value)
	case attrStamp:
		stamp, _ := ReadStamp(value)
		a.Via = stamp.NextHop
	}
	return true
}

// setPlain sets an attribute that fits.
func (a *Attributes) setPlain(kind attribute, value []byte) bool {
	switch kind {
	case attrOrigin:
		a.Origin = value[0]
	case attrMED:
		a.MED, a.HasMED = binary.BigEndian.Uint32(value), true
	case attrLocalPref:
		a.LocalPref, a.HasLocalPref = binary.BigEndian.Uint32(value), true
	case attrCommunities:
		a.Communities.standard = value
	case attrLargeCommunity:
		a.Communities.large = value
	}
	return true
}

// setReachable reads MP_REACH_NLRI. The second of two next hops is link-local, RFC 2545.
func (a *Attributes) setReachable(u *update, family Family, value []byte) bool {
	size := family.bytes()
	if len(value) < 5+size || Family(binary.BigEndian.Uint16(value)) != family || value[2] != unicast {
		return false
	}
	hop := int(value[3])
	if (hop != size && hop != 2*size) || len(value) < 5+hop {
		return false
	}
	a.NextHop, _ = netip.AddrFromSlice(value[4 : 4+size])
	u.announced = value[5+hop:]
	return true
}
