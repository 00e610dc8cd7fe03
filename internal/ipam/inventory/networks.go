package inventory

import (
	"encoding/json"
	"strings"
)

// annotationNetworks is Multus' annotation, with the addresses of a pod's additional interfaces. The pod's status has those of the first
// one only.
const annotationNetworks = "k8s.v1.cni.cncf.io/network-status"

// otherNetworks returns the addresses in the annotation, none if it can't be parsed.
func otherNetworks(text string) []string {
	if text == "" {
		return nil
	}
	var networks []struct {
		IPs []string `json:"ips"`
	}
	if json.Unmarshal([]byte(text), &networks) != nil {
		return nil
	}
	var out []string
	for _, n := range networks {
		out = append(out, n.IPs...)
	}
	return out
}

// splitAddresses splits the annotation of Calico's plugin, which has commas between addresses.
func splitAddresses(text string) []string {
	if text == "" {
		return nil
	}
	out := strings.Split(text, ",")
	for i := range out {
		out[i] = strings.TrimSpace(out[i])
	}
	return out
}
