package agent

import (
	"net/netip"
	"strings"
	"testing"

	"github.com/tortie-net/tortie/internal/agent/desired"
	"github.com/tortie-net/tortie/internal/agent/nodestatus"
	"github.com/tortie-net/tortie/internal/bgp"
	"github.com/tortie-net/tortie/internal/kernel/routes"
)

// TestLinkLocalInRoutes: node routes shows on which links link-local next hops are.
func TestLinkLocalInRoutes(t *testing.T) {
	way := desired.DesiredRoute{Route: routes.Route{Dst: prefix("10.9.0.0/16"), Metric: 1024, Hops: []routes.Hop{
		{Via: addr("fe80::1"), Dev: "eth0"}, {Via: addr("fe80::10"), Dev: "eth0"}, {Via: addr("fe80::1"), Dev: "eth1"},
		{Via: addr("fe80::9"), Dev: "eth1"}, {Via: addr("10.0.0.9"), Dev: "eth1"},
	}}}
	for _, from := range []string{"fe80::1%eth0", "fe80::10%eth0", "fe80::1%eth1", "fe80::9%eth1"} {
		way.Paths = append(way.Paths, bgp.Path{Prefix: way.Route.Dst, NextHop: addr(from), From: addr(from), ASPath: "65000"})
	}
	var r nodestatus.Report
	r.Routes.List = []nodestatus.Route{routeReport(way, map[netip.Addr]string{})}
	r.Routes.Refusals = []nodestatus.Refusal{refusalReport(
		bgp.Objection{Path: bgp.Path{Prefix: prefix("10.8.0.0/16"), NextHop: addr("fe80::1%eth1"), From: addr("fe80::1%eth0")}, Why: "no"})}
	var text strings.Builder
	if err := r.WriteRoutes(&text); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		"10.0.0.9, fe80::1%eth0, fe80::1%eth1, fe80::9%eth1, fe80::10%eth0",
		"BGP fe80::1%eth0, fe80::1%eth1, fe80::9%eth1, fe80::10%eth0, AS path 65000",
		"from fe80::1%eth0: 10.8.0.0/16 via fe80::1%eth1: no",
	} {
		if !strings.Contains(text.String(), want) {
			t.Errorf("%q is not in\n%s", want, text.String())
		}
	}
}

// TestLinkLocalPeerReport: a session without a configured address of this end has the connection's.
func TestLinkLocalPeerReport(t *testing.T) {
	status := bgp.PeerStatus{Addr: addr("fe80::1%eth0"), Self: addr("fe80::5%eth0")}
	if from := peerReport(&desired.Snapshot{}, desired.Session{}, status, nil).From; from != "fe80::5%eth0" {
		t.Errorf("from %q", from)
	}
}
