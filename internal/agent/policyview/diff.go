package policyview

import (
	"cmp"
	"fmt"
	"io"
	"maps"
	"net/netip"
	"slices"
	"strings"

	"sigs.k8s.io/yaml"

	"github.com/tortie-net/tortie/internal/agent/policies"
	"github.com/tortie-net/tortie/internal/api"
	"github.com/tortie-net/tortie/internal/api/groups"
	"github.com/tortie-net/tortie/internal/cluster"
	"github.com/tortie-net/tortie/internal/policy"
)

// Difference is the effect of changed policies on the connections between existing pods.
type Difference struct {
	// Policies are the file's policies, each with "new", "changed", "deleted" or "not there".
	Policies []string `json:"policies"`
	Problems []string `json:"problems,omitempty"`
	// TooLarge are the policies that make programs too large after the change, if all pods of their namespace are on one
	// node: these pods are judged as closed.
	TooLarge []string `json:"tooLarge,omitempty"`
	// Pods is the number of pods with an address and a network of their own. Judged is the number of connections between
	// them that were compared: of pods that one of the policies selects, before or after, or that are closed because their
	// program is too large.
	Pods   int    `json:"pods"`
	Judged int    `json:"judged"`
	Flows  []Flow `json:"flows"`
	// Sessions are open connections of this node and its pods that will be denied. Unseen is the reason why they are not
	// known.
	Sessions []Session `json:"sessions,omitempty"`
	Unseen   string    `json:"unseen,omitempty"`
}

// Values of Flow.Change.
const (
	changeAllowed = "allowed"
	changeDenied  = "denied"
)

// Flow is a group of connections from pods to pods with the same change of verdict.
type Flow struct {
	// Change is the new verdict, "allowed" or "denied".
	Change   string   `json:"change"`
	From     []string `json:"from"`
	To       []string `json:"to"`
	Protocol string   `json:"protocol"`
	Port     uint16   `json:"port"`
	// Family is IPv4 or IPv6 if both ends have addresses of both families, and the other family's verdict does not change
	// so.
	Family string `json:"family,omitempty"`
	// By is the direction and the policy that denies it, before or after.
	By string `json:"by"`
}

// change is a file of policies that are written over the known ones, or deleted.
type change struct {
	view     cluster.PolicyView            // the file's objects
	policies []policy.Policy               // converted from these: see read
	staged   []policy.Staged               // likewise
	things                                 // likewise
	said     []string                      // results of staged policies that change nothing
	forms    map[api.Resource]groups.Group // Calico's objects: the group that the file says
	byClient map[policy.ID]bool            // policies that Calico's clients store, maybe by another name
	about    map[policy.ID]bool            // policies that are written or deleted: see over
	problems []string
	deletes  bool
	group    groups.Group // of the cluster
}

// parsePolicies reads a file of policies: YAML documents, JSON, or Lists.
func parsePolicies(name string, data []byte) (*change, error) {
	c := change{forms: map[api.Resource]groups.Group{}, byClient: map[policy.ID]bool{}}
	for i, document := range documents(string(data)) {
		if err := c.parse([]byte(document)); err != nil {
			return nil, fmt.Errorf("%s, document %d: %w", name, i+1, err)
		}
	}
	if len(c.view.Policies(nil))+len(c.view.Staged.Policies(nil))+countThings(&c.view.Calico)+len(c.felix) == 0 {
		return nil, fmt.Errorf("%s has no policy: it must have %s", name, kindsText)
	}
	return &c, nil
}

// documents splits YAML at lines that begin with three dashes, and drops empty documents. A comment, or a document, may
// follow the dashes.
func documents(text string) (all []string) {
	var current strings.Builder
	for line := range strings.Lines(text + "\n---\n") {
		rest, begins := strings.CutPrefix(line, "---")
		if begins = begins && strings.TrimLeft(rest, " \t\r\n") != rest; !begins {
			current.WriteString(line)
			continue
		}
		if strings.TrimSpace(current.String()) != "" {
			all = append(all, current.String())
		}
		current.Reset()
		current.WriteString(rest)
	}
	return all
}

// manifest has the fields that identify an object.
type manifest struct {
	APIVersion string `json:"apiVersion"`
	Kind       string `json:"kind"`
	Items      []any  `json:"items"`
}

func (c *change) parse(data []byte) error {
	var m manifest
	if err := yaml.Unmarshal(data, &m); err != nil {
		return err
	}
	for _, item := range m.Items {
		inner, err := yaml.Marshal(item)
		if err == nil {
			err = c.parse(inner)
		}
		if err != nil {
			return err
		}
	}
	if m.Items != nil {
		return nil
	}
	if m.APIVersion == "" && m.Kind == "" { // comments alone
		return nil
	}
	read := c.reads(strings.Replace(m.APIVersion, string(groups.V3), calico, 1) + " " + m.Kind)
	if read == nil {
		return fmt.Errorf("apiVersion %q, kind %q: must be %s", m.APIVersion, m.Kind, kindsText)
	}
	o, err := read(data)
	if form := groups.Group(m.APIVersion); err == nil && slices.Contains(groups.All, form) {
		c.forms[o] = form
	}
	return err
}

// reads returns the function that adds objects of a kind to the view; nil: the kind is not supported.
func (c *change) reads(kind string) func([]byte) (api.Resource, error) {
	v := &c.view
	for _, t := range (*api.ClusterNetworkPolicy)(nil).Types() {
		if kind == t.APIVersion()+" "+t.Kind {
			return into(&v.ClusterNetworkPolicies)
		}
	}
	return map[string]func([]byte) (api.Resource, error){
		"networking.k8s.io/v1 NetworkPolicy":      into(&v.NetworkPolicies),
		calico + " NetworkPolicy":                 into(&v.Calico.NetworkPolicies),
		calico + " GlobalNetworkPolicy":           into(&v.Calico.GlobalNetworkPolicies),
		calico + " StagedNetworkPolicy":           into(&v.Staged.NetworkPolicies),
		calico + " StagedGlobalNetworkPolicy":     into(&v.Staged.GlobalNetworkPolicies),
		calico + " StagedKubernetesNetworkPolicy": into(&v.Staged.KubernetesNetworkPolicies),
		calico + " Tier":                          into(&v.Calico.Tiers),
		calico + " NetworkSet":                    into(&v.Calico.NetworkSets),
		calico + " GlobalNetworkSet":              into(&v.Calico.GlobalNetworkSets),
		calico + " HostEndpoint":                  into(&v.Calico.HostEndpoints),
		calico + " FelixConfiguration":            into(&c.felix),
	}[kind]
}

const (
	calico    = string(groups.V1)
	kindsText = "networking.k8s.io/v1 NetworkPolicy, policy.networking.k8s.io/v1beta1 or v1alpha2 ClusterNetworkPolicy, " +
		"or " + string(groups.V3) + " or " + calico + " NetworkPolicy, GlobalNetworkPolicy, StagedNetworkPolicy, StagedGlobalNetworkPolicy, " +
		"StagedKubernetesNetworkPolicy, Tier, NetworkSet, GlobalNetworkSet, HostEndpoint or FelixConfiguration"
)

// into returns a function that appends an object to a list; a namespaced object without a namespace is in default.
func into[T any](list *[]*T) func(data []byte) (api.Resource, error) {
	return func(data []byte) (api.Resource, error) {
		o := new(T)
		if err := yaml.Unmarshal(data, o); err != nil {
			return nil, err
		}
		of := any(o).(api.Resource)
		m := of.GetMeta()
		if m.Name == "" {
			return nil, fmt.Errorf("metadata.name is empty: name the %s", of.ResourceType().Kind)
		}
		if of.ResourceType().Namespaced {
			m.Namespace = cmp.Or(m.Namespace, "default")
		}
		*list = append(*list, o)
		return of, nil
	}
}

// read converts the file's objects, as they are in the cluster when they have been applied; tiers are the cluster's.
func (c *change) read(tiers map[string]policy.Tier) error {
	for o, form := range c.forms {
		c.group.Apply(form, o)
	}
	c.readThings(tiers)
	if c.tiers != nil && !c.deletes {
		tiers = c.tiers
	}
	for _, o := range c.view.Policies(tiers) {
		p, err := o.Read()
		if err != nil {
			return fmt.Errorf("%s: %w", o.ID, err)
		}
		c.invalid(p.ID, p.Problems)
		c.policies = append(c.policies, p)
		c.byClient[p.ID] = c.isByClient(o.Resource)
	}
	return c.readStaged(tiers)
}

// isByClient reports whether Calico's clients apply an object.
func (c *change) isByClient(o api.Resource) bool {
	return c.forms[o] == groups.V3 && c.group != groups.V3
}

// invalid adds the problems of an object.
func (c *change) invalid(id policy.ID, problems []string) {
	for _, problem := range problems {
		c.problems = append(c.problems, fmt.Sprintf("%s: %s", id, problem))
	}
}

// readStaged converts staged policies, which are judged as if they were enforced.
func (c *change) readStaged(tiers map[string]policy.Tier) (err error) {
	c.view.Staged.Each(tiers, func(o api.Resource, read cluster.ReadsStaged) {
		s, tried, wrong := read()
		switch {
		case wrong != nil:
			err = cmp.Or(err, fmt.Errorf("%s: %w", s.By, wrong))
		case c.deletes:
			err = cmp.Or(err, fmt.Errorf(
				"%s: -delete changes nothing, as the policy decides on nothing: name the policy that it is for, or give it stagedAction Delete", s.By))
		case !tried:
			c.said = append(c.said, s.By.String()+": nothing is tried out (stagedAction)")
		default:
			c.staged = append(c.staged, s)
			c.byClient[s.By] = c.isByClient(o)
		}
		c.invalid(s.By, s.Problems)
	})
	return err
}

// over returns the state with the file's objects replacing objects of the same name, or added, or, with deletes,
// removed. said has the result for each.
func (c *change) over(s policy.State) (after policy.State, said []string) {
	after, said = c.overThings(s)
	after.Policies = slices.Clone(s.Policies)
	c.about = map[policy.ID]bool{}
	for _, p := range c.policies {
		c.find(after.Policies, &p, p.ID)
		said = append(said, p.ID.String()+": "+put(&after.Policies, p, c.deletes, func(o policy.Policy) bool { return o.ID == p.ID }))
		c.about[p.ID] = true
	}
	if c.tiers != nil {
		for i := range after.Policies {
			after.Policies[i] = after.Policies[i].In(c.tiers)
		}
	}
	if c.movesAll() {
		for _, p := range slices.Concat(s.Policies, after.Policies) {
			c.about[p.ID] = c.about[p.ID] || p.Subject.Calico
		}
	}
	return c.overStaged(after, said)
}

// find gives a policy of an object that Calico's clients store the names of the stored policy which they find: the one
// that is stored under the name, else the one that they know by it.
func (c *change) find(policies []policy.Policy, p *policy.Policy, of policy.ID) {
	if !c.byClient[of] {
		return
	}
	at := slices.IndexFunc(policies, func(o policy.Policy) bool { return o.ID == p.ID })
	if at < 0 {
		at = slices.IndexFunc(policies, func(o policy.Policy) bool { return o.Shown() == p.Shown() })
	}
	if at >= 0 {
		p.ID, p.Called = policies[at].ID, policies[at].Called
	}
}

// put replaces the object that is the same as o, or appends o, or deletes that object, and returns which it did.
func put[T any](all *[]T, o T, deletes bool, same func(T) bool) (what string) {
	at := slices.IndexFunc(*all, same)
	switch {
	case deletes && at < 0:
		return "not there"
	case deletes:
		*all = slices.Delete(*all, at, at+1)
		return "deleted"
	case at < 0:
		*all = append(*all, o)
		return "new"
	}
	(*all)[at] = o
	return "changed"
}

func (c *change) overStaged(s policy.State, said []string) (policy.State, []string) {
	for i := range c.staged {
		c.find(s.Policies, &c.staged[i].Policy, c.staged[i].By)
	}
	after, by := policy.WithStaged(s, c.staged)
	there := map[policy.ID]bool{} // staged policies with an existing policy
	for _, p := range s.Policies {
		there[by[p.ID]] = true
	}
	for id := range by {
		c.about[id] = true
	}
	for _, staged := range c.staged {
		what := "enforced it would be new"
		switch {
		case staged.Delete && !there[staged.By]:
			what = "the policy that it deletes is not there"
		case staged.Delete:
			what = "enforced it would delete " + staged.ID.String()
		case there[staged.By]:
			what = "enforced it would change " + staged.ID.String()
		}
		said = append(said, staged.By.String()+": "+what)
	}
	return after, append(said, c.said...)
}

// port is a protocol and port to compare.
type port struct {
	protocol uint8
	number   uint16
}

// comparison compares the verdicts of two states on the connections between pods.
type comparison struct {
	before, after *policy.Compiled
	pods          []*policy.Pod
	affected      [2]map[policy.PodKey]bool // by direction
	ports         func(*policy.Pod) []port
	judged        int
	flows         map[flowKey]map[string][]string // the pods to which each pod's connections change so
}

// flowKey is a change of connections from a namespace to a namespace.
type flowKey struct {
	from, to, change, by, family string
	port
}

// diff compares the states. declared are the ports that pods' containers declare; open are the connections of this
// node, nil if unknown.
func diff(before policy.State, c *change, declared map[policy.PodKey][]port, open *openFlows) *Difference {
	after, said := c.over(before)
	x := comparison{flows: map[flowKey]map[string][]string{}}
	x.ports = func(p *policy.Pod) []port {
		if ports := declared[p.PodKey]; len(ports) > 0 {
			return ports
		}
		return named(append(slices.Clip(c.policies), stagedOf(c.staged)...))
	}
	x.pods = addressed(before)
	x.find(before, after, c)
	for _, from := range x.pods {
		for _, to := range x.pods {
			if from != to && (x.affected[policy.Egress][from.PodKey] || x.affected[policy.Ingress][to.PodKey]) {
				x.compare(from, to)
			}
		}
	}
	d := &Difference{Policies: said, Problems: c.problems, TooLarge: x.tooLarge(), Pods: len(x.pods), Judged: x.judged, Flows: x.sorted()}
	if open != nil {
		d.Sessions = x.sessions(open, ends{open.own, localAddresses(&before)})
	}
	return d
}

func stagedOf(all []policy.Staged) (policies []policy.Policy) {
	for _, s := range all {
		policies = append(policies, s.Policy)
	}
	return policies
}

// find compiles both states with all pods, as if they were on this node, and finds the pods affected by the change.
func (x *comparison) find(before, after policy.State, c *change) {
	local := map[string]policy.PodKey{}
	for _, p := range x.pods {
		local[policies.LinkOf(p.PodKey)] = p.PodKey
	}
	before.Local, after.Local = local, local
	x.before, x.after = policy.Compile(before), policy.Compile(after)
	for d := range x.affected {
		x.affected[d] = map[policy.PodKey]bool{}
		for _, p := range x.pods {
			changed := func(s *policy.State) bool {
				return slices.ContainsFunc(s.Policies, func(o policy.Policy) bool {
					return o.Applies[d] && c.about[o.ID] && s.Selects(&o.Subject, p)
				})
			}
			x.affected[d][p.PodKey] = changed(&before) || changed(&after) || x.closes(p, policy.Direction(d))
		}
	}
}

// closes reports whether a pod's program becomes too large, or is no longer: the limit is shared by all policies of the
// namespace.
func (x *comparison) closes(p *policy.Pod, d policy.Direction) bool {
	_, was := x.before.ClosedBy(policies.LinkOf(p.PodKey), d)
	_, is := x.after.ClosedBy(policies.LinkOf(p.PodKey), d)
	return was != is
}

// tooLarge names the policies that are too large after the change.
func (x *comparison) tooLarge() (texts []string) {
	for _, id := range x.after.TooLarge {
		when := "now"
		if slices.Contains(x.before.TooLarge, id) {
			when = "as before"
		}
		texts = append(texts, fmt.Sprintf("%s, %s: %s", id, when, policy.TooLargeText))
	}
	return texts
}

// compare judges all connections from a pod to another, in each family that both have.
func (x *comparison) compare(from, to *policy.Pod) {
	pairs := addresses(from, to)
	if len(pairs) == 0 {
		return
	}
	for _, port := range x.ports(to) {
		x.judged++
		changed := map[flowKey][]addressPair{}
		for _, pair := range pairs {
			if key, ok := x.changes(from, to, pair, port); ok {
				changed[key] = append(changed[key], pair)
			}
		}
		for key, in := range changed {
			if len(in) < len(pairs) {
				key.family = in[0].family()
			}
			if x.flows[key] == nil {
				x.flows[key] = map[string][]string{}
			}
			x.flows[key][from.String()] = append(x.flows[key][from.String()], to.String())
		}
	}
}

// changes returns the change of a connection's verdict; changed is false if there is none.
func (x *comparison) changes(from, to *policy.Pod, pair addressPair, port port) (key flowKey, changed bool) {
	was, wasBy := judge(x.before, from, to, pair.source, pair.target, port)
	is, isBy := judge(x.after, from, to, pair.source, pair.target, port)
	key = flowKey{from: from.Namespace, to: to.Namespace, change: changeDenied, by: isBy, port: port}
	if is {
		key.change, key.by = changeAllowed, wasBy
	}
	return key, was != is
}

// judge returns whether a connection is allowed, and if not the direction and the policy that denies it.
func judge(c *policy.Compiled, from, to *policy.Pod, source, target netip.Addr, port port) (allowed bool, by string) {
	packet := policy.Packet{Protocol: port.protocol, Port: port.number}
	if v := c.Decide(policies.LinkOf(from.PodKey), policy.Egress, target, packet); !v.Allow {
		return false, "egress " + v.By.String()
	}
	if v := c.Decide(policies.LinkOf(to.PodKey), policy.Ingress, source, packet); !v.Allow {
		return false, "ingress " + v.By.String()
	}
	return true, ""
}

// addressPair holds addresses of one family.
type addressPair struct{ source, target netip.Addr }

func (p addressPair) family() string {
	if p.source.Is4() {
		return "IPv4"
	}
	return "IPv6"
}

// addresses returns a pair for each family that both pods have.
func addresses(from, to *policy.Pod) (pairs []addressPair) {
	for _, is4 := range []bool{true, false} {
		of := func(a netip.Addr) bool { return a.Is4() == is4 }
		source, target := slices.IndexFunc(from.Addresses, of), slices.IndexFunc(to.Addresses, of)
		if source >= 0 && target >= 0 {
			pairs = append(pairs, addressPair{from.Addresses[source], to.Addresses[target]})
		}
	}
	return pairs
}

// addressed returns the pods with an address, in order.
func addressed(s policy.State) (pods []*policy.Pod) {
	for _, p := range s.Pods {
		if len(p.Addresses) > 0 {
			pods = append(pods, p)
		}
	}
	slices.SortFunc(pods, func(a, b *policy.Pod) int { return strings.Compare(a.String(), b.String()) })
	return pods
}

// named returns the first ports of the ranges in policies' rules, which are judged at pods that declare no port.
func named(policies []policy.Policy) (ports []port) {
	for _, p := range policies {
		for _, rules := range p.Rules {
			for _, r := range rules {
				for _, o := range r.Ports {
					if o.Name == "" {
						ports = append(ports, port{o.Protocol, max(o.First, 1)})
					}
				}
			}
		}
	}
	if len(ports) == 0 {
		ports = []port{{tcp, 1}}
	}
	slices.SortFunc(ports, comparePorts)
	return slices.Compact(ports)
}

func comparePorts(a, b port) int {
	return cmp.Or(cmp.Compare(a.protocol, b.protocol), cmp.Compare(a.number, b.number))
}

// sorted returns the flows in order of their fields.
func (x *comparison) sorted() (all []Flow) {
	all = []Flow{}
	for key, targets := range x.flows {
		all = append(all, joined(key, targets)...)
	}
	slices.SortFunc(all, func(a, b Flow) int {
		return cmp.Or(slices.Compare(a.From, b.From), slices.Compare(a.To, b.To), strings.Compare(a.Protocol, b.Protocol),
			cmp.Compare(a.Port, b.Port), strings.Compare(a.Family, b.Family), strings.Compare(a.By, b.By))
	})
	return all
}

// joined groups pods into flows, in each of which the connections of all From to all To change. Pods with the same
// targets are together. A pod that is itself a target counts as its own target, so that pods with changed connections
// among each other are together.
func joined(key flowKey, targets map[string][]string) (all []Flow) {
	isTarget := map[string]bool{}
	for _, pods := range targets {
		for _, pod := range pods {
			isTarget[pod] = true
		}
	}
	together := map[string]*Flow{}
	for _, from := range slices.Sorted(maps.Keys(targets)) {
		same := slices.Clone(targets[from])
		if isTarget[from] {
			same = append(same, from)
		}
		slices.Sort(same)
		id := strings.Join(same, " ")
		if together[id] == nil {
			together[id] = &Flow{Change: key.change, Protocol: protocolName(key.protocol), Port: key.number, Family: key.family, By: key.by}
		}
		f := together[id]
		f.From, f.To = append(f.From, from), append(f.To, targets[from]...)
	}
	for _, f := range together {
		slices.Sort(f.To)
		f.To = slices.Compact(f.To)
		all = append(all, *f)
	}
	return all
}

// WriteText writes the difference for people.
func (d *Difference) WriteText(w io.Writer) error {
	var b strings.Builder
	for _, text := range d.Policies {
		fmt.Fprintln(&b, text)
	}
	denied := 0
	for _, f := range d.Flows {
		if f.Change == changeDenied {
			denied++
		}
	}
	fmt.Fprintf(&b, "judged: %s between %s, on the ports that these declare; not judged: other addresses\n",
		count(d.Judged, "connection", "connections"), count(d.Pods, "pod", "pods"))
	fmt.Fprintf(&b, "changed: %s will be denied, %s allowed\n", count(denied, "line", "lines"), count(len(d.Flows)-denied, "line", "lines"))
	if len(d.Flows) > 0 {
		rows := [][]string{{"WILL BE", "FROM", "TO", "DENIED BY"}}
		for _, f := range d.Flows {
			rows = append(rows,
				[]string{f.Change, several(f.From), strings.TrimSpace(fmt.Sprintf("%s:%d/%s %s", several(f.To), f.Port, f.Protocol, f.Family)), f.By})
		}
		b.WriteString("\n" + tabulate(rows))
	}
	d.writeSessions(&b)
	if len(d.TooLarge) > 0 {
		b.WriteString("\nToo large where one node has all of these pods, which is how they are judged:\n  " +
			strings.Join(d.TooLarge, "\n  ") + "\n")
	}
	if len(d.Problems) > 0 {
		b.WriteString("\nInvalid policies:\n  " + strings.Join(d.Problems, "\n  ") + "\n")
	}
	_, err := io.WriteString(w, b.String())
	return err
}

// several returns the first pod, and how many more there are.
func several(pods []string) string {
	if len(pods) == 1 {
		return pods[0]
	}
	return fmt.Sprintf("%s (+%d)", pods[0], len(pods)-1)
}
