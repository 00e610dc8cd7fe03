package podnet_test

import (
	"log/slog"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/tortie-net/tortie/internal/kernel/netlinkx"
	"github.com/tortie-net/tortie/internal/kernel/podnet"
	"github.com/tortie-net/tortie/internal/testkit/errtest"
	"github.com/tortie-net/tortie/internal/testkit/netnstest"
)

func links(t *testing.T, host *netnstest.NS) []podnet.Link {
	t.Helper()
	var list []podnet.Link
	host.Within(t, func() (err error) {
		list, err = podnet.Links()
		return err
	})
	slices.SortFunc(list, func(a, b podnet.Link) int { return strings.Compare(a.Name, b.Name) })
	return list
}

func TestLinks(t *testing.T) {
	host, mine, foreign, other := node(t), pod(t), pod(t), netnstest.New(t)
	c := config(mine, "web-1", "10.65.0.2")
	c.Alias = podnet.Alias("net.c1", "eth0")
	c.Addresses = append(c.Addresses, netip.MustParseAddr("fd00:65::2"))
	setup(t, host, c)
	theirs := config(foreign, "web-2", "10.65.0.3") // without an alias, as a real Calico's
	setup(t, host, theirs)
	netnstest.Cable(t, host, "storage", other, "eth0") // no pod's
	host.Run(t, "ip", "link", "add", "near", "type", "veth", "peer", "name", "far")
	host.Run(t, "ip", "link", "set", "near", "up")
	host.Run(t, "ip", "route", "add", "10.65.9.9", "dev", "near")

	want := []podnet.Link{
		{Name: c.HostVeth, Handle: "net.c1", IfName: "eth0", Addresses: c.Addresses},
		{Name: theirs.HostVeth, Addresses: theirs.Addresses},
	}
	slices.SortFunc(want, func(a, b podnet.Link) int { return strings.Compare(a.Name, b.Name) })
	got := links(t, host)
	if diff := cmp.Diff(want, got, cmpopts.IgnoreUnexported(podnet.Link{}), cmpopts.EquateComparable(netip.Addr{})); diff != "" {
		t.Fatalf("links (-want +got):\n%s", diff)
	}

	at := slices.IndexFunc(got, func(l podnet.Link) bool { return l.Handle != "" })
	process := func() (pid int) {
		host.Within(t, func() (err error) { pid, err = got[at].Process(); return err })
		return pid
	}
	if pid := process(); pid != 0 {
		t.Errorf("process %d in a namespace without any", pid)
	}
	sleep := mine.Start(t, "sleep", "60")
	if pid := process(); pid != sleep {
		t.Errorf("process %d, want %d", pid, sleep)
	}

	remove := func() {
		host.Within(t, func() error { return got[at].Remove(t.Context(), slog.New(slog.DiscardHandler)) })
	}
	// A newer container has the name.
	again := c
	again.Alias = podnet.Alias("net.c2", "eth0")
	errtest.Must(t, host.Conn.SetUpWithAlias(host.Link(t, c.HostVeth), again.Alias))
	remove()
	host.Within(t, func() error { return podnet.Check(again) })
	errtest.Must(t, host.Conn.SetUpWithAlias(host.Link(t, c.HostVeth), c.Alias))
	for range 2 {
		remove()
		wantNothing(t, host, mine, c)
	}
	if _, err := host.Conn.LinkByName(theirs.HostVeth); netlinkx.IsNotExist(err) {
		t.Error("another link is gone too")
	}
}
