package cluster

import (
	"maps"
	"slices"
	"sync"

	corev1 "k8s.io/api/core/v1"

	"github.com/tortie-net/tortie/internal/api"
)

// unread has the annotations without effect of objects, by their names.
type unread struct {
	mu sync.Mutex
	by map[string][]string
}

// set replaces those of an object, and reports whether they are others than before.
func (u *unread) set(object string, keys []string) bool {
	u.mu.Lock()
	defer u.mu.Unlock()
	if slices.Equal(u.by[object], keys) {
		return false
	}
	if u.by == nil {
		u.by = map[string][]string{}
	}
	u.by[object] = keys
	if len(keys) == 0 {
		delete(u.by, object)
	}
	return true
}

// all returns those of all objects.
func (u *unread) all() map[string][]string {
	u.mu.Lock()
	defer u.mu.Unlock()
	return maps.Clone(u.by)
}

// unreadOf returns the annotations without effect of a Pod, and floatingIPs if its kubelet has reported an address.
func unreadOf(obj *corev1.Pod) []string {
	keys := api.UnreadOf("Pod", obj.Annotations)
	if obj.Annotations[api.AnnotationFloatingIPs] != "" && !obj.Spec.HostNetwork && !finished(obj) && obj.Status.PodIP != "" {
		keys = append(keys, api.AnnotationFloatingIPs)
	}
	return keys
}

// noteUnread updates the annotations without effect after the watch of this node's pods reported one.
func (f *PolicyFeed) noteUnread(name string) {
	var keys []string
	if p := f.own.get(name); p != nil {
		keys = p.unread
	}
	f.unread.set(name, keys)
}

// UnreadAnnotations returns the annotations without effect of this node's pods, by NAMESPACE/NAME. Those with api.AnnotationFloatingIPs are pods that
// have it, and addresses of their own: the kernel tells whether these are in force.
func (f *PolicyFeed) UnreadAnnotations() map[string][]string { return f.unread.all() }
