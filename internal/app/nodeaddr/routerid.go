package nodeaddr

import (
	"crypto/sha256"
	"fmt"
	"net/netip"
)

// HashedID is the value of CALICO_ROUTER_ID that derives the router ID from the node's name.
const HashedID = "hash"

// ParseRouterID checks the value of CALICO_ROUTER_ID: nothing, hash, or an IPv4 address.
func ParseRouterID(text string) error {
	if text == "" || text == HashedID {
		return nil
	}
	if a, err := netip.ParseAddr(text); err != nil || !a.Is4() || a.IsUnspecified() {
		return fmt.Errorf("must be %s or an IPv4 address other than 0.0.0.0", HashedID)
	}
	return nil
}

// RouterID returns a node's BGP router ID: the configured one (see ParseRouterID), else the node's IPv4 address.
func RouterID(set, node string, v4 netip.Addr) (netip.Addr, error) {
	switch {
	case set == HashedID:
		return hashedID(node), nil
	case set != "":
		return netip.ParseAddr(set)
	case v4.IsValid():
		return v4, nil
	}
	return netip.Addr{}, fmt.Errorf("node %s has no IPv4 address, which BGP would use as its router ID: set the environment variable "+
		"CALICO_ROUTER_ID=%s, which makes one of its name", node, HashedID)
}

// hashedID returns the same router ID as Calico: the first bytes of the name's SHA-256, kept below the multicast range.
func hashedID(node string) netip.Addr {
	sum := sha256.Sum256([]byte(node))
	if sum[0] > 223 {
		sum[0] -= 32
	}
	if sum[0] == 0 {
		sum[0] = 1 // 0.0.0.0/8 has no router IDs
	}
	return netip.AddrFrom4([4]byte(sum[:4]))
}
