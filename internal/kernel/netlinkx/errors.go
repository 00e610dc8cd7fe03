package netlinkx

import (
	"errors"
	"fmt"
	"io/fs"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// ErrNotNamespace is returned for a path that exists but is not a network namespace, such as the plain file that stays
// behind when a namespace's bind mount is undone without removing its mount point.
var ErrNotNamespace = errors.New("not a network namespace")

// ErrLinkName is returned for an invalid name of a link.
var ErrLinkName = errors.New("not a link name")

// IsNotExist reports whether err means that the requested link, address, route or namespace does not exist.
func IsNotExist(err error) bool {
	if err == nil { // as for each of ten thousand routes; errors.As allocates
		return false
	}
	var notFound netlink.LinkNotFoundError
	if errors.As(err, &notFound) || errors.Is(err, fs.ErrNotExist) {
		return true
	}
	// ENODEV: no such link. ESRCH: no such route. EADDRNOTAVAIL: no such address. ENOENT (which fs.ErrNotExist matches):
	// no such routing table.
	return errors.Is(err, unix.ENODEV) || errors.Is(err, unix.ESRCH) || errors.Is(err, unix.EADDRNOTAVAIL)
}

// IsExist reports whether err means that the link, address or route exists already.
func IsExist(err error) bool { return errors.Is(err, fs.ErrExist) }

// IsUnsupported reports whether err means that the kernel was built without the requested feature.
func IsUnsupported(err error) bool { return errors.Is(err, unix.EOPNOTSUPP) }

// maxErrors bounds the errors in a Summary: if a device is missing, ten thousand routes may be.
const maxErrors = 10

// Summary joins the first maxErrors errors, and adds the number of the others.
func Summary(errs []error) error {
	if more := len(errs) - maxErrors; more > 0 {
		return fmt.Errorf("%w\nand %d more", errors.Join(errs[:maxErrors]...), more)
	}
	return errors.Join(errs...)
}
