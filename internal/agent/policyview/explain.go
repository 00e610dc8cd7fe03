package policyview

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"maps"
	"net"
	"net/netip"
	"slices"
	"strings"

	"github.com/tortie-net/tortie/internal/agent/nodestatus"
	"github.com/tortie-net/tortie/internal/agent/policies"
	"github.com/tortie-net/tortie/internal/kernel/netpol"
	"github.com/tortie-net/tortie/internal/kernel/podnet"
	"github.com/tortie-net/tortie/internal/policy"
)

// Explained is the answer of `node policy explain`.
type Explained struct {
	From     Party  `json:"from"`
	To       Party  `json:"to"`
	Protocol string `json:"protocol"`
	Port     uint16 `json:"port,omitempty"`
	Allowed  bool   `json:"allowed"`
	// Egress is nil if the source is no pod, Ingress if the destination is none.
	Egress  *Judgement `json:"egress,omitempty"`
	Ingress *Judgement `json:"ingress,omitempty"`
	Notes   []string   `json:"notes,omitempty"`
}

// Party is an end of a connection.
type Party struct {
	Pod     string `json:"pod,omitempty"`
	Address string `json:"address,omitempty"`
}

// Judgement is the verdict on a pod's side of the connection.
type Judgement struct {
	Pod       string `json:"pod"`
	Direction string `json:"direction"`
	Allowed   bool   `json:"allowed"`
	// Tier and Policy decided; without them no policy did. Rule is the field of the rule, such as spec.ingress[0]; without
	// it the policy isolates the pod, and no rule of the tier matched.
	Tier   string `json:"tier,omitempty"`
	Policy string `json:"policy,omitempty"`
	Rule   string `json:"rule,omitempty"`
	Name   string `json:"ruleName,omitempty"`
	// Why is the reason as text.
	Why string `json:"why"`
	// Selecting are the policies that select the pod in this direction, in the order of evaluation.
	Selecting []string `json:"policies"`
	// Kernel is "agrees", or the difference in the kernel.
	Kernel string `json:"kernel"`
	// Denied is how many packets the policy has denied in this direction, for any pod of this node, since its rules were
	// made; nil unless the kernel agrees that the policy denies this connection.
	Denied *uint64 `json:"deniedPackets,omitempty"`
	// Staged is the verdict with staged policies in force; nil if neither the verdict nor the deciding policy would
	// change.
	Staged *Staged `json:"staged,omitempty"`
}

// Staged is a verdict with staged policies in force.
type Staged struct {
	Allowed bool `json:"allowed"`
	// Because is the staged policy that causes it.
	Because string `json:"because"`
	Why     string `json:"why"`
}

// elsewhere is Judgement.Kernel for a pod of another node.
const elsewhere = "the pod is not on this node: ask there"

// kernelAgrees is Judgement.Kernel if nothing differs.
const kernelAgrees = "agrees"

// tables is the state of the kernel's table, as netpol.Comparison reports it.
type tables interface {
	standing
	Members(netip.Addr) bool
	DropsToHost() bool
	Denied(policy.Direction, policy.ID) uint64
}

// explain runs `node policy explain`.
func (c *command) explain(ctx context.Context) (answer, error) {
	asked, err := parseConnection(c.args)
	if err != nil {
		return nil, nodestatus.Usagef("%w", err)
	}
	k, err := c.known(ctx, c.settings.Flows, asked.interest)
	if err != nil {
		return nil, err
	}
	if err := k.addInterfaces(false); err != nil {
		return nil, err
	}
	if err := c.addHostRules(ctx, k, nil); err != nil {
		return nil, err
	}
	compiled := policy.Compile(k.State)
	kernel, err := netpol.Compare(ctx, podnet.DefaultVethPrefix, &compiled.Ruleset)
	if err != nil {
		return nil, fmt.Errorf("%w: this takes CAP_NET_ADMIN in the host's network", err)
	}
	own, err := hostAddresses()
	if err != nil {
		return nil, err
	}
	l, err := c.lookup(k)
	if err != nil {
		return nil, err
	}
	defer l.store.Close()
	connections, notes, err := l.resolved(ctx, asked)
	if err != nil {
		return nil, err
	}
	var all []*Explained
	for _, one := range connections[:min(len(connections), mostConnections)] {
		x, err := explain(k, one, compiled, kernel, own)
		if err != nil {
			return nil, err
		}
		all = append(all, x)
	}
	x := all[0]
	x.Notes = append(x.Notes, notes...)
	x.others(all)
	l.sayNodes(ctx, x, c.args)
	return x, nil
}

// mostConnections bounds the connections that are judged where an end stands for several pods.
const mostConnections = 100

// interest is the agent's interest, with the pods of the connection.
func (c *connection) interest(k *known) policy.Interest {
	i := k.Interest()
	if len(k.staged) > 0 {
		pending, _ := policy.WithStaged(k.State, k.staged)
		more := pending.Interest()
		i.All, i.Namespaces = i.All || more.All, append(i.Namespaces, more.Namespaces...)
	}
	for _, e := range []end{c.from, c.to} {
		if e.addr.IsValid() {
			i.All = true // any pod may have the address
		} else {
			i.Namespaces = append(i.Namespaces, e.pod.Namespace)
		}
	}
	slices.Sort(i.Namespaces)
	i.Namespaces = slices.Compact(i.Namespaces)
	return i
}

// hostAddresses returns this node's addresses.
func hostAddresses() (map[netip.Addr]bool, error) {
	found, err := net.InterfaceAddrs()
	own := map[netip.Addr]bool{}
	for _, a := range found {
		if p, err := netip.ParsePrefix(a.String()); err == nil {
			own[p.Addr().Unmap()] = true
		}
	}
	return own, err
}

// explain judges a connection, and compares it with the kernel of this node. own are this node's addresses.
func explain(k *known, asked connection, compiled *policy.Compiled, kernel tables, own map[netip.Addr]bool) (*Explained, error) {
	from, err := k.party(asked.from)
	if err != nil {
		return nil, fmt.Errorf("FROM %w", err)
	}
	to, err := k.party(asked.to)
	if err != nil {
		return nil, fmt.Errorf("TO %w", err)
	}
	if err := asked.resolve(k.Pods[to.Pod]); err != nil {
		return nil, err
	}
	pairs := k.addresses(from, to, asked.protocol)
	if len(pairs) == 0 {
		return nil, fmt.Errorf("FROM %s and TO %s have no addresses of one family by which %s goes", asked.from, asked.to,
			protocolName(asked.protocol))
	}
	source, target := pairs[0].source, pairs[0].target
	from.Address, to.Address = source, target
	packet := asked.packet()
	e := policy.Explain(k.State, from, to, packet)
	x := &Explained{Protocol: protocolName(asked.protocol), Port: asked.port, Allowed: e.Allow}
	x.From, x.To = name(e.Egress, source), name(e.Ingress, target)
	side := func(j *policy.Judgement, peer netip.Addr) *Judgement {
		if j == nil {
			return nil
		}
		out := judgementOf(j)
		if by, closed := compiled.ClosedBy(policies.LinkOf(j.Pod), j.Direction); closed && k.Local[policies.LinkOf(j.Pod)] == j.Pod {
			out.close(by, j.Pod.Namespace)
			j.Verdict, x.Allowed = policy.Verdict{By: by}, false
		}
		if out.Kernel = k.compare(j, peer, asked, compiled, kernel); out.Kernel == kernelAgrees && !j.Verdict.Allow {
			packets := kernel.Denied(j.Direction, j.Verdict.By)
			out.Denied = &packets
		}
		return out
	}
	x.Egress, x.Ingress = side(e.Egress, target), side(e.Ingress, source)
	x.tryOut(k, &e, from, to, packet)
	if x.Egress == nil && own[source] && x.Ingress != nil && k.Local[policies.LinkOf(e.Ingress.Pod)] == e.Ingress.Pod {
		x.exempt(source)
	}
	if x.Egress != nil && own[target] && k.Local[policies.LinkOf(e.Egress.Pod)] == e.Egress.Pod && kernel.DropsToHost() {
		x.Allowed = false
		x.Notes = append(x.Notes,
			"FelixConfiguration's defaultEndpointToHostAction is Drop: pods open no connections to their node, whatever their policies allow")
	}
	x.Notes = append(x.Notes, k.otherFamily(&e, pairs[1:], packet)...)
	x.Notes = append(x.Notes, k.unsureNotes(source, target)...)
	x.Notes = append(x.Notes, k.hostNotes(asked, compiled, own, source, target)...)
	if x.Ingress == nil && !own[target] {
		x.Notes = append(x.Notes, fmt.Sprintf("%s is no pod's. Packets to a Service are judged with the address and port of the pod behind it: "+
			"if it is a Service's, name that, as NAMESPACE/svc/NAME (kubectl get services -A | grep -w %s)", target, target))
	}
	return x, nil
}

// unsureNotes returns notes on addresses that may be pods'.
func (k *known) unsureNotes(addresses ...netip.Addr) (notes []string) {
	for key, pod := range k.Pods {
		for _, a := range addresses {
			if slices.Contains(pod.Unsure, a) {
				notes = append(notes, fmt.Sprintf(
					"%s may be %s's, which is not certain: it counts as that pod's to rules that deny, and as no pod's to rules that allow", a, key))
			}
		}
	}
	slices.Sort(notes)
	return notes
}

// otherFamily returns notes on verdicts that differ in the other family.
func (k *known) otherFamily(e *policy.Explanation, pairs []addressPair, packet policy.Packet) (notes []string) {
	for _, p := range pairs {
		other := policy.Explain(k.State, policy.Party{Address: p.source}, policy.Party{Address: p.target}, packet)
		if other.Allow != e.Allow {
			notes = append(notes, fmt.Sprintf("By %s it is %s: ask for %s and %s", p.family(), verdictName(other.Allow), p.source, p.target))
		}
	}
	return notes
}

// tryOut adds the verdicts with staged policies in force. e is the explanation without them.
func (x *Explained) tryOut(k *known, e *policy.Explanation, from, to policy.Party, packet policy.Packet) {
	if len(k.staged) == 0 {
		return
	}
	state, stagedBy := policy.WithStaged(k.State, k.staged)
	pending := policy.Explain(state, from, to, packet)
	note := func(out *Judgement, enforced, judged *policy.Judgement) {
		if out == nil || judged == nil {
			return
		}
		by, own, changes := judged.Pending(enforced, stagedBy)
		if !changes {
			return
		}
		if own {
			judged.Policy = by
		}
		out.Staged = &Staged{Allowed: judged.Verdict.Allow, Because: by.String(), Why: judgementOf(judged).Why}
	}
	note(x.Egress, e.Egress, pending.Egress)
	note(x.Ingress, e.Ingress, pending.Ingress)
}

// hostNotes names the host endpoints of this node that deny the connection, if it passes their interface.
func (k *known) hostNotes(asked connection, compiled *policy.Compiled, own map[netip.Addr]bool,
	source, target netip.Addr) (notes []string) {
	e := ends{own, localAddresses(&k.State)}
	for _, link := range slices.Sorted(maps.Keys(compiled.Hosts)) {
		p, by, denied := e.deniedAt(compiled, link, source, target, asked.packet())
		if !denied {
			continue
		}
		notes = append(notes,
			fmt.Sprintf("Host endpoint %s denies it at interface %s, where it is %s: %s", compiled.Hosts[link].Name, link, p.text, by))
	}
	return notes
}

// ends holds the addresses of this node, and of its pods.
type ends struct{ own, pods map[netip.Addr]bool }

// localAddresses returns the addresses of this node's pods.
func localAddresses(s *policy.State) map[netip.Addr]bool {
	local := map[netip.Addr]bool{}
	for _, key := range s.Local {
		for _, a := range s.Pods[key].Addresses {
			local[a] = true
		}
	}
	return local
}

// deniedAt returns where a host endpoint first denies a connection, if it passes the endpoint's interface and no
// failsafe port allows it. What a rule allows early is final for incoming packets and for programs of the node.
// Interfaces of pods belong to the host endpoint of all interfaces.
func (e ends) deniedAt(c *policy.Compiled, link string, source, target netip.Addr,
	packet policy.Packet) (at hostPacket, by policy.ID, denied bool) {
	own, pods, all := e.own, e.pods, link == policy.AllInterfaces
	forwards := !own[source] && !own[target] && (pods[source] || pods[target])
	applies := map[string]bool{
		"received": own[target] && !own[source] && !pods[source], "sent": own[source] && !own[target] && !pods[target],
		"forwarded in": forwards && (all || !pods[source]), "forwarded out": forwards && (all || !pods[target]),
		"untracked in": !own[source] && !pods[source], "untracked out": own[source] && !own[target] && !pods[target],
		"before DNAT": !own[source] && (own[target] || pods[target] || pods[source]) && (all || !pods[source]),
	}
	final := false
	for _, p := range slices.Backward(hostPackets) {
		ownEnd, peer := target, source
		if p.Direction == policy.Egress {
			ownEnd, peer = peer, ownEnd
		}
		if !applies[p.text] || p.Stage != policy.Forwarded && c.HostRules.Spares(p.Direction, peer, packet) ||
			final && p.text != "forwarded out" {
			continue
		}
		v := c.DecideHost(link, p.Stage, p.Direction, ownEnd, peer, packet)
		if !v.Allow {
			return p, v.By, true
		}
		final = final || v.Final
	}
	return at, by, false
}

// party returns an end as a party; an error if it cannot be judged.
func (k *known) party(e end) (policy.Party, error) {
	if e.addr.IsValid() {
		return policy.Party{Address: e.addr}, nil
	}
	pod := k.Pods[e.pod]
	switch {
	case pod == nil:
		return policy.Party{}, fmt.Errorf("%s: there is no such pod with a network of its own that runs and has an address; a pod with "+
			"hostNetwork is judged by its node's address (kubectl -n %s get pod %s -o wide)", e.pod, e.pod.Namespace, e.pod.Name)
	case len(pod.Addresses)+len(pod.Unsure) > 0 && len(pod.Addresses) == 0:
		return policy.Party{}, fmt.Errorf("%s may have %v, but its status and its annotation cni.projectcalico.org/podIPs differ, or no "+
			"kubelet has reported it yet: explain the address", e.pod, pod.Unsure)
	case len(pod.Addresses) == 0:
		return policy.Party{}, fmt.Errorf("%s has no address yet: ask again when it runs", e.pod)
	}
	return policy.Party{Pod: e.pod}, nil
}

// resolve replaces a port's name by its number at the pod.
func (c *connection) resolve(pod *policy.Pod) error {
	if c.name == "" {
		return nil
	}
	var declared []string
	for _, p := range pod.Ports {
		if p.Name == c.name && p.Protocol == c.protocol {
			c.port = p.Port
			return nil
		}
		declared = append(declared, fmt.Sprintf("%s/%s", p.Name, protocolName(p.Protocol)))
	}
	return fmt.Errorf("port %q: %s declares no port of that name for %s, but %s: name one, or a number", c.name, pod, protocolName(c.protocol),
		cmp.Or(strings.Join(declared, ", "), "none"))
}

// addresses returns a pair of addresses of the connection's ends for each family that both, and the protocol, have.
func (k *known) addresses(from, to policy.Party, protocol uint8) []addressPair {
	ofParty := func(p policy.Party) *policy.Pod {
		if pod := k.Pods[p.Pod]; pod != nil && !p.Address.IsValid() {
			return pod
		}
		return &policy.Pod{Addresses: []netip.Addr{p.Address}}
	}
	return slices.DeleteFunc(addresses(ofParty(from), ofParty(to)), func(p addressPair) bool {
		return protocol == icmp && !p.source.Is4() || protocol == icmpv6 && p.source.Is4()
	})
}

// name returns an end as a party of the answer: the address of a pod is the pod's.
func name(j *policy.Judgement, a netip.Addr) Party {
	named := Party{}
	if j != nil {
		named.Pod = j.Pod.String()
	}
	if a.IsValid() {
		named.Address = a.String()
	}
	return named
}

func judgementOf(j *policy.Judgement) *Judgement {
	out := &Judgement{Pod: j.Pod.String(), Direction: j.Direction.String(), Allowed: j.Verdict.Allow, Tier: j.Tier, Selecting: []string{}}
	for _, id := range j.Selecting {
		out.Selecting = append(out.Selecting, id.String())
	}
	if j.Tier != "" {
		out.Policy = j.Policy.String()
		if j.Rule >= 0 {
			out.Rule, out.Name = fmt.Sprintf("spec.%s[%d]", j.Direction, j.Rule), j.RuleName
		}
	}
	out.Why = out.why()
	return out
}

// close sets the judgement of a pod that passes nothing in this direction because its policies are too large.
func (j *Judgement) close(by policy.ID, namespace string) {
	j.Allowed, j.Tier, j.Policy, j.Rule, j.Name = false, "", by.String(), "", ""
	j.Why = fmt.Sprintf("%s, the largest of namespace %s: %s", by, namespace, policy.TooLargeText)
}

// compare reports whether the kernel enforces the judgement: "agrees", or a difference.
func (k *known) compare(j *policy.Judgement, peer netip.Addr, asked connection, compiled *policy.Compiled, kernel tables) string {
	link := policies.LinkOf(j.Pod)
	if k.Local[link] != j.Pod {
		return elsewhere
	}
	if text := kernel.Link(link, j.Direction); text != "" {
		return "differs: " + text
	}
	if compiled.Endpoints[link].Programs[j.Direction] != "" && !kernel.Members(peer) {
		return fmt.Sprintf("differs: %s is in other sets of addresses than the API server's word makes it: ask again in a second", peer)
	}
	if v := compiled.Decide(link, j.Direction, peer, asked.packet()); v.Allow != j.Verdict.Allow {
		return "differs: the program that was compiled of the policies decides otherwise, which is an error of Tortie: report it"
	}
	return kernelAgrees
}

// exempt sets the judgement of packets from a node to its own pods.
func (x *Explained) exempt(source netip.Addr) {
	j := x.Ingress
	x.Allowed, j.Allowed, j.Kernel = true, true, kernelAgrees
	j.Tier, j.Policy, j.Rule, j.Name, j.Staged, j.Denied = "", "", "", "", nil, nil
	j.Why = fmt.Sprintf("%s is an address of this node, whose packets to its own pods no policy judges", source)
}

// WriteText writes the explanation as text.
func (x *Explained) WriteText(w io.Writer) error {
	var b strings.Builder
	at := x.Protocol
	if x.Port != 0 {
		at = fmt.Sprintf("%d/%s", x.Port, x.Protocol)
	}
	fmt.Fprintf(&b, "%s -> %s %s: %s\n", x.From.text(), x.To.text(), at, verdictName(x.Allowed))
	for _, j := range []*Judgement{x.Egress, x.Ingress} {
		if j != nil {
			j.write(&b)
		}
	}
	for _, text := range x.Notes {
		fmt.Fprintf(&b, "\n%s\n", text)
	}
	_, err := io.WriteString(w, b.String())
	return err
}

func (p Party) text() string {
	if p.Pod == "" {
		return p.Address
	}
	return fmt.Sprintf("%s (%s)", p.Pod, p.Address)
}

func verdictName(allowed bool) string {
	if allowed {
		return "allowed"
	}
	return "denied"
}

// counted returns the kernel's count of denied packets as text.
func (j *Judgement) counted() string {
	if j.Denied == nil {
		return ""
	}
	return fmt.Sprintf("; the policy has denied %s on this node", count(int(*j.Denied), "packet", "packets"))
}

func (j *Judgement) write(w io.Writer) {
	fmt.Fprintf(w, "\n%s of %s: %s\n  by        %s\n", j.Direction, j.Pod, verdictName(j.Allowed), j.Why)
	if len(j.Selecting) > 0 {
		fmt.Fprintf(w, "  policies  %s\n", strings.Join(j.Selecting, ", "))
	}
	fmt.Fprintf(w, "  kernel    %s%s\n", j.Kernel, j.counted())
	if s := j.Staged; s != nil {
		fmt.Fprintf(w, "  staged    %s would make it %s: %s\n", s.Because, verdictName(s.Allowed), s.Why)
	}
}

// why returns the reason for the verdict.
func (j *Judgement) why() string {
	switch {
	case j.Rule != "" && j.Name != "":
		return fmt.Sprintf("%s, %s %q, tier %s", j.Policy, j.Rule, j.Name, j.Tier)
	case j.Rule != "":
		return fmt.Sprintf("%s, %s, tier %s", j.Policy, j.Rule, j.Tier)
	case j.Policy != "":
		return fmt.Sprintf("%s isolates the pod, and no rule of tier %s matches", j.Policy, j.Tier)
	case !j.Allowed:
		return "the labels of the pod's namespace are not known yet"
	case len(j.Selecting) > 0:
		return "no rule of the policies that select the pod matches, and none isolates it"
	}
	return "no policy selects the pod in this direction"
}
