package config

import (
	"testing"

	"github.com/tortie-net/tortie/internal/app/nodeaddr"
	"github.com/tortie-net/tortie/internal/testkit/errtest"
)

// The values of Calico's own manifest are accepted.
func TestLoadNodeTakesCalicosManifest(t *testing.T) {
	n, err := LoadNode(env(map[string]string{
		"DATASTORE_TYPE": "kubernetes", "WAIT_FOR_DATASTORE": "true", "NODENAME": "n1", "CALICO_NETWORKING_BACKEND": "bird",
		"CLUSTER_TYPE": "k8s,bgp",
		"IP":           "autodetect", "CALICO_IPV4POOL_IPIP": "Always", "CALICO_IPV4POOL_VXLAN": "Never", "CALICO_IPV6POOL_VXLAN": "Never",
		"FELIX_IPINIPMTU": "0", "FELIX_VXLANMTU": "0", "FELIX_WIREGUARDMTU": "0", "CALICO_DISABLE_FILE_LOGGING": "true",
		"FELIX_DEFAULTENDPOINTTOHOSTACTION": "ACCEPT", "FELIX_IPV6SUPPORT": "false", "FELIX_HEALTHENABLED": "true",
	}))
	if err != nil || n.Addresses.V4.Setting.Mode != nodeaddr.Detect || n.Addresses.V4.Method.String() != "kubernetes-internal-ip" ||
		n.Addresses.V6.Setting.Mode != nodeaddr.Keep || n.Addresses.MaxPrefixes != 20000 {
		t.Errorf("%+v, %v", n.Addresses, err)
	}
}

func TestLoadNodeAddresses(t *testing.T) {
	n, err := LoadNode(env(map[string]string{
		"NODENAME": "n1", "IP": "none", "IP6": "autodetect", "IP6_AUTODETECTION_METHOD": "interface=eth.*,ens3", "CALICO_ROUTER_ID": "hash",
		"AS": "1.10", "DISABLE_NODE_IP_CHECK": "true", "TORTIE_BGP_MAX_PREFIXES": "7",
	}))
	a := n.Addresses
	if err != nil || a.V4.Setting.Mode != nodeaddr.None || a.V6.Setting.Mode != nodeaddr.Detect ||
		a.V6.Method.String() != "interface=eth.*,ens3" || a.RouterID != "hash" || a.ASN != 65546 || !a.Shared || a.MaxPrefixes != 7 {
		t.Errorf("%+v, %v", a, err)
	}
}

func TestLoadNodeRefusesAddresses(t *testing.T) {
	for name, tc := range map[string]struct {
		vars map[string]string
		want string
	}{
		"an address":       {map[string]string{"IP": "10.0.0"}, `IP="10.0.0"`},
		"the other family": {map[string]string{"IP6": "10.0.0.1"}, `IP6="10.0.0.1"`},
		"a method":         {map[string]string{"IP_AUTODETECTION_METHOD": "guess"}, `IP_AUTODETECTION_METHOD="guess"`},
		"a pattern":        {map[string]string{"IP6_AUTODETECTION_METHOD": "interface=("}, `IP6_AUTODETECTION_METHOD="interface=("`},
		"no address":       {map[string]string{"IP": "none", "IP6": "none"}, "IP IP6"},
		"a router ID":      {map[string]string{"CALICO_ROUTER_ID": "fd00::1"}, `CALICO_ROUTER_ID="fd00::1"`},
		"an AS number":     {map[string]string{"AS": "65536.1"}, `AS="65536.1"`},
		"AS number 0":      {map[string]string{"AS": "0"}, `AS="0"`},
		"etcd":             {map[string]string{"DATASTORE_TYPE": "etcdv3"}, `DATASTORE_TYPE="etcdv3"`},
		"a limit":          {map[string]string{"TORTIE_BGP_MAX_PREFIXES": "0"}, `TORTIE_BGP_MAX_PREFIXES="0"`},
	} {
		t.Run(name, func(t *testing.T) {
			tc.vars["NODENAME"] = "n1"
			if _, err := LoadNode(env(tc.vars)); !errtest.Names(err, tc.want) {
				t.Errorf("%v; want %q", err, tc.want)
			}
		})
	}
}

func TestParseASN(t *testing.T) {
	for text, want := range map[string]uint32{
		"64512": 64512, "4294967295": 4294967295, "0.1": 1, "1.0": 65536, "65535.65535": 4294967295,
		"": 0, "-1": 0, "4294967296": 0, "1.65536": 0, "1.2.3": 0, "0.0": 0, "+1": 0, "AS1": 0,
	} {
		got, err := ParseASN(text)
		if got != want || (err != nil) != (want == 0) {
			t.Errorf("%q: %d, %v; want %d", text, got, err, want)
		}
	}
}
