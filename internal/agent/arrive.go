package agent

import (
	"context"
	"errors"
	"net/netip"
	"path/filepath"
	"strings"
	"time"

	"github.com/tortie-net/tortie/internal/api/groups"
	"github.com/tortie-net/tortie/internal/ipam"
	"github.com/tortie-net/tortie/internal/plugin/facts"
)

const (
	// groupFile is the file in the run directory where plugins look for the group: facts.GroupFile.
	groupFile = "tortie/api-group"
	// arrivedFile has the group in which arrive has succeeded. Only agents write it; plugins, too, write groupFile.
	arrivedFile = "tortie/api-group-arrived"
)

// groupBefore returns the group that this node used last; empty if it is not known.
func (a *Agent) groupBefore() groups.Group {
	return facts.ReadGroup(filepath.Join(a.Config.RunDir, groupFile))
}

// groupArrived returns groupBefore if arrive has succeeded there since the node's boot, else nothing.
func (a *Agent) groupArrived() groups.Group {
	in := facts.ReadGroup(filepath.Join(a.Config.RunDir, arrivedFile))
	if in != a.groupBefore() {
		return ""
	}
	return in
}

// arrive makes sure that the addresses in use on this node are assigned in the API group to which the cluster's objects
// have moved, and stores the group for the plugins. Until it succeeds nothing is assigned on this node.
//
// A migration waits a few seconds between its lock and its copy. An assignment that a plugin writes later is only in
// the former group.
func (a *Agent) arrive(ctx context.Context, in groups.Group) error {
	inUse, err := a.addressesInUse()
	if err != nil {
		return err
	}
	var problems []string
	if len(inUse) > 0 {
		from := ipam.NewClient(a.Store.In(in.Other()), time.Now)
		claimed, left, err := ipam.NewClient(a.Store.In(in), time.Now).Carry(ctx, from, a.Config.Nodename, inUse)
		if len(claimed) > 0 {
			a.Log.Warn("addresses in use here were assigned to nobody in the group to which the objects have moved: claimed again",
				"addresses", claimed, "group", in)
		}
		if err != nil {
			return err
		}
		if left != nil {
			problems = strings.Split(left.Error(), "\n")
		}
	}
	a.Status.SetProblems("addresses", problems)
	return errors.Join(facts.WriteGroup(filepath.Join(a.Config.RunDir, groupFile), in),
		facts.WriteGroup(filepath.Join(a.Config.RunDir, arrivedFile), in))
}

// addressesInUse returns the addresses of the node's pods and tunnels.
func (a *Agent) addressesInUse() (all []netip.Addr, err error) {
	links, err := a.Kernel.Links()
	if err != nil {
		return nil, err
	}
	pods, err := a.localPods(links)
	if err != nil {
		return nil, err
	}
	for _, p := range pods {
		all = append(all, p.Addr)
	}
	self := a.Watch.Assignment().Node
	for k := range a.tunnels.ends { // the loop owns their addresses: only annotation is read
		if self == nil {
			break
		}
		if addr, err := netip.ParseAddr(self.Annotations[a.tunnels.ends[k].annotation]); err == nil {
			all = append(all, addr)
		}
	}
	return all, nil
}
