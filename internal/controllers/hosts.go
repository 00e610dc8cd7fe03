package controllers

import (
	"cmp"
	"crypto/sha256"
	"encoding/base64"
	"fmt"
	"maps"
	"net/netip"
	"regexp"
	"slices"
	"strings"

	"github.com/tortie-net/tortie/internal/api"
	"github.com/tortie-net/tortie/internal/api/names"
	"github.com/tortie-net/tortie/internal/api/selector"
	"github.com/tortie-net/tortie/internal/app/nodeaddr"
	"github.com/tortie-net/tortie/internal/ipam/inventory"
	"github.com/tortie-net/tortie/internal/policy"
)

// HostSettings configure the host endpoints of nodes.
type HostSettings struct {
	// Auto is enabled or disabled; empty: not known, and no host endpoint is changed.
	Auto string
	// Default: each node gets a host endpoint of all its interfaces.
	Default   bool
	Templates []api.HostEndpointTemplate
}

const enabled, disabled = "Enabled", "Disabled"

// The label of host endpoints that Calico's controllers create, and this one. Others are not changed.
const labelCreatedBy, createdBy = "projectcalico.org/created-by", "calico-kube-controllers"

const (
	hostSuffix = "-auto-hep"
	// maxHostName is the longest name that Kubernetes accepts.
	maxHostName = 253
	// mostInternal bounds a node's InternalIPs: its kubelet may report any number, and every node has them in its sets.
	mostInternal = 32
)

// hostPlan has the objects to write, and the requests that cannot be met.
type hostPlan struct {
	create, update, remove []*api.CalicoHostEndpoint
	problems               []string
}

// planHosts compares the required host endpoints of nodes with the existing ones.
func planHosts(s HostSettings, v *inventory.View, existing []*api.CalicoHostEndpoint) hostPlan {
	p := hostPlanner{want: map[string]*api.CalicoHostEndpoint{}}
	if s.Auto == enabled {
		p.hostOwners = newHostOwners(v, existing)
		p.demand(s, v.Nodes)
	}
	have := make(map[string]*api.CalicoHostEndpoint, len(existing))
	for _, h := range existing {
		have[h.Name] = h
	}
	for _, name := range slices.Sorted(maps.Keys(p.want)) {
		p.compare(have[name], p.want[name])
	}
	for _, name := range slices.Sorted(maps.Keys(have)) {
		h := have[name]
		if p.want[name] == nil && isAutomatic(h) && (s.Auto == disabled || s.Auto == enabled && !p.keeps(h)) {
			p.remove = append(p.remove, h)
		}
	}
	return p.hostPlan
}

func isAutomatic(h *api.CalicoHostEndpoint) bool {
	return names.Labels(&h.Meta)[labelCreatedBy] == createdBy
}

// hostPlanner makes a hostPlan.
type hostPlanner struct {
	hostPlan
	hostOwners
	want map[string]*api.CalicoHostEndpoint
	// unsure: a template cannot be read. Host endpoints that may come from it, for existing nodes, stay.
	unsure bool
}

func (p *hostPlanner) problem(format string, args ...any) {
	p.problems = append(p.problems, fmt.Sprintf(format, args...))
}

func (p *hostPlanner) keeps(h *api.CalicoHostEndpoint) bool { return p.unsure && p.nodes[h.Spec.Node] }

// demand fills want. Of two host endpoints with one name the first counts, so that they do not replace each other.
func (p *hostPlanner) demand(s HostSettings, nodes []inventory.Node) {
	templates := p.templates(s.Templates)
	nodes = slices.SortedFunc(slices.Values(nodes), func(a, b inventory.Node) int { return strings.Compare(a.Name, b.Name) })
	for i := range nodes {
		n := &nodes[i]
		own := p.own(n)
		if s.Default {
			p.add(n, &hostTemplate{}, policy.AllInterfaces, own)
		}
		for j := range templates {
			t := &templates[j]
			if addresses := t.within(own); t.nodes.Matches(n.Labels) && len(addresses) > 0 {
				p.add(n, t, "", addresses)
			}
		}
	}
}

func (p *hostPlanner) add(n *inventory.Node, t *hostTemplate, interfaceName string, addresses []netip.Addr) {
	h := automaticHost(n, &t.HostEndpointTemplate, interfaceName, addresses)
	if other := p.want[h.Name]; other != nil {
		p.problem("HostEndpoint %s is not made of node %s: node %s, or another template, has one of that name: change generateName",
			h.Name, n.Name, other.Spec.Node)
		return
	}
	p.want[h.Name] = h
}

// compare decides on a host endpoint; old is the stored one, or nil.
func (p *hostPlanner) compare(old, want *api.CalicoHostEndpoint) {
	switch {
	case old == nil:
		p.create = append(p.create, want)
	case !isAutomatic(old):
		p.problem("HostEndpoint %s has no label %s=%s, so it is not changed, and node %s gets no other: rename or delete it", old.Name,
			labelCreatedBy, createdBy, want.Spec.Node)
	case !sameHost(old, want):
		next := *want
		next.Meta = old.Meta
		next.Labels, next.Annotations = want.Labels, map[string]string{}
		if stated(&old.Meta) { // other metadata of Calico's stays
			next.Annotations = maps.Clone(old.Annotations)
		}
		names.SetMetadata(&next.Meta, names.Labels(&want.Meta), names.Annotations(&want.Meta))
		p.update = append(p.update, &next)
	}
}

// stated reports whether an object has metadata of Calico's own API version.
func stated(m *api.Meta) bool { return m.Annotations[names.AnnotationMetadata] != "" }

// authored returns the annotations that the author of a host endpoint has given it, in either form.
func authored(m *api.Meta) map[string]string {
	if stated(m) {
		return names.Annotations(m)
	}
	return m.Annotations
}

func sameHost(a, b *api.CalicoHostEndpoint) bool {
	return maps.Equal(names.Labels(&a.Meta), names.Labels(&b.Meta)) && maps.Equal(authored(&a.Meta), authored(&b.Meta)) &&
		a.Spec.Node == b.Spec.Node && a.Spec.InterfaceName == b.Spec.InterfaceName && slices.Equal(a.Spec.ExpectedIPs, b.Spec.ExpectedIPs) &&
		slices.Equal(a.Spec.Profiles, b.Spec.Profiles) && slices.Equal(a.Spec.Ports, b.Spec.Ports)
}

// automaticHost returns the host endpoint of a node by a template, or by the default if that has no name.
func automaticHost(n *inventory.Node, t *api.HostEndpointTemplate, interfaceName string, addresses []netip.Addr) *api.CalicoHostEndpoint {
	labels := maps.Clone(n.Labels)
	if labels == nil {
		labels = map[string]string{}
	}
	maps.DeleteFunc(labels, func(key, _ string) bool { return policy.Belonging(key) })
	maps.Copy(labels, t.Labels)
	labels[labelCreatedBy] = createdBy
	h := &api.CalicoHostEndpoint{
		Meta: api.Meta{Name: hostName(n.Name, t.GenerateName), Labels: map[string]string{labelCreatedBy: createdBy}},
		Spec: api.CalicoHostEndpointSpec{Node: n.Name, InterfaceName: interfaceName, Profiles: []string{policy.ProfileAllows}},
	}
	for _, a := range addresses {
		h.Spec.ExpectedIPs = append(h.Spec.ExpectedIPs, a.String())
	}
	names.SetMetadata(&h.Meta, labels, t.Annotations)
	return h
}

// hostName returns Calico's name; a name that is too long is replaced by its hash.
func hostName(node, template string) string {
	name := node + hostSuffix
	if template != "" {
		name = node + "-" + template + hostSuffix
	}
	if len(name) <= maxHostName {
		return name
	}
	sum := sha256.Sum256([]byte(name))
	text := strings.NewReplacer("-", "", "_", "").Replace(base64.RawURLEncoding.EncodeToString(sum[:]))
	return strings.ToLower(text) + hostSuffix
}

// hostTemplate is a valid template.
type hostTemplate struct {
	api.HostEndpointTemplate
	nodes selector.Selector
	cidrs []netip.Prefix
}

func (t *hostTemplate) within(all []netip.Addr) (found []netip.Addr) {
	for _, a := range all {
		if slices.ContainsFunc(t.cidrs, func(p netip.Prefix) bool { return p.Contains(a) }) {
			found = append(found, a)
		}
	}
	return found
}

func (p *hostPlanner) templates(all []api.HostEndpointTemplate) (valid []hostTemplate) {
	for i := range all {
		t, err := readHostTemplate(&all[i])
		if err != nil {
			p.problem("spec.controllers.node.hostEndpoint.templates[%d]: %v", i, err)
			p.unsure = true
			continue
		}
		valid = append(valid, t)
	}
	return valid
}

// partOfName matches a part inside an object's name.
var partOfName = regexp.MustCompile(`^[a-z0-9]([-a-z0-9.]*[a-z0-9])?$`)

func readHostTemplate(of *api.HostEndpointTemplate) (t hostTemplate, err error) {
	t.HostEndpointTemplate = *of
	switch {
	case !partOfName.MatchString(of.GenerateName):
		return t, fmt.Errorf("generateName %q is no part of a name: use lower-case letters, digits, dots and dashes", of.GenerateName)
	case of.InterfacePattern != "":
		return t, fmt.Errorf("interfacePattern %q is not provided, as nodes do not tell their interfaces: use interfaceCIDRs",
			of.InterfacePattern)
	case len(of.InterfaceCIDRs) == 0:
		return t, fmt.Errorf("interfaceCIDRs is missing: give the ranges of the addresses")
	}
	if t.nodes, err = selector.Parse(of.NodeSelector); err != nil {
		return t, fmt.Errorf("nodeSelector %q: %w", of.NodeSelector, err)
	}
	for _, text := range of.InterfaceCIDRs {
		cidr, err := netip.ParsePrefix(text)
		if err != nil {
			return t, fmt.Errorf("interfaceCIDRs %q is no CIDR such as 10.0.0.0/8", text)
		}
		t.cidrs = append(t.cidrs, cidr.Masked())
	}
	return t, nil
}

// hostOwners knows the owners of nodes' addresses: rules that select the labels of a node trust these addresses, and a
// Node's statements are written on that node.
type hostOwners struct {
	nodes    map[string]bool
	owner    map[netip.Addr]string // of addresses in Nodes
	pools    []api.IPPool
	assigned map[netip.Addr]*inventory.Allocation
}

// newHostOwners finds the owner of each address. If several Nodes state an address, its owner is the Node whose host
// endpoint already has it, else one whose kubelet reports it, else the oldest.
func newHostOwners(v *inventory.View, existing []*api.CalicoHostEndpoint) hostOwners {
	o := hostOwners{nodes: map[string]bool{}, owner: map[netip.Addr]string{}, pools: v.Pools, assigned: map[netip.Addr]*inventory.Allocation{}}
	for i := range v.Blocks {
		for j := range v.Blocks[i].Allocations {
			a := &v.Blocks[i].Allocations[j]
			o.assigned[a.Address] = a
		}
	}
	had := hadBefore(existing)
	first := map[netip.Addr]*inventory.Node{}
	for i := range v.Nodes {
		n := &v.Nodes[i]
		o.nodes[n.Name] = true
		for _, a := range slices.Concat(n.Stated, n.Internal) {
			if first[a] == nil || precedes(n, first[a], a, had[a]) {
				first[a], o.owner[a] = n, n.Name
			}
		}
	}
	return o
}

// precedes reports whether a owns an address that the Nodes a and b both state.
func precedes(a, b *inventory.Node, at netip.Addr, had []string) bool {
	rank := func(n *inventory.Node) (rank int) {
		if slices.Contains(had, n.Name) {
			rank -= 2
		}
		if slices.Contains(n.Internal, at) { // a stolen agent token cannot write it
			rank--
		}
		return rank
	}
	return cmp.Or(rank(a)-rank(b), strings.Compare(a.CreationTimestamp, b.CreationTimestamp), strings.Compare(a.Name, b.Name)) < 0
}

// hadBefore maps addresses to the nodes with automatic host endpoints that have them.
func hadBefore(existing []*api.CalicoHostEndpoint) map[netip.Addr][]string {
	had := map[netip.Addr][]string{}
	for _, h := range existing {
		if !isAutomatic(h) {
			continue
		}
		for _, text := range h.Spec.ExpectedIPs {
			if a, err := netip.ParseAddr(text); err == nil {
				had[a] = append(had[a], h.Spec.Node)
			}
		}
	}
	return had
}

// tunnelTypes are the types of tunnel addresses, in Calico's order.
var tunnelTypes = []string{inventory.TypeIPIP, inventory.TypeVXLAN, inventory.TypeVXLANv6, inventory.TypeWireGuard,
	inventory.TypeWireGuardV6}

// own returns a node's own addresses: first those that its agent states, then its tunnels' addresses, then those that
// only its kubelet reports.
func (p *hostPlanner) own(n *inventory.Node) (all []netip.Addr) {
	refused := ""
	take := func(a netip.Addr, why string) {
		switch {
		case why == "" && !slices.Contains(all, a):
			all = append(all, a)
		case why != "":
			refused = cmp.Or(refused, fmt.Sprintf("%s, which %s", a, why))
		}
	}
	for _, a := range n.Stated {
		take(a, p.foreignHost(n, a))
	}
	for _, kind := range tunnelTypes {
		if a, ok := n.Tunnels[kind]; ok {
			take(a, p.foreignTunnel(n, a))
		}
	}
	for _, a := range n.Internal[:min(len(n.Internal), mostInternal)] {
		take(a, p.foreignHost(n, a))
	}
	if len(n.Internal) > mostInternal {
		refused = fmt.Sprintf("%s, which follows %d others", n.Internal[mostInternal], mostInternal)
	}
	if refused != "" {
		p.problem("the host endpoints of node %s have not all addresses that its Node states: not %s", n.Name, refused)
	}
	return all
}

// foreignHost returns why an address does not belong to a node itself; empty if it does.
func (p *hostPlanner) foreignHost(n *inventory.Node, a netip.Addr) string {
	if why := nodeaddr.Unusable(a); why != "" {
		return "is " + why
	}
	if owner := p.owner[a]; owner != n.Name {
		return "is node " + owner + "'s"
	}
	if of := p.assigned[a]; of != nil {
		return "IPAM has assigned: " + of.String()
	}
	for i := range p.pools {
		if cidr, err := netip.ParsePrefix(p.pools[i].Spec.CIDR); err == nil && !p.pools[i].Spec.Disabled && cidr.Contains(a) {
			return "pods may get from IPPool " + p.pools[i].Name
		}
	}
	return ""
}

// foreignTunnel returns why an address does not belong to a node's tunnel; empty if it does. IPAM decides: the fence
// denies nodes the addresses of other nodes.
func (p *hostPlanner) foreignTunnel(n *inventory.Node, a netip.Addr) string {
	if of := p.assigned[a]; of == nil || of.Class != inventory.Tunnel || of.Node != n.Name || of.Cooling() {
		return "IPAM has not assigned to its tunnel"
	}
	return ""
}
