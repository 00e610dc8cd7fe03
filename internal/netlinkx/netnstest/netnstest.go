// Package netnstest gives tests scratch network namespaces. It owns what it makes and removes it with the test; it never
// changes the namespace that the test runs in, and it fails a test that lacks the rights instead of skipping it.
package netnstest

import (
	"context"
	"fmt"
	"net/netip"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/tortie-net/tortie/internal/netlinkx"
)

// NS is a scratch namespace with an open connection.
type NS struct {
	*netlinkx.Namespace
	Conn *netlinkx.Conn
}

// New makes a namespace with lo up. It ends with the test.
func New(t testing.TB) *NS {
	t.Helper()
	ns, err := netlinkx.NewNamespace()
	if err != nil {
		t.Fatalf("make scratch namespace (tests of the kernel need root): %v", err)
	}
	t.Cleanup(func() { ns.Close() })
	conn, err := netlinkx.OpenAt(ns)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(conn.Close)
	n := &NS{Namespace: ns, Conn: conn}
	n.Up(t, "lo")
	return n
}

// Link returns the link called name.
func (n *NS) Link(t testing.TB, name string) netlinkx.Link {
	t.Helper()
	l, err := n.Conn.LinkByName(name)
	if err != nil {
		t.Fatal(err)
	}
	return l
}

// Up brings a link up and returns it.
func (n *NS) Up(t testing.TB, name string) netlinkx.Link {
	t.Helper()
	if err := n.Conn.SetUp(n.Link(t, name).Index); err != nil {
		t.Fatal(err)
	}
	return n.Link(t, name)
}

// Addr puts an address, in CIDR form, on a link.
func (n *NS) Addr(t testing.TB, link, cidr string) {
	t.Helper()
	if err := n.Conn.AddAddr(n.Link(t, link).Index, netip.MustParsePrefix(cidr)); err != nil {
		t.Fatal(err)
	}
}

// Route adds a route via next hop and link; either may be empty.
func (n *NS) Route(t testing.TB, dst, via, dev string) {
	t.Helper()
	r := netlinkx.Route{Dst: netip.MustParsePrefix(dst)}
	if via != "" {
		r.Via = netip.MustParseAddr(via)
	} else {
		r.Scope = netlinkx.ScopeLink
	}
	if dev != "" {
		r.Dev = n.Link(t, dev).Index
	}
	if err := n.Conn.AddRoute(r); err != nil {
		t.Fatal(err)
	}
}

// Within runs fn inside the namespace and fails the test with fn's error.
func (n *NS) Within(t testing.TB, fn func() error) {
	t.Helper()
	if err := n.Do(fn); err != nil {
		t.Fatal(err)
	}
}

// Run runs a program inside the namespace and returns its standard output; the test fails with the program.
func (n *NS) Run(t testing.TB, name string, args ...string) string {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	var out, diag strings.Builder
	err := n.Do(func() error {
		cmd := exec.CommandContext(ctx, name, args...)
		cmd.Stdout, cmd.Stderr = &out, &diag
		return cmd.Run()
	})
	if err != nil {
		t.Fatalf("%s %s: %v\n%s%s", name, strings.Join(args, " "), err, out.String(), diag.String())
	}
	return out.String()
}

// Cable joins two namespaces with a veth pair, both ends up.
func Cable(t testing.TB, a *NS, aName string, b *NS, bName string) {
	t.Helper()
	err := a.Conn.AddVeth(netlinkx.Veth{
		Name: aName, TxQueueLen: 1000, PeerName: bName, PeerNamespace: b.Namespace, PeerTxQueueLen: 1000,
	})
	if err != nil {
		t.Fatal(err)
	}
	a.Up(t, aName)
	b.Up(t, bName)
}

// Dying makes a namespace with a veth pair into host and ends the namespace while the kernel's cleanup is kept busy, so
// the host's end of the pair stays for a moment; it returns that end's name. The kernel may still be faster.
func Dying(t testing.TB, host *NS, name string) string {
	t.Helper()
	bulk := make([]*netlinkx.Namespace, 8)
	for i := range bulk {
		bulk[i] = temporary(t)
		cableOnce(t, host, fmt.Sprintf("bulk%d", i), bulk[i])
	}
	last := temporary(t)
	cableOnce(t, host, name, last)
	for _, ns := range append(bulk, last) {
		if err := ns.Close(); err != nil {
			t.Fatal(err)
		}
		// The first namespace to go starts a batch of its own; the others wait for it.
		time.Sleep(time.Millisecond)
	}
	return name
}

func temporary(t testing.TB) *netlinkx.Namespace {
	t.Helper()
	ns, err := netlinkx.NewNamespace()
	if err != nil {
		t.Fatal(err)
	}
	return ns
}

func cableOnce(t testing.TB, host *NS, name string, ns *netlinkx.Namespace) {
	t.Helper()
	if err := host.Conn.AddVeth(netlinkx.Veth{Name: name, PeerName: "eth0", PeerNamespace: ns}); err != nil {
		t.Fatal(err)
	}
}
