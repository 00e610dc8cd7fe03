package agent

import (
	"errors"
	"fmt"
	"slices"
	"testing"

	"github.com/tortie-net/tortie/internal/api"
	"github.com/tortie-net/tortie/internal/app/config"
	"github.com/tortie-net/tortie/internal/kernel/flowtable"
	"github.com/tortie-net/tortie/internal/kernel/nft"
	"github.com/tortie-net/tortie/internal/testkit/errtest"
	"github.com/tortie-net/tortie/internal/testkit/labstore"
	"github.com/tortie-net/tortie/internal/testkit/netnstest"
	"github.com/tortie-net/tortie/internal/testkit/waittest"
)

// An agent that is asked for a flowtable follows the links of pods; where the kernel has none it says so, and serves. One that is not asked removes it.
func TestAgentFlowtable(t *testing.T) {
	r := newRig(t)
	labstore.Make(t, r.store, &api.IPPool{Meta: api.Meta{Name: "fast"}, Spec: api.IPPoolSpec{CIDR: "10.98.0.0/16", BlockSize: 26}})
	mode := config.FlowtableAuto
	r.configure = func(c *config.Node) { c.Flowtable = mode }
	r.ns.Run(t, "ip", "link", "add", "cali0000000001", "type", "veth", "peer", "name", "pod")
	status, stop := r.agent(t, newPeers())
	waittest.Until(t, 2*soon, "ready", func() bool { return status.Report().Ready })
	probe := netnstest.New(t)
	netnstest.Cable(t, probe, "eth0", netnstest.New(t), "eth0")
	if err := flowtable.New(probe.Namespace).Sync(t.Context(), flowtable.Config{PodLinks: "cali", Devices: []string{"eth0"}}); errors.Is(err, flowtable.ErrUnsupported) {
		named(t, status, flowtable.ErrUnsupported.Error())
		return
	}
	table := nft.NewOwned(r.ns.Namespace, flowtable.TableName)
	defer table.Close()
	await := func(want ...string) {
		t.Helper()
		waittest.For(t, soon, func() error {
			if got, exists, err := table.Devices(t.Context(), "pods"); err != nil || exists != (want != nil) || !slices.Equal(got, want) {
				return fmt.Errorf("devices %q, %v; want %q", got, err, want)
			}
			return nil
		})
	}
	await("cali0000000001", "eth0")
	r.ns.Run(t, "ip", "link", "add", "cali0000000002", "type", "veth", "peer", "name", "pod2")
	await("cali0000000001", "cali0000000002", "eth0")
	r.ns.Run(t, "ip", "link", "del", "cali0000000001")
	await("cali0000000002", "eth0")
	stop()
	mode = config.FlowtableOff
	r.agent(t, newPeers())
	await()
	exists, err := table.Exists(t.Context())
	errtest.Must(t, err)
	if exists {
		t.Error("there is a table that nobody has asked for")
	}
}
