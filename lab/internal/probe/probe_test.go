package probe

import (
	"context"
	"errors"
	"os"
	"testing"

	"github.com/vishvananda/netlink"

	"github.com/tortie-net/tortie/lab/internal/netns"
)

// A kernel with IPIP creates tunl0 in every network namespace (unless net.core.fb_tunnels_only_for_init_net is set):
// the probe must report IPIP where it exists, and only where it can be created.
func TestIPIPAgreesWithTunl0(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Fatal("a network namespace is needed: run as root")
	}
	err := IPIP(context.Background())
	if err != nil && !errors.Is(err, ErrNoIPIP) {
		t.Fatal(err)
	}
	var tunl0 bool
	if err := netns.Scratch(func() error {
		_, err := netlink.LinkByName("tunl0")
		tunl0 = err == nil
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	if tunl0 && err != nil {
		t.Errorf("a new namespace has tunl0, probe: %v", err)
	}
	if b, readErr := os.ReadFile("/proc/sys/net/core/fb_tunnels_only_for_init_net"); readErr == nil && b[0] == '0' && !tunl0 && err == nil {
		t.Error("the probe reports IPIP, but a new namespace has no tunl0")
	}
}

// A kernel with VXLAN registers the link kind, and has the module in /sys/module.
func TestVXLANAgreesWithADevice(t *testing.T) {
	err := VXLAN(context.Background())
	if err != nil && !errors.Is(err, ErrNoVXLAN) {
		t.Fatal(err)
	}
	if _, statErr := os.Stat("/sys/module/vxlan"); (statErr == nil) != (err == nil) {
		t.Errorf("/sys/module/vxlan: %v, probe: %v", statErr, err)
	}
}
