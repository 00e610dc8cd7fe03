package flowtable

import (
	"slices"
	"testing"

	"github.com/tortie-net/tortie/internal/kernel/netlinkx"
)

func TestChoose(t *testing.T) {
	links := []netlinkx.Link{
		{Name: "vxlan.calico", Kind: "vxlan"}, {Name: "tunl0", Kind: "ipip"}, {Name: "eth0", Kind: "device"}, {Name: "eth1", Kind: "device"},
		{Name: "cali2", Kind: "veth"}, {Name: "cali1", Kind: "netkit"}, {Name: "cali3", Kind: "bridge"}, {Name: "docker0", Kind: "bridge"},
		{Name: "vrf-eth", Kind: "device", Master: 7}, {Name: "tun0", Kind: "tun"}, {Name: "vxlan-v6.calico", Kind: "vxlan"},
	}
	old, recent := Release{6, 18}, Release{6, 19}
	for name, c := range map[string]struct {
		fabric Fabric
		want   []string
	}{
		"routes":                        {Fabric{Uplinks: []string{"eth0", "eth0"}, Kernel: recent}, []string{"cali1", "cali2", "eth0"}},
		"two families, two links":       {Fabric{Uplinks: []string{"eth1", "eth0"}, Kernel: old}, []string{"cali1", "cali2", "eth0", "eth1"}},
		"IPIP":                          {Fabric{IPIP: true, Kernel: old}, []string{"cali1", "cali2", "tunl0"}},
		"IPIP, where it loses":          {Fabric{IPIP: true, Kernel: recent}, nil},
		"IPIP and routes, where it may": {Fabric{IPIP: true, Uplinks: []string{"eth0", ""}, Kernel: recent}, []string{"cali1", "cali2", "eth0"}},
		"VXLAN":                         {Fabric{VXLAN: true, Kernel: recent}, []string{"cali1", "cali2", "vxlan-v6.calico", "vxlan.calico"}},
		"routes by one of two links": {Fabric{Uplinks: []string{"eth1", "eth0"}, Kernel: old}.Without([]string{"eth1"}),
			[]string{"cali1", "cali2", "eth0"}},
		"IPIP, not by its underlay":     {Fabric{IPIP: true, Underlay: "eth0", Kernel: recent}.Without([]string{"eth0"}), nil},
		"a link in a VRF":               {Fabric{Uplinks: []string{"vrf-eth"}, Kernel: old}, nil},
		"a link without neighbours":     {Fabric{Uplinks: []string{"tun0"}, Kernel: old}, nil},
		"a kernel that was not tested":  {Fabric{Uplinks: []string{"eth0"}, Kernel: Release{6, 0}}, nil},
		"an unknown kernel":             {Fabric{Uplinks: []string{"eth0"}}, nil},
		"IPIP by devices with one peer": {Fabric{IPIP: true, Underlay: "eth0", Kernel: recent}, []string{"cali1", "cali2", "eth0"}},
		"the same, by a bridge":         {Fabric{IPIP: true, Underlay: "docker0", Kernel: recent}, nil},
		"the same, in a VRF":            {Fabric{IPIP: true, Underlay: "vrf-eth", Kernel: recent}, nil},
		"IPIP by a link, before that":   {Fabric{IPIP: true, Underlay: "eth0", Kernel: old}, []string{"cali1", "cali2", "tunl0"}},
		"a link that packets leave by":  {Fabric{Underlay: "eth0", Kernel: recent}, nil},
		"no way to other nodes":         {Fabric{Kernel: old}, nil},
	} {
		if got := Choose(c.fabric, "cali", links); !slices.Equal(got.Devices, c.want) || (got.PodLinks == "cali") != (c.want != nil) ||
			got.Tunnels != (name == "IPIP by devices with one peer") {
			t.Errorf("%s: %v, want %v", name, got, c.want)
		}
	}
	if got := Choose(Fabric{IPIP: true, Kernel: old}, "cali",
		[]netlinkx.Link{{Name: "tunl0", Kind: "bridge"}, {Name: "cali1", Kind: "veth"}}); got.Devices != nil {
		t.Errorf("a bridge called tunl0: %v", got)
	}
}

func TestRelease(t *testing.T) {
	for text, want := range map[string]Release{
		"6.1.0-56-cloud-amd64": {6, 1}, "6.18.44": {6, 18}, "7.2.13+deb14-cloud-amd64": {7, 2}, "10.0-rc1": {10, 0}, "": {}, "six": {}, "6": {},
	} {
		if got := parseRelease(text); got != want {
			t.Errorf("%q: %v, want %v", text, got, want)
		}
	}
	if r := Running(); r == (Release{}) {
		t.Error("the running kernel has no release")
	}
	if (Release{6, 19}).Before(6, 19) || !(Release{6, 2}).Before(6, 19) || (Release{7, 0}).Before(6, 19) || !(Release{5, 20}).Before(6, 19) {
		t.Error("Before")
	}
}
