package inventory

import (
	"encoding/json"
	"net/netip"
	"slices"
	"strings"

	"github.com/tortie-net/tortie/internal/api"
)

// ResourceType implements api.Resource.
func (*Node) ResourceType() api.Type { return (*api.Node)(nil).ResourceType() }

// UnmarshalJSON reads a Node. Most of a Node is not decoded.
func (n *Node) UnmarshalJSON(data []byte) error {
	var obj struct {
		Meta api.Meta `json:"metadata"`
		Spec struct {
			Unschedulable bool        `json:"unschedulable"`
			Taints        []api.Taint `json:"taints"`
		} `json:"spec"`
		Status struct {
			Addresses  []api.NodeAddress   `json:"addresses"`
			Conditions []api.NodeCondition `json:"conditions"`
		} `json:"status"`
	}
	if err := json.Unmarshal(data, &obj); err != nil {
		return err
	}
	*n = NewNode(obj.Meta)
	for _, a := range (&api.Node{Status: api.NodeStatus{Addresses: obj.Status.Addresses}}).InternalIPs() {
		n.Internal = append(n.Internal, a.Unmap())
	}
	r := &n.Routing
	r.Barred = r.Barred || obj.Spec.Unschedulable ||
		slices.ContainsFunc(obj.Spec.Taints, func(t api.Taint) bool { return slices.Contains(leaving, t.Key) })
	for _, c := range obj.Status.Conditions {
		if c.Type == api.NodeReady {
			r.Ready, r.Since = c.Status == "True", c.LastTransitionTime
		}
	}
	return nil
}

// leaving are the taints of nodes that are about to be removed.
var leaving = []string{
	"ToBeDeletedByClusterAutoscaler", "DeletionCandidateOfClusterAutoscaler", "karpenter.sh/disrupted", "node.kubernetes.io/out-of-service",
	"node.cloudprovider.kubernetes.io/shutdown",
}

// routing reads the part of Routing that is in a Node's metadata.
func routing(m *api.Meta) Routing {
	_, label := m.Labels[api.NoReflector]
	_, annotation := m.Annotations[api.NoReflector]
	return Routing{
		ClusterID: m.Annotations[api.AnnotationReflector], ASN: m.Annotations[api.AnnotationASNumber],
		Word: shared(m.Annotations[api.AnnotationReflection]), Barred: label || annotation,
	}
}

// stated returns the addresses that a Node's agent writes, IPv4 first.
func stated(annotations map[string]string) (all []netip.Addr) {
	for _, key := range []string{api.AnnotationIPv4Address, api.AnnotationIPv6Address} {
		text, _, _ := strings.Cut(annotations[key], "/") // with or without the length of its network
		if a, err := netip.ParseAddr(text); err == nil {
			all = append(all, a.Unmap())
		}
	}
	return all
}

// tunnelAnnotations are the annotations of a Node with its tunnels' addresses, by the type of the tunnel.
var tunnelAnnotations = map[string]string{
	api.AnnotationIPv4TunnelAddr:                   TypeIPIP,
	api.AnnotationIPv4VXLANAddr:                    TypeVXLAN,
	api.AnnotationIPv6VXLANAddr:                    TypeVXLANv6,
	"projectcalico.org/IPv4WireguardInterfaceAddr": TypeWireGuard,
	"projectcalico.org/IPv6WireguardInterfaceAddr": TypeWireGuardV6,
}

// NewNode returns the relevant parts of a Node's metadata.
func NewNode(m api.Meta) Node {
	n := Node{Meta: bare(m), Stated: stated(m.Annotations), Routing: routing(&m)}
	for key, value := range m.Labels {
		if n.Labels == nil {
			n.Labels = make(map[string]string, len(m.Labels))
		}
		n.Labels[shared(key)] = shared(value)
	}
	for key, kind := range tunnelAnnotations {
		if a, err := netip.ParseAddr(m.Annotations[key]); err == nil {
			if n.Tunnels == nil {
				n.Tunnels = map[string]netip.Addr{}
			}
			n.Tunnels[kind] = a.Unmap()
		}
	}
	return n
}

// listEnd is the annotation of the bookmark that ends the list with which a watch begins.
const listEnd = "k8s.io/initial-events-end"

// bookmark keeps the annotation, which arrives on an object of the watched kind.
func bookmark(m api.Meta) map[string]string {
	if value, ok := m.Annotations[listEnd]; ok {
		return map[string]string{listEnd: value}
	}
	return nil
}

// Service is a Kubernetes Service.
type Service struct {
	api.Meta
	Type string
}

// ResourceType implements api.Resource.
func (*Service) ResourceType() api.Type { return (*api.Service)(nil).ResourceType() }

// UnmarshalJSON reads a Service.
func (s *Service) UnmarshalJSON(data []byte) error {
	var obj api.Service
	if err := json.Unmarshal(data, &obj); err != nil {
		return err
	}
	*s = Service{Meta: bare(obj.Meta), Type: obj.Spec.Type}
	s.Namespace = obj.Namespace
	return nil
}

// ResourceType implements api.Resource.
func (*Pod) ResourceType() api.Type { return (*api.Pod)(nil).ResourceType() }

// podObject has the fields of a Pod that are read. Containers, which are most of a Pod, are not decoded.
type podObject struct {
	Meta api.Meta `json:"metadata"`
	Spec struct {
		NodeName    string `json:"nodeName"`
		HostNetwork bool   `json:"hostNetwork"`
	} `json:"spec"`
	Status api.PodStatus `json:"status"`
}

// UnmarshalJSON reads a Pod.
func (p *Pod) UnmarshalJSON(data []byte) error {
	var obj podObject
	if err := json.Unmarshal(data, &obj); err != nil {
		return err
	}
	*p = newPod(&obj)
	return nil
}

func newPod(obj *podObject) Pod {
	p := Pod{Meta: bare(obj.Meta), Node: shared(obj.Spec.NodeName), HostNetwork: obj.Spec.HostNetwork}
	p.Namespace, p.DeletionTimestamp = shared(obj.Meta.Namespace), obj.Meta.DeletionTimestamp
	p.Finished = obj.Status.Phase == "Succeeded" || obj.Status.Phase == "Failed"
	p.add(obj.Status.PodIP)
	for _, ip := range obj.Status.PodIPs {
		p.add(ip.IP)
	}
	p.Reported = len(p.Addresses) > 0
	p.add(obj.Meta.Annotations[api.AnnotationPodIP])
	for _, text := range strings.Split(obj.Meta.Annotations[api.AnnotationPodIPs], ",") {
		p.add(strings.TrimSpace(text))
	}
	for _, text := range otherNetworks(obj.Meta.Annotations[annotationNetworks]) {
		p.add(text)
	}
	return p
}

// add adds an address in any notation: with a prefix length, as IPv4 in IPv6, in upper case, with zeros.
func (p *Pod) add(text string) {
	a, err := netip.ParseAddr(text)
	if err != nil {
		prefix, err := netip.ParsePrefix(text)
		if err != nil {
			return
		}
		a = prefix.Addr()
	}
	if a = a.Unmap().WithZone(""); !p.Uses(a) {
		p.Addresses = append(slices.Grow(p.Addresses, 1), a)
	}
}
