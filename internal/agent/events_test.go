package agent

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/tortie-net/tortie/internal/agent/desired"
	"github.com/tortie-net/tortie/internal/agent/nodestatus"
	"github.com/tortie-net/tortie/internal/api"
	"github.com/tortie-net/tortie/internal/bgp"
	"github.com/tortie-net/tortie/internal/cluster/state"
	"github.com/tortie-net/tortie/internal/ipam"
	"github.com/tortie-net/tortie/internal/kernel/guard"
	"github.com/tortie-net/tortie/internal/kernel/ipip"
	"github.com/tortie-net/tortie/internal/kernel/routes"
	"github.com/tortie-net/tortie/internal/kernel/vxlan"
	"github.com/tortie-net/tortie/internal/kernel/wireguard"
	"github.com/tortie-net/tortie/internal/testkit/difftest"
)

// told records the Recorder's calls.
type told struct {
	lines []string
	away  bool // past problems and notes are not written
}

func (t *told) Warn(about api.ObjectReference, reason, message string) {
	t.lines = append(t.lines, fmt.Sprintf("%s: %s: %s", about, reason, message))
}

func (t *told) WarnCommon(about api.ObjectReference, reason, message string) {
	t.lines = append(t.lines, fmt.Sprintf("%s: %s, of all nodes: %s", about, reason, message))
}

func (t *told) Note(about api.ObjectReference, reason, message string) {
	t.lines = append(t.lines, fmt.Sprintf("%s: %s, which is normal: %s", about, reason, message))
}

func (t *told) WarnOfPast(about api.ObjectReference, reason, message string) {
	t.Warn(about, reason, message)
}

func (t *told) Unwritten(api.ObjectReference, string) bool { return t.away }

func (t *told) Run(context.Context) error { return nil }

// Each thing that an operator must act on has its Event, about the object at fault.
func TestWhatOperatorsAreTold(t *testing.T) {
	now := time.Date(2026, 11, 20, 14, 30, 0, 0, time.UTC)
	other := addr("10.0.0.7")
	s, _ := desired.Build(desired.Self{Name: "n1"}, state.Cluster{Nodes: []api.Node{{Meta: api.Meta{
		Name: "n2", Annotations: map[string]string{api.AnnotationIPv4Address: other.String() + "/24"},
	}}}})
	base := seen{node: "n1", snapshot: &s}
	with := func(change func(*seen)) *seen {
		k := base
		change(&k)
		return &k
	}
	unknown := errors.New("netlink: no buffer space")
	for _, c := range []struct {
		name string
		seen *seen
		err  error
		want []string
	}{
		{"all is well", &base, nil, nil},
		{"no VXLAN", &base, fmt.Errorf("vxlan.calico: %w", vxlan.ErrNoVXLAN),
			[]string{"Node n1: NoVXLAN: vxlan.calico: " + vxlan.ErrNoVXLAN.Error()}},
		{"no IPIP", &base, fmt.Errorf("tunl0: %w", ipip.ErrNoIPIP), []string{"Node n1: NoIPIP: tunl0: " + ipip.ErrNoIPIP.Error()}},
		{"no WireGuard", &base, fmt.Errorf("wireguard.cali: %w", wireguard.ErrNoWireGuard),
			[]string{"Node n1: NoWireGuard: wireguard.cali: " + wireguard.ErrNoWireGuard.Error()}},
		{"no source check", &base, guard.ErrNoSourceCheck, []string{"Node n1: NoSourceCheck: " + guard.ErrNoSourceCheck.Error()}},
		{"port taken", &base, &bgp.ListenError{Addr: "10.0.0.5:179", Err: errors.New("in use")},
			[]string{"Node n1: BGPPortTaken: listen for BGP on 10.0.0.5:179: in use: check the node address and BGP port"}},
		{"two at once", &base,
			errors.Join(errors.Join(fmt.Errorf("a: %w: %w", routes.ErrForeign, unknown)), fmt.Errorf("b: %w", ipam.ErrExhausted)),
			[]string{"Node n1: ForeignRoute: a: a foreign route is in the way: netlink: no buffer space",
				"Node n1: NoTunnelAddress: b: no free address"}},
		{"two for one reason", &base, errors.Join(fmt.Errorf("a: %w", vxlan.ErrNoVXLAN), fmt.Errorf("b: %w", vxlan.ErrNoVXLAN)),
			[]string{"Node n1: NoVXLAN: a: " + vxlan.ErrNoVXLAN.Error() + "; b: " + vxlan.ErrNoVXLAN.Error()}},
		{"an object", &base, desired.InObject((*api.IPPool)(nil).ResourceType(), api.Meta{Name: "p"}, errors.New("spec.cidr is odd")),
			[]string{"IPPool p: InvalidPool, of all nodes: IPPool p: spec.cidr is odd"}},
		{"this node", &base, fmt.Errorf("a pass: %w", desired.InSelf("NoNodeAddress", errors.New("no InternalIP"))),
			[]string{"Node n1: NoNodeAddress: a pass: no InternalIP"}},
		{"what may cure itself", &base, unknown, nil},
		{"held down", with(func(k *seen) {
			k.peers = []bgp.PeerStatus{{Addr: other, HeldUntil: now.Add(time.Second), LastError: "too many prefixes"},
				{Addr: other, HeldUntil: now.Add(-time.Second)}}
		}), nil, []string{"Node n2: PeerHeldDown: n1 keeps its BGP session with 10.0.0.7 closed: too many prefixes"}},
		{"refused, once for a peer", with(func(k *seen) {
			p := bgp.Path{Prefix: prefix("192.168.2.0/26"), NextHop: other, From: other}
			stranger := p
			stranger.From = netip.MustParseAddr("10.9.9.9")
			k.routes.refused = []bgp.Objection{{Path: p, Why: "the block belongs to n3"}, {Path: p, Why: "again"}, {Path: stranger, Why: "it too"}}
		}), nil, []string{
			"Node n2: PathRefused: n1 does not use what BGP peer 10.0.0.7 announces, 192.168.2.0/26 via 10.0.0.7 among it: the block belongs to n3",
			"Node n1: PathRefused: n1 does not use what BGP peer 10.9.9.9 announces, 192.168.2.0/26 via 10.0.0.7 among it: it too",
		}},
		{"addresses of services", with(func(k *seen) {
			k.routes.refused = []bgp.Objection{
				{Path: bgp.Path{Prefix: prefix("10.96.0.0/12"), NextHop: other, From: other}, Why: "they are services'", Usual: true},
			}
		}), nil, nil},
		{"stale facts", with(func(k *seen) { k.facts = &nodestatus.Facts{Written: now.Add(-3 * time.Minute)} }), nil,
			[]string{"Node n1: FactsStale: what the CNI plugins are told of the cluster is of 2026-11-20T14:27:00Z: they ask the API server for " +
				"each pod, which takes longer"}},
		{"a journal that waits", with(func(k *seen) { k.journal = nodestatus.Journal{Entries: 2, LastError: "one\ntwo"} }), nil, nil},
	} {
		var got told
		reporter := eventReporter{to: &got, refused: now.Add(-patience)}
		reporter.report(now, c.seen, c.err)
		difftest.Want(t, c.name, c.want, got.lines)
	}
}

// Problems with which a pass goes on are reported too.
func TestProblemsAreTold(t *testing.T) {
	var got told
	reporter := eventReporter{to: &got, node: "n1"}
	reporter.reportProblems([]error{
		desired.InObject((*api.IPPool)(nil).ResourceType(), api.Meta{Name: "p"}, errors.New("odd")), errors.New("a path"),
		desired.InSelf("AmbiguousAddress", errors.New("two would do")),
		desired.InSelf("AnnotationUnused", errors.New("one key")), desired.InSelf("AnnotationUnused", errors.New("another")),
	})
	want := []string{"IPPool p: InvalidPool, of all nodes: IPPool p: odd", "Node n1: AmbiguousAddress: two would do",
		"Node n1: AnnotationUnused: one key; another"}
	difftest.Want(t, "", want, got.lines)
	if desired.InSelf("x", nil) != nil {
		t.Error("nothing became an error")
	}
}

// Faults that often cure themselves are reported when they have lasted.
func TestPatience(t *testing.T) {
	var got told
	k := seen{node: "n1", journal: nodestatus.Journal{Entries: 2, LastError: "one\ntwo"}}
	k.routes.refused = []bgp.Objection{
		{Path: bgp.Path{Prefix: prefix("192.168.2.0/26"), NextHop: addr("10.0.0.7"), From: addr("10.0.0.7")}, Why: "it is another's"},
	}
	begin := time.Now()
	reporter := eventReporter{to: &got, node: "n1"}
	for _, at := range []time.Duration{0, patience / 2, patience} {
		reporter.report(begin.Add(at), &k, errors.New("odd"))
		reporter.reportSpace(begin.Add(at), "it is full")
	}
	want := []string{
		"Node n1: NotAsItShouldBe: odd",
		"Node n1: PathRefused: n1 does not use what BGP peer 10.0.0.7 announces, 192.168.2.0/26 via 10.0.0.7 among it: it is another's",
		"Node n1: JournalStuck: addresses of deleted pods cannot be released: one",
		"Node n1: NoSpace: it is full",
	}
	difftest.Want(t, "", want, got.lines)
	reporter.reportSpace(begin.Add(2*patience), "")
	reporter.reportSpace(begin.Add(3*patience), "it is full")
	refused := k.routes.refused
	k.journal.LastError, k.routes.refused = "", nil
	reporter.report(begin.Add(2*patience), &k, nil)
	k.journal.LastError, k.routes.refused = "again", refused
	reporter.report(begin.Add(3*patience), &k, errors.New("odd"))
	if len(got.lines) != 4 {
		t.Errorf("told without patience: %q", got.lines)
	}
}

// A problem with an object is logged as left out of the configuration; a problem of the host, such as accept_ra=1, is
// not.
func TestHeadlines(t *testing.T) {
	var log bytes.Buffer
	a := &Agent{
		Deps:   Deps{Log: slog.New(slog.NewTextHandler(&log, nil)), Status: NewStatus("n1", time.Now(), newPeers().Healthy)},
		passes: passes{broken: map[string][]string{}},
	}
	for about, want := range map[string]string{
		"object": "left out of this node's configuration", "path": "left out of this node's configuration",
		"host": "this host needs attention", "calico": "this host needs attention", "address": "this host needs attention",
	} {
		log.Reset()
		for range 2 {
			a.setProblems(about, []error{errors.New("odd")})
		}
		if text := log.String(); strings.Count(text, "\n") != 1 || !strings.Contains(text, fmt.Sprintf("msg=%q %s=odd", want, about)) {
			t.Errorf("%s: %s, want it once under %q", about, text, want)
		}
	}
}
