package main

import (
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"

	"github.com/tortie-net/tortie/internal/api"
)

// support is Tortie's treatment of a field: supported, ignored or refused; and a remark.
type support struct{ does, why string }

func does(why string) support    { return support{"supported", why} }
func ignores(why string) support { return support{"ignored", why} }
func refuses(why string) support { return support{"refused", why} }

// policyFieldsPath is the list of the fields of Calico's policy kinds, and of the FelixConfiguration fields that matter
// to policies.
const policyFieldsPath = "docs/calico-policy.csv"

// policyTypes are the types of Calico's policy kinds in the order of the list; each type with its own fields must be in
// supported.
var policyTypes = []reflect.Type{
	reflect.TypeFor[api.CalicoNetworkPolicySpec](), reflect.TypeFor[api.CalicoGlobalNetworkPolicySpec](),
	reflect.TypeFor[api.CalicoTierSpec](),
	reflect.TypeFor[api.CalicoNetworkSetSpec](), reflect.TypeFor[api.CalicoGlobalNetworkSetSpec](),
	reflect.TypeFor[api.CalicoHostEndpointSpec](),
	reflect.TypeFor[api.CalicoStagedNetworkPolicySpec](), reflect.TypeFor[api.CalicoStagedGlobalNetworkPolicySpec](),
	reflect.TypeFor[api.CalicoStagedKubernetesNetworkPolicySpec](),
}

const (
	staged = "Set, Delete, Learn or Ignore; Learn and Ignore are not evaluated. The other fields are those of the kind that is staged; " +
		"without flow records (docs/policy.md) none counts"
)

// supported has all fields by type: its name in the list, and each field.
var supported = map[string]struct {
	title  string
	fields map[string]support
}{
	"CalicoPolicySpec": {"NetworkPolicy, GlobalNetworkPolicy", map[string]support{
		"tier": does(
			"absent: default; policies of a Tier that does not exist come after all others, and deny what they do not allow"),
		"order":                  does("absent: last; equal ones by the name that calicoctl shows, then namespace and kind"),
		"selector":               does(""),
		"serviceAccountSelector": does(""),
		"types":                  does("absent: both directions, and an Event says so; in projectcalico.org/v3 by the rules, on Kubernetes 1.36"),
		"ingress":                does(""),
		"egress":                 does(""),
		"performanceHints":       ignores("a hint to Felix"),
	}},
	"CalicoGlobalNetworkPolicySpec": {"GlobalNetworkPolicy", map[string]support{
		"namespaceSelector": does("also applies to host endpoints, whose namespace labels are those of their profiles: all(), also in " +
			"selector, excludes them. global(): only host endpoints (Felix: everything)"),
		"doNotTrack": does("the policy applies to host endpoints of an interface only, not to *; with preDNAT for nothing. Event " +
			"PolicySelectsNoHost: it selects none"),
		"preDNAT": does(
			"the policy applies to host endpoints only; its egress rules for nothing. Event PolicySelectsNoHost: it selects none"),
		"applyOnForward": does(
			"for host endpoints; pods have the policy with and without it. Event PolicySelectsNoHost: it selects pods alone"),
	}},
	"CalicoRule": {"ingress[], egress[]", map[string]support{
		"action":      does("any other value: Deny"),
		"ipVersion":   does(""),
		"protocol":    does(""),
		"notProtocol": does(""),
		"icmp":        does(""),
		"notICMP":     does(""),
		"source":      does("of egress: the pod itself, or the host endpoint's end"),
		"destination": does("of ingress: likewise"),
		"http":        refuses("an Allow with it matches nothing; Felix alone would allow all that its other fields match"),
		"metadata":    ignores("informational"),
	}},
	"CalicoICMP": {"icmp, notICMP", map[string]support{"type": does(""), "code": does("")}},
	"CalicoEntityRule": {"source, destination", map[string]support{
		"nets":    does(""),
		"notNets": does("if all are of one family, the rule is of that family alone"),
		"selector": does("pods, network sets, host endpoints. Labels by which Calico tells what an object belongs to, `pcns.*`, " +
			"`pcsa.*`, `projectcalico.org/` `namespace`, `orchestrator`, `serviceaccount`, `name`, do not count where a user has written them"),
		"notSelector": does("alone in a GlobalNetworkPolicy: also matches addresses of no known object"),
		"namespaceSelector": does("all(): objects in a namespace; global(): objects in none, which have no namespace labels but by " +
			"HostEndpoints' profiles, so that env != 'prod' selects them"),
		"serviceAccounts": does(""),
		"services":        does("endpoints that are not ready count, as to Felix"),
		"ports":           does("numbers need a protocol; a name without one means TCP"),
		"notPorts":        does("likewise"),
	}},
	"CalicoServiceAccounts": {"serviceAccounts",
		map[string]support{"names": does("without names no condition; one that no service account can have closes the rule: Allow matches " +
			"nothing, Deny all that the other conditions match"), "selector": does("only pods have labels of a service account")}},
	"CalicoServiceMatch": {"services", map[string]support{"name": does(""), "namespace": does("")}},
	"CalicoHTTP":         {"http", map[string]support{"methods": refuses("see http"), "paths": refuses("see http")}},
	"CalicoHTTPPath":     {"paths[]", map[string]support{"exact": refuses("see http"), "prefix": refuses("see http")}},
	"CalicoRuleMetadata": {"metadata", map[string]support{"annotations": ignores("informational")}},
	"CalicoTierSpec": {"Tier", map[string]support{
		"order":         does("absent: last; fixed for the tiers of Kubernetes' kinds"),
		"defaultAction": does("absent: Deny; fixed likewise"),
	}},
	"CalicoNetworkSetSpec": {"NetworkSet",
		map[string]support{"nets": does("unreadable entries are left out. 10,000 entries of a namespace count, in the order of the sets' " +
			"names, for GlobalNetworkPolicies and policies of other namespaces; the rest, named by Event InvalidPolicy, count there only to deny " +
			"(in Deny's selectors, in Allow's and Pass's notSelector), as at most 10,000 ranges with addresses between them")}},
	"CalicoGlobalNetworkSetSpec": {"GlobalNetworkSet", map[string]support{"nets": does("unreadable entries are left out")}},
	"CalicoHostEndpointSpec": {"HostEndpoint", map[string]support{
		"node": does(""),
		"interfaceName": does("*: all interfaces without their own HostEndpoint except loopback; of pods' links what is forwarded and preDNAT " +
			"(docs/calico-policy.md)"),
		"expectedIPs": does("without interfaceName: the interface that has one of them"),
		"profiles": does(
			"projectcalico-default-allow, and kns.NAMESPACE of an existing namespace, allow connections that no policy decides; any other first " +
				"profile denies them, as no profile does, and is reported. Labels of the namespace, or of ksa.NAMESPACE.NAME's service account, are " +
				"inherited, as by pods; while there is no such namespace what selects by them denies, and allows nothing"),
		"ports": does("in Calico's policies"),
	}},
	"CalicoEndpointPort": {"ports[] of HostEndpoint",
		map[string]support{"name": does(""), "protocol": does(""), "port": does("")}},
	"CalicoStagedNetworkPolicySpec":           {"StagedNetworkPolicy", map[string]support{"stagedAction": does(staged)}},
	"CalicoStagedGlobalNetworkPolicySpec":     {"StagedGlobalNetworkPolicy", map[string]support{"stagedAction": does(staged)}},
	"CalicoStagedKubernetesNetworkPolicySpec": {"StagedKubernetesNetworkPolicy", map[string]support{"stagedAction": does(staged)}},
}

// felixFields are the FelixConfiguration fields that matter to policies, in the order of the list. The ignored ones are
// not fields of api.FelixConfigurationSpec.
var felixFields = []struct {
	field string
	support
}{
	{"failsafeInboundHostPorts", does("see host endpoints in docs/calico-policy.md")},
	{"failsafeOutboundHostPorts", does("likewise")},
	{"defaultEndpointToHostAction", does("likewise")},
	{"nftablesFilterDenyAction",
		does("Reject: the sender of a denied packet gets an ICMP error (port unreachable), except at preDNAT and doNotTrack policies and for " +
			"translated packets of the node's programs; packets that are dropped for another reason than a policy get no answer")},
	{"iptablesFilterDenyAction", does("counts if nftablesFilterDenyAction is absent")},
	{"disableConntrackInvalidCheck", does("true: policies judge packets that belong to no known connection, as with asymmetric routes. " +
		"Established connections that a change forbids may then go on")},
	{"logPrefix", does("prefix in the agent's log of packets that Log rules match; %t, %k, %n, %p as in Felix")},
	{"logActionRateLimit", does("per Log rule; an agent logs at most 100 lines per second. Absent: a sample (docs/policy.md)")},
	{"logActionRateLimitBurst", does("absent: 5")},
	{"workloadSourceSpoofing", does("see docs/node.md")},
	{"allowVXLANPacketsFromWorkloads", does("likewise")},
	{"allowIPIPPacketsFromWorkloads", does("likewise")},
	{"floatingIPs", does("see docs/cni.md")},
	{"nftablesFilterAllowAction", ignores("Accept and Return are the same: packets accepted here are still judged by other programs' tables")},
	{"iptablesFilterAllowAction", ignores("likewise")},
	{"nftablesMangleAllowAction", ignores("likewise")},
	{"iptablesMangleAllowAction", ignores("likewise")},
	{"interfacePrefix", ignores("pods' links are those whose names begin with cali, as the plugin names them")},
	{"interfaceExclude", ignores("name interfaces in HostEndpoints' interfaceName; no packet arrives on kube-ipvs0")},
	{"serviceLoopPrevention", ignores("concerns routes of Service ranges, not policies")},
	{"endpointStatusPathPrefix", ignores("the plugin asks the kernel whether a pod's policies are in force")},
	{"nftablesMarkMask", ignores("no marks are used")},
	{"iptablesMarkMask", ignores("likewise")},
	{"chainInsertMode", ignores("the rules are in a table of their own")},
	{"externalNodesList", ignores("IPIP and VXLAN from nodes of other clusters need a rule at host endpoints")},
	{"policySyncPathPrefix", ignores("see http")},
	{"nftablesRefreshInterval", ignores("foreign changes are undone on an event, and rules are compared every three minutes")},
	{"nftablesMode", ignores("it is always nftables")},
	{"nftablesFlowTableOffload", ignores("TORTIE_FLOWTABLE decides (docs/node.md)")},
	{"maxIpsetSize", ignores("sets grow as needed")},
	{"flowLogsFlushInterval", ignores("flow records have their own settings (docs/policy.md); so for every flowLogs field")},
	{"bpfEnabled", ignores("there is no eBPF; so for every bpf field, and xdpEnabled")},
	{"prometheusMetricsPort", ignores("see docs/metrics.md")},
}

// felixRows returns the list's rows of felixFields. A supported field must be in the Go type, an ignored one must not.
func felixRows() (rows [][]string, err error) {
	exists := map[string]bool{}
	for f := range reflect.TypeFor[api.FelixConfigurationSpec]().Fields() {
		field, _, _ := strings.Cut(f.Tag.Get("json"), ",")
		exists[field] = true
	}
	for _, f := range felixFields {
		if read := f.does == does("").does; read != exists[f.field] {
			return nil, fmt.Errorf("hack/generate/support.go: FelixConfiguration's %s is said to be %s, and api.FelixConfigurationSpec has it: %t",
				f.field, f.does, exists[f.field])
		}
		rows = append(rows, []string{"FelixConfiguration", f.field, f.does, f.why})
	}
	return rows, nil
}

// policyFields lists all fields of Calico's policy kinds. A field that is missing in supported is an error, and so is a
// field of supported that no longer exists.
func policyFields() ([][]string, error) {
	w := &fieldWalk{seen: map[string]bool{}, left: map[string]bool{}, rows: [][]string{{"Of", "Field", "Tortie", "Remark"}}}
	for name, s := range supported {
		for field := range s.fields {
			w.left[name+"."+field] = true
		}
	}
	for _, t := range policyTypes {
		w.walk(t)
	}
	if left := slices.Sorted(maps.Keys(w.left)); len(left) > 0 {
		w.missing = append(w.missing, "these do not exist: "+strings.Join(left, ", "))
	}
	if len(w.missing) > 0 {
		return nil, fmt.Errorf("fields of Calico's policies: say in hack/generate/support.go what becomes of each: %s",
			strings.Join(w.missing, "; "))
	}
	felix, err := felixRows()
	return append(w.rows, felix...), err
}

// fieldWalk goes through types, each once: first its fields, then the fields of its types.
type fieldWalk struct {
	seen    map[string]bool
	left    map[string]bool // fields of supported that have not been found
	missing []string
	rows    [][]string
}

func (w *fieldWalk) walk(t reflect.Type) {
	for t.Kind() == reflect.Pointer || t.Kind() == reflect.Slice {
		t = t.Elem()
	}
	if t.Kind() != reflect.Struct || !strings.HasPrefix(t.Name(), "Calico") || w.seen[t.Name()] {
		return
	}
	w.seen[t.Name()] = true
	var inner []reflect.Type
	for f := range t.Fields() {
		if f.Anonymous {
			w.walk(f.Type)
			continue
		}
		w.row(t, f)
		inner = append(inner, f.Type)
	}
	for _, t := range inner {
		w.walk(t)
	}
}

func (w *fieldWalk) row(of reflect.Type, f reflect.StructField) {
	field, _, _ := strings.Cut(f.Tag.Get("json"), ",")
	if field == "-" {
		return
	}
	s, ok := supported[of.Name()].fields[field]
	if !ok {
		w.missing = append(w.missing, of.Name()+"."+field)
		return
	}
	delete(w.left, of.Name()+"."+field)
	w.rows = append(w.rows, []string{supported[of.Name()].title, field, s.does, s.why})
}
