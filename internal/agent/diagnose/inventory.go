package diagnose

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/tortie-net/tortie/internal/agent/nodestatus"
	"github.com/tortie-net/tortie/internal/api"
	"github.com/tortie-net/tortie/internal/api/groups"
	"github.com/tortie-net/tortie/internal/api/names"
	"github.com/tortie-net/tortie/internal/datastore"
	"github.com/tortie-net/tortie/internal/datastore/kubernetes"
	"github.com/tortie-net/tortie/internal/ipam/audit"
	"github.com/tortie-net/tortie/internal/ipam/inventory"
)

// Cluster is the state that the API server returned. It is asked for little: the names of blocks, and their contents
// only if all blocks of a pool are claimed.
type Cluster struct {
	// Err is why reading failed.
	Err error
	// Group is the API group in which the cluster keeps Calico's objects.
	Group groups.Group
	// Definitions are the kinds of that group that are served, by their plurals in internal/api.
	Definitions []string
	// Full are pools without a free address.
	Full []string
}

func lookAtCluster(ctx context.Context, store *kubernetes.Store, r *nodestatus.Report) (c Cluster) {
	if c.Group, c.Definitions, c.Err = store.Kinds(ctx); c.Err != nil {
		return c
	}
	if c.lacks("ipamblocks") || c.lacks("ippools") {
		return c
	}
	c.Full, c.Err = fullPools(ctx, store, r)
	return c
}

// fullPools returns the pools with all blocks claimed and no free address.
func fullPools(ctx context.Context, store datastore.Store, r *nodestatus.Report) (full []string, err error) {
	var blocks api.List[api.IPAMBlock, *api.IPAMBlock]
	if err := store.List(ctx, &blocks, datastore.ListOptions{Stale: true, NamesOnly: true}); err != nil {
		return nil, fmt.Errorf("list the names of blocks: %w", err)
	}
	claimed := map[string]int{}
	for i := range blocks.Items {
		cidr, _ := names.ParseBlock(blocks.Items[i].Name)
		for _, p := range r.Pools {
			if pool, err := netip.ParsePrefix(p.CIDR); err == nil && cidr.IsValid() && pool.Contains(cidr.Addr()) {
				claimed[p.Name]++
			}
		}
	}
	crowded := func(p nodestatus.Pool) bool {
		pool, err := netip.ParsePrefix(p.CIDR)
		bits := p.BlockSize - pool.Bits()
		return err == nil && !p.Disabled && bits < 24 && claimed[p.Name] >= 1<<max(bits, 0)
	}
	if !slices.ContainsFunc(r.Pools, crowded) {
		return nil, nil
	}
	var pools api.List[api.IPPool, *api.IPPool]
	var reserved api.List[api.IPReservation, *api.IPReservation]
	err = errors.Join(store.List(ctx, &pools, datastore.ListOptions{Stale: true}),
		store.List(ctx, &reserved, datastore.ListOptions{Stale: true}))
	if err != nil {
		return nil, fmt.Errorf("list pools and reservations: %w", err)
	}
	v := inventory.View{Pools: pools.Items, Reservations: reserved.Items}
	if v.Blocks, err = inventory.ReadBlocks(ctx, store); err != nil {
		return nil, fmt.Errorf("list blocks: %w", err)
	}
	for _, u := range audit.Usages(&v) {
		if u.Name != "" && u.Free.Sign() <= 0 {
			full = append(full, u.Name)
		}
	}
	return full, nil
}

// needed are the kinds without which the network does not work. wanted are further kinds of the chart, without which
// only a part does not work.
var (
	needed = []string{"ippools", "ipamblocks", "blockaffinities", "ipamhandles", "ipamconfigs", "ipreservations", "clusterinformations",
		"felixconfigurations", "bgpconfigurations", "bgppeers", "bgpfilters"}
	wanted = []string{"caliconodestatuses", "networkpolicies", "globalnetworkpolicies", "networksets", "globalnetworksets", "hostendpoints",
		"tiers", "kubecontrollersconfigurations"}
)

// lacks reports whether the API server was seen to serve no such kind.
func (c *Cluster) lacks(kind string) bool {
	return c.Err == nil && c.Definitions != nil && !slices.Contains(c.Definitions, kind)
}

// definitions checks that the API server has the kinds.
func (o *Observations) definitions() (findings []Finding) {
	const check = "definitions"
	if o.Cluster.Err != nil || o.Cluster.Definitions == nil {
		return nil
	}
	missing := func(kinds []string) (all []string) {
		for _, k := range kinds {
			if o.Cluster.lacks(k) {
				all = append(all, o.Cluster.Group.Resource(k))
			}
		}
		return all
	}
	for _, of := range []struct {
		level Level
		kinds []string
		why   string
	}{
		{Problem, missing(needed), "what was known stays in force, but new pods get no address, and an agent that starts has nothing to go by"},
		{Warning, missing(wanted), "objects of these kinds count no more: policies, host endpoints or status questions"},
	} {
		if len(of.kinds) == 0 {
			continue
		}
		files := make([]string, len(of.kinds))
		for i, k := range of.kinds {
			kind, group, _ := strings.Cut(k, ".")
			files[i] = fmt.Sprintf("-f %s/%s_%s.yaml", o.Cluster.Group.DefinitionsDir(), group, kind)
		}
		findings = append(findings, Finding{
			Check: check, Level: of.level, Seen: "the API server does not have " + strings.Join(of.kinds, ", "), Why: of.why,
			Do: "kubectl apply --server-side " + strings.Join(files, " ") +
				"; the objects went with the definition: restore them from a backup, the default pools come back with helm upgrade",
		})
	}
	if len(findings) == 0 {
		return []Finding{{Check: check, Level: OK, Seen: "the API server has all kinds"}}
	}
	return findings
}

// pools checks whether new pods of this node can get addresses. Without the pools' definition it finds nothing: no
// change of a pool would help, and check definitions names what does.
func (o *Observations) pools() (findings []Finding) {
	const check = "pools"
	if o.Cluster.lacks("ippools") {
		return nil
	}
	r := o.report()
	add := func(level Level, about, seen, why, do string) {
		findings = append(findings, Finding{Check: check, About: about, Level: level, Seen: seen, Why: why, Do: do})
	}
	for _, p := range r.Pools {
		if p.Reason == api.PoolOverlap {
			add(Problem, p.Name, p.Why, "it assigns nothing", "delete it, or change its range")
		}
	}
	for _, is4 := range []bool{true, false} {
		family := map[bool]string{true: "IPv4", false: "IPv6"}[is4]
		var idle, whys, full, usable []string
		enable := ""
		for _, p := range r.Pools {
			cidr, err := netip.ParsePrefix(p.CIDR)
			switch {
			case err != nil || cidr.Addr().Is4() != is4 || !p.SelectsNode:
			case p.Disabled:
				idle, whys = append(idle, p.Name), append(whys, p.Name+": "+cmp.Or(p.Why, "it is disabled"))
				if p.Reason == api.PoolDisabled {
					enable = cmp.Or(enable, p.Name)
				}
			case slices.Contains(o.Cluster.Full, p.Name):
				full = append(full, p.Name)
			default:
				usable = append(usable, p.Name)
			}
		}
		switch {
		case len(full) > 0 && len(usable) == 0:
			add(Problem, family, "no free address in pool "+strings.Join(full, ", "), "new pods of this node get no "+family+" address",
				"add an IPPool, or enlarge one (kube-controllers ipam show lists them); kube-controllers ipam check finds addresses that no pod uses")
		case len(full) > 0:
			add(Warning, family, "no free address in pool "+strings.Join(full, ", ")+"; others have some",
				"pods whose annotations name this pool get none", "enlarge it, or let these pods use another")
		case len(idle) > 0 && len(usable) == 0:
			pools := o.Cluster.Group.Resource("ippools") + " "
			do := "add an IPPool, or remove what is named; kubectl get " + pools + idle[0] +
				" -o yaml shows the condition Allocatable, and who has set it"
			if enable != "" {
				do = `enable one: kubectl patch ` + pools + enable + ` --type merge -p '{"spec":{"disabled":false}}'`
			}
			add(Problem, family, "no pool that selects this node assigns anything: "+strings.Join(whys, "; "),
				"new pods of this node get no "+family+" address", do)
		}
	}
	switch {
	case len(findings) > 0 || len(r.Pools) == 0:
	case o.Cluster.Err != nil:
		findings = []Finding{{Check: check, Level: Unknown, Seen: "whether pools are full could not be looked up: " + o.Cluster.Err.Error()}}
	default:
		findings = []Finding{{Check: check, Level: OK, Seen: "none that selects this node is full, none overlaps another"}}
	}
	return findings
}
