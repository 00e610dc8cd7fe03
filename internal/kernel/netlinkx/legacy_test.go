package netlinkx_test

import (
	"errors"
	"net"
	"slices"
	"strings"
	"testing"

	"github.com/vishvananda/netlink"

	"github.com/tortie-net/tortie/internal/kernel/netlinkx"
	"github.com/tortie-net/tortie/internal/testkit/netnstest"
)

func TestLegacyChains(t *testing.T) {
	ns := netnstest.New(t)
	if got, err := ns.Conn.LegacyChains(); err != nil || len(got) > 0 {
		t.Errorf("of a namespace without: %v, %v", got, err)
	}
	for _, c := range []string{
		"iptables-legacy -N cali-FORWARD", "iptables-legacy -A FORWARD -m comment --comment cali:x -j cali-FORWARD",
		"iptables-legacy -A cali-FORWARD -i cali+ -j DROP", "iptables-legacy -t nat -N mine", "ip6tables-legacy -t mangle -N cali-PREROUTING",
		"ip6tables-legacy -t mangle -A cali-PREROUTING -s fd00::/8 -j ACCEPT",
	} {
		words := strings.Fields(c)
		ns.Run(t, words[0], words[1:]...)
	}
	got, err := ns.Conn.LegacyChains()
	want := []netlinkx.LegacyChain{{Table: "nat", Name: "mine"}, {Table: "filter", Name: "cali-FORWARD"},
		{Table: "mangle", Name: "cali-PREROUTING"}}
	if err != nil || len(got) != len(want) {
		t.Fatalf("%v, %v", got, err)
	}
	for _, w := range want {
		if !slices.Contains(got, w) {
			t.Errorf("%v is missing in %v", w, got)
		}
	}
}

func TestIPSets(t *testing.T) {
	ns := netnstest.New(t)
	if got, err := ns.Conn.IPSets(); err != nil || len(got) > 0 {
		t.Errorf("of a namespace without: %v, %v", got, err)
	}
	ns.Within(t, func() error {
		return errors.Join(
			netlink.IpsetCreate("cali40s:a", "hash:ip", netlink.IpsetCreateOptions{}),
			netlink.IpsetAdd("cali40s:a", &netlink.IPSetEntry{IP: net.IPv4(10, 0, 0, 1)}),
			netlink.IpsetCreate("KUBE-LOOP-BACK", "hash:ip,port,ip", netlink.IpsetCreateOptions{}))
	})
	got, err := ns.Conn.IPSets()
	slices.Sort(got)
	if want := []string{"KUBE-LOOP-BACK", "cali40s:a"}; err != nil || !slices.Equal(got, want) {
		t.Errorf("%v, %v, want %v", got, err, want)
	}
	if err := ns.Conn.DestroyIPSet("cali40s:a"); err != nil {
		t.Error(err)
	}
	ns.Run(t, "iptables-legacy", strings.Fields("-A FORWARD -m set --match-set KUBE-LOOP-BACK src,dst,dst -j ACCEPT")...)
	if err := ns.Conn.DestroyIPSet("KUBE-LOOP-BACK"); err == nil || !strings.Contains(err.Error(), "KUBE-LOOP-BACK") {
		t.Errorf("one that a rule refers to: %v", err)
	}
	if got, err := ns.Conn.IPSets(); err != nil || !slices.Equal(got, []string{"KUBE-LOOP-BACK"}) {
		t.Errorf("after: %v, %v", got, err)
	}
}
