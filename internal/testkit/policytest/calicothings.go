package policytest

import (
	"encoding/json"
	"maps"
	"net/netip"
	"slices"
	"strings"

	"github.com/tortie-net/tortie/internal/api"
)

// thing is an object that selectors select: a pod, a network set, a host endpoint.
type thing struct {
	namespace, serviceAccount                 string // empty: none
	labels, ofNamespace, ofAccount, inherited map[string]string
	nets                                      []netip.Prefix
	ports                                     []api.ContainerPort
}

const (
	ofCalico      = "projectcalico.org/"
	fromNamespace = "pcns."
	fromAccount   = "pcsa."
)

// things returns all things of the cluster.
func (c *Cluster) things() (all []thing) {
	for i := range c.Pods {
		if pod := &c.Pods[i]; !pod.Spec.HostNetwork && !Finished(pod) {
			all = append(all, c.thingOf(pod))
		}
	}
	for _, n := range c.NetworkSets {
		t := c.inNamespace(n.Namespace)
		t.labels, t.nets = labelsOf(&n.Meta), readableNets(n.Spec.Nets)
		t.labels[ofCalico+"namespace"] = n.Namespace
		all = append(all, t)
	}
	for _, n := range c.GlobalNetworkSets {
		all = append(all, thing{labels: labelsOf(&n.Meta), nets: readableNets(n.Spec.Nets)})
	}
	for _, h := range c.HostEndpoints {
		all = append(all, c.hostThing(&h))
	}
	return all
}

// hostThing: "an endpoint inherits the labels that its profiles have in labelsToApply", the first profile's before
// others'.
func (c *Cluster) hostThing(h *api.CalicoHostEndpoint) thing {
	t := thing{labels: labelsOf(&h.Meta), nets: readableNets(h.Spec.ExpectedIPs), ofNamespace: map[string]string{},
		ofAccount: map[string]string{}, inherited: map[string]string{}}
	for _, profile := range slices.Backward(h.Spec.Profiles) {
		for _, n := range c.Namespaces {
			if profile == "kns."+n.Name {
				maps.Copy(t.ofNamespace, c.inNamespace(n.Name).ofNamespace)
			}
		}
		for _, a := range c.ServiceAccounts {
			if profile == "ksa."+a.Namespace+"."+a.Name {
				maps.Copy(t.ofAccount, a.Labels)
				t.ofAccount[ofCalico+"name"] = a.Name
			}
		}
	}
	for key, value := range t.ofNamespace {
		t.inherited[fromNamespace+key] = value
	}
	for key, value := range t.ofAccount {
		t.inherited[fromAccount+key] = value
	}
	for _, p := range h.Spec.Ports {
		t.ports = append(t.ports, api.ContainerPort{Name: p.Name, Protocol: string(p.Protocol), ContainerPort: uint16(p.Port)})
	}
	return t
}

// inNamespace returns a thing with the labels that all objects of a namespace inherit.
func (c *Cluster) inNamespace(namespace string) thing {
	t := thing{namespace: namespace, ofNamespace: maps.Clone(c.namespaceLabels(namespace)), inherited: map[string]string{}}
	if t.ofNamespace == nil {
		t.ofNamespace = map[string]string{}
	}
	t.ofNamespace[ofCalico+"name"] = namespace
	for key, value := range t.ofNamespace {
		t.inherited[fromNamespace+key] = value
	}
	return t
}

func (c *Cluster) thingOf(pod *api.Pod) thing {
	t := c.inNamespace(pod.Namespace)
	t.serviceAccount, t.ofAccount = pod.Spec.ServiceAccountName, map[string]string{}
	for _, account := range c.ServiceAccounts {
		if account.Namespace == pod.Namespace && account.Name == pod.Spec.ServiceAccountName {
			maps.Copy(t.ofAccount, account.Labels)
			t.ofAccount[ofCalico+"name"] = account.Name
		}
	}
	for key, value := range t.ofAccount {
		t.inherited[fromAccount+key] = value
	}
	t.labels = withoutPretence(maps.Clone(pod.Labels))
	t.labels[ofCalico+"namespace"], t.labels[ofCalico+"orchestrator"] = pod.Namespace, "k8s"
	if name := pod.Spec.ServiceAccountName; name != "" {
		t.labels[ofCalico+"serviceaccount"] = name
	}
	for _, a := range Addresses(pod) {
		t.nets = append(t.nets, netip.PrefixFrom(a, a.BitLen()))
	}
	for _, container := range slices.Concat(pod.Spec.InitContainers, pod.Spec.Containers) {
		t.ports = append(t.ports, container.Ports...)
	}
	return t
}

func (t thing) has(a netip.Addr) bool {
	return slices.ContainsFunc(t.nets, func(p netip.Prefix) bool { return p.Contains(a) })
}

func (t thing) selectedBy(selector string) bool {
	labels := map[string]string{}
	maps.Copy(labels, t.inherited)
	maps.Copy(labels, t.labels)
	matches, _ := EvalSelector(selector, labels)
	return matches
}

// inNamespaces evaluates a namespaceSelector: all() selects what is in a namespace, global() what is in none, and has
// no labels of one.
func (t thing) inNamespaces(selector string) bool {
	matches, _ := evalSelector(selector, view{labels: t.ofNamespace, all: t.namespace != "", global: t.namespace == ""})
	return matches
}

// hasServiceAccount evaluates a serviceAccountSelector: without a service account, or if it was deleted, there are no
// labels.
func (t thing) hasServiceAccount(selector string) bool {
	matches, _ := EvalSelector(selector, t.ofAccount)
	return matches
}

// isSubjectOf reports whether a GlobalNetworkPolicy is for the thing. Beside a namespaceSelector all() means what is in
// a namespace, in Calico also in the policy's selector; beside a serviceAccountSelector likewise what has a service
// account.
func (t thing) isSubjectOf(spec *api.CalicoGlobalNetworkPolicySpec) bool {
	own := view{labels: map[string]string{}, all: true, global: true}
	maps.Copy(own.labels, t.inherited)
	maps.Copy(own.labels, t.labels)
	_, hasAccount := own.labels[ofCalico+"serviceaccount"]
	switch {
	case strings.Trim(spec.Selector, blanks) == "":
	case spec.NamespaceSelector != "":
		own.all = t.namespace != ""
	case spec.ServiceAccountSelector != "":
		own.all = hasAccount
	}
	selected, _ := evalSelector(spec.Selector, own)
	if spec.ServiceAccountSelector != "" {
		ofAccount, _ := evalSelector(spec.ServiceAccountSelector, view{labels: t.ofAccount, all: hasAccount, global: true})
		selected = selected && ofAccount
	}
	return selected && (spec.NamespaceSelector == "" || t.inNamespaces(spec.NamespaceSelector))
}

// declares reports whether a pod or host endpoint has a port by that name.
func (t thing) declares(name string, protocol uint8, port uint16) bool {
	return slices.ContainsFunc(t.ports, func(p api.ContainerPort) bool {
		declared, _ := readProtocol(p.Protocol)
		if p.Protocol == "" {
			declared = TCP
		}
		return p.Name == name && declared == protocol && p.ContainerPort == port
	})
}

// labelsOf returns the labels that count.
func labelsOf(m *api.Meta) map[string]string { return withoutPretence(merged(m)) }

// merged returns the labels of kubectl, overridden by those that Calico's clients write into an annotation.
func merged(m *api.Meta) map[string]string {
	labels := map[string]string{}
	maps.Copy(labels, m.Labels)
	if text := m.Annotations[ofCalico+"metadata"]; text != "" {
		maps.Copy(labels, decode[struct{ Labels map[string]string }](json.RawMessage(text)).Labels)
	}
	return labels
}

var tellsOwner = []string{ofCalico + "namespace", ofCalico + "orchestrator", ofCalico + "serviceaccount", ofCalico + "name"}

// withoutPretence removes labels that would falsely mark what a thing belongs to: inherited labels, and some of
// Calico's own.
func withoutPretence(labels map[string]string) map[string]string {
	if labels == nil {
		return map[string]string{}
	}
	maps.DeleteFunc(labels, func(key, _ string) bool {
		return strings.HasPrefix(key, fromNamespace) || strings.HasPrefix(key, fromAccount) || slices.Contains(tellsOwner, key)
	})
	return labels
}

// readableNets skips what is neither a CIDR nor an address.
func readableNets(texts []string) (nets []netip.Prefix) {
	for _, text := range texts {
		if p, ok := readNet(text); ok {
			nets = append(nets, p)
		}
	}
	return nets
}

// readNet reads a CIDR or an address, without leading zeros in IPv4 numbers.
func readNet(text string) (netip.Prefix, bool) {
	if a, err := netip.ParseAddr(text); err == nil && a.Zone() == "" {
		a = a.Unmap()
		return netip.PrefixFrom(a, a.BitLen()), true
	}
	if _, err := netip.ParsePrefix(text); err != nil {
		return netip.Prefix{}, false
	}
	return parseCIDR(text)
}
