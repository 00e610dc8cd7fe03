package policyview

import (
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"github.com/tortie-net/tortie/internal/policy"
)

// Numbers of IP protocols.
const (
	icmp   = 1
	tcp    = 6
	udp    = 17
	icmpv6 = 58
	sctp   = 132
)

var protocols = map[string]uint8{"ICMP": icmp, "TCP": tcp, "UDP": udp, "ICMPv6": icmpv6, "SCTP": sctp}

// protocolName returns the name of a protocol in arguments, or "protocol" and the number.
func protocolName(number uint8) string {
	for name, n := range protocols {
		if n == number {
			return name
		}
	}
	return "protocol " + strconv.Itoa(int(number))
}

// end is one end of a connection: a pod, an address, or a Service or Deployment.
type end struct {
	pod  policy.PodKey
	addr netip.Addr // valid if the end is an address
	// kind is ofService or ofDeployment, and pod its name; empty: a pod. unplaced: its namespace is the other end's.
	kind     string
	unplaced bool
}

// String returns the end as an argument.
func (e end) String() string {
	if e.addr.IsValid() {
		return e.addr.String()
	}
	if e.kind != "" {
		return fmt.Sprintf("%s/%s/%s", e.pod.Namespace, e.kind, e.pod.Name)
	}
	return e.pod.String()
}

// connection is the connection to explain.
type connection struct {
	from, to end
	protocol uint8
	port     uint16
	name     string // of the port, instead of its number
}

// packet returns the first packet of the connection; for ICMP an echo request.
func (c *connection) packet() policy.Packet {
	p := policy.Packet{Protocol: c.protocol, Port: c.port}
	switch c.protocol {
	case icmp:
		p.Port = 8 << 8
	case icmpv6:
		p.Port = 128 << 8
	}
	return p
}

const explainForm = "FROM TO:PORT[/PROTOCOL], such as `default/client default/web:80/TCP`"

// parseConnection reads the arguments FROM and TO, with "->" or "to" between them or not; one argument may hold all.
func parseConnection(args []string) (connection, error) {
	var words []string
	for _, arg := range args {
		words = append(words, strings.Fields(strings.ReplaceAll(arg, "->", " -> "))...)
	}
	if len(words) == 3 && (words[1] == "->" || words[1] == "to") {
		words = slices.Delete(words, 1, 2)
	}
	if len(words) != 2 {
		return connection{}, fmt.Errorf("%q: must be %s; quote -> from the shell", strings.Join(args, " "), explainForm)
	}
	from, err := parseEnd(words[0])
	if err != nil {
		return connection{}, fmt.Errorf("FROM %q: %w", words[0], err)
	}
	c, err := parseTarget(words[1])
	if err != nil {
		return connection{}, fmt.Errorf("TO %q: %w", words[1], err)
	}
	c.from = from
	c.from.place(c.to)
	c.to.place(c.from)
	if c.from.addr.IsValid() && c.to.addr.IsValid() && c.from.addr.Is4() != c.to.addr.Is4() {
		return connection{}, fmt.Errorf("FROM %s and TO %s are of different families: name addresses of one", c.from, c.to)
	}
	return c, nil
}

// parseEnd reads a pod, by default in namespace default, a Service, a Deployment, or an address.
func parseEnd(text string) (end, error) {
	if addr, err := netip.ParseAddr(strings.Trim(text, "[]")); err == nil {
		return end{addr: addr.Unmap().WithZone("")}, nil
	}
	e := end{unplaced: true}
	words := strings.Split(text, "/")
	if n := len(words); n > 1 {
		switch word := words[n-2]; {
		case kinds[word] != "":
			e.kind, words = kinds[word], slices.Delete(words, n-2, n-1)
		case slices.Contains(otherKinds, word) && n < 4:
			return end{}, fmt.Errorf("of kinds only svc and deploy are known: name one of the pods, as NAMESPACE/POD (kubectl get pods -A -o wide)")
		}
	}
	e.pod = policy.PodKey{Namespace: "default", Name: words[len(words)-1]}
	if len(words) > 1 {
		e.pod.Namespace, e.unplaced = words[0], false
	}
	if len(words) > 2 || !validName(e.pod.Namespace) || !validName(e.pod.Name) {
		return end{},
			fmt.Errorf("must be NAMESPACE/POD, a pod of namespace default, [NAMESPACE/]svc/NAME, [NAMESPACE/]deploy/NAME, or an address")
	}
	e.unplaced = e.unplaced && e.kind != ""
	return e, nil
}

// place puts a Service or Deployment without a namespace into the namespace of the other end, if that has one.
func (e *end) place(other end) {
	if e.unplaced && !other.addr.IsValid() && !other.unplaced {
		e.pod.Namespace, e.unplaced = other.pod.Namespace, false
	}
}

func validName(text string) bool {
	return text != "" && strings.Trim(text, "abcdefghijklmnopqrstuvwxyz0123456789-.") == ""
}

// parseTarget reads an end with a port, by default of TCP, or with a protocol without ports. Protocols are upper-case,
// unlike names of pods.
func parseTarget(text string) (connection, error) {
	c := connection{protocol: tcp}
	rest, word := text, ""
	if i := strings.LastIndexByte(text, '/'); i >= 0 {
		if number, ok := protocols[text[i+1:]]; ok {
			rest, word, c.protocol = text[:i], text[i+1:], number
		}
	}
	host, port, err := splitPort(rest)
	if err != nil {
		return c, err
	}
	if c.to, err = parseEnd(host); err != nil {
		return c, err
	}
	if c.protocol == icmp || c.protocol == icmpv6 {
		if port != "" {
			return c, fmt.Errorf("%s has no ports: leave out :%s", word, port)
		}
		return c, nil
	}
	return c, c.setPort(port)
}

// splitPort cuts the port off; an IPv6 address with a port is in brackets.
func splitPort(text string) (host, port string, err error) {
	if inner, ok := strings.CutPrefix(text, "["); ok {
		host, rest, found := strings.Cut(inner, "]")
		port, colon := strings.CutPrefix(rest, ":")
		if !found || rest != "" && !colon {
			return "", "", fmt.Errorf("must be [ADDRESS]:PORT")
		}
		return host, port, nil
	}
	if _, err := netip.ParseAddr(text); err == nil {
		return text, "", nil
	}
	host, port, _ = strings.Cut(text, ":")
	return host, port, nil
}

// setPort reads a port's number or name.
func (c *connection) setPort(text string) error {
	number, err := strconv.ParseUint(text, 10, 16)
	switch {
	case err == nil && number > 0:
		c.port = uint16(number)
	case validName(text) && strings.Trim(text, "0123456789") != "" && !c.to.addr.IsValid():
		c.name = text
	case text == "":
		return fmt.Errorf("names no port: add :PORT, or /ICMP")
	default:
		return fmt.Errorf("port %q: must be 1 to 65535, or the name of a port that the pod declares; after it /TCP, /UDP or /SCTP", text)
	}
	return nil
}
