package bgptest

import (
	"fmt"
	"net/netip"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
)

// Each kind announces to the next one, with communities, a password and TTL security. All kinds must report the same
// routes.
func TestOneForm(t *testing.T) {
	t.Parallel()
	kinds := Kinds()
	for i, kind := range kinds {
		t.Run(fmt.Sprintf("%s to %s", kind, kinds[(i+1)%len(kinds)]), func(t *testing.T) {
			t.Parallel()
			lan := NewLAN(t)
			from, to := lan.Host(10), lan.Host(11)
			sessions := func(with *Host, asn uint32) (list []Session) {
				for _, addr := range with.Addrs() {
					list = append(list, Session{Peer: addr, ASN: asn, Password: "between-others", TTLSecurity: 1})
				}
				return list
			}
			prefixes := []netip.Prefix{netip.MustParsePrefix("10.9.0.0/26"), netip.MustParsePrefix("fd09::/122")}
			announcer := from.Daemon(kind, Config{
				ASN: 64999, Announce: prefixes, Sessions: sessions(to, 64998),
				Communities: []string{"64999:200", "65530:1", "64999:3:4", "64999:30", "70000:1:2"},
			})
			reader := to.Daemon(kinds[(i+1)%len(kinds)], Config{ASN: 64998, Sessions: sessions(from, 64999)})
			for i, addr := range from.Addrs() {
				WaitState(t, announcer, to.Addrs()[i], "Established")
				want := []Route{{
					Prefix: prefixes[i], NextHop: addr, Origin: "IGP", ASPath: "64999",
					Communities: "64999:30 64999:200 65530:1 64999:3:4 70000:1:2",
				}}
				Eventually(t, func() error {
					learned := reader.Learned(addr)
					for i := range learned {
						learned[i].LocalPref = "" // not sent over eBGP: some kinds show their own value
					}
					if d := cmp.Diff(want, learned, cmpopts.EquateComparable(netip.Addr{}, netip.Prefix{})); d != "" {
						return fmt.Errorf("learned from %s (-want +got):\n%s", addr, d)
					}
					return nil
				})
			}
		})
	}
}

// A monitor reports a route that is removed, and one that becomes a blackhole, in both families; not one that gets
// another next hop.
func TestMonitor(t *testing.T) {
	t.Parallel()
	h := NewLAN(t).Host(1)
	record := h.Monitor()
	for _, c := range []struct{ prefix, other, one, two string }{
		{"10.9.0.5/32", "10.9.0.0/26", "10.0.0.2", "10.0.0.3"}, {"fd09::/122", "fd09::/123", "fd00::2", "fd00::3"},
	} {
		for _, args := range [][]string{{"add", c.prefix, "via", c.one}, {"replace", c.prefix, "via", c.two}, {"add", "blackhole", c.other}} {
			h.IP(append([]string{"route"}, args...)...)
		}
		if lost := record.Lost(c.prefix); len(lost) > 0 {
			t.Errorf("%s: %q", c.prefix, lost)
		}
		h.IP("route", "del", c.prefix)
		if removed, other := record.Lost(c.prefix), record.Lost(c.other); len(removed) != 1 || len(other) != 1 {
			t.Errorf("%s, removed: %q; %s, a blackhole: %q; want one event of each", c.prefix, removed, c.other, other)
		}
	}
}
