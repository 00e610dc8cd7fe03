package policy

import (
	"fmt"
	"net/netip"
	"strings"

	"github.com/tortie-net/tortie/internal/api"
	"github.com/tortie-net/tortie/internal/api/selector"
)

// Numbers of the protocols that have ports in policies.
const (
	TCP  uint8 = 6
	UDP  uint8 = 17
	SCTP uint8 = 132
)

// HasPorts reports whether a protocol's header begins with a source and a destination port.
func HasPorts(protocol uint8) bool {
	const dccp = 33
	return protocol == TCP || protocol == UDP || protocol == SCTP || protocol == udpLite || protocol == dccp
}

var protocols = map[string]uint8{"": TCP, api.ProtocolTCP: TCP, api.ProtocolUDP: UDP, api.ProtocolSCTP: SCTP}

const lastPort = 65535

// reader converts the parts of an object and collects its problems.
type reader struct {
	problems []string
	wrong    int
	first    map[string]*Pods // by identity
}

// mostProblems bounds the named problems of an object: an object of 1 MB has room for 300,000, which every agent would
// hold, compare and log.
const mostProblems = 10

// note adds a problem; after mostProblems the last entry counts the others.
func (r *reader) note(problem string) {
	if r.wrong++; r.wrong > mostProblems {
		problem = fmt.Sprintf("%d problems more", r.wrong-mostProblems)
		r.problems = r.problems[:mostProblems]
	}
	r.problems = append(r.problems, problem)
}

// shared returns the first of equal selections: many policies list the same peers for several ports.
func (r *reader) shared(p *Pods) *Pods {
	key := p.identity()
	if first := r.first[key]; first != nil {
		return first
	}
	if r.first == nil {
		r.first = map[string]*Pods{}
	}
	r.first[key] = p
	return p
}

// problem adds a problem with field, value and remedy. It returns false, for callers that return it.
func (r *reader) problem(field string, value any, remedy string) bool {
	r.note(fmt.Sprintf("%s %q: %s", field, fmt.Sprint(value), remedy))
	return false
}

func (r *reader) selector(field string, labels api.LabelSelector) (selector.Selector, bool) {
	s, err := selector.FromLabels(labels)
	if err != nil {
		r.note(field + "." + err.Error())
	}
	return s, err == nil
}

const noRange = "is no range of addresses: write one such as 10.0.0.0/8 or 2001:db8::/32"

// prefix reads a CIDR as old API servers did: they accepted leading zeros as decimal, bits after the prefix, and IPv4
// as IPv6.
func (r *reader) prefix(field, text string) (netip.Prefix, bool) {
	p, err := netip.ParsePrefix(withoutZeros(text))
	if err != nil {
		return p, r.problem(field, text, noRange)
	}
	if p.Addr().Is4In6() && p.Bits() >= 96 {
		p = netip.PrefixFrom(p.Addr().Unmap(), p.Bits()-96)
	}
	return p.Masked(), true
}

// withoutZeros removes leading zeros from each number of a CIDR.
func withoutZeros(text string) string {
	var b strings.Builder
	leading := true
	for i := range len(text) {
		c := text[i]
		if leading && c == '0' && i+1 < len(text) && isHex(text[i+1]) {
			continue
		}
		leading = strings.IndexByte(".:/", c) >= 0
		b.WriteByte(c)
	}
	return b.String()
}

func isHex(c byte) bool {
	return c >= '0' && c <= '9' || c >= 'a' && c <= 'f' || c >= 'A' && c <= 'F'
}

// ports reads a range of numbers.
func (r *reader) ports(field string, protocol uint8, first, last int32) (Port, bool) {
	for _, n := range []int32{first, last} {
		if n < 1 || n > lastPort {
			return Port{}, r.problem(field, n, "is no port: give a number from 1 to 65535")
		}
	}
	if last < first {
		return Port{}, r.problem(field, fmt.Sprintf("%d to %d", first, last), "the range ends before it starts: exchange the two")
	}
	return Port{Protocol: protocol, First: uint16(first), Last: uint16(last)}, true
}

// portName reports whether a pod can declare the name; if not it adds a problem.
func (r *reader) portName(field, name string) bool {
	if !strings.ContainsFunc(name, func(c rune) bool { return c >= 'a' && c <= 'z' }) {
		return r.problem(field, name, "is no port's name, which has a letter: write a number without quotes")
	}
	return true
}
