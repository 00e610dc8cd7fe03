package nat

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"slices"
	"time"

	"github.com/google/nftables"
	"github.com/mdlayher/netlink"

	"github.com/tortie-net/tortie/internal/netlinkx"
)

const (
	// Table is the name of the project's one table, of family inet.
	Table = "tortie"

	// Chain is the chain that this package owns.
	Chain = "nat-postrouting"

	// answerTimeout bounds each exchange with the kernel.
	answerTimeout = 20 * time.Second

	// sendBuffer lets a transaction with thousands of pools leave in one message, which is what makes it atomic.
	sendBuffer = 4 << 20
)

// Config is the desired state.
type Config struct {
	Pools []Pool // all of them, of both families: the destinations to which pods' own addresses are meaningful
}

// Pool is an IP pool.
type Pool struct {
	CIDR        netip.Prefix
	NATOutgoing bool
}

// Syncer keeps the chain in one network namespace. It has no state: what is there is read from the kernel each time.
type Syncer struct {
	options []nftables.ConnOption
}

// New returns the syncer of the network namespace of the process. It touches nothing yet.
func New() *Syncer { return newSyncer() }

// NewAt returns the syncer of ns, which must stay open as long as the syncer is used.
func NewAt(ns *netlinkx.Namespace) *Syncer { return newSyncer(nftables.WithNetNSFd(ns.Fd())) }

func newSyncer(options ...nftables.ConnOption) *Syncer {
	return &Syncer{options: append(options, nftables.WithSockOptions(func(c *netlink.Conn) error {
		return errors.Join(c.SetDeadline(time.Now().Add(answerTimeout)), c.SetWriteBuffer(sendBuffer))
	}))}
}

// Sync makes the chain and its sets as desired, in one transaction: no packet sees half of it. What is right is not written;
// pools that come or go change elements alone. Without a pool that has natOutgoing everything of ours is removed.
//
// Connections keep the translation that they began with.
func (s *Syncer) Sync(ctx context.Context, c Config) error {
	want, err := c.contents()
	if err != nil {
		return err
	}
	if err := ctx.Err(); err != nil {
		return err
	}
	conn, err := nftables.New(s.options...)
	if err != nil {
		return fmt.Errorf("open nftables socket: %w", err)
	}
	have, err := read(conn)
	if err != nil {
		return err
	}
	switch {
	case want == nil:
		have.remove(conn)
	case !have.sound():
		err = have.rebuild(conn, want)
	default:
		err = have.update(conn, want)
	}
	if err != nil {
		return err
	}
	if err := conn.Flush(); err != nil {
		return explain(fmt.Errorf("write nftables table inet %s: %w", Table, err))
	}
	return nil
}

// explain adds what the kernel leaves out: it answers "no such file" for a kind of chain or expression that it does not have.
func explain(err error) error {
	if errors.Is(err, fs.ErrNotExist) || netlinkx.IsUnsupported(err) {
		return fmt.Errorf("%w: the kernel may lack nf_tables for inet, chains of type nat or masquerading: load modules nf_tables, nft_chain_nat and nft_masq", err)
	}
	return err
}

// contents lists what each set is to hold, or returns nil if nothing is to be translated.
func (c Config) contents() (map[string][]span, error) {
	prefixes := map[string][]netip.Prefix{}
	translate := false
	for _, p := range c.Pools {
		if !p.CIDR.IsValid() || p.CIDR != p.CIDR.Masked() {
			return nil, fmt.Errorf("pool %q is not a CIDR without host bits", p.CIDR)
		}
		for _, f := range families {
			if f.is4 != p.CIDR.Addr().Is4() {
				continue
			}
			prefixes[f.pools] = append(prefixes[f.pools], p.CIDR)
			if p.NATOutgoing {
				prefixes[f.outgoing] = append(prefixes[f.outgoing], p.CIDR)
				translate = true
			}
		}
	}
	if !translate {
		return nil, nil
	}
	contents := map[string][]span{}
	for name, list := range prefixes {
		contents[name] = spans(list)
	}
	return contents, nil
}

// state is what the kernel has under our names.
type state struct {
	table    *nftables.Table
	exists   bool // the table
	chain    *nftables.Chain
	rules    []*nftables.Rule
	sets     map[string]*nftables.Set
	contents map[string][]span

	// unreadable is why something under our names could not be understood, which is somebody else's doing, and a reason to
	// make it anew.
	unreadable error
}

func read(conn *nftables.Conn) (*state, error) {
	s := &state{sets: map[string]*nftables.Set{}, contents: map[string][]span{}}
	table, err := conn.ListTableOfFamily(Table, nftables.TableFamilyINet)
	if errors.Is(err, fs.ErrNotExist) {
		s.table = &nftables.Table{Name: Table, Family: nftables.TableFamilyINet}
		return s, nil
	}
	if err != nil {
		return nil, explain(fmt.Errorf("read nftables table inet %s: %w", Table, err))
	}
	s.table, s.exists = table, true
	s.unreadable = s.readContents(conn)
	return s, nil
}

func (s *state) readContents(conn *nftables.Conn) error {
	sets, err := conn.GetSets(s.table)
	if err != nil {
		return err
	}
	for _, set := range sets {
		if ours := desiredSet(s.table, set.Name); ours != nil {
			s.sets[set.Name] = set
		}
	}
	// The library does not tell a missing chain from other errors: without one, the chain is made, which fails if it can't be.
	if s.chain, err = conn.ListChain(s.table, Chain); err != nil {
		return err
	}
	if s.rules, err = conn.GetRules(s.table, s.chain); err != nil {
		return err
	}
	for name, set := range s.sets {
		elements, err := conn.GetSetElements(set)
		if err != nil {
			return err
		}
		s.contents[name] = spansOf(elements)
	}
	return nil
}

// sound reports whether all that does not depend on the pools is as it should be: chain, rules, and the kinds of the sets.
func (s *state) sound() bool {
	if !s.exists || s.unreadable != nil || !sameChain(s.chain, desiredChain(s.table)) {
		return false
	}
	for _, want := range desiredSets(s.table) {
		have, ok := s.sets[want.Name]
		if !ok || !sameSet(have, want) {
			return false
		}
	}
	return slices.EqualFunc(s.rules, desiredRules(), func(have *nftables.Rule, want rule) bool { return sameRule(have, want) })
}

// rebuild replaces the chain and the sets by new ones. It says everything in one batch, old things first.
func (s *state) rebuild(conn *nftables.Conn, want map[string][]span) error {
	conn.AddTable(s.table)
	s.removeOurs(conn)
	for _, set := range desiredSets(s.table) {
		if err := conn.AddSet(set, nil); err != nil {
			return fmt.Errorf("set %s: %w", set.Name, err)
		}
		if err := change(set, want[set.Name], conn.SetAddElements); err != nil {
			return err
		}
	}
	chain := conn.AddChain(desiredChain(s.table))
	for _, r := range desiredRules() {
		conn.AddRule(&nftables.Rule{Table: s.table, Chain: chain, Exprs: r})
	}
	return nil
}

// update brings the sets' elements up to date. Deletions go first: the kernel refuses a range that overlaps one that the
// same transaction does not delete until later.
func (s *state) update(conn *nftables.Conn, want map[string][]span) error {
	for _, set := range desiredSets(s.table) {
		gone, added := compare(s.contents[set.Name], want[set.Name])
		if err := change(set, gone, conn.SetDeleteElements); err != nil {
			return err
		}
		if err := change(set, added, conn.SetAddElements); err != nil {
			return err
		}
	}
	return nil
}

// change adds or deletes elements in portions: a netlink attribute holds 64 KiB, and the library cuts off the rest.
func change(set *nftables.Set, all []span, apply func(*nftables.Set, []nftables.SetElement) error) error {
	const portion = 500
	for part := range slices.Chunk(all, portion) {
		if err := apply(set, elements(part)); err != nil {
			return fmt.Errorf("set %s: %w", set.Name, err)
		}
	}
	return nil
}

// remove deletes what is ours, and the table if that was all.
func (s *state) remove(conn *nftables.Conn) {
	if !s.exists {
		return
	}
	if removed := s.removeOurs(conn); s.uses() == removed {
		conn.DelTable(s.table)
	}
}

// uses is the number of things in the table. The library reads the kernel's number, which is in network order, in the
// machine's.
func (s *state) uses() uint32 {
	return binary.BigEndian.Uint32(binary.NativeEndian.AppendUint32(nil, s.table.Use))
}

// removeOurs deletes the chain and the sets and returns how many things that were.
func (s *state) removeOurs(conn *nftables.Conn) (removed uint32) {
	if s.chain != nil {
		conn.FlushChain(s.chain)
		conn.DelChain(s.chain)
		removed++
	}
	for _, set := range s.sets {
		conn.DelSet(set)
		removed++
	}
	return removed
}
