package vxlan

import (
	"crypto/sha1"
	"errors"
	"net"
)

// MAC is the inner MAC address of a tunnel's end. The zero value means none.
type MAC [6]byte

// MACOf returns the MAC of a node unless its Node has another one. All nodes, Calico's included, derive it from the
// node's name, so that no node has to look it up.
func MACOf(node string, v6 bool) MAC {
	if v6 {
		node += "-v6"
	}
	sum := sha1.Sum([]byte(node))
	m := MAC{0x66} // locally administered, unicast
	copy(m[1:], sum[:])
	return m
}

// ParseMAC reads a unicast MAC.
func ParseMAC(text string) (MAC, error) {
	hw, err := net.ParseMAC(text)
	if err != nil || len(hw) != len(MAC{}) {
		return MAC{}, errors.New("is no MAC address such as 66:01:23:45:67:89")
	}
	m := MAC(hw)
	if m == (MAC{}) || m[0]&1 != 0 {
		return MAC{}, errors.New("is no MAC address of one receiver")
	}
	return m, nil
}

// String returns the MAC in the usual notation.
func (m MAC) String() string { return net.HardwareAddr(m[:]).String() }
