package policy

import (
	"encoding/json"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/tortie-net/tortie/internal/api"
	"github.com/tortie-net/tortie/internal/policy"
	"github.com/tortie-net/tortie/internal/testkit/netnstest"
	"github.com/tortie-net/tortie/internal/testkit/policytest"
)

// history is a cluster that changes step by step.
type history struct {
	policytest.Generator
	*policytest.Cluster
}

// newHistory begins with a cluster that has Calico's policies if the seed is odd.
func newHistory(seed uint64) history {
	h := history{Generator: policytest.NewGenerator(seed)}
	if h.Cluster = h.Generator.Cluster(); seed%2 == 1 {
		h.Cluster = policytest.NewGenerator(seed).CalicoCluster()
	}
	for i := range h.Pods {
		if pod := &h.Pods[i]; !pod.Spec.HostNetwork && h.IntN(2) == 0 {
			pod.Spec.NodeName = h.Nodes[1].Name
		}
	}
	return h
}

func keyOf(p *api.Pod) policy.PodKey { return policy.PodKey{Namespace: p.Namespace, Name: p.Name} }

// step changes a few pods: other labels, ended or running again, under another address. Some steps change a policy
// instead. It returns the pods, and whether only pods of other nodes changed.
func (h history) step() (changed []policy.PodKey, remoteOnly bool) {
	if h.IntN(5) == 0 {
		return nil, !h.changePolicy()
	}
	remoteOnly = true
	for range 1 + h.IntN(3) {
		pod := &h.Pods[h.IntN(len(h.Pods))]
		changed, remoteOnly = append(changed, keyOf(pod)), remoteOnly && pod.Spec.NodeName != policytest.Node
		switch h.IntN(4) {
		case 0:
			h.reassign(pod)
		case 1:
			pod.Status.Phase = map[bool]string{true: "Running", false: "Succeeded"}[policytest.Finished(pod) && h.free(pod)]
		default:
			h.Relabel(pod)
		}
	}
	return changed, remoteOnly
}

// free reports whether no other pod has one of the pod's addresses.
func (h history) free(pod *api.Pod) bool {
	for _, a := range policytest.Addresses(pod) {
		if other := h.PodAt(a); other != nil && other != pod {
			return false
		}
	}
	return true
}

// reassign gives a pod another free address and another UID, like a pod that is created again.
func (h history) reassign(pod *api.Pod) {
	v4, v6 := policytest.PodAddress(h.IntN(policytest.MaxPods))
	if h.PodAt(v4) != nil || h.PodAt(v6) != nil || pod.Spec.HostNetwork {
		return
	}
	pod.Annotations, pod.UID = nil, pod.UID+"'"
	pod.Status.PodIPs = []api.PodIP{{IP: v4.String()}, {IP: v6.String()}}[:1+h.IntN(2)]
}

// changePolicy makes another one of a policy; false if there is none.
func (h history) changePolicy() bool {
	return h.changeCalicoPolicy() || another(h, h.NetworkPolicies, func(i int) api.NetworkPolicy { return h.NetworkPolicy(h.Cluster, i) }) ||
		another(h, h.ClusterNetworkPolicies, h.ClusterNetworkPolicy)
}

func (h history) changeCalicoPolicy() bool {
	return another(h, h.CalicoNetworkPolicies, func(i int) api.CalicoNetworkPolicy { return h.CalicoNetworkPolicy(h.Cluster, i) }) ||
		another(h, h.CalicoGlobalNetworkPolicies, h.CalicoGlobalNetworkPolicy)
}

// another replaces one of a list, at most times.
func another[T any](h history, all []T, one func(i int) T) bool {
	if len(all) == 0 || h.IntN(3) == 0 {
		return false
	}
	i := h.IntN(len(all))
	all[i] = one(i)
	return true
}

// A ruleset changed by updates equals one that is compiled anew.
func TestUpdate(t *testing.T) {
	updated := 0
	for s := *seed; s < *seed+200; s++ {
		h := newHistory(s)
		compiled := policy.Compile(h.State())
		for i := range 20 {
			changed, remoteOnly := h.step()
			state := h.State()
			before := compiled.Members
			touched, ok := compiled.Update(state, changed)
			if !remoteOnly || !ok {
				compiled = policy.Compile(state)
				continue
			}
			updated++
			if d := cmp.Diff(policy.Compile(state).Ruleset, compiled.Ruleset, cmp.Comparer(func(a, b netip.Addr) bool { return a == b })); d != "" {
				t.Fatalf("-seed %d, step %d, pods %v: (-anew +updated)\n%s\n%s", s, i, changed, d, h)
			}
			for a := range compiled.Members {
				if !slices.Equal(before[a], compiled.Members[a]) && !slices.Contains(touched, a) {
					t.Fatalf("-seed %d, step %d: Update does not tell that %s was touched", s, i, a)
				}
			}
		}
	}
	if updated < 1000 {
		t.Errorf("only %d updates", updated)
	}
}

// A table that was changed step by step equals one that is made from nothing.
func TestIncremental(t *testing.T) {
	for s := *seed; s < *seed+12; s++ {
		h, n := newHistory(s), newTable(t)
		compiled := policy.Compile(h.State())
		n.sync(t, &compiled.Ruleset, nil)
		for range 10 {
			changed, remoteOnly := h.step()
			touched, ok := compiled.Update(h.State(), changed)
			if !remoteOnly || !ok {
				compiled, touched = policy.Compile(h.State()), nil
			}
			n.sync(t, &compiled.Ruleset, touched)
		}
		fresh := newTable(t)
		fresh.sync(t, &policy.Compile(h.State()).Ruleset, nil)
		if d := cmp.Diff(fresh.list(t), n.list(t)); d != "" {
			t.Fatalf("-seed %d: (-of nothing +step by step)\n%s\n%s", s, d, h)
		}
		n.outlive(t, compiled)
	}
}

// outlive checks the table for another process: that leaves everything as it is, and nft reads back what it writes.
func (n *table) outlive(t *testing.T, compiled *policy.Compiled) {
	t.Helper()
	stats, err := newEnforcer(t, n.NS).engine.Sync(t.Context(), &compiled.Ruleset, nil)
	if err != nil || stats.Transactions != 0 {
		t.Fatalf("a second engine finds something to do: %+v, %v", stats, err)
	}
	n.Run(t, "sh", "-c", "nft list table inet tortie-policy | nft -c -f -")
}

// list returns the table without handles, counters, the order of creation, and the size that a set was given to grow.
func (n *table) list(t *testing.T) string {
	t.Helper()
	var listing struct {
		NFTables []map[string]map[string]any `json:"nftables"`
	}
	if err := json.Unmarshal([]byte(n.Run(t, "nft", "-j", "list", "table", "inet", "tortie-policy")), &listing); err != nil {
		t.Fatal(err)
	}
	rules := map[string]int{}
	var lines []string
	for _, object := range listing.NFTables {
		for kind, fields := range object {
			delete(fields, "handle")
			delete(fields, "size")
			if kind == "metainfo" {
				continue
			}
			order := ""
			if kind == "rule" {
				chain := fmt.Sprint(fields["chain"])
				order = fmt.Sprintf("%s %03d ", chain, rules[chain])
				rules[chain]++
			}
			lines = append(lines, kind+" "+order+plain(t, fields))
		}
	}
	slices.Sort(lines)
	return strings.Join(lines, "\n")
}

func plain(t *testing.T, fields map[string]any) string {
	t.Helper()
	if elements, ok := fields["elem"].([]any); ok {
		slices.SortFunc(elements, func(a, b any) int { return strings.Compare(fmt.Sprint(a), fmt.Sprint(b)) })
	}
	if expressions, ok := fields["expr"].([]any); ok {
		for _, e := range expressions {
			if c, ok := e.(map[string]any)["counter"].(map[string]any); ok {
				c["packets"], c["bytes"] = 0, 0
			}
		}
	}
	text, err := json.Marshal(fields)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// table is an engine in a namespace without links.
type table struct {
	*netnstest.NS
	enforcer
}

func newTable(t *testing.T) *table {
	t.Helper()
	ns := netnstest.New(t)
	return &table{ns, newEnforcer(t, ns)}
}
