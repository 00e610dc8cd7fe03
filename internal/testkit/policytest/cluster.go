package policytest

import (
	"fmt"
	"net/netip"
	"strings"

	"sigs.k8s.io/yaml"

	"github.com/tortie-net/tortie/internal/api"
)

// Cluster holds the objects of an API server. No two unfinished pods share an address.
type Cluster struct {
	Namespaces             []api.Namespace
	Nodes                  []api.Node
	Pods                   []api.Pod
	NetworkPolicies        []api.NetworkPolicy
	ClusterNetworkPolicies []api.ClusterNetworkPolicy

	ServiceAccounts             []ServiceAccount                `json:",omitempty"`
	Services                    []Service                       `json:",omitempty"`
	Tiers                       []api.CalicoTier                `json:",omitempty"`
	CalicoNetworkPolicies       []api.CalicoNetworkPolicy       `json:",omitempty"`
	CalicoGlobalNetworkPolicies []api.CalicoGlobalNetworkPolicy `json:",omitempty"`
	NetworkSets                 []api.CalicoNetworkSet          `json:",omitempty"`
	GlobalNetworkSets           []api.CalicoGlobalNetworkSet    `json:",omitempty"`
	HostEndpoints               []api.CalicoHostEndpoint        `json:",omitempty"`
}

// ServiceAccount is a Kubernetes ServiceAccount; only its labels matter.
type ServiceAccount struct {
	api.Meta `json:"metadata"`
}

// Service has the endpoints of a Service, from its EndpointSlices.
type Service struct {
	api.Meta  `json:"metadata"`
	Endpoints []ServiceEndpoint
}

// ServiceEndpoint is an address of a Service, ready or not, with its ports.
type ServiceEndpoint struct {
	Address string
	Ports   []ServicePort `json:",omitempty"`
}

// ServicePort is a port of an endpoint.
type ServicePort struct {
	Protocol string
	Port     uint16
}

// String returns the cluster as YAML.
func (c *Cluster) String() string {
	text, err := yaml.Marshal(c)
	if err != nil {
		return err.Error()
	}
	return string(text)
}

// Packet is the first packet of a connection.
type Packet struct {
	From, To netip.Addr
	Protocol uint8
	// Port and SourcePort are 0 where the protocol has none. Rigs choose a source port for 0.
	Port, SourcePort uint16
	// Type and Code are an ICMP message's; for rigs both 0 is an echo request.
	Type, Code uint8
}

// String returns a text such as "10.0.0.1 -> 10.0.0.2 TCP 80".
func (p Packet) String() string {
	text := fmt.Sprintf("%s -> %s %s %d", p.From, p.To, protocolName(p.Protocol), p.Port)
	if p.SourcePort != 0 {
		text += fmt.Sprintf(" from %d", p.SourcePort)
	}
	if p.Type != 0 || p.Code != 0 {
		text += fmt.Sprintf(" type %d code %d", p.Type, p.Code)
	}
	return text
}

// Protocol numbers of IP.
const (
	ICMP   = 1
	TCP    = 6
	UDP    = 17
	ICMPv6 = 58
	SCTP   = 132
	// udpLite is not sent by rigs, see Sendable.
	udpLite = 136
	// Other and the next number are for experiments (RFC 3692).
	Other = 253
)

func protocolName(number uint8) string {
	for _, name := range []string{"TCP", "UDP", "SCTP"} {
		if protocolNumber(name) == number {
			return name
		}
	}
	return fmt.Sprint(number)
}

// protocolNumber returns the number of a protocol that has ports, 0 for other names.
func protocolNumber(name string) uint8 {
	return map[string]uint8{"TCP": TCP, "UDP": UDP, "SCTP": SCTP}[name]
}

// Finished reports whether a pod has no address any longer: all its containers ended for good, or its network was taken
// down.
func Finished(pod *api.Pod) bool {
	podIP, annotated := pod.Annotations[api.AnnotationPodIP]
	return pod.Status.Phase == "Succeeded" || pod.Status.Phase == "Failed" || pod.DeletionTimestamp != "" && annotated && podIP == ""
}

// Addresses returns a pod's addresses: from the CNI plugin's annotation, else as the kubelet reported them.
func Addresses(pod *api.Pod) (addresses []netip.Addr) {
	if text := pod.Annotations[api.AnnotationPodIPs]; text != "" {
		for cidr := range strings.SplitSeq(text, ",") {
			addresses = append(addresses, netip.MustParsePrefix(cidr).Addr())
		}
		return addresses
	}
	for _, ip := range pod.Status.PodIPs {
		addresses = append(addresses, netip.MustParseAddr(ip.IP))
	}
	return addresses
}

// PodAt returns the pod with a network of its own that has an address, nil if there is none.
func (c *Cluster) PodAt(a netip.Addr) *api.Pod {
	for i := range c.Pods {
		pod := &c.Pods[i]
		if pod.Spec.HostNetwork || Finished(pod) {
			continue
		}
		for _, own := range Addresses(pod) {
			if own == a {
				return pod
			}
		}
	}
	return nil
}
