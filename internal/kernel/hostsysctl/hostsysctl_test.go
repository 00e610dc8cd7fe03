package hostsysctl_test

import (
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/tortie-net/tortie/internal/kernel/hostsysctl"
	"github.com/tortie-net/tortie/internal/kernel/sysctl"
	"github.com/tortie-net/tortie/internal/testkit/difftest"
	"github.com/tortie-net/tortie/internal/testkit/errtest"
	"github.com/tortie-net/tortie/internal/testkit/netnstest"
)

// values stand for the kernel's parameters.
type values map[string]string

func (v values) get(key sysctl.Key) (string, error) {
	value, ok := v[key.String()]
	if !ok {
		return "", fmt.Errorf("read sysctl: %w", fs.ErrNotExist)
	}
	return value, nil
}

const conntrack, acceptRA, forwarding6 = "net/netfilter/nf_conntrack_max", "net/ipv6/conf/eth0.5/accept_ra", "net/ipv6/conf/all/forwarding"

func TestWanted(t *testing.T) {
	filter := func(all, tunnel string) values {
		return values{"net/ipv4/conf/all/rp_filter": all, "net/ipv4/conf/tunl0/rp_filter": tunnel, conntrack: "1"}
	}
	tunnel := hostsysctl.Config{Tunnels: []string{"tunl0"}}
	const loosened = "net/ipv4/conf/tunl0/rp_filter=2"
	for name, tt := range map[string]struct {
		config hostsysctl.Config
		have   values
		want   []string
	}{
		"forwarding": {hostsysctl.Config{Forward: true}, nil, []string{"net/ipv4/ip_forward=1"}},
		"of both families": {hostsysctl.Config{Forward: true, IPv6: true}, values{"net/ipv6/conf/all/forwarding": "0"},
			[]string{"net/ipv4/ip_forward=1", "net/ipv6/conf/all/forwarding=1"}},
		"a kernel without IPv6":                  {hostsysctl.Config{Forward: true, IPv6: true}, nil, []string{"net/ipv4/ip_forward=1"}},
		"somebody else's":                        {hostsysctl.Config{IPv6: true}, nil, nil},
		"tunnel is strict":                       {tunnel, filter("0", "1"), []string{loosened}},
		"all are strict":                         {tunnel, filter("1", "0"), []string{loosened}},
		"both are":                               {tunnel, filter("1", "1"), []string{loosened}},
		"a pod that may send from other sources": {hostsysctl.Config{Pods: []string{"tunl0", "gone"}}, filter("0", "1"), []string{loosened}},
		"tunnel is loose":                        {tunnel, filter("1", "2"), nil},
		"all are loose":                          {tunnel, filter("2", "1"), nil},
		"nothing is filtered":                    {tunnel, filter("0", "0"), nil},
		"of two, one is strict": {hostsysctl.Config{Tunnels: []string{"vxlan.calico", "tunl0"}},
			values{"net/ipv4/conf/all/rp_filter": "0", "net/ipv4/conf/tunl0/rp_filter": "1", "net/ipv4/conf/vxlan.calico/rp_filter": "2"},
			[]string{loosened}},
		"the tunnel has gone":      {tunnel, values{"net/ipv4/conf/all/rp_filter": "1"}, nil},
		"no tunnel: links as is":   {hostsysctl.Config{Link: "eth0"}, values{"net/ipv4/conf/eth0/rp_filter": "1"}, nil},
		"a kernel without filters": {tunnel, nil, nil},
	} {
		var got []string
		for _, s := range tt.config.Wanted(tt.have.get) {
			got = append(got, s.Key.String()+"="+s.Value)
		}
		difftest.Want(t, name, tt.want, got)
	}
}

func TestNotes(t *testing.T) {
	for name, tt := range map[string]struct {
		config hostsysctl.Config
		have   values
		want   []string // part of each note
	}{
		"all is well": {hostsysctl.Config{Forward: true, IPv6: true, Link: "eth0.5"},
			values{conntrack: "1", acceptRA: "2", forwarding6: "1"}, nil},
		"advertisements": {hostsysctl.Config{Forward: true, IPv6: true, Link: "eth0.5"}, values{conntrack: "1", acceptRA: "1", forwarding6: "1"},
			[]string{"sysctl -w net.ipv6.conf.eth0/5.accept_ra=2"}},
		"advertisements, without IPv6": {hostsysctl.Config{Forward: true, Link: "eth0.5"}, values{conntrack: "1", acceptRA: "1"}, nil},
		"not forwarding": {hostsysctl.Config{IPv6: true}, values{conntrack: "1", "net/ipv4/ip_forward": "0", "net/ipv6/conf/all/forwarding": "0"},
			[]string{"sysctl -w net.ipv4.ip_forward=1", "sysctl -w net.ipv6.conf.all.forwarding=1"}},
		"forwarding by others": {
			hostsysctl.Config{}, values{conntrack: "1", "net/ipv4/ip_forward": "1", "net/ipv6/conf/all/forwarding": "0"}, nil,
		},
		"no IPv6":                     {hostsysctl.Config{Forward: true, IPv6: true}, values{conntrack: "1"}, []string{"ipv6.disable=1"}},
		"connections are not tracked": {hostsysctl.Config{Forward: true}, nil, []string{"modprobe nf_conntrack"}},
	} {
		got := tt.config.Notes(tt.have.get)
		if len(got) != len(tt.want) {
			t.Errorf("%s: %q, want %d notes", name, got, len(tt.want))
			continue
		}
		for i, want := range tt.want {
			if !strings.Contains(got[i], want) {
				t.Errorf("%s: %q, want it to speak of %q", name, got[i], want)
			}
		}
	}
}

// TestUnwritable has a mount that is not the kernel's: a directory without the files, and one where they cannot be
// written.
func TestUnwritable(t *testing.T) {
	c := hostsysctl.Config{Forward: true, IPv6: true}
	err := hostsysctl.Sync(sysctl.Root(t.TempDir()), c)
	for _, want := range []string{"net.ipv4.ip_forward", " 1 ", "/proc/sys"} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("without the files: %v, want %q", err, want)
		}
	}
	dir := t.TempDir()
	if err := os.MkdirAll(filepath.Join(dir, "net/ipv4/ip_forward"), 0o755); err != nil { // a directory can't be written
		t.Fatal(err)
	}
	if err := hostsysctl.Sync(sysctl.Root(dir), hostsysctl.Config{Forward: true}); !errtest.Names(err, "sysctl net.ipv4.ip_forward=1") {
		t.Errorf("not writable: %v, want the remedy", err)
	}
}

// TestKernel has a router with a strict filter: packets by its tunnel, a veth here, from an address with a route by
// another link pass after Sync, and the host's own links are unchanged.
func TestKernel(t *testing.T) {
	far, ns, inside := netnstest.New(t), netnstest.New(t), netnstest.New(t)
	netnstest.Cable(t, far, "eth0", ns, "tunl0")
	netnstest.Cable(t, far, "eth1", ns, "eth0")
	netnstest.Cable(t, ns, "cali0", inside, "eth0")
	ns.Addr(t, "cali0", "10.244.0.1/24")
	inside.Addr(t, "eth0", "10.244.0.9/24")
	inside.Route(t, "0.0.0.0/0", "10.244.0.1", "eth0")
	far.Addr(t, "eth1", "192.0.2.2/24")
	far.Addr(t, "eth0", "172.30.0.2/24")
	far.Route(t, "10.244.0.0/24", "172.30.0.1", "eth0") // out by the tunnel, and back by eth0
	ns.Addr(t, "eth0", "192.0.2.1/24")
	ns.Addr(t, "tunl0", "172.30.0.1/24")
	set := func(value string, parts ...string) {
		ns.Within(t, func() error { return sysctl.DefaultRoot.Set(parts, value) })
	}
	filter := func(link, mode string) { set(mode, "net", "ipv4", "conf", link, "rp_filter") }
	for link, mode := range map[string]string{"all": "1", "tunl0": "1", "eth0": "0", "cali0": "0"} {
		filter(link, mode)
	}
	far.Within(t, func() error {
		return sysctl.DefaultRoot.Set(sysctl.Key{"net", "ipv4", "conf", "eth1", "rp_filter"}, "0")
	})
	inside.EchoUDP(t, "10.244.0.9:7000")
	ask := func(wait time.Duration) (string, error) {
		return far.AskUDP(t, "192.0.2.2:0", "10.244.0.9:7000", "hello", wait)
	}
	set("1", "net", "ipv4", "ip_forward")
	if got, err := ask(300 * time.Millisecond); err == nil {
		t.Fatalf("%q although the filter is strict: the test shows nothing", got)
	}
	set("0", "net", "ipv4", "ip_forward")
	c := hostsysctl.Config{Forward: true, IPv6: true, Tunnels: []string{"tunl0"}, Link: "eth0"}
	for range 3 {
		ns.Within(t, func() error { return hostsysctl.Sync(sysctl.DefaultRoot, c) })
	}
	if got, err := ask(20 * time.Second); err != nil || got != "192.0.2.2 hello" {
		t.Errorf("after Sync: %q, %v", got, err)
	}
	ns.Within(t, func() error {
		for key, want := range map[string]string{"all": "1", "tunl0": "2", "eth0": "0", "cali0": "0"} {
			got, err := sysctl.DefaultRoot.Get(sysctl.Key{"net", "ipv4", "conf", key, "rp_filter"})
			if err != nil || got != want {
				t.Errorf("rp_filter of %s is %q, %v; want %s", key, got, err, want)
			}
		}
		got, err := sysctl.DefaultRoot.Get(sysctl.Key{"net", "ipv6", "conf", "all", "forwarding"})
		if err != nil || got != "1" {
			t.Errorf("IPv6 forwarding is %q, %v; want 1", got, err)
		}
		return nil
	})
}
