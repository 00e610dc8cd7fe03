package policy

import (
	"maps"
	"strings"
)

// Labels that Calico adds to the labels of an object.
const (
	labelNamespace    = "projectcalico.org/namespace"
	labelOrchestrator = "projectcalico.org/orchestrator"
	labelAccount      = "projectcalico.org/serviceaccount"
	labelName         = "projectcalico.org/name"
	orchestrator      = "k8s"
	ofNamespacePrefix = "pcns."
	ofAccountPrefix   = "pcsa."
	// hasAccount and hasNamespace are added to the labels of the service account and of the namespace that something has,
	// whether these are known or not, but not to labels by profiles. No object can have this key.
	hasAccount   = "\x00"
	hasNamespace = hasAccount
)

// directory holds the labels of namespaces and service accounts.
type directory struct {
	namespaces map[string]map[string]string
	accounts   map[Account]map[string]string
}

func (state State) directory() directory { return directory{state.Namespaces, state.Accounts} }

// selectable is a pod, a network set or a host endpoint, with all labels that selectors may read.
type selectable struct {
	namespace                    string
	pod                          *Pod // nil: no pod
	labels                       map[string]string
	ofNamespace                  map[string]string
	knownNamespace, knownAccount bool
	// Labels as Calico shows them; empty unless requested.
	calico, calicoNamespace, ofAccount map[string]string
}

// knows reports whether the labels of the pod's namespace and of its service account are known.
func (d directory) knows(pod *Pod) (namespace, account bool) {
	_, namespace = d.namespaces[pod.Namespace]
	return namespace, d.accounts != nil || pod.Account == ""
}

func (d directory) pod(pod *Pod, calico bool) selectable {
	if pod.host != nil {
		return d.host(pod.host)
	}
	x := selectable{namespace: pod.Namespace, pod: pod, labels: pod.Labels, ofNamespace: d.namespaces[pod.Namespace]}
	x.knownNamespace, x.knownAccount = d.knows(pod)
	if !calico {
		return x
	}
	d.inherit(&x)
	x.calico[labelOrchestrator] = orchestrator
	if pod.Account != "" {
		x.calico[labelAccount] = pod.Account
		if labels, there := d.accounts[Account{pod.Namespace, pod.Account}]; there {
			x.ofAccount = withName(labels, pod.Account)
			prefixed(x.calico, ofAccountPrefix, x.ofAccount)
		} else {
			x.ofAccount = map[string]string{}
		}
		x.ofAccount[hasAccount] = ""
	}
	return x
}

func (d directory) set(s *NetworkSet) selectable {
	x := selectable{namespace: s.Namespace, labels: s.Labels, knownAccount: true}
	x.ofNamespace, x.knownNamespace = d.namespaces[s.Namespace]
	x.knownNamespace = x.knownNamespace || s.Namespace == ""
	d.inherit(&x)
	return x
}

// host returns a host endpoint: it is in no namespace, but has the labels of its profiles.
func (d directory) host(h *HostEndpoint) selectable {
	x := d.set(&NetworkSet{Labels: h.Labels})
	for _, from := range h.Inherits {
		labels, there := d.namespaces[from.Namespace]
		to := &x.calicoNamespace
		name := from.Namespace
		if from.Name != "" {
			x.knownAccount = d.accounts != nil
			labels, there = d.accounts[from]
			to, name = &x.ofAccount, from.Name
		}
		if from.Name == "" && !there { // it may not have arrived yet
			x.knownNamespace = false
		}
		if there {
			inherited := withName(labels, name)
			maps.Copy(inherited, *to)
			*to = inherited
		}
	}
	prefixed(x.calico, ofNamespacePrefix, x.calicoNamespace)
	prefixed(x.calico, ofAccountPrefix, x.ofAccount)
	return x
}

// inherit adds the labels that Calico shows. An object's own labels with a Belonging key do not count.
func (d directory) inherit(x *selectable) {
	x.calico = make(map[string]string, len(x.labels)+len(x.ofNamespace)+4)
	for key, value := range x.labels {
		if !Belonging(key) {
			x.calico[key] = value
		}
	}
	if x.namespace != "" {
		x.calicoNamespace = withName(x.ofNamespace, x.namespace)
		x.calico[labelNamespace] = x.namespace
		prefixed(x.calico, ofNamespacePrefix, x.calicoNamespace)
		x.calicoNamespace[hasNamespace] = ""
	}
}

// Belonging reports whether Calico uses a label to mark the namespace, service account or orchestrator of an object.
func Belonging(key string) bool {
	switch key {
	case labelNamespace, labelOrchestrator, labelAccount, labelName:
		return true
	}
	return strings.HasPrefix(key, ofNamespacePrefix) || strings.HasPrefix(key, ofAccountPrefix)
}

func prefixed(all map[string]string, prefix string, from map[string]string) {
	for key, value := range from {
		all[prefix+key] = value
	}
}

// withName returns a copy of labels with labelName set to name.
func withName(labels map[string]string, name string) map[string]string {
	all := make(map[string]string, len(labels)+1)
	maps.Copy(all, labels)
	all[labelName] = name
	return all
}
