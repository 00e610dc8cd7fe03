package nft

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"hash"
	"io/fs"
	"maps"
	"math/bits"
	"math/rand/v2"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/tortie-net/tortie/internal/kernel/netlinkx"
	"github.com/tortie-net/tortie/internal/kernel/nlmsg"
)

// Owned is a table of family inet that one process writes as a whole, by differences that the process knows itself: it
// reads the table only when Touched reports a change by another program. Transactions of other programs elsewhere do
// not count. It is for one goroutine at a time, but for Events.
type Owned struct {
	ns   *netlinkx.Namespace // nil: the process's
	name string

	socket  *nlmsg.Socket // for transactions, nil if the next one has to open it
	events  atomic.Pointer[nlmsg.Events]
	touched atomic.Bool
	// generation is a generation up to which touched covers all changes; 0: not known.
	generation atomic.Uint32
	chains     []string // lost is called when one of them, or the table, is lost
	lost       func()
}

// NewOwned returns the table of that name in a namespace; nil means the process's. It touches nothing yet.
func NewOwned(ns *netlinkx.Namespace, name string) *Owned { return &Owned{ns: ns, name: name} }

// OnLoss sets a function that is called when another program has deleted the table, one of these chains, or a rule of
// one: by whatever goroutine reads events, before Touched or the channel of Events reports it. It must be called before
// any other method.
func (o *Owned) OnLoss(chains []string, do func()) { o.chains, o.lost = chains, do }

// Close closes the sockets. The table stays.
func (o *Owned) Close() {
	o.hangUp()
	if e := o.events.Swap(nil); e != nil {
		_ = e.Close()
	}
}

func (o *Owned) hangUp() {
	if o.socket != nil {
		o.socket.Close()
		o.socket = nil
	}
}

// dial returns the socket for transactions, and filters out the events of that socket.
func (o *Owned) dial(ctx context.Context) (socket, error) {
	if o.socket == nil {
		s, err := open(ctx, o.ns)
		if err != nil {
			return socket{}, err
		}
		o.socket = s
		if e := o.events.Load(); e != nil {
			if err := e.Filter(notFrom(s.Port)); err != nil {
				return socket{}, fmt.Errorf("filter nftables events: %w", err)
			}
		}
	}
	return socket{o.socket, o.name}, nil
}

// notFrom returns a filter that drops datagrams caused by the socket with this port: all events of a datagram have one
// cause.
func notFrom(port uint32) []unix.SockFilter {
	const senderAt, all = 12, 0xffffffff // offset in the header of a message; bytes that pass
	order := bits.ReverseBytes32(port)   // filters load numbers in network order
	if binary.NativeEndian.Uint16([]byte{1, 0}) != 1 {
		order = port
	}
	return []unix.SockFilter{
		{Code: unix.BPF_LD | unix.BPF_W | unix.BPF_ABS, K: senderAt},
		{Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, K: order, Jf: 1},
		{Code: unix.BPF_RET | unix.BPF_K, K: 0},
		{Code: unix.BPF_RET | unix.BPF_K, K: all},
	}
}

// Touched reports whether another program may have changed the table since the last call; the first call returns true.
func (o *Owned) Touched(ctx context.Context) (bool, error) {
	e := o.events.Load()
	if e == nil {
		if _, err := o.listen(ctx); err != nil {
			return false, err
		}
		return true, nil
	}
	if err := e.Drain(make([]byte, eventSize), o.note); err != nil {
		// The goroutine of Events has closed the socket, or it is broken: a new one has to listen before the table is read.
		o.events.CompareAndSwap(e, nil)
		_ = e.Close()
		_, err := o.listen(ctx)
		return true, err
	}
	return o.touched.Swap(false), nil
}

// listen opens the socket of the events if there is none.
func (o *Owned) listen(ctx context.Context) (*nlmsg.Events, error) {
	if e := o.events.Load(); e != nil {
		return e, nil
	}
	var e *nlmsg.Events
	err := within(o.ns, func() (err error) {
		e, err = nlmsg.Listen(unix.NETLINK_NETFILTER, []int{unix.NFNLGRP_NFTABLES}, nil, eventBuffer)
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("subscribe to nftables events: %w", err)
	}
	o.events.Store(e)
	o.hangUp() // the filter applies from the next socket on
	_, err = o.dial(ctx)
	return e, err
}

// note looks for changes of the table in a datagram.
func (o *Owned) note(datagram []byte, err error) {
	if err != nil {
		o.touched.Store(true) // something was lost
	}
	lost := false
	for rest := datagram; len(rest) > 0; {
		var m nlmsg.Message
		if m, rest, err = nlmsg.Next(rest); err != nil {
			o.touched.Store(true) // it did not fit
			break
		}
		if isOf(m, o.name) {
			o.touched.Store(true)
			lost = lost || o.loses(m)
		}
		if made, ends := generationOf(m); ends {
			o.generation.Store(made) // after touched: see Commit
		}
	}
	if lost && o.lost != nil {
		o.lost()
	}
}

// loses reports whether a change deletes the table, a chain that OnLoss names, or a rule of one.
func (o *Owned) loses(m nlmsg.Message) bool {
	attribute := uint16(unix.NFTA_CHAIN_NAME)
	switch m.Kind & 0xff {
	case unix.NFT_MSG_DELTABLE:
		return true
	case unix.NFT_MSG_DELRULE:
		attribute = unix.NFTA_RULE_CHAIN
	case unix.NFT_MSG_DELCHAIN:
	default:
		return false
	}
	return slices.Contains(o.chains, nlmsg.Text(nlmsg.Find(m.Body[nlmsg.SizeofNfgenmsg:], attribute)))
}

// Events returns a channel that becomes readable after another program has changed the table: Touched then returns
// true. It is closed when ctx ends, or when the socket breaks: then subscribe again. It must not be called while
// another method runs.
func (o *Owned) Events(ctx context.Context) (<-chan struct{}, error) {
	e, err := o.listen(ctx)
	if err != nil {
		return nil, err
	}
	wake := make(chan struct{}, 1)
	stop := context.AfterFunc(ctx, func() { _ = e.Close() })
	go func() {
		defer close(wake)
		defer stop()
		b := make([]byte, eventSize)
		for e.Wait(b, o.note) == nil {
			if o.touched.Load() {
				notify(wake)
			}
		}
	}()
	return wake, nil
}

// Change collects the requests of one transaction about an Owned table.
type Change struct {
	batch
	// Elements is the number of set elements that it adds and deletes.
	Elements int
}

// Change returns an empty Change of the table.
func (o *Owned) Change() *Change { return &Change{batch: batch{table: o.name}} }

// Empty reports whether c has no requests.
func (c *Change) Empty() bool { return len(c.requests) == 0 }

// Append appends the requests of another change.
func (c *Change) Append(other *Change) {
	c.requests = append(c.requests, other.requests...)
	c.objects = append(c.objects, other.objects...)
	c.Elements += other.Elements
}

// Halves splits a change that only adds and deletes elements; ok is false if it is one request.
func (c *Change) Halves() (a, b *Change, ok bool) {
	half := len(c.requests) / 2
	a = &Change{batch: batch{table: c.table, requests: c.requests[:half], objects: c.objects[:half]}}
	b = &Change{batch: batch{table: c.table, requests: c.requests[half:], objects: c.objects[half:]}}
	return a, b, half > 0
}

// MakeTable makes the table, or clears its dormant flag. If it must be new, the transaction fails if it exists.
func (c *Change) MakeTable(mustBeNew bool) {
	flags := uint16(unix.NLM_F_CREATE)
	if mustBeNew {
		flags |= unix.NLM_F_EXCL
	}
	c.ofTable(unix.NFT_MSG_NEWTABLE, flags)
}

// RemoveTable removes the table with all in it.
func (c *Change) RemoveTable() { c.ofTable(unix.NFT_MSG_DELTABLE, 0) }

// MakeChain makes a chain without its rules, which may use sets that do not exist yet.
func (c *Change) MakeChain(chain Chain) { c.newChain(chain) }

// AddRules appends a chain's rules to its present ones.
func (c *Change) AddRules(chain Chain) {
	for _, r := range chain.Rules {
		c.newRule(chain.Name, r, 0)
	}
}

// Flush removes a chain's rules; it must have at least one.
func (c *Change) Flush(chain string) {
	c.request(unix.NFT_MSG_DELRULE, 0, c.in(unix.NFTA_RULE_CHAIN, chain))
}

// RemoveChain removes a chain that has no rules and is not used.
func (c *Change) RemoveChain(name string) {
	c.request(unix.NFT_MSG_DELCHAIN, 0, c.in(unix.NFTA_CHAIN_NAME, name))
}

// MakeSet makes a set without its elements.
func (c *Change) MakeSet(s Set) { c.newSet(s) }

// RemoveSet removes a set that is not used, with its elements.
func (c *Change) RemoveSet(name string) {
	c.request(unix.NFT_MSG_DELSET, 0, c.in(unix.NFTA_SET_NAME, name))
}

// Add adds elements to a set; an element that it has already with the same value stays as it is.
func (c *Change) Add(s Set, elements []Element) {
	c.elements(unix.NFT_MSG_NEWSETELEM, unix.NLM_F_CREATE, s, elements)
	c.Elements += len(elements)
}

// Empties removes all elements of a set.
func (c *Change) Empties(set string) {
	c.request(unix.NFT_MSG_DELSETELEM, 0, c.in(unix.NFTA_SET_ELEM_LIST_SET, set))
}

// Delete deletes elements of a set; each must be there.
func (c *Change) Delete(s Set, elements []Element) {
	c.elements(unix.NFT_MSG_DELSETELEM, 0, s, elements)
	c.Elements += len(elements)
}

// Refused is the error for a transaction that the kernel has refused as a whole.
type Refused struct {
	// Object is the chain or set that the kernel refused; empty: none in particular.
	Object string
	// Expression is the expression of a rule that the kernel does not support; empty: the reason is another.
	Expression string
	Err        error
}

// Error names the object, and the missing expression with the remedy.
func (r *Refused) Error() string {
	text := r.Err.Error()
	if r.Expression != "" {
		text = fmt.Sprintf("%s: the kernel has no nftables expression %s: load module nft_%s, or set CONFIG_NFT_%s",
			text, r.Expression, r.Expression, strings.ToUpper(r.Expression))
	}
	if r.Object != "" {
		text = r.Object + ": " + text
	}
	return text
}

// Unwrap returns the kernel's error.
func (r *Refused) Unwrap() error { return r.Err }

// keptBuffer is the largest size of a buffer with which a socket is kept for the next transaction.
const keptBuffer = 128 << 10

// ErrChanged means that a transaction was not done, as another program has changed the table since Touched last
// returned false: the transaction might replace that program's change.
var ErrChanged = errors.New("another program has changed the nftables table meanwhile")

// Commit does a change in one transaction: no packet passes half of it. The error is a *Refused if the kernel refuses
// it. Once Touched was called, it is ErrChanged if others have changed the table: read it again.
func (o *Owned) Commit(ctx context.Context, c *Change) error {
	if err := ctx.Err(); err != nil || c.Empty() {
		return err
	}
	for range attempts {
		s, err := o.dial(ctx)
		if err != nil {
			return err
		}
		generation := o.generation.Load()
		if generation != 0 && o.touched.Load() {
			return ErrChanged
		}
		err = s.commit(generation, c.requests)
		if err == nil && generation != 0 {
			o.generation.CompareAndSwap(generation, successor(generation))
		}
		if err != nil || cap(o.socket.Request()) > keptBuffer {
			o.hangUp() // more answers may follow
		}
		switch {
		case stale(err):
			if o.catchUp(generation); o.generation.Load() == 0 {
				return ErrChanged // without a generation the kernel would accept any write
			}
		case err != nil:
			return c.refused(s, err)
		default:
			return nil
		}
	}
	return ErrChanged
}

// exchanges bounds the retries of an Exchange: large tables are written in dozens of transactions, one after the other.
const exchanges = 200

// Exchange does in one transaction the change that fill makes from what it reads of the table. fill is called again if
// others have changed nftables in between.
func (o *Owned) Exchange(ctx context.Context, fill func(*Change) error) error {
	for range exchanges {
		s, err := o.dial(ctx)
		if err != nil {
			return err
		}
		generation, err := s.generation()
		if err != nil {
			o.hangUp()
			return err
		}
		c := o.Change()
		if err := fill(c); err != nil || c.Empty() {
			return err
		}
		err = s.commit(generation, c.requests)
		if err == nil {
			return nil
		}
		o.hangUp() // more answers may follow
		if !stale(err) {
			return c.refused(s, err)
		}
		time.Sleep(rand.N(attemptPause))
	}
	return ErrChanged
}

// Check returns the error that Commit would return, and changes nothing: the kernel checks a transaction without an
// end, and aborts it.
func (o *Owned) Check(ctx context.Context, c *Change) error {
	if err := ctx.Err(); err != nil || c.Empty() {
		return err
	}
	s, err := o.dial(ctx)
	if err != nil {
		return err
	}
	defer o.hangUp() // more answers may follow
	if err := s.check(c.requests); err != nil {
		return c.refused(s, err)
	}
	return nil
}

// catchUp reads the events of the transactions that made a Commit stale: the kernel sends them before its answer.
func (o *Owned) catchUp(generation uint32) {
	if e := o.events.Load(); e != nil && e.Drain(make([]byte, eventSize), o.note) == nil && o.generation.Load() != generation {
		return
	}
	o.touched.Store(true) // no event: the table must be read again, with the generation
	o.generation.CompareAndSwap(generation, 0)
}

// refused returns the *Refused for a kernel's error, and other errors as they are.
func (c *Change) refused(s socket, err error) error {
	r := &Refused{Err: err}
	var refusal *nlmsg.Refusal
	if !errors.As(err, &refusal) {
		return err
	}
	if i := refusal.Index - 1; i >= 0 && i < len(c.requests) { // the first message begins the transaction
		r.Object = c.objects[i]
		if m := c.requests[i]; m.Kind&0xff == unix.NFT_MSG_NEWRULE && (errors.Is(err, fs.ErrNotExist) || netlinkx.IsUnsupported(err)) {
			r.Expression = expressionAt(m.Body, refusal.At)
		}
	}
	if r.Expression == "" {
		r.Err = s.explain(err)
	}
	return r
}

// expressionAt returns the name of the expression at the offset in a rule's request that the kernel refused.
func expressionAt(body []byte, at int) string {
	if at <= 0 || at >= len(body) {
		return ""
	}
	_, e, _, err := nlmsg.NextAttribute(body[at:])
	if err != nil {
		return ""
	}
	return nlmsg.Text(nlmsg.Find(e, unix.NFTA_EXPR_NAME))
}

// Content is the content of a table in the kernel.
type Content struct{ content }

// Read reads the whole table. It finds chains without rules only if they are among names.
func (o *Owned) Read(ctx context.Context, names []string) (*Content, error) {
	for range attempts {
		have, err := o.read(ctx, names)
		if !stale(err) {
			return have, err
		}
		o.hangUp()
		time.Sleep(attemptPause)
	}
	return nil, fmt.Errorf("read nftables table inet %s: others changed nftables %d times meanwhile", o.name, attempts)
}

func (o *Owned) read(ctx context.Context, names []string) (*Content, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	s, err := o.dial(ctx)
	if err != nil {
		return nil, err
	}
	generation, err := s.generation()
	if err != nil {
		o.hangUp()
		return nil, err
	}
	have, err := s.read(Part{Prefixes: []string{""}, Former: names})
	if now, again := s.generation(); again != nil || now != generation {
		return nil, fmt.Errorf("read: %w", cmp.Or(again, error(unix.ERESTART)))
	}
	if err != nil {
		o.hangUp()
		return nil, err
	}
	if o.events.Load() != nil {
		o.generation.Store(generation)
	}
	return &Content{*have}, nil
}

// Exists reports whether the table exists; it is not awake while its dormant flag is set, which disables its chains.
func (c *Content) Exists() (exists, awake bool) { return c.exists, c.exists && !c.dormant }

// Chains returns the names of the chains, sorted.
func (c *Content) Chains() []string { return slices.Sorted(maps.Keys(c.chains)) }

// Rules returns the number of a chain's rules.
func (c *Content) Rules(chain string) int {
	if have := c.chains[chain]; have != nil {
		return len(have.rules)
	}
	return 0
}

// Sets returns the names of the sets, sorted.
func (c *Content) Sets() []string { return slices.Sorted(maps.Keys(c.sets)) }

// Elements returns the elements of a set, in no particular order.
func (c *Content) Elements(set string) []Element {
	if have := c.sets[set]; have != nil {
		return have.elements
	}
	return nil
}

// HasChain reports whether there is a chain of that name, whether it is at the same hook, and whether it has the same
// rules.
func (c *Content) HasChain(want Chain) (exists, placed, same bool) {
	have := c.chains[want.Name]
	if have == nil {
		return false, false, false
	}
	same = slices.EqualFunc(have.rules, want.Rules, func(a ruleContent, b Rule) bool { return a.normal() == b.normal() })
	return true, have.kindOf(want), same
}

// HasSet reports whether there is a set of that name, and whether it is of the same kind.
func (c *Content) HasSet(want Set) (exists, same bool) {
	have := c.sets[want.Name]
	return have != nil, have != nil && have.kind == want.kind()
}

// SameElements reports whether a set has these elements and no others.
func (c *Content) SameElements(want Set) bool {
	gone, added := compare(c.Elements(want.Name), want.Elements)
	return len(gone)+len(added) == 0
}

// Digest returns a hash of the rules.
func (c Chain) Digest() string {
	h := sha256.New()
	for _, r := range c.Rules {
		h.Write([]byte(r.normal()))
		h.Write([]byte{'\n'})
	}
	return digest(h)
}

// Digest returns a hash of the kind, and of the elements in their order.
func (s Set) Digest() string {
	h := sha256.New()
	fmt.Fprintln(h, s.kind())
	for _, e := range s.Elements {
		fmt.Fprintf(h, "%d:%s%d:%s%d:%s%d:%s\n", len(e.First), e.First, len(e.Last), e.Last, len(e.Verdict), e.Verdict, len(e.Value), e.Value)
	}
	return digest(h)
}

// Counters returns the sum of the counters of the rules of each chain, by its name. netlinkx.IsNotExist holds for the
// error if there is no table.
func (o *Owned) Counters(ctx context.Context) (map[string]Counter, error) {
	c, err := open(ctx, o.ns)
	if err != nil {
		return nil, err
	}
	s := socket{c, o.name}
	defer s.Close()
	rules, err := s.rules()
	counters := map[string]Counter{}
	for chain, list := range rules {
		for _, r := range list {
			if c, ok := r.counter(); ok {
				counters[chain] = Counter{counters[chain].Packets + c.Packets, counters[chain].Bytes + c.Bytes}
			}
		}
	}
	return counters, err
}

// Get returns one element of a set. netlinkx.IsNotExist holds for the error if there is no such element, set or table.
func (o *Owned) Get(ctx context.Context, s Set, key string) (e Element, err error) {
	sock, err := o.dial(ctx)
	if err != nil {
		return e, err
	}
	var list nlmsg.Attributes
	at := list.Open(unix.NFTA_LIST_ELEM)
	appendKey(&list, unix.NFTA_SET_ELEM_KEY, key)
	list.Close(at)
	b := batch{table: o.name}
	a := b.in(unix.NFTA_SET_ELEM_LIST_SET, s.Name)
	a.Nest(unix.NFTA_SET_ELEM_LIST_ELEMENTS, list)
	err = sock.ask(message(unix.NFT_MSG_GETSETELEM, 0, a), func(_ uint8, part []byte) {
		e = decodeElement(nlmsg.Find(nlmsg.Find(part, unix.NFTA_SET_ELEM_LIST_ELEMENTS), unix.NFTA_LIST_ELEM)).Element
	})
	return e, err
}

// Exists reports whether the kernel has the table.
func (o *Owned) Exists(ctx context.Context) (bool, error) {
	s, err := o.dial(ctx)
	if err != nil {
		return false, err
	}
	c := &content{}
	err = s.readTable(c)
	return c.exists, err
}

// digest returns a short form of the hash, for names.
func digest(h hash.Hash) string { return hex.EncodeToString(h.Sum(nil)[:10]) }
