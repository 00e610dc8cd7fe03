package policies

import (
	"context"
	"fmt"
	"net/netip"
	"time"

	"github.com/tortie-net/tortie/internal/app/progress"
	"github.com/tortie-net/tortie/internal/app/wait"
	"github.com/tortie-net/tortie/internal/kernel/netlinkx"
	"github.com/tortie-net/tortie/internal/policy"
)

// sweepPause is the least time between two sweeps: the kernel walks its whole conntrack table for each.
const sweepPause = time.Second

// sweeps ends connections that are no longer allowed, after each signal on sweepWanted, until ctx ends.
func (w *Worker) sweeps(ctx context.Context) {
	var reported progress.Changes
	for {
		select {
		case <-ctx.Done():
			return
		case <-w.sweepWanted:
		}
		ended, err := w.sweep(ctx)
		if reported.New(err) {
			w.Log.Warn("cannot end connections that policies forbid", "err", err)
		}
		if err != nil {
			wait.Signal(w.sweepWanted)
		}
		if ended > 0 {
			w.Log.Info("ended connections that policies forbid", "connections", ended)
		}
		wait.Sleep(ctx, sweepPause)
	}
}

// sweep judges the tracked connections of this node's pods, and deletes denied ones from connection tracking.
func (w *Worker) sweep(ctx context.Context) (ended int, err error) {
	addrs, err := w.Kernel.Addrs(0, netlinkx.FamilyAll)
	if err != nil {
		return 0, fmt.Errorf("list this node's addresses: %w", err)
	}
	own := make(map[netip.Addr]bool, len(addrs))
	for _, a := range addrs {
		own[a.Prefix.Addr()] = true
	}
	// Once deleted, a connection in a flowtable passes no packet either.
	ended, err = w.Kernel.DeleteFlowsIf(func(f netlinkx.Flow) bool {
		w.mu.RLock()
		defer w.mu.RUnlock()
		return w.denied(f, own)
	}, func(all []netlinkx.Flow) error { return w.Engine.End(ctx, all) })
	w.note(func(s *Seen) { s.Ended += uint64(ended) })
	return ended, err
}

// denied judges a connection as its first packet would be: by the egress program of the client's pod, and by the
// ingress program of the server's pod. Packets of this node itself to its pods are never filtered. Connections expected
// by a conntrack helper have no policy of their own.
func (w *Worker) denied(f netlinkx.Flow, own map[netip.Addr]bool) bool {
	if w.inForce.rules == nil || f.Expected {
		return false
	}
	denies := func(of netip.Addr, d policy.Direction, peer netip.Addr) bool {
		link, local := w.inForce.routed.links[of]
		if _, known := w.inForce.rules.Endpoints[link]; !local || !known {
			return false
		}
		return !w.inForce.rules.Decide(link, d, peer, policy.Packet{Protocol: f.Protocol, Port: f.Port, SourcePort: f.SourcePort}).Allow
	}
	return denies(f.Client, policy.Egress, f.Server) || !own[f.Client] && denies(f.Server, policy.Ingress, f.Client)
}

// permitFlowtable permits or forbids a flowtable. It ignores the failure of a permission: the agent's next pass finds
// that the flowtable is missing.
func (w *Worker) permitFlowtable(ctx context.Context, may bool) error {
	if w.Flowtable == nil {
		return nil
	}
	if err := w.Flowtable.Permit(ctx, may); err != nil && !may {
		return fmt.Errorf("take connections out of the flowtable: %w", err)
	}
	return nil
}

// judgesEachPacket reports whether policies of host endpoints judge packets without connection tracking, so that each
// packet counts.
func judgesEachPacket(rs *policy.Ruleset) bool {
	for _, host := range rs.Hosts {
		if host.Programs[policy.Untracked] != [2]string{} {
			return true
		}
	}
	return false
}
