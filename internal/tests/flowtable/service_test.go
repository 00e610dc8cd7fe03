package flowtable

import (
	"fmt"
	"net/netip"
	"os/exec"
	"strings"
	"testing"

	"github.com/tortie-net/tortie/internal/kernel/netlinkx"
	"github.com/tortie-net/tortie/internal/testkit/errtest"
	"github.com/tortie-net/tortie/internal/testkit/needtest"
	"github.com/tortie-net/tortie/internal/testkit/pathtest"
)

// service is the address of a Service with ports 80 of UDP and 81 of TCP, which one endpoint serves at 7000 and 7001.
var service = netip.AddrFrom4([4]byte{10, 96, 0, 10})

// proxyRules are those of kube-proxy with mode nftables for it. A Service of which it masquerades all has a jump to
// mark-for-masquerade first.
const proxyRules = `table ip kube-proxy {
	map service-ips {
		type ipv4_addr . inet_proto . inet_service : verdict
		elements = { %[1]s . udp . 80 : goto service-udp, %[1]s . tcp . 81 : goto service-tcp }
	}
	chain nat-prerouting { type nat hook prerouting priority -100; jump services; }
	chain services { ip daddr . meta l4proto . th dport vmap @service-ips; }
	chain service-tcp { %[3]s numgen random mod 1 vmap { 0 : goto endpoint-tcp }; }
	chain service-udp { %[3]s numgen random mod 1 vmap { 0 : goto endpoint-udp }; }
	chain endpoint-tcp { ip saddr %[2]s jump mark-for-masquerade; meta l4proto tcp dnat to %[2]s:7001; }
	chain endpoint-udp { ip saddr %[2]s jump mark-for-masquerade; meta l4proto udp dnat to %[2]s:7000; }
	chain mark-for-masquerade { meta mark set mark or 0x4000; }
	chain nat-postrouting { type nat hook postrouting priority 100; jump masquerading; }
	chain masquerading { mark and 0x4000 == 0 return; meta mark set mark xor 0x4000; masquerade fully-random; }
}`

// proxy gives a node the rules for the Service.
func proxy(t *testing.T, n *pathtest.Node, endpoint netip.Addr, masquerade bool) {
	t.Helper()
	needtest.Program(t, "nft") // lab vmtest -nft
	mark := ""
	if masquerade {
		mark = "jump mark-for-masquerade;"
	}
	errtest.Must(t, n.NS.Do(func() error {
		cmd := exec.CommandContext(t.Context(), "nft", "-f", "-")
		cmd.Stdin = strings.NewReader(fmt.Sprintf(proxyRules, service, endpoint, mark))
		if out, err := cmd.CombinedOutput(); err != nil {
			return fmt.Errorf("nft: %w: %s", err, out)
		}
		return nil
	}))
}

// TestService: TCP to a Service passes the flowtables, translated there as by rules, and counted. UDP is translated by
// rules for as long as it lasts.
func TestService(t *testing.T) {
	for _, e := range []pathtest.Encap{pathtest.Routes, pathtest.IPIP} {
		for _, masquerade := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s, masqueraded %v", e.Name, masquerade), func(t *testing.T) {
				r := newRig(t, e)
				from, to := r.Nodes[0], r.Nodes[1]
				proxy(t, from, to.PodAddr(), masquerade)
				for i, network := range udpFirst {
					port, dialled := 7000+i, 80+i
					errtest.Must(t, to.Pod.Do(func() error { return echo(t, network, netip.AddrPortFrom(to.PodAddr(), uint16(port)).String()) }))
					has := meter(t, from.Pod, dialled)
					c, err := dial(t, network, from.Pod, netip.AddrPortFrom(service, uint16(dialled)), patience)
					errtest.Must(t, err)
					if network == "tcp" {
						c.settle(t, port, from, to)
						c.fast(t, from, to)
					} else {
						c.settle(t, port, to) // which sees no translation
						c.fast(t, to)
						if offloaded(t, from, port) {
							t.Error("UDP whose destination is translated is in the flowtable")
						}
					}
					counted(t, has, port, from, to)
					errtest.Must(t, to.Conn.Flows(func(f netlinkx.TrackedFlow) {
						if int(f.Port) == port && (f.Client == from.PodAddr()) == masquerade {
							t.Errorf("%s: the server's node sees %s", network, f.Client)
						}
					}))
				}
			})
		}
	}
}
