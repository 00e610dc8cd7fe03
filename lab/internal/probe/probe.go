// Package probe finds out whether the running kernel has IPIP tunnels, and VXLAN, without touching the machine's own network: it
// looks in a network namespace of its own.
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

// Errors that say that the kernel has no such tunnels.
var (
	ErrNoIPIP  = errors.New("this kernel has no IPIP tunnels (module ipip)")
	ErrNoVXLAN = errors.New("this kernel has no VXLAN (module vxlan)")
)

// name is none that the kernel gives by itself.
const name = "probe"

// IPIP returns nil when a tunnel can be made as the agent's would be, after an attempt to load the module, and ErrNoIPIP when it cannot.
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
	// A kernel without modules, or a container without the right, fails here: what matters is the second try.
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
