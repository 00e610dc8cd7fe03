package mesh

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/tortie-net/tortie/internal/api"
	"github.com/tortie-net/tortie/internal/testkit/errtest"
	"github.com/tortie-net/tortie/internal/testkit/meshtest"
	"github.com/tortie-net/tortie/internal/testkit/tier"
)

// Two nodes on a link are each other's router: each learns the other's address from its router advertisements. Packets
// of both families use link-local next hops. Killing an agent, which has to learn the address again when it restarts,
// loses none.
func TestUnnumbered(t *testing.T) {
	tier.All(t)
	t.Parallel()
	c := meshtest.NewCluster(t)
	c.Dual = true
	meshless := false
	c.Create(t, meshtest.NewPool("pods", "10.90.0.0/16", api.EncapNever), meshtest.NewPool("pods6", "fd90::/64", api.EncapNever),
		&api.BGPConfiguration{Meta: api.Meta{Name: api.DefaultName}, Spec: api.BGPConfigurationSpec{NodeToNodeMeshEnabled: &meshless}},
		&api.BGPPeer{Meta: api.Meta{Name: "link", Annotations: map[string]string{api.AnnotationBFD: bfdSetting}},
			Spec: api.BGPPeerSpec{PeerIP: "fe80::%eth0", ASNumber: 64512}})
	p := newPair(t, c, 0)
	meshtest.Start(t, p.nodes()...)
	p.watched(t, 1)
	leads := func() error {
		return errors.Join(
			leadsBy(t, p.a, p.b, "10.90.11.0/26", "fd90::b:0/122"),
			leadsBy(t, p.b, p.a, "10.90.10.0/26", "fd90::a:0/122", "10.90.11.9"))
	}
	meshtest.Eventually(t, leads)
	monitors := []*monitor{listen(t, p.a), listen(t, p.b)}
	packets := p.traffic(t)
	p.killed(t, 1, false)
	packets.Intact(t)
	unchanged(t, monitors...)
	errtest.Must(t, leads())
}

// leadsBy returns nil if a node's kernel reaches prefixes by another's link-local address.
func leadsBy(t testing.TB, n, other *meshtest.Node, prefixes ...string) error {
	t.Helper()
	for _, prefix := range prefixes {
		family, want := "-4", fmt.Sprintf("via inet6 %s dev eth0", other.LinkLocal(t, "eth0"))
		if strings.Contains(prefix, ":") {
			family, want = "-6", strings.Replace(want, "inet6 ", "", 1)
		}
		if route := n.Run(t, "ip", family, "route", "show", "exact", prefix); !strings.Contains(route, want) {
			return fmt.Errorf("%s: the route to %s is %q, want it %s", n.Name, prefix, route, want)
		}
	}
	return nil
}
