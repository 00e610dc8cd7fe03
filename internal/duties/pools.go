package duties

import (
	"context"
	"crypto/rand"
	"fmt"
	"net/netip"
	"slices"

	"github.com/tortie-net/tortie/internal/api"
	"github.com/tortie-net/tortie/internal/config"
	"github.com/tortie-net/tortie/internal/datastore"
)

// newPool is a default pool that the cluster lacks.
type newPool struct {
	config.Pool
	name string // Calico's
	v6   bool
}

// missing returns the default pools whose family the cluster has no pool of.
func (c Cluster) missing(pools []api.IPPool) []newPool {
	var out []newPool
	if c.Pools.V4 != nil && !hasFamily(pools, false) {
		out = append(out, newPool{Pool: *c.Pools.V4, name: "default-ipv4-ippool"})
	}
	if c.Pools.V6 != nil && c.IPv6 && !hasFamily(pools, true) {
		out = append(out, newPool{Pool: *c.Pools.V6, name: "default-ipv6-ippool", v6: true})
	}
	return out
}

func hasFamily(pools []api.IPPool, v6 bool) bool {
	return slices.ContainsFunc(pools, func(p api.IPPool) bool {
		cidr, err := netip.ParsePrefix(p.Spec.CIDR)
		return err == nil && cidr.Addr().Is6() == v6
	})
}

// ensurePools makes the default pools of families that the cluster has no pool of. Agents that start at the same time may
// choose different ranges: the first to write has chosen, as both use the same name.
func ensurePools(ctx context.Context, store datastore.Store, want Cluster, pools []api.IPPool, k *kubeadm) error {
	for _, p := range want.missing(pools) {
		cidr, err := p.choose(k, want.Own)
		if err != nil {
			return fmt.Errorf("%s: %w", p.name, err)
		}
		spec := p.Spec
		spec.CIDR = cidr.String()
		if err := createIfMissing(ctx, store, &api.IPPool{Meta: api.Meta{Name: p.name}, Spec: spec}); err != nil {
			return fmt.Errorf("%s with range %s: %w", p.name, cidr, err)
		}
	}
	return nil
}

// choose returns the pool's range: as configured, else kubeadm's, else one that this node's own network is not in.
func (p newPool) choose(k *kubeadm, own []netip.Prefix) (netip.Prefix, error) {
	if p.CIDR.IsValid() {
		return p.CIDR, nil
	}
	if k != nil {
		if i := slices.IndexFunc(k.pods, func(r netip.Prefix) bool { return r.Addr().Is6() == p.v6 }); i >= 0 {
			return p.checkSize(k.pods[i])
		}
	}
	if p.v6 {
		return randomV6(), nil
	}
	for _, candidate := range candidates() {
		if !slices.ContainsFunc(own, candidate.Overlaps) {
			return candidate, nil
		}
	}
	return netip.Prefix{}, fmt.Errorf("the networks of this node, %v, leave none of the ranges that are tried: set CALICO_IPV4POOL_CIDR", own)
}

func (p newPool) checkSize(cidr netip.Prefix) (netip.Prefix, error) {
	if cidr.Bits() > p.Spec.BlockSize {
		family := 4
		if p.v6 {
			family = 6
		}
		return cidr, fmt.Errorf("kubeadm's podSubnet %s is smaller than a block of /%d: set CALICO_IPV%dPOOL_BLOCK_SIZE or CALICO_IPV%dPOOL_CIDR",
			cidr, p.Spec.BlockSize, family, family)
	}
	return cidr, nil
}

// candidates are the ranges that are tried in this order if nobody says one. They are Calico's.
func candidates() []netip.Prefix {
	out := []netip.Prefix{netip.MustParsePrefix("192.168.0.0/16")}
	for i := byte(16); i < 32; i++ {
		out = append(out, netip.PrefixFrom(netip.AddrFrom4([4]byte{172, i}), 16))
	}
	return out
}

// randomV6 returns a unique local range of RFC 4193.
func randomV6() netip.Prefix {
	a := [16]byte{0xfd}
	_, _ = rand.Read(a[1:6]) // never fails
	return netip.PrefixFrom(netip.AddrFrom16(a), 48)
}
