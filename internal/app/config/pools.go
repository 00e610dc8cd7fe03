package config

import (
	"fmt"
	"net/netip"
	"strings"

	"github.com/tortie-net/tortie/internal/api"
)

// RawPools is the environment of the default pools, as it is written. All names and meanings are Calico's.
type RawPools struct {
	NoDefaultPools string `env:"NO_DEFAULT_POOLS" default:"false" help:"Never make a default pool."`
	V4CIDR         string `env:"CALICO_IPV4POOL_CIDR" default:"" help:"Range of the IPv4 pool that is made if the cluster has none, or none; empty: see default pools."`
	V4BlockSize    string `env:"CALICO_IPV4POOL_BLOCK_SIZE" default:"26" help:"Prefix length of that pool's blocks, 20 to 32."`
	V4IPIP         string `env:"CALICO_IPV4POOL_IPIP" default:"Never" help:"IPIP between nodes: Always, CrossSubnet or Never."`
	V4VXLAN        string `env:"CALICO_IPV4POOL_VXLAN" default:"Never" help:"The same for VXLAN. Not both."`
	V4NATOutgoing  string `env:"CALICO_IPV4POOL_NAT_OUTGOING" default:"true" help:"Masquerade packets from its pods to outside of all pools."`
	V4NodeSelector string `env:"CALICO_IPV4POOL_NODE_SELECTOR" default:"all()" help:"Nodes that use it."`
	V4NoExport     string `env:"CALICO_IPV4POOL_DISABLE_BGP_EXPORT" default:"false" help:"Keep its routes from being announced."`
	V6CIDR         string `env:"CALICO_IPV6POOL_CIDR" default:"" help:"The same for IPv6, if the kernel has it."`
	V6BlockSize    string `env:"CALICO_IPV6POOL_BLOCK_SIZE" default:"122" help:"Prefix length of that pool's blocks, 116 to 128."`
	V6VXLAN        string `env:"CALICO_IPV6POOL_VXLAN" default:"Never" help:"VXLAN between nodes: Always, CrossSubnet or Never."`
	V6NATOutgoing  string `env:"CALICO_IPV6POOL_NAT_OUTGOING" default:"false" help:"Masquerade packets from its pods to outside of all pools."`
	V6NodeSelector string `env:"CALICO_IPV6POOL_NODE_SELECTOR" default:"all()" help:"Nodes that use it."`
	V6NoExport     string `env:"CALICO_IPV6POOL_DISABLE_BGP_EXPORT" default:"false" help:"Keep its routes from being announced."`
}

// Pools are the default pools, one of each family. Nil makes no pool.
type Pools struct {
	V4, V6 *Pool
}

// Pool is a default pool.
type Pool struct {
	// CIDR is its range; zero leaves the choice to whoever makes the pool.
	CIDR netip.Prefix
	// Spec is the rest of it.
	Spec api.IPPoolSpec
}

// pools checks the environment of the default pools.
func (p *problems) pools(raw RawPools) Pools {
	v4 := p.pool(rawPool{
		prefix: "CALICO_IPV4POOL_", v6: false, low: 20, high: 32, cidr: raw.V4CIDR, blockSize: raw.V4BlockSize, ipip: raw.V4IPIP, vxlan: raw.V4VXLAN,
		natOutgoing: raw.V4NATOutgoing, nodeSelector: raw.V4NodeSelector, noExport: raw.V4NoExport,
	})
	v6 := p.pool(rawPool{
		prefix: "CALICO_IPV6POOL_", v6: true, low: 116, high: 128, cidr: raw.V6CIDR, blockSize: raw.V6BlockSize, ipip: "Never", vxlan: raw.V6VXLAN,
		natOutgoing: raw.V6NATOutgoing, nodeSelector: raw.V6NodeSelector, noExport: raw.V6NoExport,
	})
	if !p.boolean("NO_DEFAULT_POOLS", raw.NoDefaultPools) {
		return Pools{V4: v4, V6: v6}
	}
	for name, value := range map[string]string{"CALICO_IPV4POOL_CIDR": raw.V4CIDR, "CALICO_IPV6POOL_CIDR": raw.V6CIDR} {
		if value != "" && value != "none" {
			p.add(name, value, "contradicts NO_DEFAULT_POOLS=true: unset one of them")
		}
	}
	return Pools{}
}

// rawPool is one family's part of RawPools.
type rawPool struct {
	prefix                                                            string // of the variables' names
	v6                                                                bool
	low, high                                                         int // limits of the block size
	cidr, blockSize, ipip, vxlan, natOutgoing, nodeSelector, noExport string
}

func (p *problems) pool(raw rawPool) *Pool {
	pool := &Pool{Spec: api.IPPoolSpec{
		BlockSize:        p.integer(raw.prefix+"BLOCK_SIZE", raw.blockSize, raw.low, raw.high),
		IPIPMode:         p.encapsulation(raw.prefix+"IPIP", raw.ipip),
		VXLANMode:        p.encapsulation(raw.prefix+"VXLAN", raw.vxlan),
		NATOutgoing:      p.boolean(raw.prefix+"NAT_OUTGOING", raw.natOutgoing),
		NodeSelector:     raw.nodeSelector,
		DisableBGPExport: p.boolean(raw.prefix+"DISABLE_BGP_EXPORT", raw.noExport),
		AllowedUses:      []api.AllowedUse{api.UseWorkload, api.UseTunnel},
	}}
	if pool.Spec.IPIPMode != api.EncapNever && pool.Spec.VXLANMode != api.EncapNever {
		p.add(raw.prefix+"VXLAN", raw.vxlan, fmt.Sprintf("must be Never beside %sIPIP=%q: a pool has one encapsulation", raw.prefix, raw.ipip))
	}
	switch raw.cidr {
	case "none":
		return nil
	case "":
		return pool
	}
	pool.CIDR = p.poolRange(raw, pool.Spec.BlockSize)
	return pool
}

func (p *problems) poolRange(raw rawPool, blockSize int) netip.Prefix {
	name := raw.prefix + "CIDR"
	cidr, err := netip.ParsePrefix(raw.cidr)
	switch {
	case err != nil || cidr.Addr().Is6() != raw.v6 || cidr != cidr.Masked():
		example := "an IPv4 range with its host bits zero, such as 192.168.0.0/16"
		if raw.v6 {
			example = "an IPv6 range with its host bits zero, such as fd10:244::/48"
		}
		p.add(name, raw.cidr, "must be none or "+example)
	case cidr.Bits() > blockSize:
		p.add(raw.prefix+"BLOCK_SIZE", raw.blockSize, fmt.Sprintf("must not be less than the /%d of %s", cidr.Bits(), name))
	}
	return cidr
}

// encapsulation takes what Calico takes, in any case.
func (p *problems) encapsulation(name, value string) api.Encapsulation {
	switch strings.ToLower(value) {
	case "off", "never":
		return api.EncapNever
	case "always":
		return api.EncapAlways
	case "crosssubnet", "cross-subnet":
		return api.EncapCrossSubnet
	}
	p.add(name, value, "must be Always, CrossSubnet or Never")
	return api.EncapNever
}
