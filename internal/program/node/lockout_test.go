package node

import (
	"fmt"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/tortie-net/tortie/internal/api"
	"github.com/tortie-net/tortie/internal/testkit/difftest"
	"github.com/tortie-net/tortie/internal/testkit/errtest"
	"github.com/tortie-net/tortie/internal/testkit/labstore"
	"github.com/tortie-net/tortie/internal/testkit/labtest"
	"github.com/tortie-net/tortie/internal/testkit/netnstest"
)

const reachable = `
apiVersion: crd.projectcalico.org/v1
kind: GlobalNetworkPolicy
metadata: {name: reachable}
spec: {types: [Egress], selector: has(guarded)}
`

// The agent keeps the connection to an API server that a host endpoint denies, stops that when a policy allows it, and
// diff shows what would be denied without that policy.
func TestLockoutGuardOnARealNode(t *testing.T) {
	m, outside := newMachine(t, "guarded", "172.31.9.1"), netnstest.New(t)
	netnstest.Cable(t, m.NS, "eth0", outside, "eth0")
	m.Addr(t, "eth0", "172.31.9.1/24")
	outside.Addr(t, "eth0", "172.31.9.2/24")
	cfg := labtest.As(t, "tortie-node")
	server, err := url.Parse(cfg.Host)
	errtest.Must(t, err)
	outside.Within(t, func() error {
		l, err := net.Listen("tcp", "172.31.9.2:6443")
		if err == nil {
			t.Cleanup(func() { l.Close() })
			go labtest.Forward(l, server.Host)
		}
		return err
	})
	cfg.Host, cfg.ServerName = "https://172.31.9.2:6443", server.Hostname()
	m.env = slices.Insert(m.env, len(m.env)-1, "KUBECONFIG="+labtest.WriteKubeconfig(t, t.TempDir(), cfg), "TORTIE_POLICY=on",
		"TORTIE_POLICY_LOCKOUT_GUARD=true", "FELIX_FAILSAFEINBOUNDHOSTPORTS=none", "FELIX_FAILSAFEOUTBOUNDHOSTPORTS=none")
	store := labstore.Store(t)
	create(t, store, aNode("guarded", "172.31.9.1"), &api.CalicoHostEndpoint{
		Meta: api.Meta{Name: "guarded", Labels: map[string]string{"guarded": ""}},
		Spec: api.CalicoHostEndpointSpec{Node: "guarded", InterfaceName: "*"},
	})
	m.Start(t, "env", m.env...)
	way := func(open bool) func() error {
		return func() error {
			rules := m.Run(t, "nft", "list", "ruleset")
			if !strings.Contains(rules, "chain host-") ||
				strings.Contains(rules, "ct original ip daddr 172.31.9.2 ct original proto-dst 6443 ") != open {
				return fmt.Errorf("want the way open: %v\n%s", open, rules)
			}
			return nil
		}
	}
	eventually(t, way(true))
	create(t, store, &api.CalicoGlobalNetworkPolicy{Meta: api.Meta{Name: "reachable"},
		Spec: api.CalicoGlobalNetworkPolicySpec{CalicoPolicySpec: api.CalicoPolicySpec{
			Selector: "has(guarded)", Types: []string{"Egress"}, Egress: []api.CalicoRule{{Action: "Allow"}},
		}}})
	eventually(t, way(false))

	m.Within(t, func() error {
		c, err := net.Dial("tcp", "172.31.9.2:6443")
		if err == nil {
			t.Cleanup(func() { c.Close() })
		}
		return err
	})
	file := filepath.Join(t.TempDir(), "policy.yaml")
	errtest.Must(t, os.WriteFile(file, []byte(labtest.InGroupText(t, reachable)), 0o600))
	difftest.Contains(t, m.node(t, "policy", "diff", "-delete", "-f", file),
		"172.31.9.1  172.31.9.2:6443/TCP  API server  go on, but no new one  sent at eth0, HostEndpoint guarded")
}
