package flowtable

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/tortie-net/tortie/internal/kernel/ipip"
	"github.com/tortie-net/tortie/internal/kernel/netlinkx"
	"github.com/tortie-net/tortie/internal/kernel/nft"
)

// TableName is the name of the table, of family inet.
const TableName = "tortie-flows"

const (
	flowtable    = "pods"
	devicesSet   = "devices"
	peersSet     = "peers"
	forwardChain = "forward"
	offloadChain = "offload"
	// priority is behind all filters: a connection that a filter drops is not established, or does not get here.
	priority = 1000
)

// ErrUnsupported means that the kernel has no flowtables.
var ErrUnsupported = errors.New("the kernel has no flowtables for nftables: load modules nf_flow_table_inet and nft_flow_offload, or set " +
	"CONFIG_NF_FLOW_TABLE_INET and CONFIG_NFT_FLOW_OFFLOAD")

// Syncer keeps the table. It is safe for concurrent use.
type Syncer struct {
	table *nft.Owned

	mu        sync.Mutex
	want      Config
	wanted    bool // want is known
	permit    permit
	supported bool
	removed   bool // the last sync left no table
}

// permit is whether there may be a table.
type permit int

const (
	permitted permit = iota
	undecided        // the table of an earlier agent stays
	refused
)

// New returns the syncer of a network namespace; nil means the process's. It touches nothing yet.
func New(ns *netlinkx.Namespace) *Syncer { return &Syncer{table: nft.NewOwned(ns, TableName)} }

// Close closes the socket. The table stays.
func (s *Syncer) Close() { s.table.Close() }

// Sync makes the table as desired. Only differences are written: connections stay in the flowtable when devices come
// and go. The error is ErrUnsupported for a kernel without flowtables; netlinkx.IsNotExist matches it if a device has
// gone meanwhile.
func (s *Syncer) Sync(ctx context.Context, c Config) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.want, s.wanted = c, true
	return s.restore(ctx)
}

// Narrow removes the peers and devices that are not in c. It is called before a change of routes after which no route
// leads back by such a device, or routes lead out by it to next hops that the flowtable does not follow.
func (s *Syncer) Narrow(ctx context.Context, c Config) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	keep := elementsOf(c.Peers)
	if s.removed || s.wanted && len(beside(elementsOf(s.want.Peers), keep)) == 0 && len(without(s.want.Devices, c.Devices)) == 0 {
		return nil
	}
	err := s.table.Exchange(ctx, func(change *nft.Change) error {
		have, err := s.table.Read(ctx, nil)
		if err != nil {
			return err
		}
		devices, _, err := s.table.Devices(ctx, flowtable)
		change.RemoveDevices(flowtable, without(devices, c.Devices))
		named := devicesOf(c.Devices)
		change.Delete(named, beside(have.Elements(devicesSet), named.Elements))
		change.Delete(peersOf, beside(have.Elements(peersSet), keep))
		return err
	})
	if err != nil {
		return fmt.Errorf("write nftables table inet %s: %w", TableName, err)
	}
	return nil
}

// Await makes Sync change nothing until the first Permit.
func (s *Syncer) Await() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.permit = undecided
}

// Permit sets whether there may be a table: false while rules have to see each packet of a connection.
func (s *Syncer) Permit(ctx context.Context, may bool) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	now := refused
	if may {
		now = permitted
	}
	if now == s.permit {
		return nil
	}
	s.permit = now
	return s.restore(ctx)
}

// restore makes the table as wanted and permitted.
func (s *Syncer) restore(ctx context.Context) error {
	c := s.want
	switch {
	case s.permit == refused:
		c = Config{}
	case s.permit == undecided || !s.wanted:
		return nil
	}
	if s.removed && len(c.Devices) == 0 {
		return nil
	}
	return s.sync(ctx, c)
}

func (s *Syncer) sync(ctx context.Context, c Config) error {
	if err := s.probe(ctx, c); err != nil {
		return err
	}
	err := s.table.Exchange(ctx, func(change *nft.Change) error { return s.difference(ctx, c, change) })
	if err != nil {
		return fmt.Errorf("write nftables table inet %s: %w", TableName, err)
	}
	s.removed = len(c.Devices) == 0
	return nil
}

// probe has the kernel check a table without devices, once.
func (s *Syncer) probe(ctx context.Context, c Config) error {
	if s.supported || len(c.Devices) == 0 {
		return nil
	}
	change := s.table.Change()
	change.MakeTable(false)
	Config{PodLinks: c.PodLinks, Tunnels: c.Tunnels}.make(change)
	err := s.table.Check(ctx, change)
	switch {
	case err == nil, errors.Is(err, unix.EEXIST): // the table of an earlier agent
		s.supported = true
		return nil
	case netlinkx.IsNotExist(err), netlinkx.IsUnsupported(err), errors.Is(err, unix.EINVAL):
		return ErrUnsupported
	}
	return fmt.Errorf("probe nftables flowtables: %w", err)
}

// difference adds to change the requests that turn the kernel's table into c.
func (s *Syncer) difference(ctx context.Context, c Config, change *nft.Change) error {
	have, err := s.table.Read(ctx, []string{forwardChain, offloadChain})
	if err != nil {
		return err
	}
	devices, there, err := s.table.Devices(ctx, flowtable)
	if err != nil {
		return err
	}
	exists, _ := have.Exists()
	switch {
	case len(c.Devices) > 0 && there && c.intact(have):
		gone, added := without(devices, c.Devices), without(c.Devices, devices)
		change.RemoveDevices(flowtable, gone)
		change.AddDevices(flowtable, added)
		for _, want := range c.sets() {
			known := have.Elements(want.Name)
			change.Delete(want, beside(known, want.Elements))
			change.Add(want, beside(want.Elements, known))
		}
		return nil
	case exists:
		change.RemoveTable()
	}
	if len(c.Devices) > 0 {
		change.MakeTable(true)
		c.make(change)
	}
	return nil
}

// make adds everything to an empty table.
func (c Config) make(change *nft.Change) {
	for _, s := range c.sets() {
		change.MakeSet(s)
		change.Add(s, s.Elements)
	}
	change.MakeFlowtable(flowtable)
	change.AddDevices(flowtable, c.Devices)
	chains := c.chains()
	for _, chain := range chains {
		change.MakeChain(chain)
	}
	for _, chain := range chains {
		change.AddRules(chain)
	}
}

// intact reports whether a table is as c but for elements and devices.
func (c Config) intact(have *nft.Content) bool {
	chains := c.chains()
	if _, awake := have.Exists(); !awake || len(have.Chains()) != len(chains) || len(have.Sets()) != len(c.sets()) {
		return false
	}
	for _, chain := range chains {
		if _, placed, same := have.HasChain(chain); !placed || !same {
			return false
		}
	}
	return !slices.ContainsFunc(c.sets(), func(s nft.Set) bool {
		_, same := have.HasSet(s)
		return !same
	})
}

// peersOf is the empty set of pairs: the device for a single node, and a source address that routes reach by it.
var peersOf = nft.Set{Name: peersSet, Key: []nft.Type{nft.LinkName, nft.IPv4.Addr}, Interval: true}

// devicesOf returns the set of names of devices.
func devicesOf(names []string) nft.Set {
	devices := nft.Set{Name: devicesSet, Key: []nft.Type{nft.LinkName}}
	for _, d := range names {
		devices.Elements = append(devices.Elements, nft.Element{First: nft.LinkKey(d)})
	}
	return devices
}

// sets returns the set of devices' names, and the set of peers if Tunnels is set.
func (c Config) sets() []nft.Set {
	devices := devicesOf(c.Devices)
	if !c.Tunnels {
		return []nft.Set{devices}
	}
	peers := peersOf
	peers.Elements = elementsOf(c.Peers)
	return []nft.Set{devices, peers}
}

func elementsOf(peers []ipip.Peer) (all []nft.Element) {
	for _, p := range peers {
		link := nft.LinkKey(ipip.PeerDevice(p.Node))
		for _, r := range p.Ranges {
			all = append(all, nft.Element{First: nft.Key(link, nft.AddrKey(r.First)), Last: nft.Key(link, nft.AddrKey(r.Last))})
		}
	}
	return all
}

// beside returns the elements of a that are not in b.
func beside(a, b []nft.Element) []nft.Element {
	there := map[string]string{}
	for _, e := range b {
		there[e.First] = e.Last
	}
	return slices.DeleteFunc(slices.Clone(a), func(e nft.Element) bool {
		last, found := there[e.First]
		return found && last == e.Last
	})
}

// without returns the names of a that are not in b. Both are sorted.
func without(a, b []string) (rest []string) {
	for _, name := range a {
		if _, found := slices.BinarySearch(b, name); !found {
			rest = append(rest, name)
		}
	}
	return rest
}

// chains returns the chains that add a connection to the flowtable when it has proven to last, with a packet from a pod
// to another device that takes part: a TCP connection after the handshake. Adding the connection of one packet in
// sixteen by chance, which spares short ones, cost more than it saved. A UDP connection is added only without
// destination NAT: a client may go on sending to the endpoint of a Service that has gone, and which of these
// connections kube-proxy finds and deletes must not depend on a flowtable.
//
// For the way back the kernel uses the device that the packet has come in by, whatever the routes are: right for a
// pod's link. If another node sends a packet by another device than the route back to it (while a pool changes its
// encapsulation, or by the second of two uplinks), the replies would be lost. Of these only packets by the device
// for a single node are added, as a packet that goes out by tunl0 has no such device, and only from sources to which
// routes lead by that node.
func (c Config) chains() []nft.Chain {
	established := nft.Established.In()
	add := nft.Offload(flowtable)
	offload := []nft.Rule{
		nft.NewRule(c.Guard, nft.InLink.HasPrefix(c.PodLinks), nft.In(devicesSet, nft.OutLink), add),
	}
	if c.Tunnels {
		offload = append(offload,
			nft.NewRule("", nft.IPv4.Is(), nft.OutLink.HasPrefix(c.PodLinks), nft.In(peersSet, nft.InLink, nft.IPv4.Src), add))
	}
	return []nft.Chain{
		{Name: offloadChain, Rules: offload},
		{Name: forwardChain, Hook: &nft.Hook{Type: nft.Filter, Number: nft.Forward, Priority: priority}, Rules: []nft.Rule{
			nft.NewRule("", nft.L4Proto.Is(nft.ByteKey(unix.IPPROTO_TCP)), nft.Assured(), established, nft.Do(nft.Goto(offloadChain))),
			nft.NewRule("", nft.L4Proto.Is(nft.ByteKey(unix.IPPROTO_UDP)), nft.AssuredAsSent(), established, nft.Do(nft.Goto(offloadChain))),
		}},
	}
}
