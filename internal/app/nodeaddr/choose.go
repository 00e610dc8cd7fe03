package nodeaddr

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
)

// Link is a network interface with its addresses.
type Link struct {
	Name string
	// Kind is the kernel's link kind: bridge, veth, ipip; device for hardware.
	Kind string
	MTU  int
	// Down: no packets pass.
	Down     bool
	Loopback bool
	// Master is the kind of the link that this one is a part of; empty: none.
	Master string
	Addrs  []Addr
}

// Addr is an address on a link.
type Addr struct {
	// Prefix is the address with the length of its subnet.
	Prefix netip.Prefix
	// Tentative: not usable yet, or a duplicate.
	Tentative bool
	// Passing: a temporary address (privacy extensions), or a deprecated one.
	Passing bool
}

// Request is the input of the choice of an address.
type Request struct {
	Family  Family
	Setting Setting
	Method  Method
	// Node is the node's name, for messages.
	Node string
	// Internal are the Node's InternalIPs of both families, in Kubernetes' order.
	Internal []netip.Addr
	// Stored is the address in the Node's annotation; invalid if it has none. It counts only while a link has it.
	Stored netip.Prefix
	// Links are all links of the host, in the order of preference.
	Links []Link
	// Source returns the source address of packets to a host, for can-reach.
	Source func(host string) (netip.Addr, error)
}

// Candidate is an address of the host, and the decision about it.
type Candidate struct {
	Addr   netip.Prefix
	Link   string
	MTU    int
	Chosen bool
	// Why is the reason for or against it.
	Why string
}

// Choice is the result of Choose.
type Choice struct {
	// Addr has the prefix length of the subnet. It is invalid if this family is not used.
	Addr netip.Prefix
	// Link is the name of the interface that has the address, MTU its MTU.
	Link string
	MTU  int
	// Source describes the origin of the address.
	Source string
	// Notes are remarks for the operator on a usable address, or on the lack of an optional one.
	Notes []Note
	// Candidates are all the host's addresses of the family.
	Candidates []Candidate
}

// Note is a remark, with the reason of its Event.
type Note struct{ Reason, Text string }

// The reasons.
const (
	EventAmbiguous = "AmbiguousAddress"
	EventNone      = "NoNodeAddress"
	EventLinkDown  = "NodeLinkDown"
)

// Choose picks the address. Without one the error has the reason and the remedy, and the Choice the candidates.
//
// Of several suitable addresses it keeps the Node's present one, so that an address that comes and goes does not change
// the node's; else it takes the first.
func Choose(r Request) (Choice, error) {
	f := &finder{r: r, found: r.candidates()}
	switch r.Setting.Mode {
	case Fixed:
		return f.fixed()
	case None:
		return f.stored("kept, as nothing is to be detected"), nil
	case Keep:
		kept := f.stored("kept from the Node")
		if kept.Addr.IsValid() || r.Family == IPv6 {
			return kept, nil
		}
	}
	choice, err := f.detect()
	if err == nil {
		return choice, nil
	}
	if kept := f.stored("kept from the Node, as nothing was found"); kept.Addr.IsValid() {
		kept.Notes = append(kept.Notes, Note{EventNone, fmt.Sprintf("%v; %s on %s is kept from the Node", err, kept.Addr.Addr(), kept.Link)})
		return kept, nil
	}
	return choice, err
}

// Awaits reports whether an address that Choose could pick is tentative: the kernel still checks whether another host
// has it.
func (r *Request) Awaits() bool {
	return slices.ContainsFunc(r.candidates(), func(c candidate) bool {
		if !c.addr.Tentative || c.bad != "" {
			return false
		}
		switch r.Setting.Mode {
		case Detect:
			return true
		case Fixed:
			return c.Addr.Addr() == r.Setting.Addr.Addr()
		}
		return c.Addr.Addr() == r.Stored.Addr()
	})
}

// candidate is a Candidate with its link.
type candidate struct {
	Candidate
	link Link
	addr Addr
	bad  string // the result of Unusable
}

// finder is the state of one Choose.
type finder struct {
	r     Request
	found []candidate
}

// candidates lists the family's addresses.
func (r *Request) candidates() []candidate {
	var all []candidate
	for _, l := range r.Links {
		for _, a := range l.Addrs {
			if !r.Family.has(a.Prefix.Addr()) {
				continue
			}
			all = append(all, candidate{
				Candidate: Candidate{Addr: a.Prefix, Link: l.Name, MTU: l.MTU},
				link:      l, addr: a, bad: Unusable(a.Prefix.Addr()),
			})
		}
	}
	return all
}

// Unusable returns why an address cannot be a node's on any link; empty if it can.
func Unusable(a netip.Addr) string {
	switch {
	case a.IsLoopback():
		return "a loopback address"
	case a.IsLinkLocalUnicast():
		return "a link-local address"
	case !a.IsGlobalUnicast():
		return "no unicast address"
	}
	return ""
}

// choose returns the i-th candidate as the Choice.
func (f *finder) choose(i int, source string, notes ...Note) Choice {
	c := &f.found[i]
	c.Chosen, c.Why = true, "chosen: "+source
	if c.link.Down {
		notes = append(notes, Note{EventLinkDown, fmt.Sprintf("link %s, which has the node's address %s, is down", c.Link, c.Addr.Addr())})
	}
	choice := Choice{Addr: c.Addr, Link: c.Link, MTU: c.MTU, Source: source, Notes: notes}
	choice.Candidates = f.candidates()
	return choice
}

// nothing returns the Choice without an address.
func (f *finder) nothing() Choice { return Choice{Candidates: f.candidates()} }

func (f *finder) candidates() []Candidate {
	out := make([]Candidate, len(f.found))
	for i, c := range f.found {
		if c.Why == "" {
			c.Why = c.bad
		}
		if c.Why == "" {
			c.Why = "not asked for"
		}
		out[i] = c.Candidate
	}
	return out
}

// at returns the index of the usable candidate with the address, preferably on a link that is up; -1 if there is none.
func (f *finder) at(a netip.Addr) int {
	is := func(c candidate) bool { return c.Addr.Addr() == a && c.bad == "" && !c.addr.Tentative }
	if i := slices.IndexFunc(f.found, func(c candidate) bool { return is(c) && !c.link.Down }); i >= 0 {
		return i
	}
	return slices.IndexFunc(f.found, is)
}

// stored chooses the address that the Node has already, if a link has it.
func (f *finder) stored(source string) Choice {
	if !f.r.Stored.IsValid() {
		return f.nothing()
	}
	i := f.at(f.r.Stored.Addr())
	if i < 0 {
		choice := f.nothing()
		choice.Notes = []Note{{EventNone, fmt.Sprintf("the Node's annotation says %s, which is on no link of this host any more", f.r.Stored)}}
		return choice
	}
	return f.choose(i, source)
}

// fixed chooses the address of the environment variable.
func (f *finder) fixed() (Choice, error) {
	want := f.r.Setting.Addr
	source := "environment variable " + f.r.Family.setting()
	i := f.at(want.Addr())
	if i < 0 {
		return f.nothing(), fmt.Errorf("node address %s (%s) %s: set the environment variable %s to the right one",
			want.Addr(), source, f.missing(want.Addr()), f.r.Family.setting())
	}
	choice := f.choose(i, source)
	if !want.IsSingleIP() {
		choice.Addr = want
	}
	return choice, nil
}

// missing returns why none of the addresses can be used.
func (f *finder) missing(addrs ...netip.Addr) string {
	for _, c := range f.found {
		if slices.Contains(addrs, c.Addr.Addr()) && c.addr.Tentative {
			return fmt.Sprintf("on %s is not usable yet, or another host has it too (duplicate address detection)", c.Link)
		}
	}
	return "is on no interface of this host, which has " + f.list()
}

// list returns the host's addresses of the family, for errors.
func (f *finder) list() string {
	const most = 10
	texts := make([]string, 0, most+1)
	others := slices.DeleteFunc(slices.Clone(f.found), func(c candidate) bool { return c.Addr.Addr().IsLoopback() })
	for _, c := range others[:min(most, len(others))] {
		texts = append(texts, fmt.Sprintf("%s on %s", c.Addr, c.Link))
	}
	if more := len(others) - most; more > 0 {
		texts = append(texts, fmt.Sprintf("and %d more", more))
	}
	if len(texts) == 0 {
		return "no " + f.r.Family.String() + " address"
	}
	return strings.Join(texts, ", ")
}
