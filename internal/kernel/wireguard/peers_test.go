package wireguard

import (
	"errors"
	"net/netip"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/tortie-net/tortie/internal/kernel/netlinkx"
	"github.com/tortie-net/tortie/internal/testkit/difftest"
)

var comparable = cmpopts.EquateComparable(netip.AddrPort{})

func TestParseKey(t *testing.T) {
	want := Key{1, 31: 2}
	for text, ok := range map[string]bool{
		want.String(): true, "": false, "AQAA": false, want.String() + "AA==": false, "AQAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAI": false,
		"\nAQAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAI=": false,
	} {
		if k, err := ParseKey(text); (err == nil) != ok || ok && k != want || !ok && k != (Key{}) {
			t.Errorf("%q: %s, %v", text, k, err)
		}
	}
}

func TestPeerChange(t *testing.T) {
	now := time.Unix(10000, 0)
	at := netip.MustParseAddrPort
	block, more := netip.MustParsePrefix("10.0.1.0/26"), netip.MustParsePrefix("10.0.2.0/26")
	p := Peer{Key: Key{1}, Endpoint: at("192.0.2.1:51820"), Allowed: []netip.Prefix{block, more}}
	there := netlinkx.WireGuardPeer{Public: p.Key, Endpoint: p.Endpoint, AllowedIPs: []netip.Prefix{more, block},
		Handshake: now.Add(-time.Hour)}
	with := func(change func(*netlinkx.WireGuardPeer)) *netlinkx.WireGuardPeer {
		h := there
		change(&h)
		return &h
	}
	roamed := func(h *netlinkx.WireGuardPeer) {
		h.Endpoint, h.Handshake = at("203.0.113.9:4000"), now.Add(-time.Minute)
	}
	for name, tt := range map[string]struct {
		have *netlinkx.WireGuardPeer
		told netip.AddrPort
		wait bool
		want *netlinkx.WireGuardChange
	}{
		"new, and greeted by the other": {nil, netip.AddrPort{}, true,
			&netlinkx.WireGuardChange{WireGuardPeer: netlinkx.WireGuardPeer{Endpoint: p.Endpoint, AllowedIPs: p.Allowed}}},
		"new": {nil, netip.AddrPort{}, false, &netlinkx.WireGuardChange{
			WireGuardPeer: netlinkx.WireGuardPeer{Endpoint: p.Endpoint, AllowedIPs: p.Allowed, Keepalive: helloSeconds}, SetKeepalive: true,
		}},
		"right":                {&there, p.Endpoint, false, nil},
		"right, and not told":  {&there, netip.AddrPort{}, false, nil},
		"sends from elsewhere": {with(roamed), p.Endpoint, false, nil},
		"has moved since": {with(roamed), at("192.0.2.7:51820"), false,
			&netlinkx.WireGuardChange{WireGuardPeer: netlinkx.WireGuardPeer{Endpoint: p.Endpoint}}},
		"was elsewhere long ago": {with(func(h *netlinkx.WireGuardPeer) { h.Endpoint = at("192.0.2.7:51820") }), p.Endpoint, false,
			&netlinkx.WireGuardChange{WireGuardPeer: netlinkx.WireGuardPeer{Endpoint: p.Endpoint}}},
		"an address is missing": {with(func(h *netlinkx.WireGuardPeer) { h.AllowedIPs = []netip.Prefix{block} }), p.Endpoint, false,
			&netlinkx.WireGuardChange{WireGuardPeer: netlinkx.WireGuardPeer{AllowedIPs: []netip.Prefix{more}}}},
		"without a handshake yet": {with(func(h *netlinkx.WireGuardPeer) { h.Handshake, h.Keepalive = time.Time{}, helloSeconds }),
			p.Endpoint, false, nil},
		"greeted by the other yet": {with(func(h *netlinkx.WireGuardPeer) { h.Handshake, h.Keepalive = time.Time{}, 0 }), p.Endpoint, true, nil},
		"not greeted by the other": {with(func(h *netlinkx.WireGuardPeer) { h.Handshake, h.Keepalive = time.Time{}, 0 }), p.Endpoint, false,
			&netlinkx.WireGuardChange{WireGuardPeer: netlinkx.WireGuardPeer{Keepalive: helloSeconds}, SetKeepalive: true}},
		"after the first handshake": {with(func(h *netlinkx.WireGuardPeer) { h.Keepalive = helloSeconds }), p.Endpoint, false,
			&netlinkx.WireGuardChange{SetKeepalive: true}},
	} {
		got, needed := p.change(tt.have, tt.told, !tt.wait, 0, now)
		if needed != (tt.want != nil) {
			t.Errorf("%s: %+v, needed: %v", name, got, needed)
			continue
		}
		if tt.want != nil {
			tt.want.Public = p.Key
			difftest.Want(t, name, *tt.want, got, comparable)
		}
	}
}

// The node with the lesser key begins; the other one does if it has received nothing for a while.
func TestGreets(t *testing.T) {
	small, great := Key{1}, Key{2}
	silent, heard := &netlinkx.WireGuardPeer{}, &netlinkx.WireGuardPeer{Received: 148}
	for name, c := range map[string]struct {
		own, peer Key
		have      *netlinkx.WireGuardPeer
		age       time.Duration
		want      bool
	}{
		"lesser key, new peer":             {small, great, nil, 0, true},
		"greater key, new peer":            {great, small, nil, time.Hour, false},
		"greater key, peer of a moment":    {great, small, silent, greetTime - 1, false},
		"greater key, silent peer":         {great, small, silent, greetTime, true},
		"greater key, a handshake in work": {great, small, heard, time.Hour, false},
	} {
		if got := greets(c.own, c.peer, c.have, c.age); got != c.want {
			t.Errorf("%s: greets is %v", name, got)
		}
	}
}

func TestValidate(t *testing.T) {
	at := netip.MustParseAddrPort("192.0.2.1:51820")
	block := []netip.Prefix{netip.MustParsePrefix("10.0.1.0/26")}
	good := Device{Port: 1, MTU: 1440, Peers: []Peer{{Key{1}, at, block}, {Key{2}, at, nil}}}
	if err := errors.Join(good.validate(), good.validatePeers()); err != nil {
		t.Error(err)
	}
	for name, spoil := range map[string]func(d *Device){
		"no port":                     func(d *Device) { d.Port = 0 },
		"MTU":                         func(d *Device) { d.MTU = 60 },
		"other family":                func(d *Device) { d.Addr = netip.MustParseAddr("fd00::1") },
		"no key":                      func(d *Device) { d.Peers = []Peer{{Endpoint: at}} },
		"no endpoint":                 func(d *Device) { d.Peers = []Peer{{Key: Key{1}}} },
		"one key twice":               func(d *Device) { d.Peers = []Peer{{Key{1}, at, nil}, {Key{1}, at, nil}} },
		"one address twice":           func(d *Device) { d.Peers = []Peer{{Key{1}, at, block}, {Key{2}, at, block}} },
		"allowed of the other family": func(d *Device) { d.Peers = []Peer{{Key{1}, at, []netip.Prefix{netip.MustParsePrefix("fd00::/64")}}} },
	} {
		d := good
		if spoil(&d); d.validate() == nil && d.validatePeers() == nil {
			t.Errorf("%s: was taken", name)
		}
	}
}
