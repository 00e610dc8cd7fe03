package diagnose

import (
	"bytes"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/tortie-net/tortie/internal/kernel/nft"
	"github.com/tortie-net/tortie/internal/kernel/podnet"
)

// forwardHook looks for other programs' chains that drop what this host forwards, and so pods' packets.
func (o *Observations) forwardHook() []Finding {
	const check = "forward-hook"
	if o.ClosingsErr != nil {
		return []Finding{{Check: check, Level: Unknown, Seen: o.ClosingsErr.Error()}}
	}
	var findings []Finding
	for _, c := range o.Closings {
		pools := o.poolsBehind(c)
		if strings.HasPrefix(c.Table, "tortie") || len(pools) == 0 && o.Agent != nil || o.lets(c, pools) {
			continue
		}
		f := Finding{
			Check: check, About: c.Place.String(), Level: Problem,
			Seen: fmt.Sprintf("its %s drops what this host forwards, and no rule of its table names a pool or a link of this network", c.How),
			Why:  "packets of pods to other nodes and from them pass this chain: they are dropped, while the nodes themselves reach each other",
			Do:   remedyOf(c, pools),
		}
		if c.Sets {
			f.Level = Warning
			f.Seen = fmt.Sprintf(
				"its %s drops what this host forwards, unless a set that its rules look into has a pool or a link of this network", c.How)
			f.Do = "look (nft list ruleset); if pods' packets are not among them: " + f.Do
		}
		findings = append(findings, f)
	}
	if len(findings) == 0 {
		return []Finding{{Check: check, Level: OK, Seen: "no chain of another program drops all that this host forwards"}}
	}
	return findings
}

// poolsBehind returns the pools with packets that pass a chain.
func (o *Observations) poolsBehind(c nft.Closing) []netip.Prefix {
	switch c.Family {
	case unix.NFPROTO_IPV4:
		return o.poolsOf(true)
	case unix.NFPROTO_IPV6:
		return o.poolsOf(false)
	}
	return append(o.poolsOf(true), o.poolsOf(false)...)
}

// lets reports whether a rule of the chain's table names a pool or a link of this network: then an operator has written
// it for this network.
func (o *Observations) lets(c nft.Closing, pools []netip.Prefix) bool {
	links := []string{podnet.DefaultVethPrefix}
	for _, t := range o.report().Tunnels {
		links = append(links, t.Device)
	}
	return slices.ContainsFunc(c.Values, func(v []byte) bool {
		name := string(bytes.TrimRight(v, "\x00"))
		for _, l := range links {
			if name == l || l == podnet.DefaultVethPrefix && strings.HasPrefix(name, l) {
				return true
			}
		}
		return slices.ContainsFunc(pools, func(p netip.Prefix) bool { return comparesWith(v, p) })
	})
}

// comparesWith reports whether a value in a rule is the beginning of a range's addresses: the kernel compares no more
// bytes than a range has.
func comparesWith(value []byte, p netip.Prefix) bool {
	addr := p.Addr().AsSlice()
	return len(value) > 0 && len(value) <= len(addr) && len(value)*8 >= p.Bits() && len(value) > 1 && bytes.Equal(value, addr[:len(value)])
}

// remedyOf returns the commands for the program that made the chain.
func remedyOf(c nft.Closing, pools []netip.Prefix) string {
	has := func(prefix string) bool {
		return slices.ContainsFunc(c.Chains, func(chain string) bool { return strings.HasPrefix(chain, prefix) })
	}
	program := map[uint8]string{unix.NFPROTO_IPV4: "iptables", unix.NFPROTO_IPV6: "ip6tables"}[c.Family]
	isIptables := program != "" && c.Table == "filter" && c.Chain == "FORWARD"
	if len(pools) == 0 { // without an agent the ranges are unknown
		return "let the ranges of the IPPools through, from them and to them"
	}
	var do []string
	for _, p := range pools {
		switch {
		case c.Table == "firewalld":
			do = append(do, fmt.Sprintf("firewall-cmd --permanent --zone=trusted --add-source=%s", p))
		case isIptables && has("ufw-"), isIptables && has("ufw6-"):
			do = append(do, fmt.Sprintf("ufw route allow from %s; ufw route allow to %s", p, p))
		case isIptables && has("DOCKER-USER"):
			do = append(do, fmt.Sprintf("%s -I DOCKER-USER -s %s -j ACCEPT; %s -I DOCKER-USER -d %s -j ACCEPT", program, p, program, p))
		case isIptables:
			do = append(do, fmt.Sprintf("%s -I FORWARD -s %s -j ACCEPT; %s -I FORWARD -d %s -j ACCEPT", program, p, program, p))
		default:
			family := map[bool]string{true: "ip", false: "ip6"}[p.Addr().Is4()]
			do = append(do,
				fmt.Sprintf("nft insert rule %s %s saddr %s accept; nft insert rule %s %s daddr %s accept", c.Place, family, p, c.Place, family, p))
		}
	}
	text := strings.Join(do, "; ")
	switch {
	case c.Table == "firewalld":
		return text + "; firewall-cmd --reload"
	case isIptables && has("ufw"):
		return text
	}
	return text + "; and write it where that firewall keeps its rules, so that they come back with it"
}
