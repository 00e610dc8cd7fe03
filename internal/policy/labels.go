package policy

import (
	"maps"
	"strings"
)

// What Calico calls the labels that it adds to those of an object.
const (
	labelNamespace    = "projectcalico.org/namespace"
	labelOrchestrator = "projectcalico.org/orchestrator"
	labelAccount      = "projectcalico.org/serviceaccount"
	labelName         = "projectcalico.org/name"
	orchestrator      = "k8s"
	ofNamespacePrefix = "pcns."
	ofAccountPrefix   = "pcsa."
	// hasAccount and hasNamespace are among the labels of the service account and of the namespace of what has one,
	// whether they are known or not, and not among those that come by profiles; no object can have it.
	hasAccount   = "\x00"
	hasNamespace = hasAccount
)

// directory has the labels of what pods belong to.
type directory struct {
	namespaces map[string]map[string]string
	accounts   map[Account]map[string]string
}

func (state State) directory() directory { return directory{state.Namespaces, state.Accounts} }

// selectable is something that Pods select: a pod, a network set or a host endpoint, with all labels that selectors may
// read.
type selectable struct {
	namespace                    string
	pod                          *Pod // nil: it is none
	labels                       map[string]string
	ofNamespace                  map[string]string
	knownNamespace, knownAccount bool
	// As Calico shows them, if that was asked for.
	calico, calicoNamespace, ofAccount map[string]string
}

// knows reports whether the labels are known that a pod has of its namespace and of its service account.
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

// host: of Calico's labels a host endpoint has those of its profiles, though it is in no namespace.
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
		if from.Name == "" && !there { // it may not have been heard of yet
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

// inherit adds what Calico shows. Labels of its own by which something would seem to belong to something else do not
// count.
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

// Belonging reports whether Calico tells by a label to which namespace, service account or orchestrator something
// belongs.
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

// withName are labels with that of a name.
func withName(labels map[string]string, name string) map[string]string {
	all := make(map[string]string, len(labels)+1)
	maps.Copy(all, labels)
	all[labelName] = name
	return all
}
