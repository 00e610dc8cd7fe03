package policy

import (
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"github.com/tortie-net/tortie/internal/api"
	"github.com/tortie-net/tortie/internal/api/selector"
)

// calicoRule reads a rule. If a condition cannot be read the rule is closed: Allow and Log match nothing, Deny and Pass
// deny what the other conditions match. An entry of nets or ports that cannot be read matches nothing, as in Calico.
type calicoRule struct {
	*calicoReader
	d       Direction
	field   string
	in      *api.CalicoRule
	out     Rule
	closed  bool // a condition cannot be read
	nothing bool // a condition never holds
}

func (r *calicoReader) rules(d Direction, stored []api.CalicoRule) (all []Rule) {
	for i := range stored {
		c := &calicoRule{calicoReader: r, d: d, field: fmt.Sprintf("spec.%s[%d]", d, i), in: &stored[i],
			out: Rule{AnyPeer: true, AnyPort: true, HostPorts: true}}
		all = append(all, c.rule())
	}
	return all
}

var calicoActions = map[string]Action{"allow": Allow, "deny": Deny, "log": Log, "pass": Pass}

func (c *calicoRule) rule() Rule {
	action, known := calicoActions[strings.ToLower(c.in.Action)]
	if !known {
		c.problem(c.field+".action", c.in.Action, "counts as Deny: use Allow, Deny, Log or Pass")
		action = Deny
	}
	c.out.Action = action
	c.family()
	c.protocols()
	c.end(Ingress, ".source", &c.in.Source)
	c.end(Egress, ".destination", &c.in.Destination)
	if c.in.HTTP != nil {
		c.unreadable(".http", requests(c.in.HTTP), "is not supported, so that Allow matches nothing: leave it out, or filter requests in the pod")
	}
	switch {
	case c.nothing, c.closed && (action == Allow || action == Log):
		return Rule{Action: action}
	case c.closed:
		c.out.Action = Deny
	}
	return c.out
}

// requests formats an HTTP match as GET /exact /prefix*.
func requests(h *api.CalicoHTTP) string {
	words := slices.Clone(h.Methods)
	for _, path := range h.Paths {
		if words = append(words, path.Exact); path.Prefix != "" {
			words[len(words)-1] = path.Prefix + "*"
		}
	}
	return strings.Join(words, " ")
}

// unreadable records a condition that cannot be read, and closes the rule.
func (c *calicoRule) unreadable(field string, value any, remedy string) {
	c.problem(c.field+field, value, remedy)
	c.closed = true
}

func (c *calicoRule) family() {
	version := c.in.IPVersion
	switch {
	case version == nil:
	case *version == 4 || *version == 6:
		c.out.Family = uint8(*version)
	default:
		c.unreadable(".ipVersion", *version, "is no version of IP: use 4 or 6")
	}
}

// Protocol numbers that only Calico's policies name.
const (
	icmp    uint8 = 1
	icmpv6  uint8 = 58
	udpLite uint8 = 136
)

var calicoProtocols = map[string]uint8{"tcp": TCP, "udp": UDP, "sctp": SCTP, "icmp": icmp, "icmpv6": icmpv6, "udplite": udpLite}

// calicoProtocol reads a name in any case, or a number.
func calicoProtocol(text api.CalicoProtocol) (uint8, bool) {
	if n, ok := calicoProtocols[strings.ToLower(string(text))]; ok {
		return n, true
	}
	n, err := strconv.ParseUint(string(text), 10, 8)
	return uint8(n), err == nil && n > 0
}

const protocolRemedy = "is no protocol: use TCP, UDP, SCTP, ICMP, ICMPv6, UDPLite, or a number from 1 to 255"

// every is all ports of a protocol.
func every(protocol uint8) Port { return Port{Protocol: protocol, Last: lastPort} }

func (c *calicoRule) protocols() {
	if c.in.Protocol != nil {
		if n, ok := calicoProtocol(*c.in.Protocol); ok {
			c.out.AnyPort, c.out.Ports = false, []Port{every(n)}
		} else {
			c.unreadable(".protocol", *c.in.Protocol, protocolRemedy)
		}
	}
	if c.in.NotProtocol != nil {
		if n, ok := calicoProtocol(*c.in.NotProtocol); ok {
			c.out.Except = append(c.out.Except, every(n))
		} else {
			c.unreadable(".notProtocol", *c.in.NotProtocol, protocolRemedy)
		}
	}
	if p, ok := c.icmp(".icmp", c.in.ICMP); ok {
		c.out.Ports = []Port{p}
	}
	if p, ok := c.icmp(".notICMP", c.in.NotICMP); ok {
		c.out.Except = append(c.out.Except, p)
	}
}

// protocol returns the rule's protocol; 0 if it has no readable one.
func (c *calicoRule) protocol() uint8 {
	if c.in.Protocol == nil {
		return 0
	}
	n, _ := calicoProtocol(*c.in.Protocol)
	return n
}

// icmp reads a condition on ICMP messages; a condition without a type is ignored, as Felix does.
func (c *calicoRule) icmp(field string, m *api.CalicoICMP) (Port, bool) {
	n := c.protocol()
	switch {
	case m == nil:
		return Port{}, false
	case n != icmp && n != icmpv6:
		c.unreadable(field, "", "needs a protocol: set protocol to ICMP or ICMPv6")
	case m.Type == nil && m.Code != nil:
		c.unreadable(field+".code", *m.Code, "needs a type: set type")
	case m.Type == nil:
	case *m.Type < 0 || *m.Type > 254:
		c.unreadable(field+".type", *m.Type, "is no type: give a number from 0 to 254")
	case m.Code == nil:
		return Port{Protocol: n, First: uint16(*m.Type) << 8, Last: uint16(*m.Type)<<8 | 0xff}, true
	case *m.Code < 0 || *m.Code > 255:
		c.unreadable(field+".code", *m.Code, "is no code: give a number from 0 to 255")
	default:
		message := uint16(*m.Type)<<8 | uint16(*m.Code)
		return Port{Protocol: n, First: message, Last: message}, true
	}
	return Port{}, false
}

// end reads the conditions on one end of a connection. The source of ingress and the destination of egress are the
// pod's peer.
func (c *calicoRule) end(peerOf Direction, field string, e *api.CalicoEntityRule) {
	ports, not := c.ports(field, e)
	if peerOf == Ingress {
		c.out.Sources, c.out.ExceptSources = ports, not
	} else {
		c.out.Except = append(c.out.Except, not...)
		if len(e.Ports) > 0 {
			c.out.AnyPort, c.out.Ports = false, ports
		}
	}
	m := c.match(c.field+field, e)
	peer := c.service(peerOf, field, e)
	switch {
	case c.d != peerOf:
		c.out.Own = m
	case peer != nil:
		c.out.AnyPeer, c.out.Peers = false, []Peer{{Service: peer}}
	case m != nil:
		c.out.AnyPeer, c.out.Peers = false, []Peer{{Match: m}}
	}
}

// service reads services, which excludes nets and selectors; as a destination it has its own ports.
func (c *calicoRule) service(peerOf Direction, field string, e *api.CalicoEntityRule) *Service {
	s := e.Services
	if s == nil {
		return nil
	}
	field += ".services"
	in := s.Namespace
	if in == "" {
		in = c.namespace
	}
	others := e.Selector != "" || e.NotSelector != "" || e.NamespaceSelector != "" || e.ServiceAccounts != nil ||
		len(e.Nets)+len(e.NotNets) > 0
	switch {
	case c.d != peerOf:
		c.unreadable(field, s.Name, "is for the source of ingress and the destination of egress: use it there")
	case s.Name == "":
		c.unreadable(field+".name", "", "is missing: name a Service")
	case in == "":
		c.unreadable(field+".namespace", "", "is missing: name the Service's namespace")
	case !dnsLabel(s.Name):
		c.unreadable(field+".name", s.Name, "is no Service's name, which has up to 63 lower-case letters, digits and hyphens: correct it")
	case !dnsLabel(in):
		c.unreadable(field+".namespace", in, "is no namespace's name, which has up to 63 lower-case letters, digits and hyphens: correct it")
	case others:
		c.unreadable(field, s.Name, "excludes nets and selectors: give either")
	case peerOf == Egress && len(e.Ports)+len(e.NotPorts) > 0:
		c.unreadable(field, s.Name, "has the Service's ports: leave ports and notPorts out")
	default:
		return &Service{Namespace: in, Name: s.Name}
	}
	return nil
}

// dnsLabel reports whether a Service or a namespace may have the name. Agents request Services by name from the API
// server, which refuses a request with an invalid name, together with all other names in it.
func dnsLabel(name string) bool {
	return len(name) <= 63 && dnsPart(name)
}

// dnsSubdomain reports whether a service account may have the name.
func dnsSubdomain(name string) bool {
	return len(name) <= 253 && !slices.ContainsFunc(strings.Split(name, "."), func(part string) bool { return !dnsPart(part) })
}

func dnsPart(name string) bool {
	return strings.Trim(name, "-") == name && strings.Trim(name, "abcdefghijklmnopqrstuvwxyz0123456789-") == "" && name != ""
}

// match reads the conditions on addresses of an end; nil: any address.
func (c *calicoRule) match(field string, e *api.CalicoEntityRule) *Match {
	m := &Match{}
	m.Select, m.Not = c.selection(field, e)
	if len(e.Nets) > 0 {
		m.Nets, _ = c.nets(field+".nets", e.Nets)
		c.nothing = c.nothing || len(m.Nets) == 0
	}
	not, readable := c.nets(field+".notNets", e.NotNets)
	if m.NotNets = not; readable {
		c.ofFamilyOf(not)
	}
	c.closed = c.closed || !readable
	if m.Select == nil && m.Nets == nil && m.NotNets == nil {
		return nil
	}
	return m
}

// ofFamilyOf restricts a rule to the family of the networks that it excludes, as Felix does.
func (c *calicoRule) ofFamilyOf(excluded []netip.Prefix) {
	if len(excluded) == 0 {
		return
	}
	family := familyOf(excluded[0].Addr())
	if slices.ContainsFunc(excluded, func(n netip.Prefix) bool { return familyOf(n.Addr()) != family }) {
		return
	}
	c.nothing = c.nothing || c.out.Family != 0 && c.out.Family != family
	c.out.Family = family
}

// nets reads CIDRs and addresses. It leaves out unreadable ones.
func (r *reader) nets(field string, texts []string) (nets []netip.Prefix, readable bool) {
	readable = true
	for i, text := range texts {
		net, ok := r.net(fmt.Sprintf("%s[%d]", field, i), text)
		if readable = readable && ok; ok {
			nets = append(nets, net)
		}
	}
	return nets, readable
}

// net reads a CIDR or an address. It refuses leading zeros in IPv4 numbers, as Felix does.
func (r *reader) net(field, text string) (netip.Prefix, bool) {
	if a, err := netip.ParseAddr(text); err == nil && a.Zone() == "" {
		a = a.Unmap()
		return netip.PrefixFrom(a, a.BitLen()), true
	}
	if _, err := netip.ParsePrefix(text); err != nil {
		return netip.Prefix{}, r.problem(field, text, noRange)
	}
	return r.prefix(field, text)
}

// selection reads the selectors of an end; nil: anyone. In a GlobalNetworkPolicy a notSelector alone excludes what it
// selects, from everything. In a NetworkPolicy it selects everything else of the namespace, as all other selectors do
// there without a namespaceSelector.
func (c *calicoRule) selection(field string, e *api.CalicoEntityRule) (p *Pods, not bool) {
	p = &Pods{Calico: true, Namespace: c.namespace, Owner: c.namespace}
	given := e.Selector != "" || e.NamespaceSelector != ""
	if a := e.ServiceAccounts; a != nil {
		p.Accounts, p.AccountLabels = c.accounts(field+".serviceAccounts.names", a.Names), c.labels(field+".serviceAccounts.selector", a.Selector)
		given = given || len(a.Names) > 0 || a.Selector != ""
	}
	c.namespaces(field+".namespaceSelector", e.NamespaceSelector, p)
	p.Labels = c.labels(field+".selector", e.Selector)
	excluded := c.labels(field+".notSelector", e.NotSelector)
	switch {
	case e.NotSelector == "":
	case !given && c.namespace == "":
		p.Labels = excluded
		return p, true
	default:
		p.Labels = c.except(field+".notSelector", e.Selector, e.NotSelector)
		given = true
	}
	if !given {
		return nil, false
	}
	return p, false
}

// accounts reads names of service accounts. An impossible name closes the rule, and the condition is left out.
func (c *calicoRule) accounts(field string, names []string) []string {
	readable := true
	for i, name := range names {
		if !dnsSubdomain(name) {
			readable = c.problem(fmt.Sprintf("%s[%d]", field, i), name, noAccount)
		}
	}
	if c.closed = c.closed || !readable; !readable {
		return nil
	}
	return names
}

const noAccount = "is no service account's name, which has up to 253 lower-case letters, digits, hyphens and dots: correct it"

// except selects what selected matches and not does not.
func (c *calicoRule) except(field, selected, not string) selector.Selector {
	text := "(" + orAll(selected) + ") && !(" + orAll(not) + ")"
	s, err := selector.Parse(text)
	if err != nil && !c.unselected { // brackets that are too deep by one
		c.labels(field, text)
	}
	return s
}

func orAll(text string) string {
	if strings.Trim(text, " \t") == "" {
		return "all()"
	}
	return text
}

// ports reads ports and notPorts of an end.
func (c *calicoRule) ports(field string, e *api.CalicoEntityRule) (ports, not []Port) {
	ports, _ = c.portList(field+".ports", e.Ports)
	c.nothing = c.nothing || len(ports) < min(1, len(e.Ports))
	not, readable := c.portList(field+".notPorts", e.NotPorts)
	c.closed = c.closed || !readable
	return ports, not
}

// portList reads ports. It leaves out unreadable ones.
func (c *calicoRule) portList(field string, texts []api.CalicoPort) (ports []Port, readable bool) {
	readable = true
	for i, text := range texts {
		port, ok := c.port(fmt.Sprintf("%s%s[%d]", c.field, field, i), string(text))
		if readable = readable && ok; ok {
			ports = append(ports, port)
		}
	}
	return ports, readable
}

// port reads a number, a range or a name. Numbers need a protocol; a name without a protocol means a TCP port.
func (c *calicoRule) port(field, text string) (Port, bool) {
	number := !strings.ContainsFunc(text, func(r rune) bool { return (r < '0' || r > '9') && r != ':' })
	protocol := c.protocol()
	switch {
	case c.in.Protocol == nil && number:
		return Port{}, c.problem(field, text, "needs a protocol: set protocol to TCP, UDP or SCTP")
	case c.in.Protocol == nil:
		protocol = TCP
	case protocol != TCP && protocol != UDP && protocol != SCTP:
		return Port{}, c.problem(field, text, "needs a protocol with ports: set protocol to TCP, UDP or SCTP")
	}
	if !number {
		return Port{Protocol: protocol, Name: text}, c.calicoName(field, text)
	}
	first, last, err := calicoRange(text)
	if err != nil {
		return Port{}, c.problem(field, text, "is no port: give a number from 0 to 65535, two such as 8080:8090, or a port's name")
	}
	return Port{Protocol: protocol, First: first, Last: last}, true
}

func calicoRange(text string) (first, last uint16, err error) {
	low, high, two := strings.Cut(text, ":")
	if !two {
		high = low
	}
	from, err1 := strconv.ParseUint(low, 10, 16)
	to, err2 := strconv.ParseUint(high, 10, 16)
	if err1 != nil || err2 != nil || from > to {
		return 0, 0, strconv.ErrRange
	}
	return uint16(from), uint16(to), nil
}

const letters = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"

// calicoName reports whether name can be a port's name in Calico; if not it adds a problem.
func (r *reader) calicoName(field, name string) bool {
	if len(name) > 128 || !strings.ContainsAny(name, letters) || strings.Trim(name, letters+"0123456789_.-") != "" {
		return r.problem(field, name,
			"is no port's name, which has up to 128 letters, digits, dots, hyphens and underscores: correct it, or give a number")
	}
	return true
}
