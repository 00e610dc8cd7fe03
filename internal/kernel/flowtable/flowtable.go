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
	// priority is behind all filters: a connection that one of them drops is not established, or does not get here.
	priority = 1000
)

// ErrUnsupported says that the kernel has no flowtables.
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
	removed   bool // there is no table, as far as is known
}

// permit is whether there may be a table.
type permit int

const (
	permitted permit = iota
	undecided        // one that is there stays, as an earlier agent had decided
	refused
)

// New returns the syncer of a network namespace; nil is that of the process. It touches nothing yet.
func New(ns *netlinkx.Namespace) *Syncer { return &Syncer{table: nft.NewOwned(ns, TableName)} }

// Close closes the socket. The table stays.
func (s *Syncer) Close() { s.table.Close() }

// Sync makes the table as desired. Only differences are written: connections stay in the flowtable when devices come
// and go. The error is ErrUnsupported if the kernel cannot, and of netlinkx.IsNotExist if a device has gone meanwhile.
func (s *Syncer) Sync(ctx context.Context, c Config) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.want, s.wanted = c, true
	return s.restore(ctx)
}

// Narrow takes back which peers' connections, and which devices, take part, as far as c says otherwise: before routes
// change, so that no connection enters by a device that a route does not lead back by any more, or leads out by to next
// hops that the flowtable does not follow.
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

// Await has Sync leave everything as it is until the first Permit.
func (s *Syncer) Await() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.permit = undecided
}

// Permit says whether there may be a table: false while rules have to see each packet of a connection.
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

// restore makes the table as it is to be.
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
	case err == nil, errors.Is(err, unix.EEXIST): // of an earlier agent
		s.supported = true
		return nil
	case netlinkx.IsNotExist(err), netlinkx.IsUnsupported(err), errors.Is(err, unix.EINVAL):
		return ErrUnsupported
	}
	return fmt.Errorf("probe nftables flowtables: %w", err)
}

// difference fills in what makes c of what the kernel has.
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

// make makes everything in an empty table.
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

// intact reports whether a table has all but elements and devices.
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

// peersOf has the devices for single nodes with the sources that routes lead to by them.
var peersOf = nft.Set{Name: peersSet, Key: []nft.Type{nft.LinkName, nft.IPv4.Addr}, Interval: true}

// devicesOf has the names of devices.
func devicesOf(names []string) nft.Set {
	devices := nft.Set{Name: devicesSet, Key: []nft.Type{nft.LinkName}}
	for _, d := range names {
		devices.Elements = append(devices.Elements, nft.Element{First: nft.LinkKey(d)})
	}
	return devices
}

// sets are the names of the devices, and the peers.
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

// beside are those of a that are not in b.
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

// without are those of a that are not in b. Both are sorted.
func without(a, b []string) (rest []string) {
	for _, name := range a {
		if _, found := slices.BinarySearch(b, name); !found {
			rest = append(rest, name)
		}
	}
	return rest
}

// chains let a connection into the flowtable when it has proven to last, with a packet from a pod to another device
// that takes part: of TCP after the handshake. To let in one packet's connection of sixteen by chance, which spares
// short ones, cost more than it saved. Of UDP only those are taken that go where the client has sent them: a client may
// go on sending to the endpoint of a Service that has gone, and what of that kube-proxy finds and deletes is not to
// depend on a flowtable.
//
// For the way back the kernel takes the device that the packet has come in by, whatever the routes say: right for a
// pod's link. A packet that another node sends by another device than a route leads to it (while a pool changes its
// encapsulation, or by the second of two uplinks) would have what goes back lost. Of these only packets by the device
// for a single node are taken, as one that goes out by tunl0 has no such device, and only from sources to which routes
// lead by that node.
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
