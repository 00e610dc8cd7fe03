package duties

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"strings"

	"sigs.k8s.io/yaml"

	"github.com/tortie-net/tortie/internal/api"
	"github.com/tortie-net/tortie/internal/datastore"
)

// kubeadm holds the fields of kubeadm's ClusterConfiguration that Tortie uses.
type kubeadm struct {
	found bool
	// pods are the ranges of networking.podSubnet; at most one of each family is used.
	pods []netip.Prefix
}

// askKubeadm reads kubeadm's ConfigMap. A missing permission is treated as a missing ConfigMap, as Calico does.
func askKubeadm(ctx context.Context, store datastore.Store) (*kubeadm, error) {
	m := &api.ConfigMap{Meta: api.Meta{Namespace: "kube-system", Name: "kubeadm-config"}}
	err := store.Get(ctx, m)
	if errors.Is(err, datastore.ErrNotFound) || errors.Is(err, datastore.ErrUnauthorized) {
		return &kubeadm{}, nil
	}
	if err != nil {
		return nil, err
	}
	pods, err := podSubnets(m.Data["ClusterConfiguration"])
	if err != nil {
		return nil, fmt.Errorf(
			"ConfigMap kube-system/kubeadm-config, key ClusterConfiguration: %w: correct it, or set CALICO_IPV4POOL_CIDR and CALICO_IPV6POOL_CIDR",
			err)
	}
	return &kubeadm{found: true, pods: pods}, nil
}

// podSubnets reads networking.podSubnet of kubeadm's ClusterConfiguration: nothing, one range, or one of each family.
func podSubnets(text string) ([]netip.Prefix, error) {
	var c struct {
		Networking struct {
			PodSubnet string `json:"podSubnet"`
		} `json:"networking"`
	}
	if err := yaml.Unmarshal([]byte(text), &c); err != nil {
		return nil, err
	}
	var out []netip.Prefix
	for item := range strings.SplitSeq(c.Networking.PodSubnet, ",") {
		if item = strings.TrimSpace(item); item == "" {
			continue
		}
		p, err := netip.ParsePrefix(item)
		if err != nil {
			return nil, fmt.Errorf("networking.podSubnet %q is no range such as 10.244.0.0/16, or two with a comma between them",
				c.Networking.PodSubnet)
		}
		out = append(out, p.Masked())
	}
	return out, nil
}
