// Package names makes the names and labels under which Calico stores IPAM objects. It is pure: a name in, a name out.
package names

import (
	"crypto/sha256"
	"crypto/sha3"
	"encoding/base32"
	"encoding/base64"
	"encoding/hex"
	"net/netip"
	"strings"

	"github.com/tortie-net/tortie/internal/api"
)

// The labels by which Calico, since 3.31, finds BlockAffinities: without them an affinity is invisible to it.
const (
	LabelHostnameHash = "projectcalico.org/hostname-hash"
	LabelAffinityType = "projectcalico.org/affinity-type"
	LabelIPVersion    = "projectcalico.org/ip-version"
)

// AnnotationMetadata holds the metadata of Calico's own API version of an object, as JSON.
const AnnotationMetadata = "projectcalico.org/metadata"

// AnnotationNode is the node of a handle. Calico has no such field; the chart's admission policies keep other nodes
// from the handle.
const AnnotationNode = "tortie.io/node"

// AttributeInterface is the interface of a container that an address was assigned for, where a plugin other than calico
// created the interface. Calico has no such attribute: its containers have one interface per network.
const AttributeInterface = "tortie.io/interface"

// FloatingInterface is the value of AttributeInterface for a floating address of a pod: no interface can have this
// name.
const FloatingInterface = "floating/ip"

// Kubernetes rejects names that are longer than maxName-1 characters.
const maxName = 253

var dashes = strings.NewReplacer(".", "-", ":", "-", "/", "-")

// Block returns the name of the IPAMBlock of a CIDR: its canonical text with dots, colons and the slash as dashes.
func Block(cidr netip.Prefix) string { return dashes.Replace(cidr.Masked().String()) }

// ParseBlock returns the CIDR of a name made by Block; false for a name that Block cannot make. Five numbers without an
// empty one are IPv4: no IPv6 CIDR is as short without "::".
func ParseBlock(name string) (netip.Prefix, bool) {
	slash := strings.LastIndexByte(name, '-')
	if slash < 0 {
		return netip.Prefix{}, false
	}
	addr, bits := name[:slash], name[slash+1:]
	separator := ":"
	if strings.Count(addr, "-") == 3 && !strings.Contains(addr, "--") {
		separator = "."
	}
	cidr, err := netip.ParsePrefix(strings.ReplaceAll(addr, "-", separator) + "/" + bits)
	return cidr, err == nil && Block(cidr) == name
}

// Affinity returns the name of the BlockAffinity of a node and a block.
//
// A name that Kubernetes would reject is shortened: the start of the node name, the block, and eleven digits of a hash
// of both keep it unique (Calico's rule).
func Affinity(node string, cidr netip.Prefix) string {
	block := Block(cidr)
	if full := node + "-" + block; len(full) < maxName {
		return full
	}
	sum := sha256.Sum256([]byte(node + "+" + block))
	keep := (maxName - 1) - len(block) - 13
	return node[:keep] + "-" + block + "-" + hex.EncodeToString(sum[:])[:11]
}

// AffinityLabels returns the labels of a BlockAffinity: exactly the three that Calico writes.
func AffinityLabels(node, affinityType string, cidr netip.Prefix) map[string]string {
	labels := AffinitySelector(node, affinityType)
	labels[LabelIPVersion] = IPVersion(cidr.Addr())
	return labels
}

// AffinitySelector returns the labels that all affinities of a node and type share.
func AffinitySelector(node, affinityType string) map[string]string {
	return map[string]string{
		LabelHostnameHash: HostnameHash(node),
		LabelAffinityType: affinityType,
	}
}

// HostnameHash returns a node's name in a form that fits a label value: 52 characters of base32 of its SHA3-256.
func HostnameHash(node string) string {
	sum := sha3.Sum256([]byte(node))
	return base32.StdEncoding.WithPadding(base32.NoPadding).EncodeToString(sum[:])
}

// IPVersion returns "4" or "6".
func IPVersion(a netip.Addr) string {
	if a.Is4() || a.Is4In6() {
		return "4"
	}
	return "6"
}

// Handle returns the name of the IPAMHandle of a handle ID: its lower-case form.
func Handle(id string) string { return strings.ToLower(id) }

// PodHandle returns the handle ID of a container's addresses in a CNI network.
func PodHandle(network, containerID string) string { return network + "." + containerID }

// LegacyPodHandle returns the handle ID that Calico 2 gave to a pod. It is still released on DEL.
func LegacyPodHandle(namespace, pod string) string { return namespace + "." + pod }

// TunnelHandle returns the handle ID of a node's IPIP tunnel address.
func TunnelHandle(node string) string { return "ipip-tunnel-addr-" + node }

// VXLANHandle returns the handle ID of a node's IPv4 VXLAN tunnel address, VXLANv6Handle that for IPv6.
func VXLANHandle(node string) string { return "vxlan-tunnel-addr-" + node }

// VXLANv6Handle is explained at VXLANHandle.
func VXLANv6Handle(node string) string { return "vxlan-v6-tunnel-addr-" + node }

// WireGuardHandle returns the handle ID of a node's IPv4 WireGuard address, WireGuardV6Handle that for IPv6.
func WireGuardHandle(node string) string { return "wireguard-tunnel-addr-" + node }

// WireGuardV6Handle is explained at WireGuardHandle.
func WireGuardV6Handle(node string) string { return "wireguard-v6-tunnel-addr-" + node }

// tunnelMark precedes the node's name in the handle IDs of all tunnel addresses, and follows the kind of tunnel.
const tunnelMark = "tunnel-addr-"

// TunnelNode returns the node of a tunnel's handle; false for other handles.
func TunnelNode(handle string) (node string, ok bool) {
	_, node, ok = strings.Cut(Handle(handle), tunnelMark)
	return node, ok
}

// OfTunnel reports whether a handle ID belongs to a tunnel address. Such an ID has no capitals: names of nodes have
// none.
func OfTunnel(id string) bool {
	_, ok := TunnelNode(id)
	return ok && id == Handle(id)
}

// LoadBalancer is the owner of the blocks that Services get addresses from. It stands in the place of a node: no node's
// name has a colon.
const LoadBalancer = api.AffinityVirtual + ":load-balancer"

// SplitOwner returns the type of an owner's affinities and the name in them.
func SplitOwner(owner string) (affinityType, name string) {
	if affinityType, name, ok := strings.Cut(owner, ":"); ok {
		return affinityType, name
	}
	return api.AffinityHost, owner
}

// HostAffinity returns the value of a block's affinity field for an owner.
func HostAffinity(owner string) string {
	affinityType, name := SplitOwner(owner)
	return affinityType + ":" + name
}

// ServiceHandle returns the handle ID of a LoadBalancer Service's addresses, as Calico derives it.
func ServiceHandle(namespace, name, uid string) string {
	sum := sha256.Sum256([]byte(strings.ToLower(name + "-" + namespace + "-" + uid)))
	return "lb-" + strings.NewReplacer("-", "", "_", "").Replace(base64.RawURLEncoding.EncodeToString(sum[:]))
}

// WorkloadEndpoint returns the name of a WorkloadEndpoint on etcd: its parts joined by dashes, with dashes inside the
// parts doubled. With an empty interface it is the common prefix of all endpoints of the workload.
func WorkloadEndpoint(node, orchestrator, workload, ifName string) string {
	parts := []string{node, orchestrator, workload, ifName}
	for i, p := range parts {
		parts[i] = strings.ReplaceAll(p, "-", "--")
	}
	return strings.Join(parts, "-")
}
