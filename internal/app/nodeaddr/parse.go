package nodeaddr

import (
	"errors"
	"fmt"
	"net/netip"
	"regexp"
	"strings"
)

// Family is an address family.
type Family int

// The families.
const (
	IPv4 Family = 4
	IPv6 Family = 6
)

func (f Family) String() string { return fmt.Sprintf("IPv%d", int(f)) }

// has reports whether a is of the family.
func (f Family) has(a netip.Addr) bool { return a.IsValid() && a.Is4() == (f == IPv4) && !a.Is4In6() }

// setting and method return the names of the environment variables.
func (f Family) setting() string {
	if f == IPv6 {
		return "IP6"
	}
	return "IP"
}

func (f Family) method() string { return f.setting() + "_AUTODETECTION_METHOD" }

// Mode is the request of the environment variable IP or IP6.
type Mode int

const (
	// Keep uses the address that the Node has already, if a link still has it. Without one, IPv4 is detected and IPv6 is
	// not used.
	Keep Mode = iota
	// Detect uses the method, and the address that the Node has already if the method finds none.
	Detect
	// None detects nothing; it keeps the address that the Node has already, if a link still has it.
	None
	// Fixed uses the address given.
	Fixed
)

// Setting is the value of the environment variable IP or IP6. The zero value is for an empty one.
type Setting struct {
	Mode Mode
	// Addr is the address for Fixed. With a full prefix length, the link's length is used.
	Addr netip.Prefix
}

// ParseSetting reads the value of IP or IP6: nothing, autodetect, none, an address, or one with its prefix length.
func ParseSetting(text string, f Family) (Setting, error) {
	switch strings.ToLower(text) {
	case "":
		return Setting{}, nil
	case "autodetect":
		return Setting{Mode: Detect}, nil
	case "none":
		return Setting{Mode: None}, nil
	}
	prefix, err := netip.ParsePrefix(text)
	if err != nil {
		addr, err := netip.ParseAddr(text)
		if err != nil || addr.Zone() != "" {
			return Setting{}, fmt.Errorf("must be autodetect, none, an %s address, or one with its prefix length", f)
		}
		prefix = netip.PrefixFrom(addr, addr.BitLen())
	}
	if !f.has(prefix.Addr()) {
		return Setting{}, fmt.Errorf("must be an %s address", f)
	}
	if why := Unusable(prefix.Addr()); why != "" {
		return Setting{}, errors.New("cannot be a node's address: " + why)
	}
	return Setting{Mode: Fixed, Addr: prefix}, nil
}

// Method is how an address is found. The zero value is kubernetes-internal-ip.
type Method struct {
	kind     string
	text     string
	host     string
	patterns []pattern
	cidrs    []netip.Prefix
}

// The methods, by Calico's names.
const (
	internalIP    = "kubernetes-internal-ip"
	firstFound    = "first-found"
	canReach      = "can-reach"
	interfaces    = "interface"
	skipInterface = "skip-interface"
	inCIDR        = "cidr"
)

// pattern is one regular expression for the names of links.
type pattern struct {
	anywhere *regexp.Regexp // Calico's meaning
	whole    *regexp.Regexp
}

// String returns the method as it was written.
func (m Method) String() string {
	if m.text == "" {
		return internalIP
	}
	return m.text
}

// Host returns the argument of can-reach, empty for other methods.
func (m Method) Host() string { return m.host }

// ParseMethod reads the value of IP_AUTODETECTION_METHOD or IP6_AUTODETECTION_METHOD; nothing is
// kubernetes-internal-ip.
func ParseMethod(text string, f Family) (Method, error) {
	kind, argument, given := strings.Cut(text, "=")
	m := Method{kind: kind, text: text}
	var err error
	switch {
	case text == "", text == internalIP:
		return Method{}, nil
	case text == firstFound:
		return m, nil
	case given && argument == "":
		return Method{}, fmt.Errorf("nothing stands after %s=", kind)
	case !given:
		return Method{},
			errors.New("must be kubernetes-internal-ip, first-found, can-reach=HOST, interface=REGEX, skip-interface=REGEX or cidr=CIDR")
	}
	switch kind {
	case canReach:
		m.host, err = argument, checkHost(argument, f)
	case interfaces, skipInterface:
		m.patterns, err = parsePatterns(argument)
	case inCIDR:
		m.cidrs, err = parseCIDRs(argument, f)
	default:
		err = errors.New("must be kubernetes-internal-ip, first-found, can-reach=HOST, interface=REGEX, skip-interface=REGEX or cidr=CIDR")
	}
	if err != nil {
		return Method{}, err
	}
	return m, nil
}

// checkHost accepts host names, and addresses of the family.
func checkHost(host string, f Family) error {
	if a, err := netip.ParseAddr(host); err == nil {
		if !f.has(a) {
			return fmt.Errorf("can-reach needs an %s address or a name, not %s", f, host)
		}
		return nil
	}
	if strings.ContainsAny(host, " /:,") {
		return fmt.Errorf("can-reach needs an address or a name, not %q", host)
	}
	return nil
}

func parsePatterns(list string) ([]pattern, error) {
	var patterns []pattern
	for text := range strings.SplitSeq(list, ",") {
		text = strings.TrimSpace(text)
		if text == "" {
			continue // it would match every link
		}
		anywhere, err := regexp.Compile(text)
		if err != nil {
			return nil, fmt.Errorf("%q is no regular expression: %w", text, err)
		}
		patterns = append(patterns, pattern{anywhere, regexp.MustCompile(`^(?:` + text + `)$`)})
	}
	if len(patterns) == 0 {
		return nil, errors.New("names no interface")
	}
	return patterns, nil
}

func parseCIDRs(list string, f Family) ([]netip.Prefix, error) {
	var cidrs []netip.Prefix
	for text := range strings.SplitSeq(list, ",") {
		cidr, err := netip.ParsePrefix(strings.TrimSpace(text))
		if err != nil || !f.has(cidr.Addr()) {
			return nil, fmt.Errorf("%q is no %s range such as %s", text, f, map[Family]string{IPv4: "10.0.0.0/8", IPv6: "fd00::/8"}[f])
		}
		cidrs = append(cidrs, cidr.Masked())
	}
	return cidrs, nil
}

// match reports whether a pattern matches a part of a name (found), and whether one matches all of it (whole).
func match(patterns []pattern, name string) (found, whole bool) {
	for _, p := range patterns {
		found = found || p.anywhere.MatchString(name)
		whole = whole || p.whole.MatchString(name)
	}
	return found, whole
}
