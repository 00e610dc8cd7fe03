package duties

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/tortie-net/tortie/internal/api"
	"github.com/tortie-net/tortie/internal/app/config"
	"github.com/tortie-net/tortie/internal/testkit/difftest"
	"github.com/tortie-net/tortie/internal/testkit/errtest"
	"github.com/tortie-net/tortie/internal/testkit/labstore"
)

func TestChoiceOfARange(t *testing.T) {
	v4 := newPool{Pool: config.Pool{Spec: api.IPPoolSpec{BlockSize: 26}}, name: "default-ipv4-ippool"}
	v6 := newPool{Pool: config.Pool{Spec: api.IPPoolSpec{BlockSize: 122}}, name: "default-ipv6-ippool", v6: true}
	configured := v4
	configured.CIDR = netip.MustParsePrefix("10.1.0.0/16")
	all := []string{"192.168.0.0/16", "172.16.0.0/12"}
	for name, c := range map[string]struct {
		pool    newPool
		kubeadm []string
		own     []string
		want    string
		err     string
	}{
		"nothing is known":              {pool: v4, want: "192.168.0.0/16"},
		"as configured":                 {pool: configured, kubeadm: []string{"10.2.0.0/16"}, own: []string{"10.1.7.0/24"}, want: "10.1.0.0/16"},
		"kubeadm's":                     {pool: v4, kubeadm: []string{"fd00::/64", "10.2.0.0/16"}, want: "10.2.0.0/16"},
		"kubeadm's, of the node's":      {pool: v4, kubeadm: []string{"192.168.0.0/16"}, own: []string{"192.168.1.0/24"}, want: "192.168.0.0/16"},
		"kubeadm knows the other":       {pool: v4, kubeadm: []string{"fd00::/64"}, want: "192.168.0.0/16"},
		"kubeadm's is too small":        {pool: v4, kubeadm: []string{"10.2.0.0/28"}, err: "CALICO_IPV4POOL_BLOCK_SIZE"},
		"the node's network":            {pool: v4, own: []string{"192.168.7.0/24"}, want: "172.16.0.0/16"},
		"two of the node's":             {pool: v4, own: []string{"192.0.0.0/8", "172.16.0.0/15"}, want: "172.18.0.0/16"},
		"nothing is left":               {pool: v4, own: all, err: "CALICO_IPV4POOL_CIDR"},
		"IPv6 by kubeadm":               {pool: v6, kubeadm: []string{"10.2.0.0/16", "fd00:10::/56"}, want: "fd00:10::/56"},
		"IPv6 by kubeadm, is too small": {pool: v6, kubeadm: []string{"fd00:10::/124"}, err: "CALICO_IPV6POOL_BLOCK_SIZE"},
	} {
		t.Run(name, func(t *testing.T) {
			k := &kubeadm{found: c.kubeadm != nil, pods: prefixes(c.kubeadm...)}
			got, err := c.pool.choose(k, prefixes(c.own...))
			if c.err != "" {
				if err == nil || !strings.Contains(err.Error(), c.err) {
					t.Errorf("error %v, want %q", err, c.err)
				}
				return
			}
			if err != nil || got.String() != c.want {
				t.Errorf("range %s, %v; want %s", got, err, c.want)
			}
		})
	}
	one, _ := v6.choose(nil, nil)
	two, _ := v6.choose(nil, nil)
	if one == two || one.Bits() != 48 || one.Addr().As16()[0] != 0xfd || one != one.Masked() {
		t.Errorf("random ranges %s and %s", one, two)
	}
}

func TestMissingPools(t *testing.T) {
	both, four, none := testPools(), testPools(), testPools()
	four.IPv6, none.Pools = false, config.Pools{}
	pool := func(cidr string) api.IPPool { return api.IPPool{Spec: api.IPPoolSpec{CIDR: cidr}} }
	for name, c := range map[string]struct {
		want  DefaultPools
		pools []api.IPPool
		names []string
	}{
		"none":                     {both, nil, []string{"default-ipv4-ippool", "default-ipv6-ippool"}},
		"one of IPv4":              {both, []api.IPPool{pool("10.0.0.0/8")}, []string{"default-ipv6-ippool"}},
		"one of IPv6":              {both, []api.IPPool{pool("fd00::/64")}, []string{"default-ipv4-ippool"}},
		"one that nobody can read": {both, []api.IPPool{pool("x")}, []string{"default-ipv4-ippool", "default-ipv6-ippool"}},
		"a kernel without IPv6":    {four, nil, []string{"default-ipv4-ippool"}},
		"none is wanted":           {none, nil, nil},
	} {
		t.Run(name, func(t *testing.T) {
			var got []string
			for _, p := range c.want.missing(c.pools) {
				got = append(got, p.name)
			}
			if !slices.Equal(got, c.names) {
				t.Errorf("missing %v, want %v", got, c.names)
			}
		})
	}
}

func TestPodSubnets(t *testing.T) {
	for text, want := range map[string][]string{
		"":                              nil,
		"networking:\n  dnsDomain: x\n": nil,
		"networking:\n  podSubnet: 10.244.0.0/16\n":                 {"10.244.0.0/16"},
		"networking:\n  podSubnet: \"10.244.0.1/16, fd00::1/56\"\n": {"10.244.0.0/16", "fd00::/56"},
	} {
		got, err := podSubnets(text)
		if err != nil {
			t.Errorf("%q: %v", text, err)
		}
		difftest.Want(t, fmt.Sprintf("%q", text), prefixes(want...), got)
	}
	for _, text := range []string{"networking:\n  podSubnet: 10.244.0.0\n", "networking: [", "networking:\n  podSubnet: 7\n"} {
		if got, err := podSubnets(text); err == nil {
			t.Errorf("%q: %v", text, got)
		}
	}
}

// The range, and the item of clusterType, come from kubeadm's ConfigMap on a real API server.
func TestSetUpAfterKubeadm(t *testing.T) {
	store := labstore.Store(t)
	nothingThere(t, store)
	labstore.Make(t, store, &api.ConfigMap{Meta: api.Meta{Namespace: "kube-system", Name: "kubeadm-config"}, Data: map[string]string{
		"ClusterConfiguration": "apiVersion: kubeadm.k8s.io/v1beta4\nkind: ClusterConfiguration\nnetworking:\n" +
			"  podSubnet: 10.99.0.0/16,fd00:99::/56\n",
	}})
	want := testPools()
	want.V4.CIDR = netip.Prefix{}
	errtest.Must(t,
		errors.Join(SetUp(t.Context(), store, Cluster{Type: []string{"k8s", "bgp"}}, found(t, store)), MakePools(t.Context(), store, want, nil)))
	f := found(t, store)
	var cidrs []string
	for _, p := range pools(t, store) {
		cidrs = append(cidrs, p.Spec.CIDR)
	}
	slices.Sort(cidrs)
	if !slices.Equal(cidrs, []string{"10.99.0.0/16", "fd00:99::/56"}) || f.Information.Spec.ClusterType != "k8s,bgp,kubeadm,kdd" {
		t.Errorf("pools %v, cluster type %q", cidrs, f.Information.Spec.ClusterType)
	}
	var spec api.FelixConfigurationSpec
	felix := &api.FelixConfiguration{Meta: api.Meta{Name: api.DefaultName}}
	errtest.Must(t, store.Get(t.Context(), felix))
	spec = api.FelixConfigurationSpec{LogSeverityScreen: "Info", ReportingInterval: "0s"}
	difftest.Want(t, "FelixConfiguration", spec, felix.Spec)
}
