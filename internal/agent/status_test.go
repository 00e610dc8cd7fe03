package agent

import (
	"bytes"
	"encoding/json"
	"errors"
	"net/http/httptest"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/tortie-net/tortie/internal/agent/desired"
	"github.com/tortie-net/tortie/internal/agent/nodestatus"
	"github.com/tortie-net/tortie/internal/api"
	"github.com/tortie-net/tortie/internal/app/nodeaddr"
	"github.com/tortie-net/tortie/internal/bgp"
	"github.com/tortie-net/tortie/internal/bgp/peering"
	"github.com/tortie-net/tortie/internal/bgp/policy"
	"github.com/tortie-net/tortie/internal/cluster/state"
	"github.com/tortie-net/tortie/internal/ipam"
	"github.com/tortie-net/tortie/internal/kernel/routes"
	"github.com/tortie-net/tortie/internal/testkit/difftest"
	"github.com/tortie-net/tortie/internal/testkit/errtest"
	"github.com/tortie-net/tortie/internal/testkit/waittest"
)

// ask runs a command against an agent's HTTP server and returns its output with single blanks between columns.
func ask(t *testing.T, status *Status, command ...string) string {
	t.Helper()
	server := httptest.NewServer(status.Handler())
	defer server.Close()
	var out, usage bytes.Buffer
	if err := nodestatus.Run(t.Context(), command, server.Listener.Addr().String(), nodestatus.Output{Out: &out, Err: &usage}); err != nil {
		t.Fatalf("node %v: %v", command, err)
	}
	lines := strings.Split(out.String(), "\n")
	for i, line := range lines {
		lines[i] = strings.Join(strings.Fields(line), " ")
	}
	return strings.Join(lines, "\n")
}

func TestCommandsAskTheAgent(t *testing.T) {
	r := newRig(t)
	r.affinity(t, rigNode, "10.90.1.0/26", "rig-node-10-90-1-0-26")
	r.affinity(t, rigOther, "10.90.2.0/26", "rig-other-10-90-2-0-26")
	r.lent(t, rigOther)
	speaker := newPeers()
	other := addr("172.31.0.2")
	speaker.tell(false,
		bgp.Path{Prefix: prefix("10.90.7.7/32"), NextHop: other, From: other},
		bgp.Path{Prefix: prefix("10.90.0.0/20"), NextHop: other, From: other})
	status, _ := r.agent(t, speaker)
	difftest.Contains(t, ask(t, status, "status"), "Node rig-node")
	waittest.Until(t, 20*time.Second, "ready, the plugins are told, and the borrowed address is believed", func() bool {
		report := status.Report()
		return report.Ready && report.Facts != nil && report.Routes.Programmed == 3
	})

	refused := "from 172.31.0.2: 10.90.0.0/20 via 172.31.0.2: it is larger than a block of IPPool rig (/26)"
	difftest.Contains(t, ask(t, status, "status"),
		"Node rig-node, ready\n", "Address 172.31.0.1/24 on eth0 (InternalIP of node rig-node)\n", "Tunnel none: no pool encapsulates\n",
		"Pod MTU 1500\n", "AS number 64512\n", "Blocks 10.90.1.0/26\n", "Routes 3 desired, 3 programmed, 0 held, 1 refused", "Journal empty\n",
		"without error\n", "rig 10.90.0.0/16 /26 Never Never yes assigns\n", "172.31.0.2 rig-other 64512 Established",
		"BGP peer 172.31.0.2: 10.90.0.0/20")
	difftest.Contains(t, ask(t, status, "peers"), "172.31.0.2 rig-other 64512 Established")
	difftest.Contains(t, ask(t, status, "routes"),
		"3 desired, 3 programmed, 0 held, 1 refused", "10.90.1.0/26 unreachable - - - own block\n",
		"10.90.2.0/26 172.31.0.2 eth0 - rig-other affinity\n", "10.90.7.7/32 172.31.0.2 eth0 - rig-other BGP 172.31.0.2\n",
		"\nAnnounced:\nPREFIX WHY COMMUNITIES\n10.90.1.0/26 own block", "\nRefused:\n"+refused)

	speaker.tell(true)
	waittest.Until(t, soon, "the lost session", func() bool { return status.Report().Peers[0].State == string(bgp.Active) })
	difftest.Contains(t, ask(t, status, "peers"), "172.31.0.2 rig-other 64512 Active")
	difftest.Contains(t, ask(t, status, "status"), "Sessions that are down:\n172.31.0.2: ")
	var routes nodestatus.Routes
	if err := json.Unmarshal([]byte(ask(t, status, "routes", "-o", "json")), &routes); err != nil || routes.Desired != len(routes.List) {
		t.Errorf("%v: %+v", err, routes)
	}
}

// An earlier agent's routes are counted while no peer has confirmed them.
func TestHeldRoutesAreShown(t *testing.T) {
	r := newRig(t)
	r.ns.Run(t, "ip", "route", "add", "10.90.7.0/26", "via", "172.31.0.2", "dev", "eth0", "proto", "84")
	speaker := newPeers()
	speaker.tell(true)
	status, _ := r.agent(t, speaker)
	waittest.Until(t, 20*time.Second, "ready", func() bool { return status.Report().Ready })
	difftest.Contains(t, ask(t, status, "routes"), "0 desired, 0 programmed, 1 held, 0 refused; starting")
	speaker.tell(false)
	waittest.Until(t, 3*settleTime, "nothing is held",
		func() bool { return status.Report().Routes.Held == 0 && !status.Report().Routes.Starting })
}

func TestReport(t *testing.T) {
	now := time.Date(2026, 11, 20, 14, 30, 0, 0, time.UTC)
	other, far, router := addr("10.0.0.7"), addr("10.1.0.8"), addr("10.0.0.1")
	community, err := policy.ParseCommunity("64512:7")
	errtest.Must(t, err)
	path := func(p string, hop, from netip.Addr) bgp.Path {
		return bgp.Path{Prefix: prefix(p), NextHop: hop, From: from}
	}
	var view desired.View
	view.Update(now, desired.Self{Name: "n1"},
		state.Cluster{BGP: api.BGPConfigurationSpec{ServiceClusterIPs: []api.ServiceRange{{CIDR: "10.96.0.0/12"}}}})
	s := view.Base
	(&desired.ServiceView{}).Follow(now, &s, 1, func() state.Services { return state.Services{Known: true} })
	s.Services = rangesOf("10.96.0.0/12", "10.96.0.7/32")
	s.Self = desired.Self{Name: "n1", Addr: prefix("10.0.0.5/24"), AddrSource: "environment variable IP", Link: "eth0", LinkMTU: 1500,
		Addr6: prefix("fd00::5/64"), AddrSource6: "first-found", Link6: "eth1", ASN: 65001, TunnelAddr: addr("192.168.1.0")}
	s.Peering = peering.Decision{
		Peers: []bgp.Peer{{Addr: other, From: addr("10.0.0.5"), Port: 1179},
			{Addr: router, From: addr("10.0.0.5"), Port: 179, Password: "secret"}},
		Sources: map[netip.Addr]peering.Source{other: {Node: "n2"}, router: {Peer: "tor"}},
		Tags:    []policy.Tag{{Prefix: prefix("192.168.0.0/16"), Communities: []policy.Community{community}}},
	}
	s.Felix = desired.Felix{VXLANPort: 4789, VXLANVNI: 4096}
	s.Blocks, s.Others = []netip.Prefix{prefix("192.168.1.0/26")}, []desired.Member{{Name: "n2", Addr: other}}
	s.Pools = []desired.Pool{
		{Pool: ipam.Pool{Name: "plain", CIDR: prefix("10.9.0.0/16"), BlockBits: 24}, IPIP: api.EncapNever,
			VXLAN: api.EncapCrossSubnet, NoExport: true},
		{Pool: ipam.Pool{Name: "pods", CIDR: prefix("192.168.0.0/16"), BlockBits: 26, Enabled: true}, IPIP: api.EncapAlways, NATOutgoing: true},
	}
	k := seen{
		node: "n1", started: now.Add(-time.Hour), ready: true, lastPass: now.Add(-time.Second), lastTook: 5 * time.Millisecond,
		lastErr: errors.New("one\ntwo"),
		found: []nodeaddr.Candidate{{Addr: prefix("10.0.0.5/24"), Link: "eth0", Chosen: true, Why: "asked for"},
			{Addr: prefix("172.17.0.1/16"), Link: "docker0", Why: "on a bridge"}},
		problems: map[string][]string{"path": {"p1"}, "object": {"o1", "o2"}},
		snapshot: &s,
		peers: []bgp.PeerStatus{{
			Addr: other, ASN: 64512, Passive: true, State: bgp.Active, Since: now, Received: 3, Sent: 1, Restarting: true,
			LastError: "connection lost", ErrorSince: now, LastErrorAt: now, LocalASN: 65001,
		}, {
			Addr: router, ASN: 64600, LocalASN: 64999, State: bgp.Established, Since: now, Received: 5, TableEnded: now,
			Supports: "graceful restart",
			Refused:  []bgp.Refusal{{Reason: "a filter", Prefixes: 2, Example: prefix("10.0.0.0/8")}, {Reason: "a martian", Prefixes: 1}},
		}},
		traffic: map[netip.Addr]bgp.Traffic{
			other:  {Received: 7, Sent: 8, NextTry: now.Add(time.Second)},
			router: {Sessions: 3, Received: 1, Sent: 2, Flawed: 1, LastFlaw: "ORIGIN is missing"},
		},
		told:    []netip.Prefix{prefix("192.168.1.0/26"), prefix("192.168.2.0/26")},
		learned: []bgp.Path{path("192.168.2.0/26", other, other)},
		routes: routesSeen{
			refused: []bgp.Objection{{Path: path("192.168.0.0/20", other, other), Why: "it is larger"}},
			desired: 3, stats: routes.Stats{Added: 1, Replaced: 1, Kept: 1, Deleted: 9, Held: 2}, starting: true,
		},
		facts:   &nodestatus.Facts{Written: now.Add(-time.Minute)},
		journal: nodestatus.Journal{Entries: 1, LastError: "away"},
		unacted: []state.Unacted{{Kind: "FelixConfiguration", Name: "default", Fields: []string{"spec.bpfEnabled"}}},
	}
	k.routes.ways, k.routes.left = k.snapshot.By(desired.Grounds{}).DesiredRoutes([]bgp.Path{
		path("10.9.1.0/24", far, other), path("192.168.2.0/26", other, other), path("192.168.3.0/26", other, netip.Addr{}),
	})
	want := nodestatus.Report{
		Node: "n1", Version: "dev", Time: now, Started: now.Add(-time.Hour), Ready: true,
		LastPass: now.Add(-time.Second), LastPassSeconds: 0.005, LastError: "one\ntwo", Problems: []string{"o1", "o2", "p1"},
		FieldsWithoutEffect: []nodestatus.FieldsWithoutEffect{{Kind: "FelixConfiguration", Name: "default", Fields: []string{"spec.bpfEnabled"}}},
		Address:             "10.0.0.5/24", AddressSource: "environment variable IP", Interface: "eth0",
		Address6: "fd00::5/64", Address6Source: "first-found", Interface6: "eth1",
		Candidates: []nodestatus.Candidate{{Address: "10.0.0.5/24", Interface: "eth0", Chosen: true, Reason: "asked for"},
			{Address: "172.17.0.1/16", Interface: "docker0", Reason: "on a bridge"}},
		ASN: 65001, BGPPort: 179, RouterID: "10.0.0.5", PodMTU: 1450,
		Tunnel: &nodestatus.Tunnel{Kind: "IPIP", Device: "tunl0", Address: "192.168.1.0", MTU: 1480},
		Tunnels: []nodestatus.Tunnel{
			{Kind: "IPIP", Device: "tunl0", Address: "192.168.1.0", MTU: 1480},
			{Kind: "VXLAN", Device: "vxlan.calico", MTU: 1450, Port: 4789, VNI: 4096},
		},
		Pools: []nodestatus.Pool{
			{Name: "plain", CIDR: "10.9.0.0/16", BlockSize: 24, IPIPMode: "Never", VXLANMode: "CrossSubnet", Disabled: true,
				DisableBGPExport: true, SelectsNode: true},
			{Name: "pods", CIDR: "192.168.0.0/16", BlockSize: 26, IPIPMode: "Always", NATOutgoing: true, SelectsNode: true},
		},
		Blocks: []string{"192.168.1.0/26"},
		Announced: []nodestatus.Announced{
			{Prefix: "192.168.1.0/26", Origin: "own block", Communities: "64512:7"}, {Prefix: "10.96.0.0/12", Origin: "service range"},
			{Prefix: "10.96.0.7/32", Origin: "service"},
		},
		PassedOn: []nodestatus.Announced{{Prefix: "192.168.2.0/26", Origin: "learned"}},
		Services: &nodestatus.Services{Known: true, Ranges: []string{"10.96.0.0/12"}, Prefixes: 2},
		Peers: []nodestatus.Peer{{
			Address: "10.0.0.7", Node: "n2", From: "10.0.0.5", Port: 1179, ASN: 64512, Source: "node-to-node mesh", Kind: "mesh", Passive: true,
			State: "Active", Since: now, Restarting: true,
			Received: 3, Sent: 1, LastError: "connection lost", ErrorSince: now, ErrorAt: now,
			NextTry: now.Add(time.Second), MessagesReceived: 7, MessagesSent: 8,
		}, {
			Address: "10.0.0.1", From: "10.0.0.5", Port: 179, ASN: 64600, LocalASN: 64999, Source: "BGPPeer tor", Kind: "node",
			Object: "tor", Password: true,
			State: "Established", Since: now, Received: 5, EndOfTable: true, Supports: "graceful restart", Refused: 3,
			Refusals: []nodestatus.Reason{{Reason: "a filter", Prefixes: 2, Example: "10.0.0.0/8"}, {Reason: "a martian", Prefixes: 1}},
			Sessions: 3, MessagesReceived: 1, MessagesSent: 2, FlawedMessages: 1, LastFlaw: "ORIGIN is missing",
		}},
		Learned: []nodestatus.Path{{Prefix: "192.168.2.0/26", NextHop: "10.0.0.7", Peer: "10.0.0.7"}},
		Routes: nodestatus.Routes{
			Desired: 3, Programmed: 3, Held: 2, Starting: true, Refused: 1,
			List: []nodestatus.Route{
				{Destination: "192.168.1.0/26", Type: "unreachable", Source: "own block"},
				{Destination: "192.168.2.0/26", Type: "unicast", Via: "10.0.0.7", Device: "tunl0", Encap: "IPIP", Node: "n2",
					Source: "BGP", Peer: "10.0.0.7"},
				{Destination: "192.168.3.0/26", Type: "unicast", Via: "10.0.0.7", Device: "tunl0", Encap: "IPIP", Node: "n2", Source: "affinity"},
			},
			Refusals: []nodestatus.Refusal{{Prefix: "192.168.0.0/20", Via: "10.0.0.7", Peer: "10.0.0.7", Reason: "it is larger"}},
			LeftToNetwork: []nodestatus.Refusal{{
				Prefix: "10.9.1.0/24", Via: "10.1.0.8", Peer: "10.0.0.7", Reason: "the next hop is in another subnet and the pool does not encapsulate",
			}},
		},
		Facts:   &nodestatus.Facts{Written: now.Add(-time.Minute)},
		Journal: nodestatus.Journal{Entries: 1, LastError: "away"},
	}
	difftest.Want(t, "report", want, k.report(now))
	if k.facts.Usable {
		t.Error("the report was made in what it is about")
	}
	k.facts.Written = now.Add(-time.Second)
	if !k.report(now).Facts.Usable {
		t.Error("facts of a second ago are not usable")
	}
}

// SetNode and its like must cost a pass nothing per route: only reports make text.
func TestHandingOverCostsNothingPerRoute(t *testing.T) {
	status := NewStatus("n1", time.Now(), nil)
	paths, ways := make([]bgp.Path, 10000), make([]desired.DesiredRoute, 10000)
	peers := []bgp.PeerStatus{{Addr: addr("10.0.0.7"), State: bgp.Established}}
	snapshot := &desired.Snapshot{}
	allocations := testing.AllocsPerRun(10, func() {
		status.SetNode(snapshot)
		status.SetBGP(peers, paths)
		status.SetRoutes(routesSeen{ways: ways, desired: len(ways)})
		status.Passed(nil, time.Millisecond)
	})
	if allocations > 60 {
		t.Errorf("%v allocations", allocations)
	}
}
