package vxlan

import (
	"crypto/sha1"
	"errors"
	"net"
)

// MAC is the address of an end of the tunnels, inside of them. The zero value is none.
type MAC [6]byte

// MACOf returns the MAC that a node has unless its Node says otherwise. All nodes, Calico's among them, derive it from
// the node's name, so that none has to ask for it.
func MACOf(node string, v6 bool) MAC {
	if v6 {
		node += "-v6"
	}
	sum := sha1.Sum([]byte(node))
	m := MAC{0x66} // locally administered, to one receiver
	copy(m[1:], sum[:])
	return m
}

// ParseMAC reads a MAC that one receiver can have.
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

// String is the MAC as people write it.
func (m MAC) String() string { return net.HardwareAddr(m[:]).String() }
