package podnet

import (
	"crypto/sha1"
	"encoding/hex"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"slices"
	"strings"

	"github.com/tortie-net/tortie/internal/kernel/netlinkx"
	"github.com/tortie-net/tortie/internal/kernel/sysctl"
)

// DefaultVethPrefix begins the name of every host-side link unless the operator chose another prefix.
const DefaultVethPrefix = "cali"

// HostVethName returns the name of the node's end of a pod's veth. Felix and other Calico parts find the link by
// computing the same name, so it must not change.
func HostVethName(prefix, namespace, pod string) string {
	sum := sha1.Sum([]byte(namespace + "." + pod))
	return prefix + hex.EncodeToString(sum[:])[:11]
}

// Config is the desired state of a pod's interface.
type Config struct {
	Netns     string       // path of the pod's network namespace
	IfName    string       // the pod's interface
	HostVeth  string       // the node's end
	Addresses []netip.Addr // of the pod, at least one, of either family

	// Alias is set on the node's end and identifies its container: see Alias. Empty, or too long for the kernel: none.
	Alias string

	// Netkit asks for a pair of netkit links, as Calico calls them; a kernel without them gets a veth pair.
	Netkit bool

	MTU    int              // of both ends; 0: the kernel's default
	MAC    net.HardwareAddr // of the pod's interface; nil: random
	Queues int              // receive and transmit queues of both ends; 0: 1

	// Routes are the destinations that the pod reaches through the node; nil means everything. Destinations of a family in
	// which the pod has no address are left out.
	Routes []netip.Prefix

	// Sources are prefixes that the pod asks to send from besides its addresses. Setup records them for the agent: see
	// SourcesTable.
	Sources []netip.Prefix

	// Floating are further addresses of the pod for others. Setup records them for the agent: see FloatingTable.
	Floating []netip.Addr

	// AllowIPForwarding lets the pod forward packets between its interfaces.
	AllowIPForwarding bool

	Sysctl sysctl.Root  // empty: /proc/sys
	Log    *slog.Logger // nil: none
}

// aliasPrefix marks links of this plugin.
const aliasPrefix = "tortie:"

// Alias returns the alias of the node's end of a container's link: the IPAM handle, which names the network and the
// container, and the interface.
func Alias(handle, ifName string) string { return aliasPrefix + handle + ":" + ifName }

// ParseAlias returns the parts of an alias. ok is false if Alias did not make it.
func ParseAlias(alias string) (handle, ifName string, ok bool) {
	rest, ok := strings.CutPrefix(alias, aliasPrefix)
	at := strings.LastIndexByte(rest, ':') // no interface's name contains one
	if !ok || at <= 0 || at == len(rest)-1 {
		return "", "", false
	}
	return rest[:at], rest[at+1:], true
}

// Result describes the interface that Setup made.
type Result struct {
	HostVeth string
	MAC      net.HardwareAddr // of the pod's interface
	MTU      int
}

// minIPv6MTU is the minimum MTU of RFC 8200; the kernel disables IPv6 on a link with less.
const minIPv6MTU = 1280

var everything = []netip.Prefix{netip.MustParsePrefix("0.0.0.0/0"), netip.MustParsePrefix("::/0")}

// normalize fills in defaults; its error names an invalid field.
func (c *Config) normalize() error {
	if c.Log == nil {
		c.Log = slog.New(slog.DiscardHandler)
	}
	if c.Routes == nil {
		c.Routes = everything
	}
	if c.Queues == 0 {
		c.Queues = 1
	}
	if len(c.Alias) > netlinkx.MaxAlias {
		c.Alias = ""
	}
	if len(c.Addresses) == 0 {
		return fmt.Errorf("addresses: empty, want at least one")
	}
	for i, a := range c.Addresses {
		if !a.IsValid() || a.Is4In6() || a.Zone() != "" || a.IsUnspecified() || a.IsMulticast() || a.IsLinkLocalUnicast() {
			return fmt.Errorf("addresses: %q is not an address for a pod", a)
		}
		if slices.Contains(c.Addresses[:i], a) {
			return fmt.Errorf("addresses: %s is there twice", a)
		}
	}
	if c.MTU < 0 || c.MTU > 65535 {
		return fmt.Errorf("mtu: %d is not between 1 and 65535 (0: the kernel's default)", c.MTU)
	}
	if c.MTU > 0 && c.MTU < minIPv6MTU && c.has(netlinkx.IPv6) {
		return fmt.Errorf("mtu: %d is below %d, the least that IPv6 needs", c.MTU, minIPv6MTU)
	}
	if c.MAC != nil && (len(c.MAC) != 6 || c.MAC[0]&1 != 0) {
		return fmt.Errorf("mac: %s is not the address of one Ethernet interface", c.MAC)
	}
	if c.Queues < 0 {
		return fmt.Errorf("queues: %d is negative", c.Queues)
	}
	return nil
}

func (c *Config) has(f netlinkx.Family) bool {
	return slices.ContainsFunc(c.Addresses, func(a netip.Addr) bool { return netlinkx.FamilyOf(a) == f })
}

// routesOf lists the destinations of one family.
func (c *Config) routesOf(f netlinkx.Family) []netip.Prefix {
	var dsts []netip.Prefix
	for _, p := range c.Routes {
		if netlinkx.FamilyOf(p.Addr()) == f {
			dsts = append(dsts, p.Masked())
		}
	}
	return dsts
}

func hostPrefix(a netip.Addr) netip.Prefix { return netip.PrefixFrom(a, a.BitLen()) }
