package config

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/tortie-net/tortie/internal/api"
	"github.com/tortie-net/tortie/internal/testkit/difftest"
	"github.com/tortie-net/tortie/internal/testkit/errtest"
)

// of returns an environment of NAME=VALUE texts.
func of(vars ...string) Env {
	return func(name string) (string, bool) {
		for _, v := range vars {
			if value, ok := strings.CutPrefix(v, name+"="); ok {
				return value, true
			}
		}
		return "", false
	}
}

func TestPools(t *testing.T) {
	uses := []api.AllowedUse{api.UseWorkload, api.UseTunnel}
	for name, c := range map[string]struct {
		env    []string
		v4, v6 *api.IPPoolSpec
		cidrs  [2]string
	}{
		"nothing is said": {
			v4: &api.IPPoolSpec{BlockSize: 26, IPIPMode: "Never", VXLANMode: "Never", NATOutgoing: true, NodeSelector: "all()", AllowedUses: uses},
			v6: &api.IPPoolSpec{BlockSize: 122, IPIPMode: "Never", VXLANMode: "Never", NodeSelector: "all()", AllowedUses: uses},
		},
		"all is said, in any case": {
			env: []string{
				"CALICO_IPV4POOL_CIDR=10.0.0.0/16", "CALICO_IPV4POOL_BLOCK_SIZE=24", "CALICO_IPV4POOL_IPIP=cross-subnet", "CALICO_IPV4POOL_VXLAN=OFF",
				"CALICO_IPV4POOL_NAT_OUTGOING=False", "CALICO_IPV4POOL_NODE_SELECTOR=has(x)", "CALICO_IPV4POOL_DISABLE_BGP_EXPORT=TRUE",
				"CALICO_IPV6POOL_CIDR=fd00::/64", "CALICO_IPV6POOL_BLOCK_SIZE=120", "CALICO_IPV6POOL_VXLAN=CrossSubnet",
				"CALICO_IPV6POOL_NAT_OUTGOING=yes", "CALICO_IPV6POOL_NODE_SELECTOR=has(y)", "CALICO_IPV6POOL_DISABLE_BGP_EXPORT=1",
			},
			v4: &api.IPPoolSpec{BlockSize: 24, IPIPMode: "CrossSubnet", VXLANMode: "Never", NodeSelector: "has(x)",
				DisableBGPExport: true, AllowedUses: uses},
			v6: &api.IPPoolSpec{BlockSize: 120, IPIPMode: "Never", VXLANMode: "CrossSubnet", NATOutgoing: true, NodeSelector: "has(y)",
				DisableBGPExport: true, AllowedUses: uses},
			cidrs: [2]string{"10.0.0.0/16", "fd00::/64"},
		},
		"none of either":      {env: []string{"CALICO_IPV4POOL_CIDR=none", "CALICO_IPV6POOL_CIDR=none"}},
		"none at all":         {env: []string{"NO_DEFAULT_POOLS=true"}},
		"none at all, and so": {env: []string{"NO_DEFAULT_POOLS=true", "CALICO_IPV4POOL_CIDR=none"}},
	} {
		t.Run(name, func(t *testing.T) {
			n, err := LoadControllers(of(c.env...))
			errtest.Must(t, err)
			for i, family := range []struct {
				want *api.IPPoolSpec
				got  *Pool
			}{{c.v4, n.Pools.V4}, {c.v6, n.Pools.V6}} {
				if family.got == nil || family.want == nil {
					if (family.got == nil) != (family.want == nil) {
						t.Errorf("pool %d: %+v, want %+v", i, family.got, family.want)
					}
					continue
				}
				difftest.Want(t, fmt.Sprintf("pool %d", i), *family.want, family.got.Spec)
				cidr := ""
				if family.got.CIDR.IsValid() {
					cidr = family.got.CIDR.String()
				}
				if cidr != c.cidrs[i] {
					t.Errorf("pool %d has the range %q, want %q", i, cidr, c.cidrs[i])
				}
			}
		})
	}
}

func TestWrongPools(t *testing.T) {
	for env, want := range map[string]string{
		"CALICO_IPV4POOL_CIDR=10.0.0.1/16":                              `CALICO_IPV4POOL_CIDR="10.0.0.1/16" none IPv4`,
		"CALICO_IPV4POOL_CIDR=fd00::/64":                                "none IPv4",
		"CALICO_IPV6POOL_CIDR=10.0.0.0/16":                              "none IPv6",
		"CALICO_IPV4POOL_CIDR=10.0.0.0/27":                              "CALICO_IPV4POOL_BLOCK_SIZE /27",
		"CALICO_IPV4POOL_BLOCK_SIZE=19":                                 "20 32",
		"CALICO_IPV6POOL_BLOCK_SIZE=64":                                 "116 128",
		"CALICO_IPV4POOL_IPIP=sometimes":                                "Always CrossSubnet Never",
		"CALICO_IPV4POOL_IPIP=Always CALICO_IPV4POOL_VXLAN=CrossSubnet": "CALICO_IPV4POOL_IPIP CALICO_IPV4POOL_VXLAN",
		"NO_DEFAULT_POOLS=true CALICO_IPV4POOL_CIDR=10.0.0.0/16":        "NO_DEFAULT_POOLS=true",
		"NO_DEFAULT_POOLS=true CALICO_IPV6POOL_CIDR=fd00::/64":          "NO_DEFAULT_POOLS=true",
		"CALICO_IPV4POOL_NAT_OUTGOING=perhaps":                          "true false",
		"FELIX_NATPORTRANGE=9:1":                                        "FELIX_NATPORTRANGE 9:1",
		"FELIX_NATOUTGOINGADDRESS=host":                                 "FELIX_NATOUTGOINGADDRESS IP",
		"FELIX_NATOUTGOINGEXCLUSIONS=All":                               "IPPoolsAndHostIPs",
		"FELIX_IPFORWARDING=maybe":                                      "Enabled Disabled",
		"FELIX_VXLANPORT=70000":                                         "1 65535",
		"FELIX_VXLANVNI=0":                                              "1 16777215",
		"FELIX_VXLANMTU=big":                                            "0 65535",
		"CALICO_NETWORKING_BACKEND=none":                                "bird vxlan",
		"FELIX_ALLOWIPIPPACKETSFROMWORKLOADS=maybe":                     "true false",
		"FELIX_WORKLOADSOURCESPOOFING=All":                              "Disabled Any",
		"FELIX_FLOATINGIPS=on":                                          "Disabled Enabled",
		"TORTIE_ALLOW_BGP_FROM_PODS=maybe":                              "true false",
	} {
		_, err := LoadNode(of(append(strings.Fields(env), "NODENAME=n")...))
		_, more := LoadControllers(of(strings.Fields(env)...))
		err = errors.Join(err, more)
		if !errtest.Names(err, want) {
			t.Errorf("%s: %v, want %q", env, err, want)
		}
	}
}

// Felix's settings in the environment override the objects', and leave the rest to them.
func TestFelix(t *testing.T) {
	n, err := LoadNode(of("NODENAME=n", "FELIX_NATPORTRANGE=1000:2000",
		"FELIX_IPFORWARDING=disabled", "FELIX_ALLOWVXLANPACKETSFROMWORKLOADS=true", "FELIX_VXLANVNI=7", "FELIX_VXLANMTU=0",
		"FELIX_VXLANMTUV6=1380", "FELIX_WORKLOADSOURCESPOOFING=any", "FELIX_FLOATINGIPS=enabled", "FELIX_NFTABLESFILTERDENYACTION=REJECT",
		"FELIX_IPTABLESFILTERDENYACTION=DROP", "FELIX_DISABLECONNTRACKINVALIDCHECK=true", "FELIX_LOGPREFIX=%t",
		"FELIX_LOGACTIONRATELIMIT=7/hour", "FELIX_LOGACTIONRATELIMITBURST=7", "TORTIE_ALLOW_BGP_FROM_PODS=true"))
	errtest.Must(t, err)
	ports, port, mtu, yes := api.PortRange("1:2"), 4790, 1400, true
	got := n.Felix.Over(api.FelixConfigurationSpec{NATPortRange: &ports, VXLANPort: &port, IPIPMTU: &mtu, VXLANMTU: &mtu, VXLANMTUV6: &mtu,
		IPForwarding: "Enabled"})
	vni, mtu6 := 7, 1380
	ours := api.PortRange("1000:2000")
	want := api.FelixConfigurationSpec{NATPortRange: &ours, VXLANPort: &port, VXLANVNI: &vni, IPIPMTU: &mtu, VXLANMTU: &mtu, VXLANMTUV6: &mtu6,
		IPForwarding: "Disabled", AllowVXLANPacketsFromWorkloads: &yes, WorkloadSourceSpoofing: "Any", FloatingIPs: "Enabled",
		NftablesFilterDenyAction: "REJECT", IptablesFilterDenyAction: "DROP", DisableConntrackInvalidCheck: &yes, LogPrefix: "%t",
		LogActionRateLimit: "7/hour", LogActionRateLimitBurst: &vni}
	difftest.Want(t, "", want, got)
	if !n.AllowBGPFromPods {
		t.Error("TORTIE_ALLOW_BGP_FROM_PODS=true is not taken")
	}
}
