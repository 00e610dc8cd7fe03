package takeover

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"

	"github.com/tortie-net/tortie/internal/kernel/flowtable"
	"github.com/tortie-net/tortie/internal/kernel/ipip"
	"github.com/tortie-net/tortie/internal/kernel/netlinkx"
	"github.com/tortie-net/tortie/internal/kernel/netpol"
	"github.com/tortie-net/tortie/internal/kernel/nft"
	"github.com/tortie-net/tortie/internal/kernel/vxlan"
)

// Handover is the treatment of the routes and tables that an ended agent has left on its node.
type Handover struct {
	Kernel *netlinkx.Conn
	Table  *nft.Table
	// Protocol is the protocol of the agent's routes.
	Protocol netlinkx.Protocol
	// All: no program takes the agent's place, and its routes and tables are removed; else the routes are given to
	// Calico's programs.
	All bool
	// DryRun: nothing is done.
	DryRun bool
}

// Step is an action that was done, or would be.
type Step struct{ What, About string }

// Run does the handover, and returns the steps that were done, or would be. It may be run again.
//
// Calico's programs can't replace our routes: BIRD treats them as an administrator's, and Felix does not look at them.
// With its protocol number BIRD or Felix treats a route as its own: it keeps the correct ones, and replaces or removes
// the rest. A packet always finds a route. If Calico has a route to the same destination already, ours is removed. Our
// nftables rules are removed once Felix has its policies in force, not before: else packets would leave the pools
// untranslated, and pods would be without policy. The tunnel devices and the links of pods, which Calico uses too,
// stay; with All they are removed.
func (h Handover) Run(ctx context.Context) ([]Step, error) {
	var steps []Step
	var errs []error
	for _, part := range []func(context.Context) ([]Step, error){h.routes, h.rules, h.devices} {
		done, err := part(ctx)
		steps, errs = append(steps, done...), append(errs, err)
	}
	return steps, errors.Join(errs...)
}

func (h Handover) routes(ctx context.Context) ([]Step, error) {
	ours, err := h.Kernel.Routes(netlinkx.RouteFilter{Protocol: h.Protocol})
	if err != nil || len(ours) == 0 {
		return nil, err
	}
	theirs, tunnels, err := h.calico()
	if err != nil {
		return nil, err
	}
	links, err := h.Kernel.Links()
	if err != nil {
		return nil, err
	}
	give, remove, steps := h.sort(ours, theirs, tunnels, namesOf(links))
	if h.DryRun {
		return steps, nil
	}
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	return steps, errors.Join(errors.Join(h.Kernel.ReplaceRoutes(give)...), withoutGone(h.Kernel.DeleteRoutes(remove)))
}

func namesOf(links []netlinkx.Link) map[int]string {
	names := make(map[int]string, len(links))
	for _, l := range links {
		names[l.Index] = l.Name
	}
	return names
}

// withoutGone joins the errors but those for routes that are gone already.
func withoutGone(errs []error) error {
	return errors.Join(slices.DeleteFunc(errs, netlinkx.IsNotExist)...)
}

// calico returns the destinations of Calico's routes, and the indexes of Felix's VXLAN links.
func (h Handover) calico() (theirs map[netip.Prefix]bool, tunnels []int, err error) {
	theirs = map[netip.Prefix]bool{}
	for _, protocol := range Protocols {
		routes, err := h.Kernel.Routes(netlinkx.RouteFilter{Protocol: protocol})
		if err != nil {
			return nil, nil, err
		}
		for _, r := range routes {
			theirs[r.Dst] = true
		}
	}
	for _, name := range []string{vxlan.Device4, vxlan.Device6} {
		switch link, err := h.Kernel.LinkByName(name); {
		case err == nil:
			tunnels = append(tunnels, link.Index)
		case !netlinkx.IsNotExist(err):
			return nil, nil, err
		}
	}
	return theirs, tunnels, nil
}

// sort decides for each of our routes whether it is given to Calico or removed. names are the links' names.
func (h Handover) sort(ours []netlinkx.Route, theirs map[netip.Prefix]bool, tunnels []int,
	names map[int]string) (give, remove []netlinkx.Route, steps []Step) {
	for _, r := range ours {
		given := r
		given.Protocol = netlinkx.ProtocolBIRD
		if slices.ContainsFunc(tunnels, r.Leaves) {
			given.Protocol = netlinkx.ProtocolFelix
		}
		if given.Type == netlinkx.Unreachable {
			given.Type = netlinkx.Blackhole // as Calico has it
		}
		switch {
		case h.All || theirs[r.Dst] || r.Object || r.More:
			remove, steps = append(remove, r), append(steps, Step{"remove route", r.Text(names)})
		default:
			give, steps = append(give, given), append(steps, Step{fmt.Sprintf("give route to %s", owner(given.Protocol)), given.Text(names)})
		}
	}
	return give, remove, steps
}

func owner(p netlinkx.Protocol) string {
	if p == netlinkx.ProtocolFelix {
		return "Felix"
	}
	return "BIRD"
}

// own are the agent's tables: NAT and the packet guard, policies, and the flowtable.
var own = nft.Foreign{Tables: []string{nft.TableName, netpol.TableName, flowtable.TableName}}

func (h Handover) rules(ctx context.Context) ([]Step, error) {
	ours, err := h.Table.Find(ctx, own)
	if err != nil {
		return nil, err
	}
	if ours.Empty() {
		return h.peers(ctx)
	}
	felix, err := FelixPolicies(ctx, h.Kernel, h.Table)
	if err != nil {
		return nil, err
	}
	if felix == "" && !h.All {
		return []Step{{"keep", ours.String() + ", as Felix has made no rules here yet: run this again when it has"}}, nil
	}
	steps := []Step{{"remove", ours.String()}}
	if !h.DryRun {
		if _, err = h.Table.Remove(ctx, own); err != nil {
			return steps, err
		}
	}
	more, err := h.peers(ctx)
	return append(steps, more...), err
}

// peers removes the IPIP devices for single nodes: Felix's rules do not expect packets by them.
func (h Handover) peers(ctx context.Context) (steps []Step, err error) {
	links, err := h.Kernel.Links()
	if err != nil {
		return nil, err
	}
	for _, l := range links {
		if ipip.IsPeer(l) {
			steps = append(steps, Step{"remove link", l.Name})
		}
	}
	if len(steps) == 0 || h.DryRun {
		return steps, nil
	}
	return steps, ipip.New(h.Kernel).SyncPeers(ctx, links, ipip.Peers{}, nil)
}

// RemoveRules removes the rules and ipsets of a Felix that no longer runs.
func RemoveRules(ctx context.Context, kernel *netlinkx.Conn, table *nft.Table, dryRun bool) (steps []Step, err error) {
	found, err := table.Find(ctx, rules)
	if err != nil {
		return nil, err
	}
	sets, err := felixSets(kernel)
	if err != nil {
		return nil, err
	}
	if !found.Empty() {
		steps = append(steps, Step{"remove", found.String()})
	}
	for _, name := range sets {
		steps = append(steps, Step{"remove ipset", name})
	}
	if dryRun || len(steps) == 0 {
		return steps, nil
	}
	if _, err = table.Remove(ctx, rules); err != nil {
		return nil, err
	}
	return steps, destroy(kernel, sets)
}
