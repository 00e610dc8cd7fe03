package cluster

import (
	"encoding/json"
	"maps"
	"net/netip"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/tortie-net/tortie/internal/api"
	"github.com/tortie-net/tortie/internal/policy"
)

// policyPod is the part of a Pod that policies depend on. A feed may hold 10,000.
type policyPod struct {
	meta api.Meta // see named
	// pod is nil for a Pod that uses the host's network or has finished. Its addresses include addresses that do not
	// count.
	pod     *policy.Pod
	words   []word // by address of pod
	node    string // to which the Pod is bound; empty: none
	created int64  // seconds
	// plain: see PolicyFeed.PlainPods.
	plain bool
	// unread: see PolicyFeed.UnreadAnnotations. Few pods have any; it is nil for pods of other nodes.
	unread []string
}

// GetMeta implements api.Resource.
func (p *policyPod) GetMeta() *api.Meta { return &p.meta }

// ResourceType implements api.Resource.
func (*policyPod) ResourceType() api.Type { return (*api.Pod)(nil).ResourceType() }

// UnmarshalJSON reads a Pod, or the metadata of one.
func (p *policyPod) UnmarshalJSON(data []byte) error {
	var obj corev1.Pod
	if err := json.Unmarshal(data, &obj); err != nil {
		return err
	}
	*p = newPolicyPod(&obj)
	return nil
}

// ofPod are the fields that newPolicyPod reads, by their numbers in k8s.io/api/core/v1/generated.proto.
var ofPod = only{
	// metadata: names, UID, revision, times, labels, annotations
	1: {1: nil, 2: nil, 3: nil, 5: nil, 6: nil, 8: nil, 9: nil, 11: nil, 12: nil},
	// spec: containers' ports, service account, node, hostNetwork, init containers' ports and restartPolicy
	2: {2: {6: nil}, 8: nil, 10: nil, 11: nil, 20: {6: nil, 24: nil}},
	3: {1: nil, 6: nil, 12: nil}, // status: phase, podIP, podIPs
}

// UnmarshalProtobuf reads a Pod.
func (p *policyPod) UnmarshalProtobuf(data []byte) error {
	read, err := ofPod.append(make([]byte, 0, len(data)/2), data)
	if err != nil {
		return err
	}
	var obj corev1.Pod
	if err := obj.Unmarshal(read); err != nil {
		return err
	}
	*p = newPolicyPod(&obj)
	return nil
}

func newPolicyPod(obj *corev1.Pod) policyPod {
	m := &obj.ObjectMeta
	p := policyPod{meta: named(
		&api.Meta{Namespace: m.Namespace, Name: m.Name, UID: string(m.UID), ResourceVersion: m.ResourceVersion, Annotations: m.Annotations})}
	if !m.CreationTimestamp.IsZero() {
		p.created = m.CreationTimestamp.Unix()
	}
	if obj.Spec.HostNetwork || finished(obj) {
		return p
	}
	p.plain = m.DeletionTimestamp == nil && api.PlainPod(m.Annotations)
	var found []netip.Addr
	found, p.words = podAddresses(obj)
	p.node = shared(obj.Spec.NodeName)
	p.unread = api.UnreadOf("Pod", m.Annotations)
	if m.DeletionTimestamp == nil && slices.Contains(p.words, byKubelet) && m.Annotations[api.AnnotationFloatingIPs] != "" {
		p.unread = append(p.unread, api.AnnotationFloatingIPs)
	}
	p.pod = &policy.Pod{
		PodKey: policy.PodKey{Namespace: p.meta.Namespace, Name: p.meta.Name}, Prefix: namePrefix(p.meta.Name, m.GenerateName),
		UID: string(m.UID), Labels: sharedLabels(m.Labels),
		Account: shared(obj.Spec.ServiceAccountName), Addresses: found, Ports: namedPorts(obj),
	}
	// The kubelet passes the UID of the static pod, not of its mirror, to the plugin: the annotation's value is that UID.
	if static := m.Annotations[api.AnnotationMirrorPod]; isUID(static) {
		p.pod.UID, p.pod.Stated = static, true
	}
	return p
}

// mostUID is the most characters of a UID: Kubernetes' own have 32 or 36.
const mostUID = 64

// isUID reports whether a text can be the UID of a static pod. It becomes a comment in the kernel's table. The table
// has no room for longer ones, and its other comments contain spaces.
func isUID(text string) bool {
	other := func(r rune) bool {
		return !(r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || r == '-')
	}
	return text != "" && len(text) <= mostUID && !strings.ContainsFunc(text, other)
}

// named returns the identity and revision of an object, which reflectors and stores need, and the annotation that marks
// the end of a list.
func named(m *api.Meta) api.Meta {
	kept := api.Meta{Namespace: shared(m.Namespace), Name: m.Name, UID: m.UID, ResourceVersion: m.ResourceVersion}
	if end, ok := m.Annotations[metav1.InitialEventsAnnotationKey]; ok {
		kept.Annotations = map[string]string{metav1.InitialEventsAnnotationKey: end}
	}
	return kept
}

// namePrefix returns generateName as a part of name, to share its memory, or "" if a user has written another one.
func namePrefix(name, generateName string) string {
	if !strings.HasPrefix(name, generateName) {
		return ""
	}
	return name[:len(generateName)]
}

func sharedLabels(labels map[string]string) map[string]string {
	if len(labels) == 0 {
		return nil
	}
	kept := make(map[string]string, len(labels))
	for key, value := range labels {
		kept[shared(key)] = shared(value)
	}
	return kept
}

// finished reports whether the containers of a Pod have ended, so that another pod may have its address.
func finished(obj *corev1.Pod) bool {
	return obj.Status.Phase == corev1.PodSucceeded || obj.Status.Phase == corev1.PodFailed
}

// mostAddresses of an annotation count. A pod has one of each family, but an author of pods could write 20,000, and all
// agents would keep each.
const mostAddresses = 8

// podAddresses returns the addresses in the status and the plugin's annotations, ascending. Only kubelets may write the
// status; users may write annotations, too, which come seconds earlier.
func podAddresses(obj *corev1.Pod) (found []netip.Addr, words []word) {
	texts := make([]string, 0, len(obj.Status.PodIPs)+1)
	for _, ip := range obj.Status.PodIPs {
		texts = append(texts, ip.IP)
	}
	reported := addresses(append(texts, obj.Status.PodIP))
	noted, emptied := notedAddresses(obj)
	if slices.Equal(noted, reported) {
		return reported, slices.Repeat([]word{byKubelet}, len(reported))
	}
	found = slices.Concat(reported, noted)
	slices.SortFunc(found, netip.Addr.Compare)
	found = slices.Clip(slices.Compact(found))
	for _, a := range found {
		words = append(words, wordOn(a, reported, noted, emptied))
	}
	return found, words
}

// notedAddresses returns the addresses in the annotations. emptied: there are annotations without an address, which the
// plugin leaves after it has released the addresses.
func notedAddresses(obj *corev1.Pod) (noted []netip.Addr, emptied bool) {
	texts := strings.SplitN(obj.Annotations[api.AnnotationPodIPs], ",", mostAddresses+1)
	if noted = addresses(texts[:min(mostAddresses, len(texts))]); len(noted) > 0 {
		return noted, false
	}
	one, is := obj.Annotations[api.AnnotationPodIP]
	_, are := obj.Annotations[api.AnnotationPodIPs]
	noted = addresses([]string{one})
	return noted, (is || are) && len(noted) == 0
}

// addresses parses addresses in any notation, with or without a prefix length, sorts them and removes duplicates. It
// skips invalid texts.
func addresses(texts []string) []netip.Addr {
	var found []netip.Addr
	for _, text := range texts {
		text, _, _ = strings.Cut(strings.TrimSpace(text), "/")
		if a, err := netip.ParseAddr(text); err == nil {
			found = append(found, a.Unmap().WithZone(""))
		}
	}
	slices.SortFunc(found, netip.Addr.Compare)
	return slices.Clip(slices.Compact(found))
}

// protocols maps the protocols of containers' ports to their numbers.
var protocols = map[corev1.Protocol]uint8{"": 6, corev1.ProtocolTCP: 6, corev1.ProtocolUDP: 17, corev1.ProtocolSCTP: 132}

// namedPorts returns the named ports of containers and, like Calico, of all init containers, sidecars or not.
func namedPorts(obj *corev1.Pod) []policy.NamedPort {
	var named []policy.NamedPort
	add := func(c *corev1.Container) {
		for _, port := range c.Ports {
			if number, known := protocols[port.Protocol]; known && port.Name != "" {
				named = append(named, policy.NamedPort{Name: shared(port.Name), Protocol: number, Port: uint16(port.ContainerPort)})
			}
		}
	}
	for i := range obj.Spec.Containers {
		add(&obj.Spec.Containers[i])
	}
	for i := range obj.Spec.InitContainers {
		add(&obj.Spec.InitContainers[i])
	}
	return slices.Clip(named)
}

func samePolicyPod(a, b *policyPod) bool {
	return a.created == b.created && a.node == b.node && slices.Equal(a.words, b.words) && a.plain == b.plain &&
		slices.Equal(a.unread, b.unread) && samePodOf(a.pod, b.pod)
}

func samePodOf(a, b *policy.Pod) bool {
	if a == nil || b == nil {
		return a == b
	}
	return a.UID == b.UID && a.Stated == b.Stated && a.Account == b.Account && maps.Equal(a.Labels, b.Labels) &&
		slices.Equal(a.Addresses, b.Addresses) && slices.Equal(a.Unsure, b.Unsure) && slices.Equal(a.Ports, b.Ports)
}
