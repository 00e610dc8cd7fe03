package netpol

import (
	"maps"
	"net/netip"
	"slices"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/tortie-net/tortie/internal/kernel/ipip"
	"github.com/tortie-net/tortie/internal/kernel/nft"
	"github.com/tortie-net/tortie/internal/policy"
)

// loopback is exempt from host endpoints.
const loopback = "lo"

// hostHook is a base chain for host endpoints, after the chains for pods. Without a host endpoint there are none. Their
// names are digests of their content, so none changes in place.
type hostHook struct {
	name      string
	stage     policy.Stage
	direction policy.Direction
	hook      nft.HookNumber
	priority  int32
	link      nft.Field
	pods      bool // AllInterfaces also judges packets of pods' links
}

var hostHooks = []hostHook{
	{name: "host-input-", stage: policy.Terminal, direction: policy.Ingress, hook: nft.Input,
		priority: nft.PriorityFilter - 3, link: nft.InLink},
	{name: "host-output-", stage: policy.Terminal, direction: policy.Egress, hook: nft.Output,
		priority: nft.PriorityFilter - 3, link: nft.OutLink},
	// In the output hook a packet with a translated destination still has the link of the route to the original
	// destination.
	{name: translatedChain, stage: policy.Terminal, direction: policy.Egress, hook: nft.Postrouting,
		priority: nft.PriorityMangle, link: nft.OutLink},
	{name: "host-forward-in-", stage: policy.Forwarded, direction: policy.Ingress, hook: nft.Forward, priority: nft.PriorityFilter - 3,
		link: nft.InLink, pods: true},
	{name: "host-forward-out-", stage: policy.Forwarded, direction: policy.Egress, hook: nft.Forward, priority: nft.PriorityFilter - 2,
		link: nft.OutLink, pods: true},
	{name: "host-prerouting-", stage: policy.Untranslated, direction: policy.Ingress, hook: nft.Prerouting, priority: nft.PriorityMangle,
		link: nft.InLink, pods: true},
	{name: "host-raw-in-", stage: policy.Untracked, direction: policy.Ingress, hook: nft.Prerouting,
		priority: nft.PriorityRaw, link: nft.InLink},
	{name: "host-raw-out-", stage: policy.Untracked, direction: policy.Egress, hook: nft.Output, priority: nft.PriorityRaw, link: nft.OutLink},
}

const translatedChain = "host-translated-"

// noPodsChain drops connections from pods to their node.
const noPodsChain = "no-pods-to-host"

const podToHost = "from pod to its node"

// hosts adds the chains and sets for host endpoints.
func (e *Engine) hosts(rs *policy.Ruleset, w *image, refused map[programKey]error, used map[programKey]bool) {
	if rs.HostRules.DropFromPods {
		e.keep(w, noPods(e.linkPrefix))
	}
	if len(rs.Hosts) == 0 {
		return
	}
	nodes := nodeSets(rs.HostRules.Nodes)
	final := judgesEarly(rs)
	if final {
		e.clearMarks(w)
	}
	for _, h := range hostHooks {
		own := h.byLink(rs, e.linkPrefix, e.handling.Reject, func(key programKey) nft.Verdict { return e.verdict(rs, w, key, refused, used) })
		invalid := h.invalid(rs, e.linkPrefix)
		if e.handling.Invalid {
			invalid = nil
		}
		if len(own) == 0 && len(invalid) == 0 {
			continue
		}
		if len(invalid) > 0 {
			e.keepInvalid(w, h.direction)
		}
		chain := nft.Chain{Rules: slices.Concat(h.before(e.linkPrefix, final), h.spared(rs.HostRules, nodes), invalid,
			h.failsafes(rs.HostRules), own)}
		if h.name == translatedChain {
			chain.Name = "translated-" + chain.Digest()
			e.keep(w, chain)
			chain.Rules = []nft.Rule{nft.NewRule("", nft.InIndex.Is(nft.NoLink), nft.Translated(), nft.Do(nft.Goto(chain.Name)))}
		}
		chain.Name = h.name + chain.Digest()
		chain.Hook = &nft.Hook{Type: nft.Filter, Number: h.hook, Priority: h.priority}
		e.keep(w, chain)
		for _, s := range nodes {
			if len(s.Elements) > 0 {
				w.sets[s.Name] = s
			}
		}
		w.sets[hostNeighbours.Name] = hostNeighbours
	}
}

// finalMark is the bit of a packet's mark for packets that a rule has allowed at an early stage. Felix uses the same
// bit by default; kube-proxy and WireGuard do not use it.
const finalMark = 0x10000

// judgesEarly reports whether policies judge at early stages, where what a rule allows is final.
func judgesEarly(rs *policy.Ruleset) bool {
	for _, host := range rs.Hosts {
		if host.Programs[policy.Untracked] != [2]string{} || host.Programs[policy.Untranslated] != [2]string{} {
			return true
		}
	}
	return false
}

// clearMarks clears finalMark of incoming packets and of packets that the node sends, before they are judged: a packet
// that leaves a tunnel has the mark of the outer one, and vice versa.
func (e *Engine) clearMarks(w *image) {
	rules := []nft.Rule{nft.NewRule("", nft.Marked(finalMark), nft.ClearMark(finalMark))}
	for name, hook := range map[string]nft.HookNumber{"host-clear-in-": nft.Prerouting, "host-clear-out-": nft.Output} {
		c := nft.Chain{Rules: rules, Hook: &nft.Hook{Type: nft.Filter, Number: hook, Priority: nft.PriorityRaw - 1}}
		c.Name = name + c.Digest()
		e.keep(w, c)
	}
}

// invalidChain returns the chain that drops packets in conntrack state invalid.
func invalidChain(d policy.Direction) nft.Chain {
	c := nft.Chain{Rules: []nft.Rule{nft.NewRule(Denied{Direction: d, Reason: invalidState}.String(), nft.Count(), nft.Do(nft.Drop))}}
	c.Name = "host-invalid-" + c.Digest()
	return c
}

func (e *Engine) keepInvalid(w *image, d policy.Direction) {
	c := invalidChain(d)
	e.keep(w, c)
	e.t.denied[c.Name] = Denied{Direction: d, Reason: invalidState}
}

// invalid returns rules to that chain for each link that a host endpoint governs at the stage, with or without a policy
// for the direction.
func (h hostHook) invalid(rs *policy.Ruleset, linkPrefix string) (rules []nft.Rule) {
	if h.stage == policy.Untracked || h.name == translatedChain {
		return nil
	}
	drop := nft.Do(nft.Goto(invalidChain(h.direction).Name))
	governs := func(link string) bool {
		return h.stage != policy.Untranslated || rs.Hosts[link].Programs[h.stage][h.direction] != ""
	}
	if _, all := rs.Hosts[policy.AllInterfaces]; all && governs(policy.AllInterfaces) {
		return []nft.Rule{nft.NewRule("", nft.Invalid.In(), drop)}
	}
	for _, link := range slices.Sorted(maps.Keys(rs.Hosts)) {
		for _, at := range h.at(link, linkPrefix) {
			if governs(link) {
				rules = append(rules, nft.NewRule("", at, nft.Invalid.In(), drop))
			}
		}
	}
	return rules
}

// at matches packets of a named link; it returns nothing for a pod's link and for AllInterfaces.
func (h hostHook) at(link, linkPrefix string) (terms []nft.Term) {
	if link == policy.AllInterfaces || strings.HasPrefix(link, linkPrefix) {
		return nil
	}
	terms = append(terms, h.link.Is(nft.LinkKey(link)))
	if link == ipip.Device && h.direction == policy.Ingress { // tunnelled packets may arrive by their sender's device
		terms = append(terms, h.link.HasPrefix(ipip.PeerPrefix))
	}
	return terms
}

// keep adds a chain to the image, and remembers it: its name is needed to find it when it is empty.
func (e *Engine) keep(w *image, c nft.Chain) { w.chains[c.Name], e.t.chains[c.Name] = c, c }

// byLink returns rules from links to programs. It is empty if all allow everything.
func (h hostHook) byLink(rs *policy.Ruleset, linkPrefix string, rejects bool, verdict func(programKey) nft.Verdict) (rules []nft.Rule) {
	judges := false
	to := func(link string) nft.Term {
		key := rs.Hosts[link].Programs[h.stage][h.direction]
		if judges = judges || key != ""; key == "" {
			return nft.Do(nft.Accept)
		}
		return nft.Do(verdict(programKey{h.direction, key, true, rejects && !h.answers()}))
	}
	for _, link := range slices.Sorted(maps.Keys(rs.Hosts)) {
		if rs.Governor(link, h.stage) != link {
			continue
		}
		for _, at := range h.at(link, linkPrefix) {
			rules = append(rules, nft.NewRule("", at, to(link)))
		}
	}
	if _, ok := rs.Hosts[policy.AllInterfaces]; ok {
		rules = append(rules, nft.NewRule("", to(policy.AllInterfaces)))
	}
	if !judges {
		return nil
	}
	return rules
}

// answers reports whether the kernel can reject packets in the hook.
func (h hostHook) answers() bool {
	return h.stage != policy.Untracked && (h.hook == nft.Input || h.hook == nft.Output || h.hook == nft.Forward)
}

// before accepts what no host endpoint governs, and, if final, what an early stage has allowed, except on the way out
// of forwarding.
func (h hostHook) before(linkPrefix string, final bool) []nft.Rule {
	accept := nft.Do(nft.Accept)
	rules := []nft.Rule{nft.NewRule("", h.link.Is(nft.LinkKey(loopback)), accept)}
	if h.stage != policy.Untracked {
		rules = append([]nft.Rule{nft.NewRule("", (nft.Established | nft.Related).In(), accept)}, rules...)
	}
	if final && h.stage != policy.Untracked && (h.stage != policy.Forwarded || h.direction == policy.Ingress) {
		rules = append(rules, nft.NewRule("", nft.Marked(finalMark), accept))
	}
	if !h.pods {
		rules = append(rules, nft.NewRule("", h.link.HasPrefix(linkPrefix), accept))
	}
	if h.hook == nft.Output && h.stage == policy.Terminal {
		rules = append(rules, nft.NewRule("", nft.Translated(), accept))
	}
	return rules
}

// hostNeighbours are the ICMPv6 types that a host needs for neighbours, routers and multicast groups.
var hostNeighbours = nft.Set{Name: "host-neighbours", Key: []nft.Type{nft.ICMPv6Type}, Elements: []nft.Element{
	{First: "\x82"}, {First: "\x83"}, {First: "\x84"}, {First: "\x85"}, {First: "\x86"}, {First: "\x87"}, {First: "\x88"}, {First: "\x8f"},
}}

// failsafes accept what policies cannot forbid to a node's own programs.
func (h hostHook) failsafes(r policy.HostRules) (rules []nft.Rule) {
	if h.stage == policy.Forwarded {
		return nil
	}
	failsafes, answers := r.Inbound, r.Outbound
	if h.direction == policy.Egress {
		failsafes, answers = answers, failsafes
	}
	for _, f := range failsafes {
		rules = append(rules, h.failsafe(f, nft.DestPort))
	}
	for _, f := range answers {
		if h.stage == policy.Untracked { // answers are not recognized as such
			rules = append(rules, h.failsafe(f, nft.SrcPort))
		}
	}
	if h.stage == policy.Terminal && h.direction == policy.Egress {
		for _, to := range r.Open {
			rules = append(rules, open(to))
		}
	}
	return rules
}

// spared accepts, in any conntrack state, what nodes need for neighbours and for tunnels between each other.
func (h hostHook) spared(r policy.HostRules, nodes []nft.Set) []nft.Rule {
	if h.stage == policy.Forwarded {
		return nil
	}
	rules := []nft.Rule{nft.NewRule("", nft.L4Proto.Is(nft.ByteKey(unix.IPPROTO_ICMPV6)),
		nft.In(hostNeighbours.Name, nft.ICMPType), nft.Do(nft.Accept))}
	for i, f := range families {
		if len(nodes[i].Elements) == 0 {
			continue
		}
		from, to := nft.In(nodes[i].Name, f.Src), nft.In(nodes[i].Name, f.Dest)
		if r.IPIP {
			rules = append(rules, nft.NewRule("", f.Is(), nft.L4Proto.Is(nft.ByteKey(unix.IPPROTO_IPIP)), from, to, nft.Do(nft.Accept)))
		}
		for _, port := range r.TunnelPorts() {
			rules = append(rules, nft.NewRule("", f.Is(), nft.L4Proto.Is(nft.ByteKey(unix.IPPROTO_UDP)), nft.DestPort.Is(nft.PortKey(port)), from,
				to, nft.Do(nft.Accept)))
		}
	}
	return rules
}

func (h hostHook) peer(f nft.Family) nft.Field {
	if h.direction == policy.Ingress {
		return f.Src
	}
	return f.Dest
}

func (h hostHook) failsafe(s policy.Failsafe, port nft.Field) nft.Rule {
	terms := []nft.Term{nft.L4Proto.Is(nft.ByteKey(s.Protocol)), port.Is(nft.PortKey(s.Port))}
	if s.Net.IsValid() {
		f := nft.FamilyOf(s.Net.Addr())
		terms = append([]nft.Term{f.Is(), h.peer(f).Between(nft.AddrKey(s.Net.Masked().Addr()), nft.AddrKey(lastOf(s.Net)))}, terms...)
	}
	return nft.NewRule("", append(terms, nft.Do(nft.Accept))...)
}

// judgedPriority is SO_PRIORITY of sockets that host endpoints judge despite HostRules.Open. Unlike a mark it changes
// no route.
const judgedPriority = 0x54500001

// AskJudgement makes host endpoints judge a socket despite HostRules.Open. It is a Control of net.Dialer.
func AskJudgement(_, _ string, c syscall.RawConn) (err error) {
	if refused := c.Control(func(fd uintptr) {
		err = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_PRIORITY, judgedPriority)
	}); refused != nil {
		return refused
	}
	return err
}

// open accepts connections that were opened to a TCP address and port.
func open(to netip.AddrPort) nft.Rule {
	f := nft.FamilyOf(to.Addr())
	return nft.NewRule("", f.Is(), nft.L4Proto.Is(nft.ByteKey(unix.IPPROTO_TCP)), f.Dialled.Is(nft.AddrKey(to.Addr())),
		nft.DialledPort.Is(nft.PortKey(to.Port())), nft.Priority.IsNot(nft.WordKey(judgedPriority)), nft.Do(nft.Accept))
}

// lastOf returns the last address of a network.
func lastOf(p netip.Prefix) netip.Addr {
	b := p.Masked().Addr().AsSlice()
	for bit := p.Bits(); bit < len(b)*8; bit++ {
		b[bit/8] |= 0x80 >> (bit % 8)
	}
	a, _ := netip.AddrFromSlice(b)
	return a
}

// nodeSets returns the sets of nodes' addresses, by family.
func nodeSets(nodes []netip.Addr) []nft.Set {
	sets := make([]nft.Set, len(families))
	for i, f := range families {
		s := nft.Set{Key: []nft.Type{f.Addr}}
		for _, a := range slices.Compact(slices.SortedFunc(slices.Values(nodes), netip.Addr.Compare)) {
			if a = a.Unmap(); familyOf(a) == i {
				s.Elements = append(s.Elements, nft.Element{First: nft.AddrKey(a)})
			}
		}
		s.Name = []string{"nodes4-", "nodes6-"}[i] + s.Digest()
		sets[i] = s
	}
	return sets
}

// noPods returns the chain that drops what pods send to their node, except what they need to have a gateway.
func noPods(linkPrefix string) nft.Chain {
	return nft.Chain{Name: noPodsChain, Hook: &nft.Hook{Type: nft.Filter, Number: nft.Input, Priority: toHostPriority + 1}, Rules: []nft.Rule{
		nft.NewRule("", (nft.Established | nft.Related).In(), nft.Do(nft.Accept)),
		nft.NewRule("", nft.L4Proto.Is(nft.ByteKey(unix.IPPROTO_ICMPV6)), nft.In(neighboursSet, nft.ICMPType), nft.Do(nft.Accept)),
		nft.NewRule(podToHost, nft.InLink.HasPrefix(linkPrefix), nft.Count(), nft.Do(nft.Drop)),
	}}
}
