package plugin

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/containernetworking/cni/pkg/types"

	"github.com/tortie-net/tortie/internal/api"
	"github.com/tortie-net/tortie/internal/datastore"
)

// hostLocal is the IPAM plugin for which calico fills in the node's pod CIDRs.
const hostLocal = "host-local"

// podCIDRs holds the values of usePodCidr and usePodCidrIPv6.
type podCIDRs struct{ v4, v6 string }

// word returns the CIDR for a subnet; ok reports whether subnet is one of the special words.
func (p *podCIDRs) word(subnet string) (cidr string, ok bool) {
	switch strings.ToLower(subnet) {
	case "usepodcidr":
		return p.v4, true
	case "usepodcidripv6":
		return p.v6, true
	}
	return "", false
}

// stdinForAdd returns the IPAM plugin's configuration: the caller's, with the node's pod CIDRs filled in.
func (d *delegated) stdinForAdd(ctx context.Context) ([]byte, error) {
	used, err := d.conf.IPAM.words()
	if err != nil || len(used) == 0 {
		return d.stdin, err
	}
	cidrs, err := d.nodeCIDRs(ctx)
	if err != nil {
		return nil, err
	}
	for _, word := range used {
		if cidr, _ := cidrs.word(word); cidr == "" {
			return nil, failure(types.ErrInvalidNetworkConfig,
				fmt.Errorf("network configuration: ipam.subnet %s: spec.podCIDRs of node %s has no range of that family: run kube-controller-manager "+
					"with --allocate-node-cidrs, or write a range in place of %s", word, d.cidrNode(), word))
		}
	}
	return editIPAM(d.stdin, cidrs.fillIn)
}

// stdinForDel returns the configuration for verbs that assign nothing. host-local requires valid ranges then, but uses
// only the container ID. So the Node is not read, and need not exist.
func (d *delegated) stdinForDel() ([]byte, error) {
	used, err := d.conf.IPAM.words()
	if err != nil || len(used) == 0 {
		return d.stdin, nil // host-local refuses malformed ranges itself
	}
	return editIPAM(d.stdin, func(ipam map[string]json.RawMessage) error {
		// Any other range would overlap with these.
		for key := range ipam {
			if slices.ContainsFunc([]string{"subnet", "rangeStart", "rangeEnd", "gateway", "ranges"},
				func(k string) bool { return strings.EqualFold(k, key) }) {
				delete(ipam, key)
			}
		}
		ipam["ranges"] = json.RawMessage(`[[{"subnet":"0.0.0.0/0"}],[{"subnet":"::/0"}]]`)
		return nil
	})
}

// cidrNode returns the name of the Node to read pod CIDRs from.
func (d *delegated) cidrNode() string {
	if d.conf.Kubernetes.NodeName != "" {
		return d.conf.Kubernetes.NodeName
	}
	return d.node
}

func (d *delegated) nodeCIDRs(ctx context.Context) (*podCIDRs, error) {
	if d.kube == nil {
		return nil, failure(types.ErrInvalidNetworkConfig,
			errors.New("network configuration: ipam.subnet usePodCidr: it takes policy.type k8s to know the node's pod CIDRs: write a range"))
	}
	node := &api.Node{Meta: api.Meta{Name: d.cidrNode()}}
	err := d.kube.Get(ctx, node)
	if errors.Is(err, datastore.ErrNotFound) {
		return nil, failure(types.ErrInvalidNetworkConfig,
			fmt.Errorf("read the node's pod CIDRs: %w: set kubernetes.node_name to this node's name in Kubernetes", err))
	}
	if err != nil {
		return nil, fmt.Errorf("read the node's pod CIDRs: %w", err)
	}
	cidrs := &podCIDRs{}
	for _, text := range node.Spec.PodCIDRs {
		p, err := netip.ParsePrefix(text)
		switch {
		case err != nil:
			return nil, fmt.Errorf("spec.podCIDRs of node %s: %w", d.cidrNode(), err)
		case p.Addr().Is4() && cidrs.v4 == "":
			cidrs.v4 = text
		case p.Addr().Is6() && cidrs.v6 == "":
			cidrs.v6 = text
		}
	}
	return cidrs, nil
}

// words returns the special words in the IPAM section.
func (c *ipamConf) words() (words []string, err error) {
	if c.Type != hostLocal {
		return nil, nil
	}
	err = replaceSubnets(map[string]json.RawMessage{"subnet": c.Subnet, "ranges": c.Ranges}, func(subnet string) string {
		if _, ok := (&podCIDRs{}).word(subnet); ok {
			words = append(words, subnet)
		}
		return subnet
	})
	return words, err
}

// fillIn replaces the special words by the CIDRs.
func (p *podCIDRs) fillIn(ipam map[string]json.RawMessage) error {
	return replaceSubnets(ipam, func(subnet string) string {
		if cidr, ok := p.word(subnet); ok {
			return cidr
		}
		return subnet
	})
}

// replaceSubnets replaces the subnet of an IPAM section and the subnets of its ranges.
func replaceSubnets(ipam map[string]json.RawMessage, replace func(subnet string) string) error {
	if err := replaceSubnet(ipam, replace); err != nil {
		return badIPAM("subnet", err)
	}
	for _, key := range keysLike(ipam, "ranges") {
		sets, err := optional[[][]map[string]json.RawMessage](ipam[key])
		for _, r := range slices.Concat(sets...) {
			err = errors.Join(err, replaceSubnet(r, replace))
		}
		if err == nil && sets != nil {
			ipam[key], err = json.Marshal(sets)
		}
		if err != nil {
			return badIPAM("ranges", err)
		}
	}
	return nil
}

func replaceSubnet(of map[string]json.RawMessage, replace func(subnet string) string) error {
	for _, key := range keysLike(of, "subnet") {
		subnet, err := optional[string](of[key])
		if next := replace(subnet); err == nil && next != subnet {
			of[key], err = json.Marshal(next)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// keysLike returns the keys that equal name but for case: host-local's decoder, Go's, accepts them all.
func keysLike(of map[string]json.RawMessage, name string) []string {
	var keys []string
	for key := range of {
		if strings.EqualFold(key, name) {
			keys = append(keys, key)
		}
	}
	return keys
}

// editIPAM changes only the IPAM section of a configuration.
func editIPAM(stdin []byte, edit func(ipam map[string]json.RawMessage) error) ([]byte, error) {
	var conf, ipam map[string]json.RawMessage
	if err := json.Unmarshal(stdin, &conf); err != nil {
		return nil, err
	}
	if err := json.Unmarshal(conf["ipam"], &ipam); err != nil || ipam == nil {
		// The decoder of the typed form accepts "IPAM", and two "ipam" of which the second is null.
		return nil, failure(types.ErrInvalidNetworkConfig,
			errors.New(`network configuration: "ipam" has to be there once, as an object in lower case`))
	}
	err := edit(ipam)
	if err != nil {
		return nil, err
	}
	if conf["ipam"], err = json.Marshal(ipam); err != nil {
		return nil, err
	}
	return json.Marshal(conf)
}

// podRoutes returns the destinations that the pod reaches through the node; nil for everything. As in Calico, they are
// host-local's routes without their gateways.
func (c *netConf) podRoutes() ([]netip.Prefix, error) {
	if c.IPAM.Type != hostLocal {
		return nil, nil
	}
	given, err := optional[[]struct {
		Dst string `json:"dst"`
	}](c.IPAM.Routes)
	if err != nil {
		return nil, badIPAM("routes", err)
	}
	if len(given) == 0 {
		return nil, nil
	}
	var routes []netip.Prefix
	for _, r := range given {
		p, err := netip.ParsePrefix(r.Dst)
		if err != nil {
			return nil, badIPAM("routes", fmt.Errorf("dst %q: use a CIDR such as 10.0.0.0/8", r.Dst))
		}
		routes = append(routes, p.Masked())
	}
	if c.IncludeDefaultRoutes {
		routes = append(routes, netip.PrefixFrom(netip.IPv4Unspecified(), 0), netip.PrefixFrom(netip.IPv6Unspecified(), 0))
	}
	return routes, nil
}

func badIPAM(key string, err error) error {
	return failure(types.ErrInvalidNetworkConfig, fmt.Errorf("network configuration: ipam.%s: %w", key, err))
}

// optional decodes a value that may be missing or null.
func optional[T any](text json.RawMessage) (T, error) {
	var v T
	if len(bytes.TrimSpace(text)) == 0 {
		return v, nil
	}
	return v, json.Unmarshal(text, &v)
}
