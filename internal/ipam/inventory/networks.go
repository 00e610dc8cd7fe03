package inventory

import "encoding/json"

// annotationNetworks is Multus' annotation, with the addresses of a pod's additional interfaces. The pod's status has
// only the first interface's.
const annotationNetworks = "k8s.v1.cni.cncf.io/network-status"

// otherNetworks returns the addresses in the annotation, none if it can't be parsed.
func otherNetworks(text string) []string {
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
