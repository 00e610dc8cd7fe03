package wireguard

import (
	"errors"
	"fmt"
	"io/fs"

	"golang.org/x/sys/unix"

	"github.com/tortie-net/tortie/internal/kernel/sysctl"
)

// Values of Device.Threaded.
const (
	Threaded   = "1"
	Unthreaded = "0"
)

// Thread writes d.Threaded below a directory such as /sys/class/net: it makes the kernel receive each peer's packets in
// a thread of its own, which the scheduler moves between processors, or not. Netlink offers no alternative: it
// addresses NAPI instances by an ID, and WireGuard's have none. The kernel refuses it for a device without peers.
func (d *Device) Thread(sysfs sysctl.Root) error {
	if d.Threaded == "" || len(d.Peers) == 0 {
		return nil
	}
	err := sysfs.Set(sysctl.Key{d.Name(), "threaded"}, d.Threaded)
	remedy := ""
	switch {
	case err == nil, errors.Is(err, fs.ErrNotExist) && d.Threaded == Unthreaded:
		return nil
	case errors.Is(err, fs.ErrNotExist):
		remedy = ": use Linux 5.12 or later, or remove the setting"
	case errors.Is(err, unix.EROFS), errors.Is(err, fs.ErrPermission):
		remedy = ": set the chart's value wireguard.threaded (TORTIE_NET_SYSFS must be a writable mount of " +
			"/sys/devices/virtual/net), or remove the setting"
	}
	return fmt.Errorf("%s: wireguardThreadingEnabled: %w%s", d.Name(), err, remedy)
}
