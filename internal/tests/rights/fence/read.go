package fence

import (
	"strings"

	"github.com/tortie-net/tortie/internal/api"
)

// Read allows an account to read a resource. Reads without an entry are denied.
type Read struct {
	Account   string
	Verbs     []string
	Resources []string // Calico's by their names in the first group, for both
	// Namespace and Name limit the permission to one namespace and one object; empty: no limit.
	Namespace, Name string
	// Value is the chart's value that grants the permission; empty: always granted.
	Value string
	// What describes the information; it is prose for docs/reads.csv.
	What string
}

// Reads are all permissions to read of the two accounts.
var Reads = []Read{
	{Account: Agent, Verbs: verbs("get", "list", "watch"), Resources: of("", "nodes"), What: "all Nodes, whole"},
	{Account: Agent, Verbs: verbs("list", "watch"), Resources: of("", "namespaces"), What: "their labels and annotations choose pools"},
	{Account: Agent, Verbs: verbs("list", "watch"), Resources: of(api.Group, "ippools", "ipreservations", "bgpconfigurations", "bgppeers",
		"bgpfilters", "felixconfigurations"), What: "settings"},
	{Account: Agent, Verbs: verbs("get", "list", "watch"),
		Resources: of(api.Group, "blockaffinities", "ipamconfigs", "clusterinformations", "caliconodestatuses"),
		What:      "owners of blocks; settings"},
	{Account: Agent, Verbs: verbs("get", "list"), Resources: of(api.Group, "ipamblocks"),
		What: "holders of addresses: all pods' names and nodes"},
	{Account: Agent, Verbs: verbs("get"), Resources: of(api.Group, "ipamhandles"), What: "holders of addresses"},
	{Account: Agent, Verbs: verbs("list", "watch"), Resources: []string{"services", "endpointslices.discovery.k8s.io"},
		Value: "bgp.advertiseServices",
		What:  "while BGPConfiguration announces their addresses"},
	{Account: Agent, Verbs: verbs("get"), Resources: of("", "configmaps"), Namespace: "kube-system", Name: "kubeadm-config",
		What: "whether kubeadm has made the cluster"},
	{Account: Agent, Verbs: verbs("list", "watch"), Resources: of("", "secrets"), Namespace: release, Name: "Secrets of the value",
		Value: "bgp.passwordSecrets", What: "passwords of BGP"},
	{Account: Agent, Verbs: verbs("list", "watch"), Resources: of("", "pods"), Value: "policy.enabled",
		What: "labels and addresses for policies: all pods, whole"},
	{Account: Agent, Verbs: verbs("list", "watch"),
		Resources: []string{"networkpolicies.networking.k8s.io", "clusternetworkpolicies.policy.networking.k8s.io"}, Value: "policy.enabled",
		What: "the policies to enforce: which connections are open"},
	{Account: Agent, Verbs: verbs("list", "watch"),
		Resources: of(api.Group, "networkpolicies", "globalnetworkpolicies", "tiers", "networksets", "globalnetworksets", "hostendpoints"),
		Value:     "policy.enabled", What: "the same in Calico's kinds"},
	{Account: Agent, Verbs: verbs("list", "watch"), Resources: []string{"serviceaccounts", "endpointslices.discovery.k8s.io"},
		Value: "policy.enabled",
		What:  "read while one of Calico's policies names any"},
	{Account: Agent, Verbs: verbs("list", "watch"),
		Resources: of(api.Group, "stagednetworkpolicies", "stagedglobalnetworkpolicies", "stagedkubernetesnetworkpolicies"),
		Value:     "policy.flows.enabled", What: "staged policies, for flow records"},
	{Account: Agent, Verbs: verbs("list"), Resources: of("", "pods"), Value: "migrateFromHostLocal",
		What: "owners of addresses of host-local: all pods, whole"},
	{Account: Plugins, Verbs: verbs("get"), Resources: of("", "pods", "namespaces", "nodes"),
		What: "any pod by its name, whole; annotations of pod and namespace choose its address"},
	{Account: Plugins, Verbs: verbs("get", "list"),
		Resources: of(api.Group, "blockaffinities", "ipamblocks", "ipamhandles"), What: "as the agent"},
	{Account: Plugins, Verbs: verbs("list"), Resources: of(api.Group, "ippools", "ipreservations"), What: "settings"},
	{Account: Plugins, Verbs: verbs("get"), Resources: of(api.Group, "ipamconfigs", "clusterinformations"), What: "settings"},
}

// of returns resource names with their group.
func of(group string, names ...string) []string {
	all := make([]string, len(names))
	for i, name := range names {
		all[i] = strings.TrimSuffix(name+"."+group, ".")
	}
	return all
}

// Readable returns the permissions to read in a namespace, for the values that are on, as "ACCOUNT VERB RESOURCE".
func Readable(namespace string, on func(value string) bool) map[string]bool {
	all := map[string]bool{}
	for _, r := range Reads {
		if r.Namespace != "" && r.Namespace != namespace || r.Value != "" && !on(r.Value) {
			continue
		}
		for _, verb := range r.Verbs {
			for _, resource := range r.Resources {
				for _, group := range Groups(resource) {
					all[r.Account+" "+verb+" "+In(group, resource)] = true
				}
			}
		}
	}
	return all
}

// ReadRows returns Reads as rows of a table.
func ReadRows() [][]string {
	rows := [][]string{{"Account", "Verbs", "Resources", "Only", "With the value", "Use"}}
	for _, r := range Reads {
		names := make([]string, len(r.Resources))
		for i, name := range r.Resources {
			names[i] = plurals(name)
		}
		rows = append(rows, []string{by([]string{r.Account}), strings.Join(r.Verbs, ", "), strings.Join(names, ", "), r.Name, r.Value, r.What})
	}
	return rows
}
