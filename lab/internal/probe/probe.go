// Package probe detects whether the running kernel has IPIP tunnels and VXLAN, in a network namespace of its own.
package probe

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os/exec"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/tortie-net/tortie/lab/internal/netns"
)

// Errors for kernels without a kind of tunnel.
var (
	ErrNoIPIP  = errors.New("this kernel has no IPIP tunnels (module ipip)")
	ErrNoVXLAN = errors.New("this kernel has no VXLAN (module vxlan)")
)

// name is not a name that the kernel assigns.
const name = "probe"

// IPIP returns nil if a tunnel like the agent's can be created, possibly after loading the module, and ErrNoIPIP
// otherwise.
func IPIP(ctx context.Context) error {
	link := &netlink.Iptun{LinkAttrs: netlink.NewLinkAttrs(), Local: net.IPv4(192, 0, 2, 1), Remote: net.IPv4(192, 0, 2, 2)}
	link.Name = name
	return probe(ctx, link, "ipip", ErrNoIPIP)
}

// VXLAN is the same for VXLAN, with ErrNoVXLAN.
func VXLAN(ctx context.Context) error {
	link := &netlink.Vxlan{LinkAttrs: netlink.NewLinkAttrs(), VxlanId: 4096, SrcAddr: net.IPv4(192, 0, 2, 1), Port: 4789}
	link.Name = name
	return probe(ctx, link, "vxlan", ErrNoVXLAN)
}

func probe(ctx context.Context, link netlink.Link, module string, none error) error {
	err := try(link, none)
	if !errors.Is(err, none) {
		return err
	}
	// This fails in kernels without modules, and in containers without the permission; the second attempt decides.
	_ = exec.CommandContext(ctx, "modprobe", module).Run()
	return try(link, none)
}

func try(link netlink.Link, none error) error {
	return netns.Scratch(func() error {
		err := netlink.LinkAdd(link)
		if errors.Is(err, unix.EOPNOTSUPP) || errors.Is(err, unix.ENODEV) {
			return none
		}
		if err != nil {
			return fmt.Errorf("make a tunnel of kind %s: %w", link.Type(), err)
		}
		return nil
	})
}
