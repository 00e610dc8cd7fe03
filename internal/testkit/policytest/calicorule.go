package policytest

import (
	"net/netip"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/tortie-net/tortie/internal/api"
)

// answer is the result of one field of a rule for a packet.
type answer int

const (
	yes answer = iota
	no
	unreadable
)

func answerIf(matches bool) answer {
	if matches {
		return yes
	}
	return no
}

// ifReadable returns unreadable if not ok, else the answer.
func ifReadable(ok, matches bool) answer {
	if !ok {
		return unreadable
	}
	return answerIf(matches)
}

// calicoAct returns what a rule does with a packet, empty if nothing: all fields must match. An unreadable field closes
// the rule: an Allow or Log matches nothing, a Deny or Pass denies what the other fields match. So do an unknown
// action, and a condition on HTTP, which no packet filter reads.
func (c *Cluster) calicoAct(r *api.CalicoRule, namespace string, s side) string {
	action := "Deny"
	for _, known := range []string{"Allow", "Pass", "Log"} {
		if strings.EqualFold(r.Action, known) {
			action = known
		}
	}
	closed := r.HTTP != nil
	for _, a := range c.answers(r, namespace, s) {
		if a == no {
			return ""
		}
		closed = closed || a == unreadable
	}
	switch {
	case !closed:
		return action
	case action == "Allow" || action == "Log":
		return ""
	}
	return "Deny"
}

// answers returns the answers of all fields of a rule.
func (c *Cluster) answers(r *api.CalicoRule, namespace string, s side) []answer {
	all := []answer{versionAnswer(r.IPVersion, s.Packet)}
	if r.Protocol != nil {
		n, ok := readProtocol(string(*r.Protocol))
		all = append(all, ifReadable(ok, n == s.Protocol))
	}
	if r.NotProtocol != nil {
		n, ok := readProtocol(string(*r.NotProtocol))
		all = append(all, ifReadable(ok, n != s.Protocol))
	}
	all = append(all, icmpAnswers(r, s.Packet)...)
	source, destination := entity{&r.Source, s.From, s.SourcePort}, entity{&r.Destination, s.To, s.Port}
	for _, e := range []entity{source, destination} {
		all = append(all, e.accountAnswer())
		all = append(all, netAnswers(e)...)
		all = append(all, answerIf(selectsEnd(e, namespace, s)))
		all = append(all, portAnswers(r, e, s)...)
	}
	return append(all, c.serviceAnswers(r, namespace, s)...)
}

// entity is one end of a connection, and a rule's conditions on it.
type entity struct {
	*api.CalicoEntityRule
	addr netip.Addr
	port uint16
}

func versionAnswer(version *int, p Packet) answer {
	if version == nil {
		return yes
	}
	return ifReadable(*version == 4 || *version == 6, p.From.Is4() == (*version == 4))
}

// readProtocol reads a name in any case, or a number.
func readProtocol(text string) (number uint8, ok bool) {
	for name, n := range map[string]uint8{"TCP": TCP, "UDP": UDP, "ICMP": ICMP, "ICMPv6": ICMPv6, "SCTP": SCTP, "UDPLite": udpLite} {
		if strings.EqualFold(name, text) {
			return n, true
		}
	}
	n, err := strconv.ParseUint(text, 10, 8)
	return uint8(n), err == nil && n > 0
}

// icmpAnswers returns the answers on ICMP, which need the protocol ICMP or ICMPv6. A condition without a type is
// ignored.
func icmpAnswers(r *api.CalicoRule, p Packet) (all []answer) {
	protocol := uint8(0)
	if r.Protocol != nil {
		protocol, _ = readProtocol(string(*r.Protocol))
	}
	for _, m := range []*api.CalicoICMP{r.ICMP, r.NotICMP} {
		if m == nil {
			continue
		}
		if protocol != ICMP && protocol != ICMPv6 || m.Type == nil && m.Code != nil || !inRange(m.Type, 254) || !inRange(m.Code, 255) {
			all = append(all, unreadable)
			continue
		}
		if m.Type == nil {
			continue
		}
		matches := *m.Type == int(p.Type) && (m.Code == nil || *m.Code == int(p.Code))
		all = append(all, answerIf(matches == (m == r.ICMP)))
	}
	return all
}

func inRange(n *int, last int) bool { return n == nil || 0 <= *n && *n <= last }

// netAnswers returns the answers on networks: unreadable nets are skipped, but with unreadable notNets it is unknown
// what to exclude. A rule with notNets is only for packets of the families of these.
func netAnswers(e entity) (all []answer) {
	contains := func(p netip.Prefix) bool { return p.Contains(e.addr) }
	if len(e.Nets) > 0 {
		all = append(all, answerIf(slices.ContainsFunc(readableNets(e.Nets), contains)))
	}
	excluded := readableNets(e.NotNets)
	if slices.ContainsFunc(excluded, contains) {
		return append(all, no)
	}
	if len(excluded) < len(e.NotNets) {
		return append(all, unreadable)
	}
	ofFamily := func(p netip.Prefix) bool { return p.Addr().Is4() == e.addr.Is4() }
	return append(all, answerIf(len(excluded) == 0 || slices.ContainsFunc(excluded, ofFamily)))
}

// selectsEnd reports whether an end's selectors, if any, select something with the address. In a NetworkPolicy they
// mean its own namespace, unless there is a namespaceSelector. A notSelector alone in a GlobalNetworkPolicy also
// matches addresses of nothing known.
func selectsEnd(e entity, namespace string, s side) bool {
	accounts := e.ServiceAccounts != nil && (len(e.ServiceAccounts.Names) > 0 || e.ServiceAccounts.Selector != "")
	positive := e.Selector != "" || e.NamespaceSelector != "" || accounts
	if !positive && e.NotSelector == "" {
		return true
	}
	if !positive && namespace == "" {
		return !slices.ContainsFunc(s.things, func(t thing) bool { return t.has(e.addr) && t.selectedBy(e.NotSelector) })
	}
	return slices.ContainsFunc(s.things, func(t thing) bool { return t.has(e.addr) && e.means(t, namespace) })
}

func (e entity) means(t thing, namespace string) bool {
	switch {
	case e.NamespaceSelector != "":
		if !t.inNamespaces(e.NamespaceSelector) {
			return false
		}
	case namespace != "" && t.namespace != namespace:
		return false
	}
	if e.Selector != "" && !t.selectedBy(e.Selector) || e.NotSelector != "" && t.selectedBy(e.NotSelector) {
		return false
	}
	a := e.ServiceAccounts
	named := a == nil || len(a.Names) == 0 || e.accountAnswer() == unreadable || slices.Contains(a.Names, t.serviceAccount)
	return named && (a == nil || a.Selector == "" || t.hasServiceAccount(a.Selector))
}

var accountName = regexp.MustCompile(`^[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*$`)

// accountAnswer is unreadable for names that the API server allows no service account.
func (e entity) accountAnswer() answer {
	if e.ServiceAccounts == nil {
		return yes
	}
	readable := !slices.ContainsFunc(e.ServiceAccounts.Names,
		func(name string) bool { return len(name) > 253 || !accountName.MatchString(name) })
	return ifReadable(readable, true)
}

// portAnswers: "ports numeric OR named".
func portAnswers(r *api.CalicoRule, e entity, s side) (all []answer) {
	if len(e.Ports) > 0 {
		all = append(all, anyPort(r, e, e.Ports, s))
	}
	if len(e.NotPorts) == 0 {
		return all
	}
	for _, p := range e.NotPorts {
		switch onePort(r, e, p, s) {
		case yes:
			return append(all, no)
		case unreadable:
			all = append(all, unreadable)
		}
	}
	return all
}

// anyPort returns yes if a port matches; an unreadable one does not.
func anyPort(r *api.CalicoRule, e entity, ports []api.CalicoPort, s side) answer {
	return answerIf(slices.ContainsFunc(ports, func(p api.CalicoPort) bool { return onePort(r, e, p, s) == yes }))
}

// onePort returns the answer for one port: numbers need a protocol that has ports; a name without a protocol means TCP.
func onePort(r *api.CalicoRule, e entity, p api.CalicoPort, s side) answer {
	first, last, name, ok := readPort(string(p))
	protocol := uint8(TCP)
	if r.Protocol != nil {
		protocol, _ = readProtocol(string(*r.Protocol))
	} else if name == "" {
		return unreadable
	}
	switch {
	case !ok || protocol != TCP && protocol != UDP && protocol != SCTP:
		return unreadable
	case protocol != s.Protocol:
		return no
	case name == "":
		return answerIf(first <= int(e.port) && int(e.port) <= last)
	}
	if s.host != nil && (e.CalicoEntityRule == &r.Destination) == s.ingress {
		return answerIf(s.host.declares(name, protocol, e.port))
	}
	return answerIf(slices.ContainsFunc(s.things, func(t thing) bool { return t.has(e.addr) && t.declares(name, protocol, e.port) }))
}

// readPort reads a number, a range or a name.
func readPort(text string) (first, last int, name string, ok bool) {
	from, to, isRange := strings.Cut(text, ":")
	if !isRange {
		to = from
	}
	first, err := strconv.Atoi(from)
	last, err2 := strconv.Atoi(to)
	if err == nil && err2 == nil {
		return first, last, "", 0 <= first && first <= last && last <= 65535
	}
	const others = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_.-"
	return 0, 0, text, text != "" && len(text) <= 128 && strings.Trim(text, others) == ""
}

// serviceAnswers returns the answers on Services: as the destination of egress a Service means its endpoints with their
// ports, as the source of ingress only their addresses. Anywhere else, without a name, and beside nets, selectors or
// ports of a destination, its meaning is undefined.
func (c *Cluster) serviceAnswers(r *api.CalicoRule, namespace string, s side) (all []answer) {
	for _, e := range []*api.CalicoEntityRule{&r.Source, &r.Destination} {
		if e.Services == nil {
			continue
		}
		in := e.Services.Namespace
		if in == "" {
			in = namespace
		}
		if s.ingress != (e == &r.Source) || e.Services.Name == "" || in == "" || !alone(e) ||
			e == &r.Destination && len(e.Ports)+len(e.NotPorts) > 0 {
			all = append(all, unreadable)
			continue
		}
		all = append(all, answerIf(c.isEndpoint(in, e.Services.Name, s)))
	}
	return all
}

func (c *Cluster) isEndpoint(namespace, name string, s side) bool {
	for _, service := range c.Services {
		if service.Namespace != namespace || service.Name != name {
			continue
		}
		for _, e := range service.Endpoints {
			if netip.MustParseAddr(e.Address) == s.peer && (s.ingress || e.serves(s.Packet)) {
				return true
			}
		}
	}
	return false
}

func (e ServiceEndpoint) serves(p Packet) bool {
	return slices.ContainsFunc(e.Ports, func(own ServicePort) bool { return protocolNumber(own.Protocol) == p.Protocol && own.Port == p.Port })
}

func alone(e *api.CalicoEntityRule) bool {
	return e.Selector == "" && e.NotSelector == "" && len(e.Nets) == 0 && len(e.NotNets) == 0 &&
		e.NamespaceSelector == "" && e.ServiceAccounts == nil
}
