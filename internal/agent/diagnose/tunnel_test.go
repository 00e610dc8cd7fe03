package diagnose

import (
	"net/netip"
	"os"
	"os/exec"
	"testing"

	"github.com/tortie-net/tortie/internal/kernel/ipip"
	"github.com/tortie-net/tortie/internal/kernel/netlinkx"
	"github.com/tortie-net/tortie/internal/kernel/routes"
	"github.com/tortie-net/tortie/internal/testkit/errtest"
	"github.com/tortie-net/tortie/internal/testkit/labtest"
	"github.com/tortie-net/tortie/internal/testkit/netnstest"
)

// inVM in the environment marks the virtual machine.
const inVM = "TORTIE_TEST_IN_VM"

// TestTunnel probes real tunnels: of this kernel or, if it has none, of one in a virtual machine, which runs this very
// binary.
func TestTunnel(t *testing.T) {
	t.Parallel()
	err := netnstest.IPIP()
	if err == nil {
		throughTunnel(t)
		return
	}
	if os.Getenv(inVM) != "" {
		t.Fatalf("in the virtual machine: %v", err)
	}
	cmd := exec.Command(labtest.Binary(t), "vm", "-count", "-timeout", "15m", "-programs", "", "--", os.Args[0], "-test.run=^"+t.Name()+"$",
		"-test.v", "-test.timeout=14m")
	cmd.Env = append(cmd.Environ(), inVM+"=1")
	cmd.Stdout, cmd.Stderr = t.Output(), t.Output()
	if err := cmd.Run(); err != nil {
		t.Fatalf("in the virtual machine: %v", err)
	}
}

func throughTunnel(t *testing.T) {
	n := newNetwork(t)
	ends := []struct {
		block, other, via string
	}{{"192.168.1.0/26", "192.168.2.0/26", "10.2.0.5"}, {"192.168.2.0/26", "192.168.1.0/26", "10.1.0.5"}}
	for i, conn := range []*netlinkx.Conn{n.here.Conn, n.there.Conn} {
		block := netip.MustParsePrefix(ends[i].block)
		_, err := ipip.New(conn).Sync(t.Context(), ipip.Tunnel{MTU: 1480, Addr: block.Addr()})
		errtest.Must(t, err)
		_, err = routes.New(conn, routes.Options{}).Sync(t.Context(), []routes.Route{
			routes.To(netip.MustParsePrefix(ends[i].other), routes.Hop{Via: netip.MustParseAddr(ends[i].via), Dev: ipip.Device, Onlink: true}),
		})
		errtest.Must(t, err)
	}
	n.report.Peers = n.report.Peers[:1]
	n.agent(t)
	look := func(tunnel string, level Level, seen string) {
		t.Helper()
		n.mu.Lock()
		n.report.Tunnels[0].Address = tunnel
		n.mu.Unlock()
		findings, _ := n.diagnose(t)
		expect(t, findings, "peer-ipip", "10.2.0.5", level, seen)
		expect(t, findings, "kernel", "ipip", OK, "there")
		expect(t, findings, "foreign-routes", "", OK, "")
	}
	const own = "192.168.1.0"
	look(own, OK, "an echo inside of IPIP was answered")
	look("", OK, "an echo inside of IPIP was answered") // a node without an address for its tunnel asks from its own
	n.router.Run(t, "nft", "table inet t { chain c { type filter hook forward priority 0; ip protocol 4 drop; }; }")
	look(own, Problem, "protocol 4 is dropped")
}
