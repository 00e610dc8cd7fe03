package desired

import (
	"cmp"
	"fmt"
	"net/netip"

	"github.com/tortie-net/tortie/internal/api"
	"github.com/tortie-net/tortie/internal/app/nodeaddr"
	"github.com/tortie-net/tortie/internal/kernel/vxlan"
)

// VTEP is an end of VXLAN tunnels. The zero value is that there is none.
type VTEP struct {
	// Addr is its address inside the tunnels, which routes lead through.
	Addr netip.Addr
	MAC  vxlan.MAC
}

// vtepIn returns the member's end of the tunnels in the family of a; its address is invalid while the member has announced none.
func (m Member) vtepIn(a netip.Addr) VTEP {
	if a.Is4() {
		return m.VTEP
	}
	return m.VTEP6
}

// vtep reads an end that a node has announced, of IPv4 or of IPv6.
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
		note(inNode(n.Name, fmt.Errorf("annotation %s %q is no %s address: its pods are not reached by VXLAN until its agent has put that right", key, cut(text), family)))
		return VTEP{}
	}
	return VTEP{Addr: addr, MAC: vtepMAC(n, macKey, v6, note)}
}

// vtepMAC is the MAC of a node's end, which it need not announce.
func vtepMAC(n api.Node, key string, v6 bool, note func(error)) vxlan.MAC {
	return cmp.Or(ownMAC(n, key, note), vxlan.MACOf(n.Name, v6))
}

// ownMAC reads the MAC that a Node sets, zero if it sets none.
func ownMAC(n api.Node, key string, note func(error)) vxlan.MAC {
	text := n.Annotations[key]
	if text == "" {
		return vxlan.MAC{}
	}
	mac, err := vxlan.ParseMAC(text)
	if err != nil {
		note(inNode(n.Name, fmt.Errorf("annotation %s %q %w: the one that follows from the node's name is used", key, cut(text), err)))
	}
	return mac
}

// encapsulation reads how a pool's packets travel. Calico's API refuses a pool with both; where somebody wrote one all the same, its
// nodes use VXLAN.
func encapsulation(p api.IPPool, v6 bool, note func(error)) (ipip, vxlan api.Encapsulation) {
	ipip, vxlan = cmp.Or(p.Spec.IPIPMode, api.EncapNever), cmp.Or(p.Spec.VXLANMode, api.EncapNever)
	if ipip != api.EncapNever && v6 {
		note(InObject(p.ResourceType(), p.Meta, fmt.Errorf("spec.ipipMode %s: IPIP carries IPv4 alone: set it to Never", ipip)))
		ipip = api.EncapNever
	}
	if ipip != api.EncapNever && vxlan != api.EncapNever {
		note(InObject(p.ResourceType(), p.Meta, fmt.Errorf("spec.ipipMode %s and spec.vxlanMode %s: a pool has one encapsulation, VXLAN is used: set one of them to Never", ipip, vxlan)))
		ipip = api.EncapNever
	}
	return ipip, vxlan
}
