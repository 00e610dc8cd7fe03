package controllers

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"os"

	"github.com/tortie-net/tortie/internal/api"
	"github.com/tortie-net/tortie/internal/app/config"
	"github.com/tortie-net/tortie/internal/cluster/duties"
	"github.com/tortie-net/tortie/internal/datastore"
	"github.com/tortie-net/tortie/internal/datastore/kubernetes"
	"github.com/tortie-net/tortie/internal/ipam/inventory"
)

// defaultPools creates the pools of a cluster that has none, once per process, at the start of its leadership. If pools
// are missing later, an administrator has deleted them, and is about to create others.
type defaultPools struct {
	store *kubernetes.Store
	want  config.Pools
	made  bool
}

func (d *defaultPools) sync(ctx context.Context, v *inventory.View) error {
	// A datastore that is locked for a migration is left alone.
	if info := v.Information; d.made || info != nil && info.Spec.DatastoreReady != nil && !*info.Spec.DatastoreReady {
		return nil
	}
	_, noIPv6 := os.Stat("/proc/sys/net/ipv6")
	want := duties.DefaultPools{Pools: d.want, IPv6: noIPv6 == nil,
		Own: func(ctx context.Context) ([]netip.Prefix, error) { return d.networks(ctx, v.Nodes) }}
	err := duties.MakePools(ctx, d.store, want, v.Pools)
	d.made = err == nil
	return err
}

// mostAsked bounds the Nodes that are read for their addresses: when pools are created there are few Nodes, and many
// share a subnet.
const mostAsked = 50

// networks returns the networks of the nodes' IPv4 addresses: this host's with their subnet, others as single
// addresses.
func (d *defaultPools) networks(ctx context.Context, nodes []inventory.Node) ([]netip.Prefix, error) {
	subnets, err := hostSubnets()
	if err != nil {
		return nil, err
	}
	var all []netip.Prefix
	for i := range nodes[:min(len(nodes), mostAsked)] {
		n := &api.Node{Meta: api.Meta{Name: nodes[i].Name}}
		if err := d.store.Get(ctx, n); err != nil && !errors.Is(err, datastore.ErrNotFound) {
			return nil, err
		}
		for _, a := range n.InternalIPs() {
			if subnet, ours := subnets[a]; ours {
				all = append(all, subnet)
			} else {
				all = append(all, netip.PrefixFrom(a, a.BitLen()))
			}
		}
	}
	return all, nil
}

// hostSubnets returns the subnets of this host's addresses.
func hostSubnets() (map[netip.Addr]netip.Prefix, error) {
	addrs, err := net.InterfaceAddrs()
	if err != nil {
		return nil, err
	}
	subnets := make(map[netip.Addr]netip.Prefix, len(addrs))
	for _, a := range addrs {
		if p, err := netip.ParsePrefix(a.String()); err == nil {
			subnets[p.Addr()] = p.Masked()
		}
	}
	return subnets, nil
}
