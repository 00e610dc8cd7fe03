package cni

import (
	"encoding/json"
	"errors"
	"fmt"

	"github.com/containernetworking/cni/pkg/types"

	"github.com/tortie-net/tortie/internal/api"
)

// wish is what a container asks of calico-ipam: what the configuration says, or what annotations put in its place.
type wish struct {
	poolsV4, poolsV6 []string
	namespaceLabels  map[string]string
}

// wish reads it. The pools that the pod or, if it names none, its namespace asks for replace those of the configuration.
func (r *request) wish(w *workload) (want wish, err error) {
	if !r.conf.wantsV4() && !r.conf.wantsV6() {
		return wish{}, failure(types.ErrInvalidNetworkConfig,
			errors.New(`network configuration: ipam.assign_ipv4 is "false" and ipam.assign_ipv6 is not "true": no address is wanted`))
	}
	want = wish{poolsV4: r.conf.IPAM.IPv4Pools, poolsV6: r.conf.IPAM.IPv6Pools, namespaceLabels: w.namespace.Labels}
	for key, pools := range map[string]*[]string{api.AnnotationIPv4Pools: &want.poolsV4, api.AnnotationIPv6Pools: &want.poolsV6} {
		asked, err := annotatedPools(key, w)
		if err != nil {
			return wish{}, err
		}
		if asked != nil {
			*pools = asked
		}
	}
	return want, nil
}

func annotatedPools(key string, w *workload) ([]string, error) {
	text, on := w.pod.Annotations[key], "pod "+w.pod.Namespace+"/"+w.pod.Name
	if text == "" {
		text, on = w.namespace.Annotations[key], "namespace "+w.namespace.Name
	}
	if text == "" {
		return nil, nil
	}
	var pools []string
	if err := json.Unmarshal([]byte(text), &pools); err != nil || len(pools) == 0 {
		return nil, failure(types.ErrInvalidNetworkConfig,
			fmt.Errorf(`annotation %s of %s: %q: must be a JSON list of names or CIDRs of IPPools, such as ["default-ipv4-ippool"]`, key, on, text))
	}
	return pools, nil
}
