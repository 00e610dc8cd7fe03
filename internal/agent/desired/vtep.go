package desired

import (
	"cmp"
	"fmt"
	"net/netip"

	"github.com/tortie-net/tortie/internal/api"
	"github.com/tortie-net/tortie/internal/app/nodeaddr"
	"github.com/tortie-net/tortie/internal/kernel/vxlan"
)

// VTEP is a VXLAN tunnel endpoint (RFC 7348) of a node. The zero value means none.
type VTEP struct {
	// Addr is the address of its VXLAN device: the next hop of routes to the node's blocks.
	Addr netip.Addr
	MAC  vxlan.MAC
}

// vtepIn returns the member's VTEP in the address family of a; its address is invalid while none is announced.
func (m Member) vtepIn(a netip.Addr) VTEP {
	if a.Is4() {
		return m.VTEP
	}
	return m.VTEP6
}

// vtep reads the VTEP of an address family from a Node's annotations.
func vtep(n api.Node, v6 bool, note func(error)) VTEP {
	key, macKey, family := api.AnnotationIPv4VXLANAddr, api.AnnotationVXLANMAC, nodeaddr.IPv4
	if v6 {
		key, macKey, family = api.AnnotationIPv6VXLANAddr, api.AnnotationVXLANMACv6, nodeaddr.IPv6
	}
	text := n.Annotations[key]
	if text == "" {
		return VTEP{}
	}
	addr, err := netip.ParseAddr(text)
	if err != nil || addr.Is4() == v6 || addr.Is4In6() || addr.Zone() != "" || addr.IsUnspecified() || addr.IsMulticast() {
		note(inNode(n.Name, fmt.Errorf("annotation %s %q is no %s address: its pods are not reached by VXLAN until its agent has corrected that",
			key, cut(text), family)))
		return VTEP{}
	}
	return VTEP{Addr: addr, MAC: vtepMAC(n, macKey, v6, note)}
}

// vtepMAC returns the MAC of a node's VTEP: the annotated one, else the one derived from the node's name.
func vtepMAC(n api.Node, key string, v6 bool, note func(error)) vxlan.MAC {
	return cmp.Or(ownMAC(n, key, note), vxlan.MACOf(n.Name, v6))
}

// ownMAC reads the MAC annotation of a Node; zero if there is none.
func ownMAC(n api.Node, key string, note func(error)) vxlan.MAC {
	text := n.Annotations[key]
	if text == "" {
		return vxlan.MAC{}
	}
	mac, err := vxlan.ParseMAC(text)
	if err != nil {
		note(inNode(n.Name, fmt.Errorf("annotation %s %q %w: the one derived from the node's name is used", key, cut(text), err)))
	}
	return mac
}

// encapsulation reads a pool's IPIP and VXLAN modes. Calico's API server rejects a pool with both; if one is stored all
// the same, Calico's nodes use VXLAN.
func encapsulation(p api.IPPool, v6 bool, note func(error)) (ipip, vxlan api.Encapsulation) {
	ipip, vxlan = cmp.Or(p.Spec.IPIPMode, api.EncapNever), cmp.Or(p.Spec.VXLANMode, api.EncapNever)
	if ipip != api.EncapNever && v6 {
		note(InObject(p.ResourceType(), p.Meta, fmt.Errorf("spec.ipipMode %s: IPIP carries IPv4 alone: set it to Never", ipip)))
		ipip = api.EncapNever
	}
	if ipip != api.EncapNever && vxlan != api.EncapNever {
		note(InObject(p.ResourceType(), p.Meta, fmt.Errorf(
			"spec.ipipMode %s and spec.vxlanMode %s: a pool has one encapsulation, VXLAN is used: set one of them to Never", ipip, vxlan)))
		ipip = api.EncapNever
	}
	return ipip, vxlan
}
