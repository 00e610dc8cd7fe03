package mesh

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/tortie-net/tortie/internal/api"
	"github.com/tortie-net/tortie/internal/testkit/meshtest"
	"github.com/tortie-net/tortie/internal/testkit/tier"
)

// TestFloatingAddresses: every node, and the pod itself, reach a pod by its floating address, also if the address's
// block belongs to another node. A node that announces a floating address is ignored unless the IPAMBlock assigns it to
// that node.
func TestFloatingAddresses(t *testing.T) {
	tier.All(t)
	t.Parallel()
	for _, encap := range []api.Encapsulation{api.EncapNever, api.EncapAlways} {
		t.Run(string(encap), func(t *testing.T) {
			t.Parallel()
			c := meshtest.NewCluster(t)
			pool := meshtest.NewPool("pods", "10.90.0.0/16", api.EncapNever)
			if encap == api.EncapAlways {
				pool.Spec.VXLANMode = encap
			}
			c.Create(t, pool,
				&api.FelixConfiguration{Meta: api.Meta{Name: api.DefaultName}, Spec: api.FelixConfigurationSpec{FloatingIPs: "Enabled"}})
			a, _ := c.NewNodeWithPod(t, 0, 10)
			b, podB := c.NewNodeWithPod(t, 0, 11)
			third, podC := c.NewNodeWithPod(t, 0, 12)
			c.AssignBorrowed(t, "10.90.11.0/26", b, 9, a)
			ours, lent, stolen := netip.MustParseAddr("10.90.10.9"), netip.MustParseAddr("10.90.11.9"), netip.MustParseAddr("10.90.12.9")
			pod := a.NewFloatingPod(t, []netip.Addr{ours, lent, stolen}, "10.90.10.6")
			pod.EchoUDP(t, "10.90.10.6:7000")
			meshtest.Start(t, a, b, third)
			meshtest.Eventually(t, func() error {
				var errs []error
				for to, froms := range map[netip.Addr][]*meshtest.Pod{ours: {podB, podC, pod}, lent: {podB, podC, pod}} {
					for _, from := range froms {
						seen := from.V4
						if from == pod {
							seen = to
						}
						if got, err := from.AskUDP(t, "", fmt.Sprint(to, ":7000"), "hello", time.Second); err != nil || got != seen.String()+" hello" {
							errs = append(errs, fmt.Errorf("from %s to %s: %q, %w", from.V4, to, got, err))
						}
					}
				}
				return errors.Join(errs...)
			})
			meshtest.Eventually(t, func() error {
				report, err := third.Status()
				if err == nil && !slices.ContainsFunc(report.Problems, func(p string) bool { return strings.Contains(p, stolen.String()) }) {
					err = fmt.Errorf("no problem names %s: %q", stolen, report.Problems)
				}
				return err
			})
			if routes := third.Routes(t); strings.Contains(routes, stolen.String()) {
				t.Errorf("believed without a record: %s", routes)
			}
		})
	}
}
