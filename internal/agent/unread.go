package agent

import (
	"slices"
	"strings"

	"github.com/tortie-net/tortie/internal/agent/desired"
	"github.com/tortie-net/tortie/internal/api"
	"github.com/tortie-net/tortie/internal/kernel/podnet"
)

// unread returns Calico's annotations without effect: of this node, of its pods, and of namespaces.
func (a *Agent) unread(s *desired.Snapshot) (problems []error) {
	said := func(errs []error) {
		for _, err := range errs {
			problems = append(problems, desired.InSelf("AnnotationUnused", err))
		}
	}
	if a.node != nil {
		said(api.Examples("Node", map[string][]string{"": api.UnreadOf("Node", a.node.Annotations)}, func(string) string { return "this Node" }))
	}
	if a.Pods != nil {
		said(api.Examples("Pod", withoutEffect(a.Pods.UnreadAnnotations(), s.Self.Floating),
			func(pod string) string { return "pods of this node, such as " + pod + "," }))
	}
	// Namespaces are not this node's, so it writes no Event about them.
	return append(problems, api.Examples("Namespace", a.Watch.UnreadAnnotations(), func(name string) string { return "Namespace " + name })...)
}

// withoutEffect removes the annotation of floating addresses from pods for which the plugin has stored them.
func withoutEffect(pods map[string][]string, floating []desired.Floating) map[string][]string {
	for pod, keys := range pods {
		namespace, name, _ := strings.Cut(pod, "/")
		link := podnet.HostVethName(podnet.DefaultVethPrefix, namespace, name)
		if slices.ContainsFunc(floating, func(f desired.Floating) bool { return f.Link == link }) {
			pods[pod] = slices.DeleteFunc(slices.Clone(keys), func(key string) bool { return key == api.AnnotationFloatingIPs })
		}
	}
	return pods
}
