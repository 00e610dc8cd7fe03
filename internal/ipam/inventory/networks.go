package inventory

import (
	"encoding/json"
	"strings"
)

// annotationNetworks has what Multus attached to a pod, the addresses of further interfaces among it. Its status names those of the
// first one only.
const annotationNetworks = "k8s.v1.cni.cncf.io/network-status"

// otherNetworks returns the addresses that the annotation names. One that cannot be read names none.
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
