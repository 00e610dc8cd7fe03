package plugin

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"time"

	"github.com/containernetworking/cni/pkg/types"
	types100 "github.com/containernetworking/cni/pkg/types/100"

	"github.com/tortie-net/tortie/internal/api"
	"github.com/tortie-net/tortie/internal/api/names"
	"github.com/tortie-net/tortie/internal/ipam"
)

// ofFloating names the annotation in an error. nil stays nil.
func (s *session) ofFloating(err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("annotation %s of pod %s/%s: %w", api.AnnotationFloatingIPs, s.namespace, s.pod, err)
}

// checkFloating refuses a floating address of a family in which the container has no address.
func (s *session) checkFloating(want *request, addrs []netip.Addr) error {
	for _, f := range want.floating {
		if !slices.ContainsFunc(addrs, func(a netip.Addr) bool { return a.Is4() == f.Is4() }) {
			return failure(types.ErrInvalidNetworkConfig, s.ofFloating(fmt.Errorf("%s: the pod has no address of that family: remove it", f)))
		}
	}
	return nil
}

// floats reports whether IPAM assigns the container's floating addresses, so that no other pod has them, and the agent
// translates them. With etcd Felix translates them; other IPAM plugins guarantee nothing.
func (s *session) floats() bool {
	return s.conf.DatastoreType == datastoreKubernetes && s.conf.IPAM.Type == calicoIPAM
}

// assignFloating assigns the floating addresses under the container's handle, after its own. After an error nothing of
// the container is assigned, unless it already uses its addresses.
func (p *inProcess) assignFloating(ctx context.Context, want request, own *types100.Result) error {
	if len(want.floating) == 0 || !p.floats() {
		return nil
	}
	err := p.tryFloating(ctx, want, own)
	if err == nil || errors.Is(p.checkNoInterface(), errHasInterface) {
		return err
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), undoTime)
	defer cancel()
	if _, undo := ipam.NewClient(p.blockCache(), time.Now).ReleaseOwned(ctx, p.owner()); undo != nil {
		return fmt.Errorf("%w; what it had assigned is left for DEL, since undoing it failed: %s", err, undo.Error())
	}
	return err
}

func (p *inProcess) tryFloating(ctx context.Context, want request, own *types100.Result) error {
	addrs, err := resultAddrs(own)
	if err != nil {
		return err
	}
	if err := p.checkFloating(&want, addrs); err != nil {
		return err
	}
	owner := p.owner()
	owner.Attrs[names.AttributeInterface] = names.FloatingInterface
	client := ipam.NewClient(p.blockCache(), time.Now)
	for _, f := range want.floating {
		if slices.Contains(addrs, f) {
			return failure(types.ErrInvalidNetworkConfig, p.ofFloating(fmt.Errorf("%s is the pod's own address: remove it", f)))
		}
		assign := func() error {
			attempt := client.Begin(ctx, ipam.Start{Owner: owner, Host: p.node, InUse: true})
			_, err := attempt.Finish(ctx, ipam.Request{Owner: owner, Host: p.node, Use: api.UseWorkload, Addresses: []netip.Addr{f}})
			return err
		}
		err := assign()
		if errors.Is(err, ipam.ErrTaken) && want.earlier != "" {
			earlier := ipam.Owner{Handle: want.earlier, Attrs: map[string]string{"pod": p.pod, "namespace": p.namespace}, Only: []netip.Addr{f}}
			if _, err := client.ReleaseKnowing(ctx, earlier, "", &ipam.Known{}); err != nil {
				return p.ofFloating(err)
			}
			err = assign()
		}
		if err != nil {
			return p.ofFloating(err)
		}
	}
	p.log.Info("floating addresses assigned", "handle", p.handle(), "addresses", want.floating)
	return nil
}
