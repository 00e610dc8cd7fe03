package flowtable

import (
	"fmt"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/tortie-net/tortie/internal/kernel/ipip"
	"github.com/tortie-net/tortie/internal/kernel/netlinkx"
	"github.com/tortie-net/tortie/internal/kernel/vxlan"
)

// Config is the desired state; without devices there is no table.
type Config struct {
	// PodLinks is the prefix of the names of pods' links: one of the two devices of a connection is a pod's.
	PodLinks string
	// Guard identifies what the packet guard accepts from pods: when it changes, all connections leave the flowtable, as
	// their next packets may be dropped.
	Guard string
	// Devices are the devices of the flowtable, sorted: packets that come in by one are looked up.
	Devices []string
	// Tunnels adds connections that come in by the device for a single node.
	Tunnels bool
	// Peers are the nodes that have such a device: a connection takes part if routes lead back by its device.
	Peers []ipip.Peer
}

// Fabric is how this node reaches pods of others.
type Fabric struct {
	// Uplinks are the links that packets without encapsulation pass; none if all pools encapsulate.
	Uplinks []string
	// IPIP and VXLAN are the tunnels in use.
	IPIP, VXLAN bool
	// Underlay is the link that packets of IPIP leave by.
	Underlay string
	// Peers are the nodes that may have a device of their own.
	Peers []ipip.Peer
	// Kernel is the release.
	Kernel Release
}

// Without returns f without links whose packets must not pass a flowtable.
func (f Fabric) Without(links []string) Fabric {
	f.Uplinks = slices.DeleteFunc(slices.Clone(f.Uplinks), func(l string) bool { return slices.Contains(links, l) })
	if slices.Contains(links, f.Underlay) {
		f.Underlay = ""
	}
	return f
}

// Release is a kernel's version.
type Release struct{ Major, Minor int }

// Before reports whether r is older.
func (r Release) Before(major, minor int) bool {
	return r.Major < major || r.Major == major && r.Minor < minor
}

// uplinkKinds are the kinds of links with neighbours and with the network header right behind the link's own.
var uplinkKinds = []string{"device", "veth", "bond", "bridge", "vlan", "macvlan", "team"}

// tunnelKinds are the uplinkKinds at which the kernel itself looks into IPIP: behind others it looks for a link below
// them.
var tunnelKinds = []string{"device", "veth", "bond", "team"}

// ByPeers reports whether the kernel gains by a device of kind ipip for each peer. Since Linux 6.19 a flowtable handles
// IPIP itself, by devices with one peer, and offloads nothing of a device with any peer such as tunl0: a stream then
// costs 3 % more than without a flowtable, and a connection 13 %. Before, tunl0 is a device like others. Only packets
// would show what a kernel does, so its release decides.
func (f Fabric) ByPeers(links []netlinkx.Link) bool {
	return f.IPIP && !f.Kernel.Before(6, 19) && slices.ContainsFunc(links, func(l netlinkx.Link) bool {
		return l.Name == f.Underlay && l.Master == 0 && slices.Contains(tunnelKinds, l.Kind)
	})
}

// Choose returns the devices among links between which the kernel gains by a flowtable.
//
// Kernels before 6.1 were never tested, and early ones refuse to delete a connection that is in a flowtable. If no
// route to other nodes would gain, Choose returns no devices, as each packet is looked up in a flowtable.
func Choose(f Fabric, podLinks string, links []netlinkx.Link) Config {
	c, leaves := Config{PodLinks: podLinks, Tunnels: f.ByPeers(links)}, false
	if c.Tunnels {
		c.Peers, f.Uplinks = f.Peers, append(slices.Clone(f.Uplinks), f.Underlay)
	}
	for _, l := range links {
		if !f.Kernel.Before(6, 1) && f.takes(l, podLinks) {
			c.Devices = append(c.Devices, l.Name)
			leaves = leaves || !strings.HasPrefix(l.Name, podLinks)
		}
	}
	if !leaves {
		return Config{}
	}
	slices.Sort(c.Devices)
	return c
}

func (f Fabric) takes(l netlinkx.Link, podLinks string) bool {
	switch l.Name {
	case ipip.Device:
		return f.IPIP && l.Kind == "ipip" && f.Kernel.Before(6, 19)
	case vxlan.Device4, vxlan.Device6:
		return f.VXLAN && l.Kind == "vxlan"
	}
	if strings.HasPrefix(l.Name, podLinks) {
		return l.Kind == "veth" || l.Kind == "netkit"
	}
	// Packets to a link in a VRF are routed by the VRF's table.
	return l.Master == 0 && slices.Contains(f.Uplinks, l.Name) && slices.Contains(uplinkKinds, l.Kind)
}

// Running returns the running kernel's release, and the zero value if it cannot be read.
func Running() Release {
	var name unix.Utsname
	if unix.Uname(&name) != nil {
		return Release{}
	}
	return parseRelease(unix.ByteSliceToString(name.Release[:]))
}

// parseRelease reads the first two numbers of a release such as 6.12.3-amd64.
func parseRelease(text string) (r Release) {
	if n, _ := fmt.Sscanf(text, "%d.%d", &r.Major, &r.Minor); n != 2 {
		return Release{}
	}
	return r
}
