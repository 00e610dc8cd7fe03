package nodestatus

import (
	"bytes"
	"io"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/tortie-net/tortie/internal/api"
	"github.com/tortie-net/tortie/internal/testkit/difftest"
	"github.com/tortie-net/tortie/internal/testkit/errtest"
)

var (
	now     = time.Date(2026, 11, 20, 14, 30, 0, 0, time.UTC)
	earlier = now.Add(-28 * time.Minute) // 14:02
)

func starting() *Report {
	return &Report{
		Node: "node1", Version: "v0.1.0", Time: now, Started: now.Add(-3 * time.Second), LastPass: now.Add(-3 * time.Second),
		Pools: []Pool{}, Blocks: []string{}, Peers: []Peer{}, Learned: []Path{},
		Routes: Routes{List: []Route{}, Refusals: []Refusal{}, LeftToNetwork: []Refusal{}},
	}
}

func healthy() *Report {
	return &Report{
		Node: "node1", Version: "v0.1.0", Time: now, Started: now.Add(-26 * time.Hour), Ready: true,
		LastPass: now.Add(-12 * time.Second), LastPassSeconds: 0.0042,
		Address: "10.0.0.5/24", AddressSource: "InternalIP of node node1", Interface: "eth0", ASN: 64512, PodMTU: 1480,
		Tunnels: []Tunnel{{Kind: "IPIP", Device: "tunl0", Address: "192.168.1.0", MTU: 1480}},
		Pools: []Pool{
			{Name: "default-ipv4-ippool", CIDR: "192.168.0.0/16", BlockSize: 26, IPIPMode: "Always", NATOutgoing: true, SelectsNode: true},
		},
		Blocks: []string{"192.168.1.0/26"},
		Peers: []Peer{{
			Address: "10.0.0.7", Node: "node2", ASN: 64512, From: "10.0.0.5", Source: "node-to-node mesh", Kind: "mesh", EndOfTable: true,
			State: "Established", Since: now.Add(-26 * time.Hour),
			Received: 1, Sent: 1,
		}},
		Learned: []Path{{Prefix: "192.168.2.0/26", NextHop: "10.0.0.7", Peer: "10.0.0.7"}},
		Routes: Routes{
			Desired: 2, Programmed: 2, Refusals: []Refusal{}, LeftToNetwork: []Refusal{},
			List: []Route{
				{Destination: "192.168.1.0/26", Type: "unreachable", Source: "own block"},
				{Destination: "192.168.2.0/26", Type: "unicast", Via: "10.0.0.7", Device: "tunl0", Node: "node2", Source: "BGP", Peer: "10.0.0.7"},
			},
		},
		Facts: &Facts{Written: now.Add(-4 * time.Second), Usable: true, AgentReady: true, DatastoreReady: true, Bytes: 900, Pools: 1,
			Affinities: 1, Namespaces: 5},
	}
}

// troubled returns a report with one of each trouble.
func troubled() *Report {
	r := healthy()
	down := r.Peers[0]
	down.State, down.Since, down.Received, down.Sent, down.EndOfTable = "Active", earlier, 0, 0, false
	down.LastError, down.ErrorSince, down.ErrorAt = "TCP refused on port 179: no BGP speaker listens there, or a firewall rejects",
		earlier, now.Add(-2*time.Second)
	down.NextTry = now.Add(3 * time.Second)
	r.Peers = []Peer{
		down,
		{Address: "10.0.0.8", Node: "node3", ASN: 64513, Source: "node-to-node mesh", Kind: "mesh", State: "Active",
			Since: earlier, Restarting: true,
			Received: 2, LastError: "connection lost; its paths are kept for its restart time", ErrorSince: earlier, ErrorAt: earlier},
		{Address: "10.0.0.9", Node: "node4", ASN: 64512, Source: "node-to-node mesh", Kind: "mesh", Passive: true, State: "Active",
			Since: earlier, NextTry: now.Add(time.Second)},
		{Address: "10.0.0.4", ASN: 64512, Source: "node-to-node mesh", Kind: "mesh", State: "Idle", Since: now},
		{Address: "10.0.0.10", Node: "node5", ASN: 64512, Source: "node-to-node mesh", Kind: "mesh", EndOfTable: true, State: "Established",
			Since: now.Add(-time.Minute), Received: 1, Sent: 1,
			LastError: "connection lost", ErrorSince: now.Add(-24 * time.Hour), ErrorAt: now.Add(-24 * time.Hour)},
	}
	r.Pools = append(r.Pools,
		Pool{Name: "old", CIDR: "10.9.0.0/16", BlockSize: 24, IPIPMode: "Never", Disabled: true, Reason: api.PoolDisabled, DisableBGPExport: true,
			SelectsNode: true}, Pool{Name: "racks", CIDR: "10.10.0.0/16", BlockSize: 26, IPIPMode: "CrossSubnet"})
	r.Tunnels[0].Address = ""
	r.LastError = "route 192.168.2.0/26 via 10.0.0.7 dev tunl0 onlink: there is no device tunl0\n" +
		"announce this node's address: Node node1: datastore is not available"
	r.Problems = []string{
		"IPPool broken: spec.cidr \"10.91.0.1/16\" is no CIDR with its host bits zero, such as 192.168.0.0/16",
		"BGP peer 10.0.0.8: 192.168.1.64/26 via 10.0.0.8: the block belongs to the node at 10.0.0.7, not to node3",
	}
	r.FieldsWithoutEffect = []FieldsWithoutEffect{
		{Kind: "BGPConfiguration", Name: "default", Fields: []string{"spec.ignoredInterfaces"}},
		{Kind: "FelixConfiguration", Name: "node.node1", Fields: []string{"spec.bpfEnabled", "spec.routeSource"}},
	}
	r.Routes.Programmed, r.Routes.Held, r.Routes.Starting, r.Routes.Refused = 1, 2, true, 1
	r.Routes.Refusals = []Refusal{
		{Prefix: "192.168.1.64/26", Via: "10.0.0.8", Peer: "10.0.0.8", Reason: "the block belongs to the node at 10.0.0.7, not to node3"},
	}
	r.Routes.LeftToNetwork = []Refusal{
		{Prefix: "10.9.1.0/24", Via: "10.1.0.8", Reason: "the next hop is in another subnet and the pool does not encapsulate"},
	}
	r.Facts.Written, r.Facts.Usable, r.Facts.DatastoreReady = now.Add(-90*time.Second), false, false
	r.Journal = Journal{Entries: 1, LastError: "release k8s-pod-network.1: datastore is not available"}
	return r
}

// routed returns a report with two routers for peers, as a reflector, with services and pools with VXLAN.
func routed() *Report {
	r := healthy()
	r.RouterID = "10.0.0.5"
	r.Tunnels = []Tunnel{{Kind: "IPIP", Device: "tunl0", Address: "192.168.1.0", MTU: 1480},
		{Kind: "VXLAN", Device: "vxlan.calico", Address: "192.168.1.1", MTU: 1450, Port: 4789}, {
			Kind: "WireGuard", Device: "wireguard.cali", Address: "192.168.1.2", MTU: 1440, KeySince: now.Add(-48 * time.Hour), KeyChanging: true,
			KeyWaitsFor: []string{"node4", "node7"},
		}}
	r.Reflection = &Reflection{Role: "reflector", ClusterID: "10.0.0.5", Reflectors: []string{"node1", "node4", "node7"}}
	r.Services = &Services{Known: true, Ranges: []string{"10.96.0.0/12", "198.51.100.0/24"}, Prefixes: 3}
	r.Pools = append(r.Pools,
		Pool{Name: "vx", CIDR: "10.20.0.0/16", BlockSize: 26, IPIPMode: "Never", VXLANMode: "CrossSubnet", SelectsNode: true})
	r.Announced = []Announced{
		{Prefix: "192.168.1.0/26", Origin: "own block", Communities: "64512:100"}, {Prefix: "10.96.0.0/12", Origin: "service range"},
		{Prefix: "198.51.100.7/32", Origin: "service"},
	}
	tor := Peer{
		Address: "10.0.0.1", ASN: 64600, From: "10.0.0.5", Port: 179, Source: "BGPPeer rack-a", Kind: "node", Object: "rack-a",
		LocalASN: 64700, Password: true,
		State: "Established", Since: now.Add(-time.Hour), Received: 12, Sent: 3, Refused: 2, EndOfTable: true,
		Sessions: 2, MessagesReceived: 142, MessagesSent: 67, FlawedMessages: 3, LastFlaw: "ORIGIN is missing",
		Supports: "graceful restart for 120 s",
		Refusals: []Reason{{Reason: "BGPFilter no-default rejects it", Prefixes: 1, Example: "0.0.0.0/0"},
			{Reason: "our own AS number is in its AS path", Prefixes: 1}},
	}
	second := tor
	second.Address, second.Refused, second.Refusals, second.EndOfTable, second.FlawedMessages = "10.0.0.2", 0, nil, false, 0
	r.Peers[0].Client, r.Peers[0].Kind, r.Peers[0].Source = true, "reflector", "BGPPeer tortie-reflectors"
	r.Peers = append(r.Peers, tor, second)
	r.Routes.Desired, r.Routes.Programmed = 4, 4
	r.Routes.List = append(r.Routes.List,
		Route{Destination: "172.20.0.0/16", Type: "unicast", Via: "10.0.0.1, 10.0.0.2", Device: "eth0", Metric: 1024,
			Source: "BGP", Peer: "10.0.0.1", Peers: []string{"10.0.0.1", "10.0.0.2"}, ASPath: "64600 64601", Communities: "64600:1 1:2:3"},
		Route{Destination: "10.20.3.0/26", Type: "unicast", Via: "192.168.9.1", Device: "vxlan.calico", Encap: "VXLAN",
			Node: "node2", Source: "affinity"})
	return r
}

// dual returns a report with both families, addresses to choose among and a peer that is held down.
func dual() *Report {
	r := healthy()
	r.Address6, r.Address6Source, r.Interface6 = "fd00::5/64", "first-found", "eth0"
	r.Candidates = []Candidate{
		{Address: "10.0.0.5/24", Interface: "eth0", Chosen: true, Reason: "InternalIP of node node1"},
		{Address: "172.17.0.1/16", Interface: "docker0", Reason: "on a bridge"},
		{Address: "fd00::5/64", Interface: "eth0", Chosen: true, Reason: "first-found"},
	}
	r.Blocks = append(r.Blocks, "fd00:10:244::40/122")
	v6 := r.Peers[0]
	v6.Address, v6.From, v6.State, v6.Since = "fd00::7", "fd00::5", "Active", earlier
	v6.LastError, v6.ErrorSince, v6.ErrorAt = "TCP refused on port 179 of [fd00::7]: no BGP speaker listens there, or a firewall rejects",
		earlier, now
	held := r.Peers[0]
	held.Address, held.Node, held.State, held.Since, held.HeldUntil = "10.0.0.9", "node4", "Idle", earlier, now.Add(time.Minute)
	held.LastError, held.ErrorSince, held.ErrorAt = "it announced more than 20000 prefixes", earlier, earlier
	r.Peers = append(r.Peers, held, v6)
	r.Routes.Desired, r.Routes.Programmed = 4, 4
	r.Routes.List = append(r.Routes.List,
		Route{Destination: "fd00:10:244::40/122", Type: "unreachable", Source: "own block"},
		Route{Destination: "fd00:10:244::80/122", Type: "unicast", Via: "fd00::7", Device: "eth0", Node: "node2", Source: "affinity"})
	return r
}

func TestText(t *testing.T) {
	reports := map[string]*Report{"starting": starting(), "healthy": healthy(), "troubled": troubled(), "dual": dual(), "routed": routed()}
	for name, r := range reports {
		for _, command := range Commands() {
			t.Run(command+" "+name, func(t *testing.T) {
				var got bytes.Buffer
				errtest.Must(t, views[command].text(r, &got))
				difftest.Golden(t, command+"-"+name+".txt", got.String())
			})
		}
	}
}

// For one peer the messages and ends are shown too.
func TestPickedPeer(t *testing.T) {
	r := routed()
	ended := now.Add(-2 * time.Hour)
	r.Peers[slices.IndexFunc(r.Peers, func(p Peer) bool { return p.Address == "10.0.0.1" })].Ends = []End{
		{At: ended.Add(time.Minute), Times: 3, First: ended.Add(time.Second),
			Reason: "TCP refused on port 179: no BGP speaker listens there, or a firewall rejects"},
		{At: ended, Times: 1, First: ended, By: "this node", Reason: "peer is AS 64601, configured 64600",
			Sent: "OPEN Message Error/Bad Peer AS"},
		{At: ended, Since: now.Add(-72 * time.Hour), By: "peer", Reason: "closed by the peer: Cease/Administrative Shutdown: works in rack a",
			Received: "Cease/Administrative Shutdown: works in rack a"},
		{At: ended.Add(-71 * time.Hour), Since: ended.Add(-72 * time.Hour), By: "hold timer", Reason: "nothing heard from it for the hold time",
			Sent: "Hold Timer Expired"},
		{At: ended.Add(-72 * time.Hour), Since: ended.Add(-73 * time.Hour), By: "connection", Reason: "connection lost",
			Error: "read tcp 10.0.0.5:179->10.0.0.1:40000: read: connection reset by peer"},
	}
	got, err := execute(t, agent(t, r), "peers", "10.0.0.1")
	errtest.Must(t, err)
	difftest.Golden(t, "peers-picked.txt", got)
}

// A flood of bad paths must not push the rest of the overview off the screen.
func TestLongListsAreCut(t *testing.T) {
	r := healthy()
	for range 1000 {
		r.Problems = append(r.Problems, "bad path")
	}
	var got strings.Builder
	errtest.Must(t, r.WriteStatus(&got))
	if n := strings.Count(got.String(), "bad path"); n != maxListed || !strings.Contains(got.String(), "and 980 more: -o json has them") {
		t.Errorf("%d lines:\n%s", n, &got)
	}
	if len(r.Problems) != 1000 {
		t.Errorf("the report was changed: %d problems", len(r.Problems))
	}
}

func TestTimes(t *testing.T) {
	r := &Report{Time: time.Date(2026, 11, 20, 0, 30, 0, 0, time.FixedZone("", 3600))}
	for _, c := range []struct {
		at         time.Time
		ago, clock string
	}{
		{time.Time{}, "an unknown time", "-"},
		{r.Time.Add(-1400 * time.Millisecond), "1s", "00:29:58"},
		{r.Time.Add(-90 * time.Second), "2m", "00:28:30"},
		{r.Time.Add(-31 * time.Minute), "31m", "2026-11-19 23:59:00"},
		{r.Time.Add(-31 * time.Minute).UTC(), "31m", "2026-11-19 23:59:00"},
		{r.Time.Add(-25 * time.Hour), "25h0m", "2026-11-18 23:30:00"},
		{r.Time.Add(-50 * time.Hour), "2 days", "2026-11-17 22:30:00"},
	} {
		if ago, clock := r.ago(c.at), r.clock(c.at); ago != c.ago || clock != c.clock {
			t.Errorf("%s: %q and %q, want %q and %q", c.at, ago, clock, c.ago, c.clock)
		}
	}
}

type full struct{}

func (full) Write([]byte) (int, error) { return 0, io.ErrShortWrite }

func TestWriteErrorsAreReported(t *testing.T) {
	for _, command := range Commands() {
		for _, format := range []string{"text", "json", "yaml"} {
			write, err := views[command].writer(format)
			errtest.Must(t, err)
			if err := write(healthy(), full{}); err == nil {
				t.Errorf("%s -o %s to a full disk: no error", command, format)
			}
		}
	}
}

// TestFrom: a link-local session shows this end's address, and before there is one the link.
func TestFrom(t *testing.T) {
	for want, p := range map[string]Peer{
		"fe80::5%eth0": {Address: "fe80::1%eth0", From: "fe80::5%eth0"}, "eth0": {Address: "fe80::1%eth0"},
		"10.0.0.5": {Address: "10.0.0.1", From: "10.0.0.5"}, "-": {Address: "10.0.0.1"},
	} {
		table := (&Report{Peers: []Peer{p}}).peerTable()
		if got := table[1][slices.Index(table[0], "FROM")]; got != want {
			t.Errorf("%s: from %q, want %q", p.Address, got, want)
		}
	}
}

// TestTCPAOKeys: removed keys that a peer uses are named, and those that do not match the peer's, with the remedy.
func TestTCPAOKeys(t *testing.T) {
	r := Report{Peers: []Peer{
		{Address: "10.0.0.1", State: established, TCPAO: true, OldKeys: "1/11 2/12"},
		{Address: "10.0.0.2", State: "Active", TCPAO: true, WrongKeys: "3/13", Object: "tor"},
	}}
	var out strings.Builder
	errtest.Must(t, r.WritePeers(&out))
	for _, want := range []string{
		"10.0.0.1: uses removed TCP-AO keys 1/11 2/12: give it the new ones",
		"10.0.0.2: TCP segments from its address have the ID of TCP-AO key 3/13, and another secret or algorithm has signed them: compare the " +
			"line in the Secret of BGPPeer tor",
	} {
		if strings.Count(out.String(), "10.0.0.1: ") != 1 || !strings.Contains(out.String(), want) {
			t.Errorf("no %q in:\n%s", want, out.String())
		}
	}
}

// TestWhyBFDIsNotUp: the text names why a peer's BFD session is not up, and is empty if it is.
func TestWhyBFDIsNotUp(t *testing.T) {
	at := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	for want, b := range map[string]*BFD{
		"":       nil,
		"BFD Up": {State: "Up", Diag: "Path Down"},
		"10.0.0.1: BFD is not up since 03:04:05: Control Detection Time Expired: no packets come on UDP port 3784": {State: "Down", Since: at,
			Diag: "Control Detection Time Expired"},
		"10.0.0.1: BFD is not up since 03:04:05: its packets are not authenticated": {State: "Down", Since: at,
			Fault: "its packets are not authenticated"},
		"10.0.0.1: BFD is not up since 03:04:05: it says: Administratively Down": {State: "Down", Since: at,
			Heard: true, RemoteDiag: "Administratively Down"},
	} {
		r := Report{Time: at, Peers: []Peer{{Address: "10.0.0.1", State: established, BFD: b}}}
		var out strings.Builder
		if err := r.WritePeers(&out); err != nil || !strings.Contains(out.String(), want) {
			t.Errorf("%+v: %v, want %q in:\n%s", b, err, want, out.String())
		}
		if up := b == nil || b.State == "Up"; up == strings.Contains(out.String(), "is not up") {
			t.Errorf("%+v:\n%s", b, out.String())
		}
	}
}
