package policies_test

import (
	"errors"
	"fmt"
	"net"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/tortie-net/tortie/internal/policy"
	"github.com/tortie-net/tortie/internal/testkit/errtest"
	"github.com/tortie-net/tortie/internal/testkit/netnstest"
)

const calicoPath = "/apis/crd.projectcalico.org/v1/"

func (n *node) calico(t *testing.T, kind, plural, name, rest string) {
	t.Helper()
	n.put(t, calicoPath+plural, name, fmt.Sprintf(
		`{"apiVersion":"crd.projectcalico.org/v1","kind":%q,"metadata":{"name":%q,"labels":{"host":%q}},%s}`, kind, name, n.name, rest))
}

// dial opens a connection of TCP, and closes it.
func dial(t *testing.T, from *netnstest.NS, to string) (err error) {
	t.Helper()
	from.Within(t, func() error {
		c, e := net.DialTimeout("tcp", to, 200*time.Millisecond)
		if err = e; e == nil {
			c.Close()
		}
		return nil
	})
	return err
}

// opens reports whether a connection of TCP opens.
func opens(t *testing.T, from *netnstest.NS, to string) bool {
	t.Helper()
	return dial(t, from, to) == nil
}

// A HostEndpoint of this node is in force, with the failsafe ports in the agent's settings; HostEndpoints of other
// nodes, and deleted ones, do nothing. An interface is found by its address, also if the address comes later.
func TestHostEndpoint(t *testing.T) {
	n := newNode(t)
	outside := netnstest.New(t)
	netnstest.Cable(t, n.ns, "eth1", outside, "eth0")
	n.ns.Addr(t, "eth1", "172.30.0.1/24")
	outside.Addr(t, "eth0", "172.30.0.2/24")
	for _, port := range []string{"22", "80", "81"} {
		n.ns.Within(t, func() error {
			l, err := net.Listen("tcp", "0.0.0.0:"+port)
			if err == nil {
				t.Cleanup(func() { l.Close() })
			}
			return err
		})
	}
	state := func(ssh, web, other bool) func() bool {
		return func() bool {
			return opens(t, outside, "172.30.0.1:22") == ssh && opens(t, outside, "172.30.0.1:80") == web &&
				opens(t, outside, "172.30.0.1:81") == other
		}
	}
	n.calico(t, "HostEndpoint", "hostendpoints", n.name+"-other", `"spec":{"node":"another","interfaceName":"*"}`)
	n.calico(t, "HostEndpoint", "hostendpoints", n.name, fmt.Sprintf(`"spec":{"node":%q,"expectedIPs":["172.30.0.7"]}`, n.name))
	n.calico(t, "GlobalNetworkPolicy", "globalnetworkpolicies", n.name, fmt.Sprintf(`"spec":{"selector":"host == '%s'","types":["Ingress"],
		"ingress":[{"action":"Allow","protocol":"TCP","destination":{"ports":[80],"nets":["172.30.0.0/24"]}}]}`, n.name))
	r := n.record(t, nil)
	w, _ := n.work(t)
	eventually(t, soon, "in force", func() bool { return w.Seen().Enforcing })
	eventually(t, soon, "no interface has the address", state(true, true, true))
	n.ns.Addr(t, "eth1", "172.30.0.7/24")
	eventually(t, soon, "an interface with the address is governed", state(true, true, false))
	byPolicy := "default|CalicoGlobalNetworkPolicy " + n.name
	eventually(t, soon, "what it decides is recorded", func() bool {
		state(true, true, false)() // until the recorder knows the address
		sums := summed(r)
		end := " pvt -> " + n.name
		return sums["dst allow"+end+":80/tcp by ["+byPolicy+"|allow|0]"].Started > 0 && sums["dst allow"+end+":22/tcp by []"].Started > 0 &&
			sums["dst deny"+end+":81/tcp by ["+byPolicy+"|deny|-1]"].OutPkts > 0
	})
	w.SetHandling(policy.Handling{Reject: true}, "")
	eventually(t, soon, "denials are answered", func() bool { return errors.Is(dial(t, outside, "172.30.0.1:81"), unix.ECONNREFUSED) })
	w.SetHostRules(policy.HostRules{Outbound: policy.DefaultOutbound()})
	eventually(t, soon, "without failsafe ports", state(false, true, false))
	n.remove(t, calicoPath+"globalnetworkpolicies", n.name)
	eventually(t, soon, "without a policy", state(false, false, false))
	errtest.Must(t, n.request(t, "PATCH", calicoPath+"hostendpoints/"+n.name, `{"spec":{"profiles":["projectcalico-default-allow"]}}`))
	eventually(t, soon, "with a profile", state(true, true, true))
	errtest.Must(t, n.request(t, "PATCH", calicoPath+"hostendpoints/"+n.name, `{"spec":{"profiles":["kns.gone"]}}`))
	eventually(t, soon, "with the profile of a namespace that is not there", state(false, false, false))
	errtest.Must(t, n.request(t, "PATCH", calicoPath+"hostendpoints/"+n.name, `{"spec":{"profiles":["kns.default"]}}`))
	eventually(t, soon, "with the profile of a namespace", state(true, true, true))
	errtest.Must(t, n.request(t, "PATCH", calicoPath+"hostendpoints/"+n.name, `{"spec":{"profiles":["other"]}}`))
	eventually(t, soon, "with a profile that is not known", state(false, false, false))
	if id := (policy.ID{Kind: "HostEndpoint", Name: n.name}); len(w.Seen().Invalid[id]) != 1 {
		t.Errorf("problems: %v", w.Seen().Invalid)
	}
	n.remove(t, calicoPath+"hostendpoints", n.name)
	eventually(t, soon, "without a host endpoint", state(true, true, true))
}
