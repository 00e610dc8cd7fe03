package names

import (
	"net/netip"
	"strings"
	"testing"

	"github.com/tortie-net/tortie/internal/testkit/difftest"
)

func TestBlock(t *testing.T) {
	for cidr, want := range map[string]string{
		"10.244.1.64/26":      "10-244-1-64-26",
		"192.168.166.128/26":  "192-168-166-128-26",
		"fd00:10:244::40/122": "fd00-10-244--40-122",
		"fd80::/122":          "fd80---122",
		"FD80:0:0:0::/122":    "fd80---122",
		"10.244.1.65/26":      "10-244-1-64-26",
	} {
		if got := Block(netip.MustParsePrefix(cidr)); got != want {
			t.Errorf("Block(%s) = %s, want %s", cidr, got, want)
		}
	}
}

func TestParseBlock(t *testing.T) {
	for _, text := range []string{"10.244.1.64/26", "0.0.0.0/0", "255.255.255.255/32", "fd00:10:244::40/122", "fd80::/122", "::/0", "::1/128",
		"1:2:3:4:5:6:7:8/128", "::7:8/128", "1:2:3::/122", "1::8/128"} {
		want := netip.MustParsePrefix(text)
		if got, ok := ParseBlock(Block(want)); !ok || got != want {
			t.Errorf("ParseBlock(%s) = %s, %v, want %s", Block(want), got, ok, want)
		}
	}
	for _, name := range []string{"", "-", "10-0-0-0", "10-0-0-1-26", "10-0-0-0-33", "10-0-0-0-026", "010-0-0-0-26", "10-0-0-0-26-1",
		"fd00---129", "FD00---122", "fd00-0---122", "node-10-0-0-0-26", "10.0.0.0/26"} {
		if got, ok := ParseBlock(name); ok {
			t.Errorf("ParseBlock(%q) = %s, want none", name, got)
		}
	}
}

// FuzzParseBlock: ParseBlock inverts Block, and every accepted name is the name of its CIDR.
func FuzzParseBlock(f *testing.F) {
	f.Add([]byte{10, 244, 1, 64}, 26, "10-244-1-64-26")
	f.Add([]byte{0xfd, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0x40}, 122, "fd00--40-122")
	f.Fuzz(func(t *testing.T, raw []byte, bits int, name string) {
		if cidr, ok := ParseBlock(name); ok && (Block(cidr) != name || cidr != cidr.Masked()) {
			t.Errorf("ParseBlock(%q) = %s, whose name is %s", name, cidr, Block(cidr))
		}
		a, ok := netip.AddrFromSlice(raw)
		if !ok || a.Is4In6() { // no pool is IPv4-mapped: its text is another address's
			return
		}
		want, err := a.Prefix(bits)
		if err != nil {
			return
		}
		if got, ok := ParseBlock(Block(want)); !ok || got != want {
			t.Errorf("ParseBlock(%s) = %s, %v, want %s", Block(want), got, ok, want)
		}
	})
}

func TestWorkloadEndpoint(t *testing.T) {
	for _, c := range []struct{ node, orchestrator, workload, ifName, want string }{
		{"n-1", "k8s", "web-0", "eth0", "n--1-k8s-web--0-eth0"},
		{"node.example", "cni", "3f2c9a", "net-1", "node.example-cni-3f2c9a-net--1"},
		{"n1", "cni", "3f2c9a", "", "n1-cni-3f2c9a-"}, // the prefix of the names of all interfaces
	} {
		if got := WorkloadEndpoint(c.node, c.orchestrator, c.workload, c.ifName); got != c.want {
			t.Errorf("name %q, want %q", got, c.want)
		}
	}
}

func TestAffinity(t *testing.T) {
	cidr := netip.MustParsePrefix("192.168.154.0/26")
	if got, want := Affinity("gold-node", cidr), "gold-node-192-168-154-0-26"; got != want {
		t.Errorf("got %s, want %s", got, want)
	}
	// 252 characters is the longest name that stays as it is.
	fits := strings.Repeat("n", 252-len("-192-168-154-0-26"))
	if got := Affinity(fits, cidr); got != fits+"-192-168-154-0-26" {
		t.Errorf("a name of 252 characters was changed to %s", got)
	}
	one, two := Affinity(fits+"a", cidr), Affinity(fits+"b", cidr)
	if len(one) != 252 || one == two {
		t.Errorf("long names: %d characters, equal %v", len(one), one == two)
	}
	if !strings.Contains(one, "-192-168-154-0-26-") {
		t.Errorf("long name %s does not name its block", one)
	}
}

// The labels of the affinity that a real Calico wrote for gold-node.
func TestAffinityLabelsGolden(t *testing.T) {
	want := map[string]string{
		"projectcalico.org/affinity-type": "host",
		"projectcalico.org/hostname-hash": "NFMRV7SNQDV3IYI35HQLAINALEIM3LCM4ROCORJEDHWODI7W2ARA",
		"projectcalico.org/ip-version":    "4",
	}
	difftest.Want(t, "labels", want, AffinityLabels("gold-node", "host", netip.MustParsePrefix("192.168.154.0/26")))
}

func TestHandle(t *testing.T) {
	if got := Handle(PodHandle("k8s-pod-network", "3F2C")); got != "k8s-pod-network.3f2c" {
		t.Errorf("got %s", got)
	}
}

func TestHandleIDs(t *testing.T) {
	for want, got := range map[string]string{
		"k8s-pod-network.abc":     PodHandle("k8s-pod-network", "abc"),
		"default.web-1":           LegacyPodHandle("default", "web-1"),
		"ipip-tunnel-addr-node-a": TunnelHandle("node-a"),
		"vxlan-tunnel-addr-n":     VXLANHandle("n"),
		"vxlan-v6-tunnel-addr-n":  VXLANv6Handle("n"),
		"host:node-a":             HostAffinity("node-a"),
	} {
		if got != want {
			t.Errorf("got %s, want %s", got, want)
		}
	}
}

func TestIPVersion(t *testing.T) {
	for addr, want := range map[string]string{"10.0.0.1": "4", "::ffff:10.0.0.1": "4", "fd00::1": "6"} {
		if got := IPVersion(netip.MustParseAddr(addr)); got != want {
			t.Errorf("IPVersion(%s) = %s, want %s", addr, got, want)
		}
	}
}

// Every name is one that Kubernetes accepts, however long the node's is: at most 253 characters, and the same each
// time.
func TestAffinityNamesFit(t *testing.T) {
	longest := netip.MustParsePrefix("1111:2222:3333:4444:5555:6666:7777:8880/122")
	for n := range 253 {
		name := Affinity(strings.Repeat("n", n+1), longest)
		if len(name) > 252 || name != Affinity(strings.Repeat("n", n+1), longest) {
			t.Errorf("node name of %d characters: %d characters, %s", n+1, len(name), name)
		}
	}
}
