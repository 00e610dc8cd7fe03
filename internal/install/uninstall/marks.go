package uninstall

import (
	"encoding/json"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"github.com/tortie-net/tortie/internal/api"
)

// written are the annotations that agents write on their Nodes. Other annotations of Calico, such as a node's AS
// number, are an administrator's, and stay.
var written = []string{
	api.AnnotationIPv4Address, api.AnnotationIPv6Address, api.AnnotationIPv4TunnelAddr, api.AnnotationInterfaces,
	api.AnnotationIPv4VXLANAddr, api.AnnotationIPv6VXLANAddr, api.AnnotationVXLANMAC, api.AnnotationVXLANMACv6, api.AnnotationReflection,
	api.AnnotationWireGuardKey, api.AnnotationWireGuardKeyV6, api.AnnotationWireGuardNextKey, api.AnnotationWireGuardNextKeyV6,
	api.AnnotationIPv4WireGuard, api.AnnotationIPv6WireGuard,
}

// isOurs reports whether an agent has run on the node: its annotations and condition stay until the node is clean.
func isOurs(n *corev1.Node) bool {
	for _, key := range written {
		if n.Annotations[key] != "" {
			return true
		}
	}
	return condition(n) != nil
}

// ourMessage begins the messages of internal/cluster/duties. The reasons are Calico's own.
const ourMessage = "Tortie "

// condition returns the condition that agents write, nil if it is missing or another program's.
func condition(n *corev1.Node) *corev1.NodeCondition {
	for i := range n.Status.Conditions {
		c := &n.Status.Conditions[i]
		if c.Type == corev1.NodeNetworkUnavailable && strings.HasPrefix(c.Message, ourMessage) {
			return c
		}
	}
	return nil
}

// undo returns the patch of a Node that removes what its agent and kube-controllers wrote, nil if they wrote nothing.
func undo(n *corev1.Node) ([]byte, error) {
	patch, remove := map[string]any{}, map[string]any{}
	for _, key := range written {
		if _, ok := n.Annotations[key]; ok {
			remove[key] = nil
		}
	}
	metadata := map[string]any{}
	// kube-controllers made it a route reflector, which Calico's nodes would use.
	if _, ok := n.Labels[api.LabelReflector]; ok {
		remove[api.AnnotationReflector] = nil
		metadata["labels"] = map[string]any{api.LabelReflector: nil}
	}
	if len(remove) > 0 {
		metadata["annotations"] = remove
		patch["metadata"] = metadata
	}
	if condition(n) != nil {
		patch["status"] = map[string]any{"conditions": []any{map[string]any{"$patch": "delete", "type": corev1.NodeNetworkUnavailable}}}
	}
	if len(patch) == 0 {
		return nil, nil
	}
	return json.Marshal(patch)
}
