package plugin

import (
	"context"
	"errors"
	"fmt"
	"net/netip"

	"github.com/tortie-net/tortie/internal/kernel/podnet"
)

// removeInterface removes the container's link, and returns the addresses that it had. errHasInterface if the container
// has another link.
func (s *session) removeInterface(ctx context.Context) ([]netip.Addr, error) {
	had, err := podnet.Teardown(ctx, s.podConfig(s.log, nil))
	if err != nil {
		return had, fmt.Errorf("remove the pod's link: %w", err)
	}
	return had, s.checkNoInterface()
}

// errHasInterface: the container has a link other than this verb's, and its address there.
var errHasInterface = errors.New("the container still has an interface")

// checkNoInterface returns errHasInterface if the node has a link of the container.
func (s *session) checkNoInterface() error {
	ifName, holds, err := podnet.Holds(s.hostVeth(), s.handle())
	if err == nil && holds {
		err = fmt.Errorf("%w: %s of the node leads to its %s", errHasInterface, s.hostVeth(), ifName)
	}
	return err
}
