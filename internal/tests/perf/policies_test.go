package perf

import (
	"errors"
	"fmt"
	"net/netip"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/tortie-net/tortie/internal/api"
	"github.com/tortie-net/tortie/internal/api/selector"
	"github.com/tortie-net/tortie/internal/kernel/netpol"
	"github.com/tortie-net/tortie/internal/policy"
	"github.com/tortie-net/tortie/internal/testkit/errtest"
	"github.com/tortie-net/tortie/internal/testkit/pathtest"
)

const port = 7000

// addPolicies programs so many policies for ingress of the second node's pod. Each allows three ports from one other
// pod; the last one allows what is measured.
func addPolicies(t *testing.T, p *pathtest.Mesh, count int) {
	t.Helper()
	from, to := p.Nodes[0], p.Nodes[1]
	key := policy.PodKey{Namespace: "default", Name: "to"}
	s := policy.State{Local: map[string]policy.PodKey{pathtest.PodLink: key}, Pods: map[policy.PodKey]*policy.Pod{},
		Namespaces: map[string]map[string]string{"default": {}}}
	s.Pods[key] = &policy.Pod{PodKey: key, UID: "to", Labels: map[string]string{"role": "to"}, Addresses: []netip.Addr{to.PodAddr()}}
	for i := range count {
		group := fmt.Sprint("from-", i)
		peer := policy.PodKey{Namespace: "default", Name: group}
		addr := p.Encap.PoolAddr(128+i>>8, i)
		if i == count-1 {
			addr = from.PodAddr()
		}
		s.Pods[peer] = &policy.Pod{PodKey: peer, UID: group, Labels: map[string]string{"role": group}, Addresses: []netip.Addr{addr}}
		s.Policies = append(s.Policies, allow(t, i, group, port-6*(count-1-i)))
	}
	e := netpol.New(to.NS, "cali")
	t.Cleanup(e.Close)
	if _, err := e.Sync(t.Context(), &policy.Compile(s).Ruleset, nil); err != nil && !errors.Is(err, netpol.ErrNoLog) {
		t.Fatal(err)
	}
}

func allow(t *testing.T, i int, group string, first int) policy.Policy {
	t.Helper()
	peer := selected(t, group)
	var ports []policy.Port
	for _, protocol := range []uint8{unix.IPPROTO_TCP, unix.IPPROTO_UDP} {
		for _, more := range []int{0, 2, 4} {
			n := uint16(first + more)
			ports = append(ports, policy.Port{Protocol: protocol, First: n, Last: n})
		}
	}
	return policy.Policy{
		ID: policy.ID{Kind: "NetworkPolicy", Namespace: "default", Name: fmt.Sprint("allow-", i)}, Tier: policy.TierDefault,
		Subject: selected(t, "to"), Applies: [2]bool{policy.Ingress: true},
		Rules: [2][]policy.Rule{policy.Ingress: {{Peers: []policy.Peer{{Pods: &peer}}, Ports: ports}}},
	}
}

// selected are the pods of a role.
func selected(t *testing.T, role string) policy.Pods {
	t.Helper()
	s, err := selector.FromLabels(api.LabelSelector{MatchLabels: map[string]string{"role": role}})
	errtest.Must(t, err)
	return policy.Pods{Namespace: "default", Labels: s}
}
