package netpol

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/tortie-net/tortie/internal/kernel/nft"
	"github.com/tortie-net/tortie/internal/policy"
)

// ErrLacks is in the error of a Probe that finds a missing feature.
var ErrLacks = errors.New("the kernel lacks a part of policies, and pods that need it are closed")

// ErrNotProbed is in the error of a Probe without a result: repeat it later.
var ErrNotProbed = errors.New("cannot find out whether the kernel has all parts of policies")

// Probe reports what the kernel lacks of all that a Ruleset may need: the error names the first missing expression, and
// whether logging is missing. It sends a table of another name in a transaction that the kernel checks and aborts, so
// it changes nothing.
func (e *Engine) Probe(ctx context.Context) error {
	table := nft.NewOwned(e.ns, TableName+"-probe")
	defer table.Close()
	return e.probe(table, func(c *nft.Change) error { return table.Check(ctx, c) })
}

func (e *Engine) probe(table *nft.Owned, check func(*nft.Change) error) error {
	p := &Engine{table: table, linkPrefix: e.linkPrefix, portion: portion}
	err := check(p.sample())
	var r *nft.Refused
	var noLog error
	if errors.As(err, &r) && mute(r) {
		noLog, p.mute = fmt.Errorf("%w: %w", ErrNoLog, r), true
		err = check(p.sample())
	}
	switch {
	case err == nil:
	case lasting(err):
		err = fmt.Errorf("%w: %w", ErrLacks, err)
	default:
		err = fmt.Errorf("%w: %w", ErrNotProbed, err)
	}
	return errors.Join(noLog, err)
}

// passing are errors of a kernel that may have all features: it is short of memory, its tables are in use, or the
// process lacks rights.
var passing = []unix.Errno{unix.EINTR, unix.EAGAIN, unix.EBUSY, unix.ENOBUFS, unix.ENOMEM, unix.ERESTART, unix.EPERM,
	unix.EACCES, unix.EEXIST}

// lasting reports whether the kernel will always refuse what a Ruleset may need.
func lasting(err error) bool {
	var r *nft.Refused
	return errors.As(err, &r) && !slices.ContainsFunc(passing, func(e unix.Errno) bool { return errors.Is(err, e) })
}

// sample makes a table with every feature.
func (e *Engine) sample() *nft.Change {
	e.resize(sizeFor(0))
	want, _ := e.image(everything(), map[programKey]error{})
	all := e.table.Change()
	for c := range e.plan(emptyState(), want) {
		all.Append(c)
	}
	return all
}

// everything returns a Ruleset with every feature: ports, protocols, sets, networks and denials, of both families and
// directions.
func everything() *policy.Ruleset {
	list := policy.List{Steps: []policy.Step{{Set: 1, Verdict: policy.Verdict{Allow: true}},
		{Nets: "n", Verdict: policy.Verdict{Allow: true}}},
		Else: policy.Verdict{By: policy.ID{Kind: "NetworkPolicy", Namespace: "n", Name: "n"}}}
	program := policy.Program{
		Ports: map[uint8][]policy.PortRange{unix.IPPROTO_TCP: {{First: 1, Last: 2, List: list},
			{First: 3, Last: 3, List: policy.List{Else: list.Else}}}},
		Protocols: map[uint8]policy.List{unix.IPPROTO_TCP: {Else: list.Else}, unix.IPPROTO_UDP: list},
		Rest:      list,
	}
	one := func(text string) policy.Range {
		a := netip.MustParseAddr(text)
		return policy.Range{First: a, Last: a.Next()}
	}
	sequence := policy.Program{Sequence: []policy.Segment{{Own: &list, When: program, Then: policy.Deny, Verdict: list.Else}}}
	untracked := policy.Program{Sequence: []policy.Segment{
		{When: program, Then: policy.Allow, Verdict: policy.Verdict{Allow: true, NoTrack: true}},
	}}
	host := policy.Host{Programs: [policy.Stages][2]string{{"s", "p"}, {"p", "p"}, {"p", ""}, {"u", "u"}}}
	return &policy.Ruleset{
		Hosts: map[string]policy.Host{"link1": host, policy.AllInterfaces: host},
		HostRules: policy.HostRules{Inbound: policy.DefaultInbound(),
			Outbound: []policy.Failsafe{{Protocol: unix.IPPROTO_TCP, Port: 1, Net: netip.MustParsePrefix("192.0.2.0/24")}},
			Nodes:    []netip.Addr{netip.MustParseAddr("192.0.2.1"), netip.MustParseAddr("2001:db8::1")}, IPIP: true,
			VXLANPort: 1, DropFromPods: true,
			Open: []netip.AddrPort{netip.MustParseAddrPort("192.0.2.1:1"), netip.MustParseAddrPort("[2001:db8::1]:1")}},
		Closed: true, Endpoints: map[string]policy.Endpoint{"link": {UID: "uid", Programs: [2]string{"p", "p"}}, "open": {UID: "uid"}},
		Programs: map[string]policy.Program{"p": program, "s": sequence, "u": untracked},
		Nets:     map[string][]policy.Range{"n": {one("192.0.2.0"), one("2001:db8::")}},
		Members:  map[netip.Addr][]policy.SetID{netip.MustParseAddr("192.0.2.9"): {1}, netip.MustParseAddr("2001:db8::9"): {1}},
	}
}
