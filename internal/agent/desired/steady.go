package desired

import (
	"maps"
	"time"

	"github.com/tortie-net/tortie/internal/api"
)

// changeGrace is how long a change of another node's address waits until it is believed. If an annotation was edited or
// removed by mistake, that node's agent restores it in a fraction of this time, and no packet is lost. A node whose
// address really changed has to restart its agent, which takes as long.
const changeGrace = 3 * time.Second

// addressKeys are the annotations with addresses and keys for reaching a node.
var addressKeys = [...]string{
	api.AnnotationIPv4Address, api.AnnotationIPv6Address, api.AnnotationIPv4VXLANAddr, api.AnnotationIPv6VXLANAddr,
	api.AnnotationVXLANMAC, api.AnnotationVXLANMACv6, api.AnnotationWireGuardKey, api.AnnotationWireGuardKeyV6,
	api.AnnotationWireGuardNextKey, api.AnnotationWireGuardNextKeyV6,
}

// Places of annotations in addressKeys.
const (
	keyIPv4  = 0
	keyIPv6  = 1
	keyMAC   = 4
	keyMAC6  = 5
	keyCrypt = 6 // of WireGuard for IPv4, then for IPv6
	keyNext  = 8 // likewise
)

// Announcements holds the believed addresses of the other nodes by the Node's name.
type Announcements map[string]announcement

type announcement struct {
	uid    string
	texts  [len(addressKeys)]string
	doubts [len(addressKeys)]time.Time // since when the Node's annotation differs; zero: it does not
	since  [len(addressKeys)]time.Time // since when a text is believed; zero: since an earlier agent
}

// since returns since when a node's announcement is believed; zero: since before this agent started, or unknown.
func (known Announcements) since(node string, key int) time.Time { return known[node].since[key] }

// Recall takes up the announcements that an earlier agent believed.
func (known Announcements) Recall(nodes []api.Node) {
	for _, n := range nodes {
		a := announcement{uid: n.UID}
		a.update(n.Annotations, time.Time{})
		known[n.Name] = a
	}
}

// Believe returns the nodes with the believed addresses. again is when the next pending change will be believed, 0 if
// none is pending. Believed at once are a node's first announcement, this node's own annotations, and annotations of a
// Node with a new UID.
func (known Announcements) Believe(nodes []api.Node, self string, now time.Time) (believed []api.Node, again time.Duration) {
	believed = make([]api.Node, 0, len(nodes))
	seen := make(map[string]bool, len(nodes))
	for _, n := range nodes {
		seen[n.Name] = true
		if n.Name != self {
			a := known[n.Name]
			if a.uid != n.UID {
				a = announcement{uid: n.UID}
			}
			wait := a.update(n.Annotations, now)
			if wait > 0 && (again == 0 || wait < again) {
				again = wait
			}
			known[n.Name] = a
			n.Annotations = a.apply(n.Annotations)
		}
		believed = append(believed, n)
	}
	maps.DeleteFunc(known, func(name string, _ announcement) bool { return !seen[name] })
	return believed, again
}

// update takes up a Node's annotations, and returns how long the longest doubt about one will last; 0 for none.
func (a *announcement) update(annotations map[string]string, now time.Time) (wait time.Duration) {
	for i, key := range addressKeys {
		text := annotations[key]
		switch {
		case i >= keyNext && text != "" && text != a.texts[i]: // the first node that announces a key has it
			a.texts[i], a.since[i], a.doubts[i] = text, now, time.Time{}
		case a.texts[i] != "" && text != a.texts[i] && a.doubts[i].IsZero():
			a.doubts[i] = now
			wait = changeGrace
		case a.texts[i] != "" && text != a.texts[i] && now.Sub(a.doubts[i]) < changeGrace:
			wait = max(wait, changeGrace-now.Sub(a.doubts[i]))
		default:
			if text != a.texts[i] {
				a.since[i] = now
			}
			a.texts[i], a.doubts[i] = text, time.Time{}
		}
	}
	return wait
}

// apply returns the annotations with the believed addresses. It changes a copy: they belong to the watch.
func (a *announcement) apply(annotations map[string]string) map[string]string {
	for i, key := range addressKeys {
		if a.doubts[i].IsZero() {
			continue
		}
		annotations = maps.Clone(annotations)
		if annotations == nil {
			annotations = map[string]string{}
		}
		annotations[key] = a.texts[i]
	}
	return annotations
}
