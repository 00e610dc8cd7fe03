// Package fence is the permission model, as data: what a node's tokens may read and write, and the host access of its
// containers. The chart's roles, policies and pods enforce it; the tests of internal/tests/rights compare it with the
// chart and with an API server, and docs/security.md contains its lists, docs/fence.csv its table. No program imports
// it.
package fence

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/tortie-net/tortie/internal/api"
	"github.com/tortie-net/tortie/internal/api/groups"
	"github.com/tortie-net/tortie/internal/api/names"
)

// The accounts with tokens on each node.
const (
	Agent   = "tortie-node"
	Plugins = "tortie-cni"
)

// In returns the name that a group has for a resource of Calico's first one, such as
// ipamconfigurations.projectcalico.org for ipamconfigs.crd.projectcalico.org. Other resources keep their name.
func In(g groups.Group, resource string) string {
	plural, ofCalico := strings.CutSuffix(resource, "."+api.Group)
	if !ofCalico {
		return resource
	}
	plural, sub, _ := strings.Cut(plural, "/")
	t := g.Type(api.Type{Group: api.Group, Plural: plural})
	return strings.TrimSuffix(t.Plural+"/"+sub, "/") + "." + t.Group
}

// Groups returns the arguments of In for all names of a rule's resource: both groups for a kind of Calico, else one
// argument that changes nothing.
func Groups(resource string) []groups.Group {
	if strings.HasSuffix(resource, "."+api.Group) {
		return groups.All
	}
	return []groups.Group{""}
}

// Whose is the owner of an object, as seen from a node.
type Whose string

// Owners: the node of the token, another node, no node, and the cluster.
const (
	Own     Whose = "own"
	Others  Whose = "another node's"
	Nobodys Whose = "nobody's"
	Cluster Whose = "the cluster's"
)

// Rule allows accounts some verbs on a resource. Requests without a rule are denied.
type Rule struct {
	Accounts []string
	Verbs    []string
	Resource string // e.g. nodes/status or ipamblocks.crd.projectcalico.org, which stands for both groups
	Whose    Whose
	// Namespace limits the RBAC permission to one namespace; empty: no limit.
	Namespace string
	// Fields may be set or changed by a write; all others must keep their values, and be absent from a creation.
	Fields []Field
	// Condition restricts the object as a whole; it is prose for docs/fence.csv.
	Condition string
}

// Field is a field that may be written.
type Field struct {
	Path []string
	// Only is the only group that has this field, or these values of it; empty: both.
	Only groups.Group
	// Condition restricts its values; it is prose for docs/fence.csv.
	Condition string
	// Good are values that a write may set, Bad are examples of others. In texts, {thief} is the node of the token and
	// {victim} another node. A field without good values changes together with others only, as the rule's Condition
	// states.
	Good, Bad []any
}

func at(path string) []string { return strings.Split(path, ".") }

func annotation(key string) []string { return []string{"metadata", "annotations", key} }

func label(key string) []string { return []string{"metadata", "labels", key} }

// long is longer than any text that a node writes.
var long = strings.Repeat("x", 20000)

const day = 24 * 60 * 60

func texts(all ...string) []any {
	out := make([]any, len(all))
	for i, text := range all {
		out[i] = text
	}
	return out
}

var (
	metadata = Field{Path: annotation(names.AnnotationMetadata), Only: groups.V1, Condition: "at most 1,024 characters",
		Good: texts("{}", `{"labels":{}}`), Bad: texts(long)}

	affinityFields = []Field{
		{Path: at("spec.state"), Condition: "pending, confirmed or pendingDeletion", Good: texts("pending", "confirmed", "pendingDeletion"),
			Bad: texts("", "x", long)},
		{Path: at("spec.type"), Condition: "host or empty", Good: texts("", "host"), Bad: texts("virtual", "x")},
		{Path: at("spec.deleted"), Only: groups.V1, Condition: "false or empty", Good: texts("", "false"), Bad: texts("true", "x")},
		{Path: at("spec.deleted"), Only: groups.V3, Condition: "false", Good: []any{false}, Bad: []any{true, "true", "false"}},
		{Path: label(names.LabelHostnameHash), Condition: "52 characters of base32", Good: texts(names.HostnameHash("x")), Bad: texts("x", "")},
		{Path: label(names.LabelAffinityType), Condition: "host", Good: texts("host"), Bad: texts("virtual", "x", "")},
		{Path: label(names.LabelIPVersion), Condition: "of the range", Good: texts("4"), Bad: texts("6", "x", "")},
		metadata,
	}

	// blockFields change together; TestBlocks tests them.
	blockFields = []Field{
		{Path: at("spec.allocations"), Condition: "each address is free or held, and those of other nodes stay theirs"},
		{Path: at("spec.unallocated"), Condition: "the free addresses as before, then what was freed"},
		{
			Path: at("spec.attributes"), Condition: "those of other nodes' addresses stay; at most one for each address, of 16 short texts",
			Bad: []any{[]any{}, []any{map[string]any{"handle_id": long}}},
		},
		{Path: at("spec.sequenceNumber"), Condition: "one more", Bad: []any{int64(0), int64(7), int64(1<<63 - 1)}},
		{Path: at("spec.sequenceNumberForAllocation"), Condition: "of addresses that this write assigns",
			Bad: []any{map[string]any{}, map[string]any{"x": int64(1)}}},
	}
	newBlockFields = append(slices.DeleteFunc(slices.Clone(ownBlockFields), func(f Field) bool { return f.name() == "sequenceNumber" }),
		Field{Path: at("spec.sequenceNumber"), Condition: "less than 2^62", Good: []any{int64(0), int64(1 << 61)},
			Bad: []any{int64(-1), int64(1 << 62), int64(1<<63 - 1)}})
	ownBlockFields = append([]Field{
		{Path: at("spec.affinity"), Condition: "host:NODE of the own node, or none", Bad: texts("host:{victim}", "virtual:load-balancer", "x")},
		{Path: at("spec.affinityClaimTime"), Good: texts("2026-02-02T03:04:05Z"), Bad: texts("x")},
		metadata,
	}, blockFields...)

	handleFields = []Field{
		{Path: at("spec.block"), Condition: "at most 64 CIDRs, each with 0 to 4,096 addresses",
			Good: []any{map[string]any{}, map[string]any{"10.99.0.0/28": int64(2)}}, Bad: []any{
				map[string]any{"x": int64(1)}, map[string]any{"10.99.0.0/28": int64(-1)}, map[string]any{"10.99.0.0/28": int64(4097)}, many(65),
			}},
		{Path: annotation(names.AnnotationNode), Condition: "the own node", Good: texts("{thief}"), Bad: texts("{victim}", long)},
		metadata,
	}

	address4 = texts("x", "", "192.0.2.1", "2001:db8::1/64", "127.0.0.1/8", "0.0.0.0/0", "224.0.0.1/4", "192.0.2.1/33", " 192.0.2.1/24",
		"::ffff:192.0.2.1/120", long)
	tunnel4 = texts("x", "", "10.99.0.1/32", "fd00::1", "127.0.0.1", "0.0.0.0", "224.0.0.1", long)
	tunnel6 = texts("x", "", "10.99.0.1", "fd00::1/128", "::1", "ff02::1", long)
	keys    = texts("AQAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAI=")
	notKeys = texts("x", "", "AQAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAJ=", "AQAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAIA",
		"\nAQAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAI=", long)

	nodeFields = []Field{
		{Path: annotation(api.AnnotationIPv4Address), Condition: "an IPv4 address with the length of its network",
			Good: texts("192.0.2.1/24", "10.0.0.9/32"), Bad: address4},
		{Path: annotation(api.AnnotationIPv6Address), Condition: "an IPv6 address with the length of its network",
			Good: texts("2001:db8::1/64", "fe80::1/64"), Bad: texts("x", "", "2001:db8::1", "192.0.2.1/24", "::1/128", "ff02::1/64", long)},
		{Path: annotation(api.AnnotationASNumber), Condition: "a number", Good: texts("64512", "4294967295"),
			Bad: texts("", "x", "-1", "1.2", long)},
		{Path: annotation(api.AnnotationIPv4TunnelAddr), Condition: "an IPv4 address", Good: texts("10.99.0.1"), Bad: tunnel4},
		{Path: annotation(api.AnnotationIPv4VXLANAddr), Condition: "an IPv4 address", Good: texts("10.99.0.1"), Bad: tunnel4},
		{Path: annotation(api.AnnotationIPv6VXLANAddr), Condition: "an IPv6 address", Good: texts("fd00::1"), Bad: tunnel6},
		{Path: annotation(api.AnnotationIPv4WireGuard), Condition: "an IPv4 address", Good: texts("10.99.0.1"), Bad: tunnel4},
		{Path: annotation(api.AnnotationIPv6WireGuard), Condition: "an IPv6 address", Good: texts("fd00::1"), Bad: tunnel6},
		{Path: annotation(api.AnnotationWireGuardKey), Condition: "a key of 32 bytes in base64", Good: keys, Bad: notKeys},
		{Path: annotation(api.AnnotationWireGuardKeyV6), Condition: "a key of 32 bytes in base64", Good: keys, Bad: notKeys},
		{Path: annotation(api.AnnotationWireGuardNextKey), Condition: "a key of 32 bytes in base64", Good: keys, Bad: notKeys},
		{Path: annotation(api.AnnotationWireGuardNextKeyV6), Condition: "a key of 32 bytes in base64", Good: keys, Bad: notKeys},
		{Path: annotation(api.AnnotationReflection), Condition: "client, reflector or retiring", Good: texts("client", "reflector", "retiring"),
			Bad: texts("", "x", long)},
		{Path: at("status.conditions"),
			Condition: "NetworkUnavailable alone, once: CalicoIsUp or CalicoIsDown, with at most 512 characters", Good: []any{
				condition("NetworkUnavailable", "False", "CalicoIsUp", "up"), condition("NetworkUnavailable", "True", "CalicoIsDown", "down"),
			}, Bad: []any{
				condition("Ready", "False", "CalicoIsUp", "up"), condition("NetworkUnavailable", "Unknown", "CalicoIsUp", "up"),
				condition("NetworkUnavailable", "False", "x", "up"),
				condition("NetworkUnavailable", "False", "CalicoIsUp", long), condition("networkUnavailable", "False", "CalicoIsUp", "up"),
				condition("Other", "True", "CalicoIsUp", "up"),
			}},
	}

	podFields = []Field{
		{Path: annotation(api.AnnotationPodIP), Condition: "CIDRs", Good: texts("", "10.99.0.1/32"), Bad: texts("x", "10.99.0.1", long)},
		{Path: annotation(api.AnnotationPodIPs), Condition: "CIDRs", Good: texts("", "10.99.0.1/32", "10.99.0.1/32,fd00::1/128"),
			Bad: texts("x", "10.99.0.1/32,x", long)},
		{Path: annotation(api.AnnotationContainerID), Condition: "at most 253 letters, digits, dots and dashes", Good: texts("", "3f1d9c8a"),
			Bad: texts("a/b", "a b", long)},
	}

	eventFields = []Field{
		{Path: at("involvedObject"),
			Condition: "a Node or an object of Calico's groups: its apiVersion, kind, name and uid, of at most 253 characters each",
			Good: []any{
				node("{victim}"), map[string]any{"apiVersion": "crd.projectcalico.org/v1", "kind": "IPPool", "name": "x", "uid": "1"},
				map[string]any{"apiVersion": "projectcalico.org/v3", "kind": "IPPool", "name": "x", "uid": "1"},
			}, Bad: []any{
				map[string]any{"apiVersion": "projectcalico.org/v1", "kind": "IPPool", "name": "x", "uid": "1"},
				map[string]any{"apiVersion": "v1", "kind": "Secret", "name": "x"},
				map[string]any{"apiVersion": "apps/v1", "kind": "DaemonSet", "name": "x"}, node(long),
				map[string]any{"apiVersion": "v1", "kind": "Node", "name": "x", "fieldPath": "x"},
				map[string]any{"apiVersion": "v1", "kind": "Node", "name": "x", "uid": long},
			}},
		{Path: at("type"), Condition: "Warning or Normal", Good: texts("Warning", "Normal"), Bad: texts("x", long)},
		{Path: at("reason"), Condition: "at most 128 characters", Good: texts("BGPPortTaken"), Bad: texts(long)},
		{Path: at("message"), Condition: "at most 1,024 characters", Good: texts("x"), Bad: texts(long)},
		{Path: at("reportingComponent"), Condition: "tortie-node or tortie-install", Good: texts("tortie-node"), Bad: texts("x", long)},
		{Path: at("reportingInstance"), Condition: "the own node", Good: texts("{thief}"), Bad: texts("{victim}", long)},
		{Path: at("count"), Good: []any{int64(7)}},
		{Path: at("firstTimestamp"), Good: texts("2026-01-02T03:04:05Z")},
		{Path: at("lastTimestamp"), Good: texts("2026-01-02T03:04:05Z")},
	}

	informationFields = []Field{
		{Path: at("spec.clusterType"), Condition: "what was there, and more; a list of at most 256 characters",
			Good: texts("k8s,bgp,kdd", "typha,k8s,bgp"), Bad: texts("", "kdd", "k8s", "k8s,bgp,<x>", "k8s,bgp,"+long)},
		metadata,
	}
)

// condition returns a strategic merge patch of a Node's conditions.
func condition(kind, status, reason, message string) []any {
	return []any{map[string]any{"type": kind, "status": status, "reason": reason, "message": message}}
}

// many returns n blocks.
func many(n int) map[string]any {
	all := map[string]any{}
	for i := range n {
		all[fmt.Sprintf("10.98.%d.0/28", i)] = int64(1)
	}
	return all
}

var both = []string{Agent, Plugins}

// release is the release's namespace in tests and docs.
const release = "kube-system"

// Rules are all permissions to write of the two accounts.
var Rules = []Rule{
	{Accounts: both, Verbs: verbs("create"), Resource: "blockaffinities.crd.projectcalico.org", Whose: Own, Fields: affinityFields,
		Condition: "named after the node and its range, which has the size that its pool says: IPv4 /20 to /32, IPv6 /116 to /128"},
	{Accounts: both, Verbs: verbs("update"), Resource: "blockaffinities.crd.projectcalico.org", Whose: Own, Fields: affinityFields},
	{Accounts: both, Verbs: verbs("delete"), Resource: "blockaffinities.crd.projectcalico.org", Whose: Own},
	{Accounts: both, Verbs: verbs("create"), Resource: "ipamblocks.crd.projectcalico.org", Whose: Own, Fields: newBlockFields,
		Condition: "named after its range, of the size that its pool says, whole, and without addresses of other nodes"},
	{Accounts: both, Verbs: verbs("update"), Resource: "ipamblocks.crd.projectcalico.org", Whose: Own, Fields: ownBlockFields,
		Condition: "addresses that other nodes hold stay theirs, and the block whole and in order"},
	{Accounts: both, Verbs: verbs("delete"), Resource: "ipamblocks.crd.projectcalico.org", Whose: Own,
		Condition: "if no other node holds an address in it"},
	{Accounts: both, Verbs: verbs("update"), Resource: "ipamblocks.crd.projectcalico.org", Whose: Nobodys, Fields: blockFields,
		Condition: "as the own one, which it may become"},
	{Accounts: both, Verbs: verbs("delete"), Resource: "ipamblocks.crd.projectcalico.org", Whose: Nobodys,
		Condition: "if no other node holds an address in it"},
	{Accounts: both, Verbs: verbs("update"), Resource: "ipamblocks.crd.projectcalico.org", Whose: Others, Fields: blockFields,
		Condition: "addresses that the node holds or takes: free ones, and those that have cooled down"},
	{Accounts: both, Verbs: verbs("create"), Resource: "ipamhandles.crd.projectcalico.org", Whose: Own, Fields: handleFields,
		Condition: "named as its ID in lower case; the name of a tunnel's is of the node whose tunnel it is, and its ID has no capitals"},
	{Accounts: both, Verbs: verbs("update"), Resource: "ipamhandles.crd.projectcalico.org", Whose: Own, Fields: handleFields},
	{Accounts: both, Verbs: verbs("delete"), Resource: "ipamhandles.crd.projectcalico.org", Whose: Own},
	{Accounts: both, Verbs: verbs("create", "update"), Resource: "ipamhandles.crd.projectcalico.org", Whose: Nobodys, Fields: handleFields,
		Condition: "as Calico writes them, without the annotation"},
	{Accounts: both, Verbs: verbs("delete"), Resource: "ipamhandles.crd.projectcalico.org", Whose: Nobodys,
		Condition: "as Calico writes them, without the annotation"},
	{Accounts: []string{Agent}, Verbs: verbs("patch"), Resource: "nodes/status", Whose: Own, Fields: nodeFields},
	{Accounts: both, Verbs: verbs("patch"), Resource: "pods/status", Whose: Own, Fields: podFields, Condition: "pods on its node"},
	{Accounts: []string{Agent}, Verbs: verbs("create"), Resource: "ipamconfigs.crd.projectcalico.org", Whose: Cluster,
		Fields: []Field{metadata}, Condition: "default, with Calico's defaults"},
	{Accounts: []string{Agent}, Verbs: verbs("create"), Resource: "felixconfigurations.crd.projectcalico.org", Whose: Cluster,
		Fields: []Field{metadata}, Condition: "default, with Calico's defaults"},
	{Accounts: []string{Agent}, Verbs: verbs("create"), Resource: "clusterinformations.crd.projectcalico.org", Whose: Cluster,
		Fields:    informationFields,
		Condition: "default, with datastoreReady true and a clusterGUID of 32 hexadecimal digits, while the other group has none"},
	{Accounts: []string{Agent}, Verbs: verbs("update"), Resource: "clusterinformations.crd.projectcalico.org", Whose: Cluster,
		Fields:    informationFields,
		Condition: "with the value migrateFromHostLocal also the lock of the own node"},
	{Accounts: []string{Agent}, Verbs: verbs("patch"), Resource: "caliconodestatuses.crd.projectcalico.org", Whose: Own,
		Fields:    []Field{{Path: at("status"), Good: []any{map[string]any{"lastUpdated": "2026-01-02T03:04:05Z"}}}},
		Condition: "questions to its node"},
	{Accounts: []string{Agent}, Verbs: verbs("patch"), Resource: "caliconodestatuses/status.crd.projectcalico.org", Whose: Own,
		Fields:    []Field{{Path: at("status"), Good: []any{map[string]any{"lastUpdated": "2026-01-02T03:04:05Z"}}}},
		Condition: "the same, where the status is a subresource"},
	{Accounts: []string{Agent}, Verbs: verbs("create"), Resource: "events", Whose: Own, Namespace: "default", Fields: eventFields,
		Condition: "in namespace default; source.host is the node, source.component is tortie-node or tortie-install"},
	{Accounts: []string{Agent}, Verbs: verbs("patch"), Resource: "events", Whose: Own, Namespace: "default", Fields: []Field{
		{Path: at("count"), Good: []any{int64(2)}},
		{Path: at("lastTimestamp"), Good: texts("2026-01-02T03:04:05Z")},
	}},
	{Accounts: []string{Agent}, Verbs: verbs("create"), Resource: "serviceaccounts/token", Whose: Own, Namespace: release, Fields: []Field{
		{Path: at("spec.boundObjectRef"), Condition: "the own Node", Good: []any{node("{thief}")},
			Bad: []any{nil, node("{victim}"), map[string]any{"apiVersion": "v1", "kind": "Pod", "name": "{thief}"}}},
		{Path: at("spec.expirationSeconds"), Condition: "at most a day", Good: []any{int64(600), int64(3607), int64(day)},
			Bad: []any{int64(day + 1), int64(10 * 365 * day)}},
		{Path: at("spec.audiences"), Condition: "any: admission does not see which are the API server's own"},
	}, Condition: "of the ServiceAccount tortie-cni"},
}

func verbs(all ...string) []string { return all }

func node(name string) map[string]any {
	return map[string]any{"apiVersion": "v1", "kind": "Node", "name": name}
}

// Granted returns the permissions in a namespace that the rules need from RBAC, as "ACCOUNT VERB RESOURCE".
func Granted(namespace string) map[string]bool {
	all := map[string]bool{}
	for _, r := range Rules {
		if r.Namespace != "" && r.Namespace != namespace {
			continue
		}
		for _, account := range r.Accounts {
			for _, verb := range r.Verbs {
				for _, group := range Groups(r.Resource) {
					all[account+" "+verb+" "+In(group, r.Resource)] = true
				}
			}
		}
	}
	return all
}

// Find returns the rule that allows a request, or nil. The resource has the name of either group; the rule has the
// fields of that group.
func Find(account, verb, resource string, whose Whose) *Rule {
	for _, r := range Rules {
		for _, group := range Groups(r.Resource) {
			if In(group, r.Resource) == resource && r.Whose == whose && slices.Contains(r.Accounts, account) && slices.Contains(r.Verbs, verb) {
				r.Fields = slices.DeleteFunc(slices.Clone(r.Fields), func(f Field) bool { return f.Only != "" && f.Only != group })
				return &r
			}
		}
	}
	return nil
}

// plurals returns the name of a resource without its group, and where the groups have different names, both.
func plurals(resource string) string {
	var all []string
	for _, g := range Groups(resource) {
		name, _, _ := strings.Cut(In(g, resource), ".")
		all = append(all, name)
	}
	return strings.Join(slices.Compact(all), " or ")
}

// Rows returns the rules as a table with a head.
func Rows() [][]string {
	rows := [][]string{{"Object", "Whose", "Verbs", "By", "Condition", "Fields"}}
	for _, r := range Rules {
		rows = append(rows, []string{plurals(r.Resource), string(r.Whose), strings.Join(r.Verbs, ", "), by(r.Accounts), r.Condition, r.fields()})
	}
	return rows
}

func by(accounts []string) string {
	who := map[string]string{Agent: "agent", Plugins: "plugins"}
	out := make([]string, len(accounts))
	for i, a := range accounts {
		out[i] = who[a]
	}
	return strings.Join(out, " and ")
}

func (r *Rule) fields() string {
	var all []string
	for _, f := range r.Fields {
		text := f.name()
		if f.Only != "" {
			text += " in " + string(f.Only)
		}
		if f.Condition != "" {
			text += " (" + f.Condition + ")"
		}
		all = append(all, text)
	}
	return cmp.Or(strings.Join(all, ", "), "any of it")
}

func (f *Field) name() string {
	switch {
	case f.Path[0] == "metadata" && len(f.Path) == 3:
		return f.Path[2]
	case f.Path[0] == "spec" && len(f.Path) > 1:
		return strings.Join(f.Path[1:], ".")
	}
	return strings.Join(f.Path, ".")
}
