package policytest

import (
	"embed"
	"fmt"
	"io/fs"
	"net/netip"
	"path"
	"slices"
	"strconv"
	"strings"

	"sigs.k8s.io/yaml"

	"github.com/tortie-net/tortie/internal/api"
	"github.com/tortie-net/tortie/internal/policy"
)

//go:embed testdata/corpus/*.yaml
var corpus embed.FS

// Case is an example of policies from documentation and tutorials, with what they must do.
type Case struct {
	Name string `json:"case"`
	// Allow and Deny are connections; Logs are connections that a Log rule matches, Silent those that none matches.
	Allow, Deny, Logs, Silent []string
	// Hosts: the host endpoints of nodes count, and allow what no policy decides. ByAddress: they are for the link with
	// the node's address, not for all links.
	Hosts, ByAddress bool
	*Cluster         `json:"-"`
	// Manifests are its objects.
	Manifests []string `json:"-"`
	// Policies is the number of policies.
	Policies int `json:"-"`
}

// Outside maps names in cases to addresses.
var Outside = map[string]string{
	"internet": "198.51.100.10", "partner": "203.0.113.20", "corp": "192.168.10.5", "bastion": "192.168.10.9", "metadata": "169.254.169.254",
	"node0": "172.16.0.1", "node1": "172.16.0.2",
}

// Corpus reads all cases. In the files each case begins with a document with its name, followed by manifests.
func Corpus() (cases []*Case, err error) {
	files, err := fs.Glob(corpus, "testdata/corpus/*.yaml")
	if err != nil {
		return nil, err
	}
	for _, file := range files {
		if path.Base(file) == "world.yaml" {
			continue
		}
		text, err := corpus.ReadFile(file)
		if err != nil {
			return nil, err
		}
		own, err := readCases(string(text))
		if err != nil {
			return nil, fmt.Errorf("%s: %w", file, err)
		}
		cases = append(cases, own...)
	}
	return cases, nil
}

func readCases(text string) (cases []*Case, err error) {
	world, err := corpus.ReadFile("testdata/corpus/world.yaml")
	if err != nil {
		return nil, err
	}
	for document := range strings.SplitSeq(text, "\n---\n") {
		var head struct{ Kind, APIVersion string }
		if err := yaml.Unmarshal([]byte(document), &head); err != nil {
			return nil, err
		}
		if head.Kind == "" {
			c := &Case{Cluster: &Cluster{}}
			if err := yaml.UnmarshalStrict([]byte(document), c); err != nil {
				return nil, err
			}
			if err := yaml.UnmarshalStrict(world, c.Cluster); err != nil {
				return nil, err
			}
			for i := range c.HostEndpoints {
				if c.Hosts {
					c.HostEndpoints[i].Spec.Profiles = []string{policy.ProfileAllows}
				}
				if c.ByAddress {
					c.HostEndpoints[i].Spec.InterfaceName = ""
				}
			}
			cases = append(cases, c)
			continue
		}
		if err := cases[len(cases)-1].add(head.APIVersion+" "+head.Kind, document); err != nil {
			return nil, err
		}
	}
	return cases, nil
}

// add reads a manifest.
func (c *Case) add(kind, document string) error {
	c.Manifests = append(c.Manifests, document)
	switch kind {
	case "crd.projectcalico.org/v1 Tier":
		return appendTo(&c.Tiers, document)
	case "crd.projectcalico.org/v1 NetworkSet":
		return appendTo(&c.NetworkSets, document)
	case "crd.projectcalico.org/v1 GlobalNetworkSet":
		return appendTo(&c.GlobalNetworkSets, document)
	}
	c.Policies++
	switch kind {
	case "crd.projectcalico.org/v1 NetworkPolicy":
		return appendTo(&c.CalicoNetworkPolicies, document)
	case "crd.projectcalico.org/v1 GlobalNetworkPolicy":
		return appendTo(&c.CalicoGlobalNetworkPolicies, document)
	case "networking.k8s.io/v1 NetworkPolicy":
		return appendTo(&c.NetworkPolicies, document)
	case "policy.networking.k8s.io/v1beta1 ClusterNetworkPolicy", "policy.networking.k8s.io/v1alpha2 ClusterNetworkPolicy":
		return appendTo(&c.ClusterNetworkPolicies, document)
	}
	return fmt.Errorf("kind %q is not read", kind)
}

func appendTo[T any](list *[]T, document string) error {
	var object T
	*list = append(*list, object)
	return yaml.Unmarshal([]byte(document), &(*list)[len(*list)-1])
}

// Packet reads a connection such as "shop/web -> internet TCP 443", followed by the source port if that matters, or
// "node0 -> shop/web ICMP 8/0".
func (c *Case) Packet(text string) (p Packet, err error) {
	f := append(strings.Fields(text), "0")
	if len(f) < 6 || f[1] != "->" {
		return p, fmt.Errorf("%q is no connection", text)
	}
	from, err := c.party(f[0])
	if err != nil {
		return p, err
	}
	to, err := c.party(f[2])
	p = Packet{From: from, To: to, Protocol: protocolNumber(f[3])}
	if kind, code, ok := strings.Cut(f[4], "/"); ok {
		p.Protocol = map[string]uint8{"ICMP": ICMP, "ICMPv6": ICMPv6}[f[3]]
		p.Type, p.Code = uint8(number(kind)), uint8(number(code))
		return p, err
	}
	p.Port, p.SourcePort = uint16(number(f[4])), uint16(number(f[5]))
	return p, err
}

func number(text string) uint64 {
	n, _ := strconv.ParseUint(text, 10, 16)
	return n
}

// party returns the address of a pod by its namespace and label app, of a name in Outside, or as given.
func (c *Case) party(name string) (netip.Addr, error) {
	i := slices.IndexFunc(c.Pods, func(p api.Pod) bool { return p.Namespace+"/"+p.Labels["app"] == name })
	if i >= 0 {
		return Addresses(&c.Pods[i])[0], nil
	}
	if address := Outside[name]; address != "" {
		name = address
	}
	return netip.ParseAddr(name)
}
