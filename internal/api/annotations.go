package api

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
)

// Fate is this project's treatment of an input of a Calico user.
type Fate string

// The fates. An input that is Named is reported, where it is found, as without effect; one that is Written comes from
// programs, not users.
const (
	Acted   Fate = "acted on"
	Refused Fate = "refused"
	Named   Fate = "named"
	Written Fate = "written by programs"
)

// Input is an annotation of Calico's, or a key of its network configuration, and its fate.
type Input struct {
	// On is the kind of objects that have the annotation.
	On, Key string
	Fate    Fate
	Why     string
}

const (
	ofBandwidth = "by the plugin bandwidth of the conflist"
	noQoS       = "there are no limits but kubernetes.io/ingress-bandwidth and egress-bandwidth"
)

// CalicoAnnotations are all annotations that Calico reads on objects of Kubernetes, or writes there. An annotation of
// Calico's domains that is not listed here for its kind is reported like those with the fate Named.
var CalicoAnnotations = slices.Concat(
	inputs("Pod", Acted, "by calico, at ADD", ConnectionAnnotations...),
	inputs("Pod", Acted, ofBandwidth, "kubernetes.io/ingress-bandwidth", "kubernetes.io/egress-bandwidth"),
	inputs("Pod", Named, noQoS,
		"qos.projectcalico.org/ingressBandwidth", "qos.projectcalico.org/egressBandwidth", "qos.projectcalico.org/ingressBurst",
		"qos.projectcalico.org/egressBurst", "qos.projectcalico.org/ingressPeakrate", "qos.projectcalico.org/egressPeakrate",
		"qos.projectcalico.org/ingressMinburst", "qos.projectcalico.org/egressMinburst", "qos.projectcalico.org/ingressPacketRate",
		"qos.projectcalico.org/egressPacketRate", "qos.projectcalico.org/ingressPacketBurst", "qos.projectcalico.org/egressPacketBurst",
		"qos.projectcalico.org/ingressMaxConnections", "qos.projectcalico.org/egressMaxConnections"),
	inputs("Pod", Named, "packets keep the DSCP that the pod gives them", "qos.projectcalico.org/dscp"),
	inputs("Pod", Written, "", AnnotationPodIP, AnnotationPodIPs, AnnotationContainerID),
	inputs("Namespace", Acted, "for its pods that do not have them, at ADD", AnnotationIPv4Pools, AnnotationIPv6Pools, AnnotationIPFamilies),
	inputs("Node", Acted, "", AnnotationIPv4Address, AnnotationIPv6Address, AnnotationASNumber, AnnotationReflector,
		AnnotationLabels, AnnotationVXLANMAC, AnnotationVXLANMACv6), inputs("Node", Written, "", AnnotationInterfaces, AnnotationIPv4TunnelAddr,
		AnnotationIPv4VXLANAddr, AnnotationIPv6VXLANAddr, AnnotationIPv4WireGuard, AnnotationIPv6WireGuard, AnnotationWireGuardKey,
		AnnotationWireGuardKeyV6, "projectcalico.org/annotations", "projectcalico.org/kube-labels"),
	inputs("Service", Acted, "by kube-controllers, for type LoadBalancer", AddressAnnotations...),
)

func inputs(on string, fate Fate, why string, keys ...string) (all []Input) {
	for _, key := range keys {
		all = append(all, Input{on, key, fate, why})
	}
	return all
}

// calicos reports whether an annotation is in one of Calico's domains.
func calicos(key string) bool {
	domain, _, _ := strings.Cut(key, "/")
	return domain == "projectcalico.org" || strings.HasSuffix(domain, ".projectcalico.org")
}

// Unread reports whether an annotation in Calico's domains has no effect on an object of a kind.
func Unread(kind, key string) bool {
	return calicos(key) &&
		!slices.ContainsFunc(CalicoAnnotations, func(i Input) bool { return i.On == kind && i.Key == key && i.Fate != Named })
}

// Any author of an object can add thousands of annotations.
const (
	mostUnread   = 8   // keys of one object
	mostExamples = 10  // texts about objects of one kind
	mostKey      = 128 // bytes of a key in a text
)

// UnreadOf returns the annotations of an object of a kind that have no effect, in ascending order. Beyond mostUnread it
// ends with a count of the others.
func UnreadOf(kind string, annotations map[string]string) (keys []string) {
	count := 0
	for key := range annotations {
		if !Unread(kind, key) {
			continue
		}
		count++
		at, _ := slices.BinarySearch(keys, key)
		if at < mostUnread {
			keys = slices.Insert(keys, at, key)
			keys = keys[:min(len(keys), mostUnread)]
		}
	}
	if more := count - len(keys); more > 0 {
		keys = append(keys, fmt.Sprintf("%d more", more))
	}
	return keys
}

// ErrUnread returns an error that an annotation has no effect, with the reason.
func ErrUnread(kind, key, of string) error {
	why := "no annotation of Calico's on a " + kind + " is spelt so, or Tortie does not act on it: docs/calico-inputs.csv lists all"
	i := slices.IndexFunc(CalicoAnnotations, func(i Input) bool { return i.On == kind && i.Key == key })
	if !calicos(key) { // the last of UnreadOf
		return fmt.Errorf("%s annotations of Calico's of %s have no effect: remove them", key, of)
	}
	key = shownKey(key)
	switch {
	case key == AnnotationFloatingIPs && i >= 0:
		return fmt.Errorf("annotation %s of %s has no effect: the pod got its network before it had it, or from another plugin or IPAM: delete "+
			"the pod, so that its owner makes it anew", key, of)
	case i >= 0:
		why = CalicoAnnotations[i].Why
	}
	return fmt.Errorf("annotation %s of %s has no effect: %s: remove it", key, of, why)
}

// shownKey returns a key quoted and shortened for an error.
func shownKey(key string) string {
	quoted := strconv.QuoteToASCII(key[:min(len(key), mostKey)])
	shown := quoted[1 : len(quoted)-1]
	if len(key) > mostKey {
		shown += "..."
	}
	return shown
}

// Examples returns, for each annotation in by, an error that names the first object with it. Beyond mostExamples the
// last error counts the others.
func Examples(kind string, by map[string][]string, text func(object string) string) (all []error) {
	seen := map[string]bool{}
	for _, object := range slices.Sorted(maps.Keys(by)) {
		for _, key := range by[object] {
			if !seen[key] && len(seen) < mostExamples {
				all = append(all, ErrUnread(kind, key, text(object)))
			}
			seen[key] = true
		}
	}
	if more := len(seen) - len(all); more > 0 {
		all = append(all, fmt.Errorf("%d more annotations of Calico's of %ss have no effect: remove them", more, kind))
	}
	return all
}
