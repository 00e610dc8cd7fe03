package policies_test

import (
	"fmt"
	"net/http"
	"net/netip"
	"testing"

	"github.com/tortie-net/tortie/internal/testkit/errtest"
)

// nowhere has no pools.
type nowhere struct{}

func (nowhere) Place(netip.Addr) (pooled bool, node string) { return false, "" }

// A user who may write a pod's annotation can name any address. What is denied to his pod is not denied to an address
// outside of pools. What his pod may do is not allowed to an address that is not his node's, until the kubelet reports
// the address as the pod's.
func TestAnAnnotationIsNoProof(t *testing.T) {
	n := newNode(t)
	server := n.start(t, "server", "10.90.9.1")
	const at = "10.90.9.1:53"
	server.EchoUDP(t, at)
	peer := n.elsewhere(t, "peer", "10.91.0.9")
	peer.Route(t, "10.90.9.0/24", "10.91.0.1", "")
	w, _ := n.work(t)
	eventually(t, soon, "in force", func() bool { return w.Seen().Enforcing && reaches(t, peer, at) })
	write := func(name, rules string) {
		n.calico(t, "GlobalNetworkPolicy", "globalnetworkpolicies", n.name+name,
			fmt.Sprintf(`"spec":{"namespaceSelector":"projectcalico.org/name == '%s'","types":["Ingress"],"order":%d,
			"ingress":[%s]}`, n.name, len(name), rules))
		eventually(t, soon, "the policy is in force", func() bool { s := w.Seen(); return s.Policies == 1 && s.Policed == 1 })
	}
	remove := func(name string) {
		n.remove(t, "/apis/crd.projectcalico.org/v1/globalnetworkpolicies", n.name+name)
		eventually(t, soon, "the policy is gone", func() bool { return w.Seen().Policed == 0 })
	}
	from := fmt.Sprintf(`"source":{"namespaceSelector":"projectcalico.org/name == '%s-elsewhere'"}`, n.name)

	write("-deny", `{"action":"Deny",`+from+`},{"action":"Allow"}`)
	eventually(t, soon, "the pod is denied in its node's block", func() bool { return !reaches(t, peer, at) })
	w.SetGround(nowhere{})
	eventually(t, soon, "outside of all pools the address is not denied", func() bool { return reaches(t, peer, at) })
	w.SetGround(anothers{})
	eventually(t, soon, "in another node's block it is denied", func() bool { return !reaches(t, peer, at) })
	remove("-deny")

	write("-allow", `{"action":"Allow",`+from+`}`)
	eventually(t, soon, "in another node's block it is not allowed", func() bool { return !reaches(t, peer, at) })
	errtest.Must(t, n.request(t, http.MethodPatch, "/api/v1/namespaces/"+n.name+"-elsewhere/pods/peer/status",
		`{"status":{"phase":"Running","podIP":"10.91.0.9","podIPs":[{"ip":"10.91.0.9"}]}}`))
	eventually(t, soon, "the kubelet's word allows it", func() bool { return reaches(t, peer, at) })
	errtest.Must(t, n.request(t, http.MethodPatch, "/api/v1/namespaces/"+n.name+"-elsewhere/pods/peer",
		`{"metadata":{"annotations":{"cni.projectcalico.org/podIPs":"10.91.0.8/32"}}}`))
	eventually(t, soon, "nothing is allowed while annotation and status differ", func() bool { return !reaches(t, peer, at) })
}

// anothers has all addresses in blocks of a node without pods.
type anothers struct{}

func (anothers) Place(netip.Addr) (pooled bool, node string) { return true, "third" }
