package config

import (
	"fmt"
	"net/netip"
	"strconv"
	"strings"

	"github.com/tortie-net/tortie/internal/api"
)

// RawPools is the environment of the default pools. All names and meanings are Calico's.
type RawPools struct {
	NoDefaultPools bool              `env:"NO_DEFAULT_POOLS" default:"false" help:"Never make a default pool."`
	V4CIDR         string            `env:"CALICO_IPV4POOL_CIDR" default:"" help:"Range of the default IPv4 pool, or none; empty: see default pools."`
	V4BlockSize    int               `env:"CALICO_IPV4POOL_BLOCK_SIZE" default:"26" is:"20-32" help:"Prefix length of that pool's blocks, 20 to 32."`
	V4IPIP         api.Encapsulation `env:"CALICO_IPV4POOL_IPIP" default:"Never" help:"IPIP between nodes: Always, CrossSubnet or Never."`
	V4VXLAN        api.Encapsulation `env:"CALICO_IPV4POOL_VXLAN" default:"Never" help:"The same for VXLAN. Not both."`
	V4NATOutgoing  bool              `env:"CALICO_IPV4POOL_NAT_OUTGOING" default:"true" help:"Masquerade its pods' packets to outside of all pools."`
	V4NodeSelector string            `env:"CALICO_IPV4POOL_NODE_SELECTOR" default:"all()" help:"Nodes that use it."`
	V4NoExport     bool              `env:"CALICO_IPV4POOL_DISABLE_BGP_EXPORT" default:"false" help:"Keep its routes from being announced."`
	V6CIDR         string            `env:"CALICO_IPV6POOL_CIDR" default:"" help:"The same for IPv6, if the kernel has it."`
	V6BlockSize    int               `env:"CALICO_IPV6POOL_BLOCK_SIZE" default:"122" is:"116-128" help:"Prefix length of that pool's blocks, 116 to 128."`
	V6VXLAN        api.Encapsulation `env:"CALICO_IPV6POOL_VXLAN" default:"Never" help:"VXLAN between nodes: Always, CrossSubnet or Never."`
	V6NATOutgoing  bool              `env:"CALICO_IPV6POOL_NAT_OUTGOING" default:"false" help:"As IPv4's."`
	V6NodeSelector string            `env:"CALICO_IPV6POOL_NODE_SELECTOR" default:"all()" help:"As IPv4's."`
	V6NoExport     bool              `env:"CALICO_IPV6POOL_DISABLE_BGP_EXPORT" default:"false" help:"As IPv4's."`
}

// Pools are the default pools, one of each family. Nil makes no pool.
type Pools struct {
	V4, V6 *Pool
}

// Pool is a default pool.
type Pool struct {
	// CIDR is its range; zero leaves the choice to kube-controllers.
	CIDR netip.Prefix
	// Spec is the rest of its specification.
	Spec api.IPPoolSpec
}

// pools checks the environment of the default pools.
func (p *problems) pools(raw RawPools) Pools {
	uses := []api.AllowedUse{api.UseWorkload, api.UseTunnel}
	v4 := p.pool("CALICO_IPV4POOL_", raw.V4CIDR, false, api.IPPoolSpec{
		BlockSize: raw.V4BlockSize, IPIPMode: raw.V4IPIP, VXLANMode: raw.V4VXLAN, NATOutgoing: raw.V4NATOutgoing,
		NodeSelector: raw.V4NodeSelector, DisableBGPExport: raw.V4NoExport, AllowedUses: uses,
	})
	v6 := p.pool("CALICO_IPV6POOL_", raw.V6CIDR, true, api.IPPoolSpec{
		BlockSize: raw.V6BlockSize, IPIPMode: api.EncapNever, VXLANMode: raw.V6VXLAN, NATOutgoing: raw.V6NATOutgoing,
		NodeSelector: raw.V6NodeSelector, DisableBGPExport: raw.V6NoExport, AllowedUses: uses,
	})
	if !raw.NoDefaultPools {
		return Pools{V4: v4, V6: v6}
	}
	for name, value := range map[string]string{"CALICO_IPV4POOL_CIDR": raw.V4CIDR, "CALICO_IPV6POOL_CIDR": raw.V6CIDR} {
		if value != "" && value != "none" {
			p.add(name, value, "contradicts NO_DEFAULT_POOLS=true: unset one of them")
		}
	}
	return Pools{}
}

// pool checks one family's pool. The names of its variables begin with prefix.
func (p *problems) pool(prefix, cidr string, v6 bool, spec api.IPPoolSpec) *Pool {
	if spec.IPIPMode != api.EncapNever && spec.VXLANMode != api.EncapNever {
		p.add(prefix+"VXLAN", string(spec.VXLANMode),
			fmt.Sprintf("must be Never beside %sIPIP=%q: a pool has one encapsulation", prefix, spec.IPIPMode))
	}
	switch cidr {
	case "none":
		return nil
	case "":
		return &Pool{Spec: spec}
	}
	return &Pool{CIDR: p.poolRange(prefix, cidr, v6, spec.BlockSize), Spec: spec}
}

func (p *problems) poolRange(prefix, text string, v6 bool, blockSize int) netip.Prefix {
	name := prefix + "CIDR"
	cidr, err := netip.ParsePrefix(text)
	switch {
	case err != nil || cidr.Addr().Is6() != v6 || cidr != cidr.Masked():
		example := "an IPv4 range with its host bits zero, such as 192.168.0.0/16"
		if v6 {
			example = "an IPv6 range with its host bits zero, such as fd10:244::/48"
		}
		p.add(name, text, "must be none or "+example)
	case cidr.Bits() > blockSize:
		p.add(prefix+"BLOCK_SIZE", strconv.Itoa(blockSize), fmt.Sprintf("must not be less than the /%d of %s", cidr.Bits(), name))
	}
	return cidr
}

// encapsulation accepts Calico's values, in upper or lower case.
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
