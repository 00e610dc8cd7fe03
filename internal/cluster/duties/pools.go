package duties

import (
	"context"
	"crypto/rand"
	"fmt"
	"net/netip"
	"slices"

	"github.com/tortie-net/tortie/internal/api"
	"github.com/tortie-net/tortie/internal/app/config"
	"github.com/tortie-net/tortie/internal/datastore"
)

// DefaultPools are the pools for a cluster that has none of their family.
type DefaultPools struct {
	config.Pools
	// Own returns the networks of the nodes' addresses, which a new pool must not overlap. It is called only if a range
	// must be chosen.
	Own func(context.Context) ([]netip.Prefix, error)
	// IPv6 is false if the kernel lacks IPv6: then a default IPv6 pool has no use.
	IPv6 bool
}

// newPool is a default pool that the cluster lacks.
type newPool struct {
	config.Pool
	name string // Calico's
	v6   bool
}

// missing returns the default pools of the families for which the cluster has no pool.
func (d DefaultPools) missing(pools []api.IPPool) []newPool {
	var out []newPool
	if d.V4 != nil && !hasFamily(pools, false) {
		out = append(out, newPool{Pool: *d.V4, name: "default-ipv4-ippool"})
	}
	if d.V6 != nil && d.IPv6 && !hasFamily(pools, true) {
		out = append(out, newPool{Pool: *d.V6, name: "default-ipv6-ippool", v6: true})
	}
	return out
}

func hasFamily(pools []api.IPPool, v6 bool) bool {
	return slices.ContainsFunc(pools, func(p api.IPPool) bool {
		cidr, err := netip.ParsePrefix(p.Spec.CIDR)
		return err == nil && cidr.Addr().Is6() == v6
	})
}

// MakePools creates the default pools of families for which the cluster has none. Of two programs that do so at the
// same time and choose different ranges the first one wins, as both use the same name. In a cluster with pools it makes
// no request.
func MakePools(ctx context.Context, store datastore.Store, want DefaultPools, pools []api.IPPool) error {
	missing := want.missing(pools)
	var k *kubeadm
	var own []netip.Prefix
	if slices.ContainsFunc(missing, func(p newPool) bool { return !p.CIDR.IsValid() }) {
		var err error
		if k, err = askKubeadm(ctx, store); err != nil {
			return fmt.Errorf("read what kubeadm knows: %w", err)
		}
		if own, err = want.Own(ctx); err != nil {
			return fmt.Errorf("read what networks the nodes are in: %w", err)
		}
	}
	for _, p := range missing {
		cidr, err := p.choose(k, own)
		if err != nil {
			return fmt.Errorf("default IPPool %s: %w", p.name, err)
		}
		spec := p.Spec
		spec.CIDR = cidr.String()
		if err := createIfMissing(ctx, store, &api.IPPool{Meta: api.Meta{Name: p.name}, Spec: spec}); err != nil {
			return fmt.Errorf("default IPPool %s with range %s: %w", p.name, cidr, err)
		}
	}
	return nil
}

// choose returns the pool's range: the configured one, else kubeadm's, else one apart from the nodes' own networks.
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
	return netip.Prefix{}, fmt.Errorf("the networks of the nodes, %v, leave none of the ranges that are tried: set CALICO_IPV4POOL_CIDR", own)
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

// candidates returns the ranges to try, in order, if none is configured. They are Calico's.
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
