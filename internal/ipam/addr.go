package ipam

import (
	"encoding/binary"
	"math/bits"
	"net/netip"
)

// offset returns the address that lies n<<shift after a; it wraps around at the end of the family's addresses.
func offset(a netip.Addr, n uint64, shift int) netip.Addr {
	b := a.As16()
	hi, lo := binary.BigEndian.Uint64(b[:8]), binary.BigEndian.Uint64(b[8:])
	addHi, addLo := uint64(0), n
	if shift >= 64 {
		addHi, addLo = n<<(shift-64), 0
	} else if shift > 0 {
		addHi, addLo = n>>(64-shift), n<<shift
	}
	lo, carry := bits.Add64(lo, addLo, 0)
	hi, _ = bits.Add64(hi, addHi, carry)
	binary.BigEndian.PutUint64(b[:8], hi)
	binary.BigEndian.PutUint64(b[8:], lo)
	sum := netip.AddrFrom16(b)
	if a.Is4() {
		return netip.AddrFrom4([4]byte(b[12:]))
	}
	return sum
}

// distance returns how many addresses b lies after a, modulo 2^64.
func distance(a, b netip.Addr) uint64 {
	x, y := a.As16(), b.As16()
	return binary.BigEndian.Uint64(y[8:]) - binary.BigEndian.Uint64(x[8:])
}
