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

	"github.com/tortie-net/tortie/internal/api"
	"github.com/tortie-net/tortie/internal/cluster"
	"github.com/tortie-net/tortie/internal/policy"
)

// Difference is the effect of changed policies on the connections between existing pods.
type Difference struct {
	// Policies are those of the file, with "new", "changed", "deleted" or "not there".
	Policies []string `json:"policies"`
	Problems []string `json:"problems,omitempty"`
	// TooLarge are the policies that make programs too large afterwards, if all pods of their namespace are on one node: these pods are judged as closed.
	TooLarge []string `json:"tooLarge,omitempty"`
	// Pods have an address and a network of their own. Judged is the number of connections between them that were compared: those of pods
	// that one of the policies selects, before or after, or that programs which are too large close.
	Pods   int    `json:"pods"`
	Judged int    `json:"judged"`
	Flows  []Flow `json:"flows"`
	// Sessions are open connections of this node and its pods that will be denied. Unseen says why they are not known.
	Sessions []Session `json:"sessions,omitempty"`
	Unseen   string    `json:"unseen,omitempty"`
}

// What a verdict becomes.
const (
	changeAllowed = "allowed"
	changeDenied  = "denied"
)

// Flow are connections from pods to pods whose verdict changes.
type Flow struct {
	// Change is "allowed" or "denied": what it will be.
	Change   string   `json:"change"`
	From     []string `json:"from"`
	To       []string `json:"to"`
	Protocol string   `json:"protocol"`
	Port     uint16   `json:"port"`
	// Family is IPv4 or IPv6 if both ends have addresses of both, and the other one's verdict does not change so.
	Family string `json:"family,omitempty"`
	// By is the policy that denies it, before or after, and in which direction.
	By string `json:"by"`
}

// change is a file of policies that are written over the known ones, or deleted.
type change struct {
	view     cluster.PolicyView // the file's objects
	policies []policy.Policy    // what these say: see read
	staged   []policy.Staged    // likewise
	said     []string           // of staged policies that try nothing out
	about    map[policy.ID]bool // policies that are written or deleted: see over
	problems []string
	deletes  bool
}

// parsePolicies reads a file of policies, as YAML documents, JSON, or Lists.
func parsePolicies(name string, data []byte) (*change, error) {
	var c change
	for i, document := range documents(string(data)) {
		if err := c.parse([]byte(document)); err != nil {
			return nil, fmt.Errorf("%s, document %d: %w", name, i+1, err)
		}
	}
	if len(c.view.Policies(nil))+len(c.view.Staged.Policies(nil)) == 0 {
		return nil, fmt.Errorf("%s has no policy: it must have %s", name, kindsText)
	}
	return &c, nil
}

// documents splits YAML at lines that begin with three dashes, without empty documents. A comment, or a document, may follow the dashes.
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
	v, calico := &c.view, (*api.CalicoNetworkPolicy)(nil).ResourceType().APIVersion()
	if m.APIVersion == calicoClients {
		m.APIVersion = calico
	}
	switch m.APIVersion + " " + m.Kind {
	case " ": // comments alone
		return nil
	case "networking.k8s.io/v1 NetworkPolicy":
		return parse(data, &v.NetworkPolicies)
	case "policy.networking.k8s.io/v1alpha2 ClusterNetworkPolicy":
		return parse(data, &v.ClusterNetworkPolicies)
	case calico + " NetworkPolicy":
		return parse(data, &v.Calico.NetworkPolicies)
	case calico + " GlobalNetworkPolicy":
		return parse(data, &v.Calico.GlobalNetworkPolicies)
	case calico + " StagedNetworkPolicy":
		return parse(data, &v.Staged.NetworkPolicies)
	case calico + " StagedGlobalNetworkPolicy":
		return parse(data, &v.Staged.GlobalNetworkPolicies)
	case calico + " StagedKubernetesNetworkPolicy":
		return parse(data, &v.Staged.KubernetesNetworkPolicies)
	}
	return fmt.Errorf("apiVersion %q, kind %q: must be %s", m.APIVersion, m.Kind, kindsText)
}

const (
	// calicoClients is the apiVersion that Calico's own clients give to the same objects.
	calicoClients = "projectcalico.org/v3"
	kindsText     = "networking.k8s.io/v1 NetworkPolicy, policy.networking.k8s.io/v1alpha2 ClusterNetworkPolicy, or crd.projectcalico.org/v1 NetworkPolicy, " +
		"GlobalNetworkPolicy, StagedNetworkPolicy, StagedGlobalNetworkPolicy or StagedKubernetesNetworkPolicy"
)

// parse reads an object; one of a namespace is in default unless it says another.
func parse[T any](data []byte, into *[]*T) error {
	o := new(T)
	if err := yaml.Unmarshal(data, o); err != nil {
		return err
	}
	of := any(o).(api.Resource)
	m := of.GetMeta()
	if m.Name == "" {
		return fmt.Errorf("metadata.name is empty: name the %s", of.ResourceType().Kind)
	}
	if of.ResourceType().Namespaced {
		m.Namespace = cmp.Or(m.Namespace, "default")
	}
	*into = append(*into, o)
	return nil
}

// read converts the file's objects; tiers are the cluster's.
func (c *change) read(tiers map[string]policy.Tier) error {
	for _, o := range c.view.Policies(tiers) {
		p, err := o.Read()
		if err != nil {
			return fmt.Errorf("%s: %w", o.ID, err)
		}
		for _, problem := range p.Problems {
			c.problems = append(c.problems, fmt.Sprintf("%s: %s", p.ID, problem))
		}
		c.policies = append(c.policies, p)
	}
	return c.readStaged(tiers)
}

// readStaged converts staged policies, which are judged as if they were enforced.
func (c *change) readStaged(tiers map[string]policy.Tier) (err error) {
	c.view.Staged.Each(tiers, func(o api.Resource, read cluster.ReadsStaged) {
		s, tried, wrong := read()
		switch {
		case wrong != nil:
			err = cmp.Or(err, fmt.Errorf("%s: %w", s.By, wrong))
		case c.deletes:
			err = cmp.Or(err, fmt.Errorf("%s: -delete changes nothing, as the policy decides on nothing: name the policy that it is for, or give it stagedAction Delete", s.By))
		case !tried:
			c.said = append(c.said, s.By.String()+": nothing is tried out (stagedAction)")
		default:
			c.staged = append(c.staged, s)
		}
		for _, problem := range s.Problems {
			c.problems = append(c.problems, fmt.Sprintf("%s: %s", s.By, problem))
		}
	})
	return err
}

// over returns the state with the policies in the place of those of the same name, or added, or without these, and says which they are.
func (c *change) over(s policy.State) (after policy.State, said []string) {
	after = s
	after.Policies = slices.Clone(s.Policies)
	c.about = map[policy.ID]bool{}
	for _, p := range c.policies {
		at := slices.IndexFunc(after.Policies, func(o policy.Policy) bool { return o.ID == p.ID })
		what := "changed"
		switch {
		case c.deletes && at < 0:
			what = "not there"
		case c.deletes:
			what, after.Policies = "deleted", slices.Delete(after.Policies, at, at+1)
		case at < 0:
			what, after.Policies = "new", append(after.Policies, p)
		default:
			after.Policies[at] = p
		}
		said = append(said, p.ID.String()+": "+what)
		c.about[p.ID] = true
	}
	return c.overStaged(after, said)
}

func (c *change) overStaged(s policy.State, said []string) (policy.State, []string) {
	after, by := policy.WithStaged(s, c.staged)
	there := map[policy.ID]bool{} // staged policies for which there is one
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

// port is one that is compared.
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

// flowKey is how connections from a namespace to a namespace change.
type flowKey struct {
	from, to, change, by, family string
	port
}

// diff compares the states. declared are the ports that pods' containers declare; open are the connections of this node, nil if they are not known.
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

// find compiles both states for all pods, as if they were on this node, and finds whom the change is about.
func (x *comparison) find(before, after policy.State, c *change) {
	local := map[string]policy.PodKey{}
	for _, p := range x.pods {
		local[linkOf(p.PodKey)] = p.PodKey
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

// closes reports that a pod's program becomes too large, or is so no longer: the limit is one of all policies of the namespace.
func (x *comparison) closes(p *policy.Pod, d policy.Direction) bool {
	_, was := x.before.ClosedBy(linkOf(p.PodKey), d)
	_, is := x.after.ClosedBy(linkOf(p.PodKey), d)
	return was != is
}

// tooLarge names the policies that are too large afterwards.
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

// changes says what becomes of a connection, if that is not what it was.
func (x *comparison) changes(from, to *policy.Pod, pair addressPair, port port) (key flowKey, changed bool) {
	was, wasBy := judge(x.before, from, to, pair.source, pair.target, port)
	is, isBy := judge(x.after, from, to, pair.source, pair.target, port)
	key = flowKey{from: from.Namespace, to: to.Namespace, change: changeDenied, by: isBy, port: port}
	if is {
		key.change, key.by = changeAllowed, wasBy
	}
	return key, was != is
}

// judge returns whether a connection is allowed, and by which policy in which direction it is denied.
func judge(c *policy.Compiled, from, to *policy.Pod, source, target netip.Addr, port port) (allowed bool, by string) {
	packet := policy.Packet{Protocol: port.protocol, Port: port.number}
	if v := c.Decide(linkOf(from.PodKey), policy.Egress, target, packet); !v.Allow {
		return false, "egress " + v.By.String()
	}
	if v := c.Decide(linkOf(to.PodKey), policy.Ingress, source, packet); !v.Allow {
		return false, "ingress " + v.By.String()
	}
	return true, ""
}

// addressPair are addresses of the same family.
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

// named returns the first ports of the ranges in policies' rules: for pods that declare none.
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

// sorted returns the flows in order.
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

// joined returns flows in which each pod's connections to all others change. Pods that have the same targets are together. One that is a target
// itself counts as its own, so that pods are together whose connections among each other change.
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
			rows = append(rows, []string{f.Change, several(f.From), strings.TrimSpace(fmt.Sprintf("%s:%d/%s %s", several(f.To), f.Port, f.Protocol, f.Family)), f.By})
		}
		b.WriteString("\n" + tabulate(rows))
	}
	d.writeSessions(&b)
	if len(d.TooLarge) > 0 {
		b.WriteString("\nToo large where one node has all of these pods, which is how they are judged:\n  " + strings.Join(d.TooLarge, "\n  ") + "\n")
	}
	if len(d.Problems) > 0 {
		b.WriteString("\nInvalid policies:\n  " + strings.Join(d.Problems, "\n  ") + "\n")
	}
	_, err := io.WriteString(w, b.String())
	return err
}

// several names the first pod, and how many more there are.
func several(pods []string) string {
	if len(pods) == 1 {
		return pods[0]
	}
	return fmt.Sprintf("%s (+%d)", pods[0], len(pods)-1)
}
