package takeover

import (
	"context"
	"errors"
	"log/slog"
	"strings"

	"github.com/tortie-net/tortie/internal/kernel/ipip"
	"github.com/tortie-net/tortie/internal/kernel/netlinkx"
	"github.com/tortie-net/tortie/internal/kernel/podnet"
	"github.com/tortie-net/tortie/internal/kernel/routes"
	"github.com/tortie-net/tortie/internal/kernel/vxlan"
	"github.com/tortie-net/tortie/internal/kernel/wireguard"
)

// devices, with All, removes the tunnels and the pods' links. A pod that still runs then has no network; without the
// routes to it, it would have none either. Without All the program in the agent's place uses them.
func (h Handover) devices(ctx context.Context) ([]Step, error) {
	if !h.All {
		return nil, nil
	}
	steps, err := h.tunnels(ctx)
	var more []Step
	// podnet works in the namespace of the calling thread.
	failed := h.Kernel.Namespace().Do(func() (err error) {
		more, err = h.podLinks(ctx)
		return err
	})
	return append(steps, more...), errors.Join(err, failed)
}

func (h Handover) tunnels(ctx context.Context) (steps []Step, err error) {
	vx := vxlan.New(h.Kernel)
	for _, v6 := range []bool{false, true} {
		link, err := h.Kernel.LinkByName(vxlan.Device(v6))
		if netlinkx.IsNotExist(err) || err == nil && link.Kind != "vxlan" {
			continue
		}
		if err == nil && !h.DryRun {
			err = vx.Remove(ctx, v6)
		}
		if err != nil {
			return steps, err
		}
		steps = append(steps, Step{"remove link", link.Name})
	}
	more, err := h.wireGuard(ctx)
	if steps = append(steps, more...); err != nil {
		return steps, err
	}
	link, err := h.Kernel.LinkByName(ipip.Device)
	if netlinkx.IsNotExist(err) || err == nil && !link.Up {
		return steps, nil
	}
	if err == nil && !h.DryRun {
		err = ipip.New(h.Kernel).Remove(ctx)
	}
	if err != nil {
		return steps, err
	}
	return append(steps, Step{"take down link", link.Name + ", which the kernel keeps, and its address"}), nil
}

func (h Handover) wireGuard(ctx context.Context) (steps []Step, err error) {
	wg := wireguard.New(h.Kernel, h.Protocol, nil)
	for _, v6 := range []bool{false, true} {
		link, err := h.Kernel.LinkByName(wireguard.Name(v6))
		if netlinkx.IsNotExist(err) || err == nil && !wireguard.Is(link, v6) {
			continue
		}
		if err == nil && !h.DryRun {
			err = wg.Remove(ctx, v6, routes.Predecessors{})
		}
		if err != nil {
			return steps, err
		}
		steps = append(steps, Step{"remove link", link.Name + ", with its ip rule and routes"})
	}
	return steps, nil
}

func (h Handover) podLinks(ctx context.Context) ([]Step, error) {
	links, err := podnet.Links()
	if err != nil {
		return nil, err
	}
	var steps []Step
	var errs []error
	for _, l := range links {
		if l.Handle == "" && !strings.HasPrefix(l.Name, podnet.DefaultVethPrefix) {
			continue // a pair with a route, which may be another program's
		}
		steps = append(steps, Step{"remove link of a pod", l.Name})
		if !h.DryRun {
			errs = append(errs, l.Remove(ctx, slog.New(slog.DiscardHandler)))
		}
	}
	return steps, errors.Join(errs...)
}
