package bgp_test

import (
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/tortie-net/tortie/internal/bgp"
)

// birdConfig is what calico-node's templates make for the mesh, in the words of BIRD 2 (Calico's BIRD is a 1.6): the
// kernel protocol with graceful restart, a static blackhole for the own block, one multihop session to each node with
// add-paths offered and Calico's timers.
const birdConfig = `
router id %[1]s;
protocol device {}
protocol static {
  ipv4;
  route %[2]s blackhole;
}
protocol kernel {
  learn;
  persist;
  scan time 2;
  graceful restart;
  ipv4 { import all; export all; };
}
template bgp bgp_template {
  local as 64512;
  multihop;
  graceful restart;
  connect delay time 2;
  connect retry time 5;
  error wait time 5,30;
  ipv4 {
    gateway recursive;
    import all;
    export filter { if source = RTS_STATIC then accept; reject; };
    add paths on;
  };
}
`

const birdPeer = `
protocol bgp Mesh_%s from bgp_template {
  neighbor %s as 64512;
  source address %s;
  %s
}
`

// bird is a BIRD 2 on a host.
type bird struct {
	*host
	socket string
}

// bird starts BIRD with block as the host's own. Calico's rule decides which sessions it waits for.
func (h *host) bird(block string, peers ...*host) *bird {
	h.t.Helper()
	if _, err := exec.LookPath("bird"); err != nil {
		h.t.Fatal("BIRD 2 is missing: apt-get install bird2")
	}
	config := fmt.Sprintf(birdConfig, h.v4, block)
	for _, p := range peers {
		passive := ""
		if p.v4.String() > h.v4.String() {
			passive = "passive on;"
		}
		config += fmt.Sprintf(birdPeer, strings.ReplaceAll(p.v4.String(), ".", "_"), p.v4, h.v4, passive)
	}
	dir := h.t.TempDir()
	b := &bird{host: h, socket: filepath.Join(dir, "ctl")}
	file := filepath.Join(dir, "bird.conf")
	if err := os.WriteFile(file, []byte(config), 0o600); err != nil {
		h.t.Fatal(err)
	}
	log := &lockedBuffer{}
	cmd := h.command("bird", "-f", "-c", file, "-s", b.socket, "-P", filepath.Join(dir, "pid"))
	cmd.Stdout, cmd.Stderr = log, log
	if err := cmd.Start(); err != nil {
		h.t.Fatal(err)
	}
	h.t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
		if h.t.Failed() {
			h.t.Logf("BIRD on %s:\n%s", h.v4, log)
		}
	})
	eventually(h.t, func() error {
		_, err := os.Stat(b.socket)
		return err
	})
	return b
}

func (b *bird) ctl(args ...string) string {
	b.t.Helper()
	return run(b.t, append([]string{"birdc", "-s", b.socket}, args...)...)
}

// session returns what BIRD says about its session to a peer.
func (b *bird) session(peer *host) string {
	b.t.Helper()
	return b.ctl("show", "protocols", "all", "Mesh_"+strings.ReplaceAll(peer.v4.String(), ".", "_"))
}

// capabilities returns the part of a session's text that is about the neighbour.
func (b *bird) capabilities(peer *host) string {
	b.t.Helper()
	_, text, _ := strings.Cut(b.session(peer), "Neighbor capabilities")
	text, _, _ = strings.Cut(text, "Session:")
	return text
}

// waitRoute waits until BIRD has put prefix into the kernel, or has removed it.
func (b *bird) waitRoute(prefix string, want bool) {
	b.t.Helper()
	eventually(b.t, func() error {
		routes := run(b.t, "ip", "-n", b.ns, "route", "show", prefix)
		if (routes != "") != want {
			return fmt.Errorf("route to %s on %s: %q, want one: %t", prefix, b.v4, routes, want)
		}
		return nil
	})
}

// TestBIRD meshes a speaker with two BIRDs, to one of which it connects while it waits for the other.
func TestBIRD(t *testing.T) {
	t.Parallel()
	lan := newLAN(t)
	node := lan.host(5).speak()
	waits, connects := lan.host(10), lan.host(7) // "10.0.0.10" < "10.0.0.5" < "10.0.0.7"
	birds := []*bird{waits.bird("10.1.10.0/26", node.host), connects.bird("10.1.7.0/26", node.host)}
	node.start(64512, false)
	node.originate("10.1.5.0/26", "10.200.0.5/32")
	node.setPeers(node.mesh(waits, connects)...)
	node.waitEstablished(waits.v4, connects.v4)
	if node.peer(waits.v4).Passive || !node.peer(connects.v4).Passive {
		t.Fatal("wrong side waits")
	}

	node.waitLearned("10.1.7.0/26 10.1.10.0/26")
	want := []bgp.Path{
		{Prefix: netip.MustParsePrefix("10.1.7.0/26"), NextHop: connects.v4, From: connects.v4},
		{Prefix: netip.MustParsePrefix("10.1.10.0/26"), NextHop: waits.v4, From: waits.v4},
	}
	if d := cmp.Diff(want, node.snapshot(), cmpNetip); d != "" {
		t.Errorf("snapshot (-want +got):\n%s", d)
	}
	for _, b := range birds {
		b.waitRoute("10.1.5.0/26", true)
		b.waitRoute("10.200.0.5", true)
	}

	node.originate("10.1.5.0/26")
	for _, b := range birds {
		b.waitRoute("10.200.0.5", false)
		b.waitRoute("10.1.5.0/26", true)
	}
	birds[0].ctl("disable", "static1")
	node.waitLearned("10.1.7.0/26")

	t.Run("a killed speaker keeps its routes", func(t *testing.T) {
		again := killAndRestart(t, node, birds)
		again.waitLearned("10.1.7.0/26")
	})
}

// killAndRestart replaces the process of node and proves that no BIRD removes the route to 10.1.5.0/26 on the way and
// that each sees a restart which has preserved its forwarding (R and F bits of RFC 4724). The last BIRD can't be reached
// until all is said between the node and the others.
func killAndRestart(t *testing.T, node *speaker, birds []*bird) *speaker {
	t.Helper()
	var logs []*lockedBuffer
	for _, b := range birds {
		log := &lockedBuffer{}
		monitor := exec.Command("ip", "-n", b.ns, "monitor", "route")
		monitor.Stdout = log
		if err := monitor.Start(); err != nil {
			t.Fatal(err)
		}
		defer func() {
			_ = monitor.Process.Kill()
			_ = monitor.Wait()
		}()
		logs = append(logs, log)
	}
	node.kill()
	late := birds[len(birds)-1].v4.String()
	run(t, "ip", "-n", node.ns, "neigh", "replace", late, "lladdr", "02:00:00:00:00:99", "nud", "permanent", "dev", "eth0")
	again := node.host.speak()
	again.start(64512, true)
	again.originate("10.1.5.0/26")
	var peers []*host
	for _, b := range birds {
		peers = append(peers, b.host)
	}
	again.setPeers(again.mesh(peers...)...)
	for _, b := range birds {
		if b.v4.String() == late {
			run(t, "ip", "-n", node.ns, "neigh", "del", late, "dev", "eth0")
		}
		again.waitEstablished(b.v4)
		eventually(t, func() error {
			if p := again.peer(b.v4); p.Sent != 1 {
				return fmt.Errorf("own path not yet sent to %s", b.v4)
			}
			return nil
		})
	}
	for i, b := range birds {
		b.waitRoute("10.1.5.0/26", true)
		if caps := b.capabilities(node.host); !strings.Contains(caps, "Restart recovery") || !strings.Contains(caps, "AF preserved: ipv4") {
			t.Errorf("BIRD on %s sees no preserved forwarding:\n%s", b.v4, caps)
		}
		if changes := logs[i].String(); strings.Contains(changes, "10.1.5.0/26") {
			t.Errorf("BIRD on %s changed the route meanwhile:\n%s", b.v4, changes)
		}
	}
	return again
}
