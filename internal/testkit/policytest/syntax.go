package policytest

import (
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"github.com/tortie-net/tortie/internal/api"
)

// selects reports whether labels satisfy every requirement of a selector. An unreadable selector selects nothing.
func selects(s *api.LabelSelector, labels map[string]string) bool {
	for key, value := range s.MatchLabels {
		if has, ok := labels[key]; !ok || has != value {
			return false
		}
	}
	for _, r := range s.MatchExpressions {
		if !satisfies(r, labels) {
			return false
		}
	}
	return readable(s)
}

// satisfies reports whether labels satisfy a requirement: "In and NotIn, the values array must be non-empty"; an absent
// label is not in any list.
func satisfies(r api.LabelSelectorRequirement, labels map[string]string) bool {
	value, ok := labels[r.Key]
	switch r.Operator {
	case "In":
		return ok && slices.Contains(r.Values, value)
	case "NotIn":
		return !ok || !slices.Contains(r.Values, value)
	case "Exists":
		return ok
	case "DoesNotExist":
		return !ok
	}
	return false
}

// readable reports whether a selector is valid; nil is.
func readable(s *api.LabelSelector) bool {
	if s == nil {
		return true
	}
	for _, r := range s.MatchExpressions {
		lists := r.Operator == "In" || r.Operator == "NotIn"
		exists := r.Operator == "Exists" || r.Operator == "DoesNotExist"
		if !lists && !exists || lists != (len(r.Values) > 0) {
			return false
		}
	}
	return true
}

// parseCIDR reads what API servers have accepted over the years: host bits, which are ignored, and leading zeros, which
// are decimal.
func parseCIDR(text string) (p netip.Prefix, ok bool) {
	address, length, _ := strings.Cut(text, "/")
	octets := strings.Split(address, ".")
	for i, octet := range octets {
		if n, err := strconv.ParseUint(octet, 10, 8); err == nil {
			octets[i] = strconv.Itoa(int(n))
		}
	}
	a, err := netip.ParseAddr(strings.Join(octets, "."))
	bits, err2 := strconv.ParseUint(length, 10, 8)
	if err != nil || err2 != nil || int(bits) > a.BitLen() || a.Zone() != "" {
		return p, false
	}
	if a.Is4In6() && bits >= 96 {
		a, bits = a.Unmap(), bits-96
	}
	return netip.PrefixFrom(a, int(bits)).Masked(), true
}
