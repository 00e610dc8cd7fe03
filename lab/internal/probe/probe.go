// Package probe finds out whether the running kernel has IPIP tunnels, without touching the machine's own network: it
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

// ErrNoIPIP says that the kernel has no IPIP.
var ErrNoIPIP = errors.New("this kernel has no IPIP tunnels (module ipip)")

// IPIP returns nil when a tunnel can be made, after an attempt to load the module, and ErrNoIPIP when it cannot.
func IPIP(ctx context.Context) error {
	err := try()
	if !errors.Is(err, ErrNoIPIP) {
		return err
	}
	// A kernel without modules, or a container without the right, fails here: what matters is the second try.
	_ = exec.CommandContext(ctx, "modprobe", "ipip").Run()
	return try()
}

// try makes a tunnel as the agent's would be, but under a name that the kernel does not make by itself.
func try() error {
	return netns.Scratch(func() error {
		link := &netlink.Iptun{LinkAttrs: netlink.NewLinkAttrs(), Local: net.IPv4(192, 0, 2, 1), Remote: net.IPv4(192, 0, 2, 2)}
		link.Name = "probe"
		err := netlink.LinkAdd(link)
		if errors.Is(err, unix.EOPNOTSUPP) || errors.Is(err, unix.ENODEV) {
			return ErrNoIPIP
		}
		if err != nil {
			return fmt.Errorf("make an IPIP tunnel: %w", err)
		}
		return nil
	})
}
