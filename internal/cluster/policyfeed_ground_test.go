package cluster

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/tortie-net/tortie/internal/policy"
	"github.com/tortie-net/tortie/internal/testkit/errtest"
)

// home is the ground of the cases below: pods are on nodes n and m, and the block 10.0.3.0/24 is nobody's yet.
var home = ground{"10.0.1.0/24": "n", "10.0.2.0/24": "m", "10.0.3.0/24": ""}

// claimants are pods as the API server shows them: name, node, status and annotation, either of which may be missing.
type claimants [][4]string

func (all claimants) pods(t *testing.T) (pods []*policyPod) {
	for i, c := range all {
		meta, status := "", ""
		if c[3] != "" {
			meta = noted(podIPs + `"` + strings.Trim(c[3], "-") + `"`)
		}
		if c[2] != "" {
			status = `"podIPs":[{"ip":"` + c[2] + `"}]`
		}
		var p policyPod
		errtest.Must(t, json.Unmarshal([]byte(podText(meta, `"nodeName":"`+c[1]+`"`, status)), &p))
		p.pod.PodKey.Name, p.pod.UID, p.created = c[0], c[0], int64(i)
		pods = append(pods, &p)
	}
	return pods
}

func TestWhoseAddressesAre(t *testing.T) {
	for name, c := range map[string]struct {
		pods claimants
		want string // [certain] ?[possible]
	}{
		"reported at home":                       {claimants{{"a", "n", "10.0.1.1", ""}}, "a[10.0.1.1]"},
		"reported and noted":                     {claimants{{"a", "n", "10.0.1.1", "10.0.1.1"}}, "a[10.0.1.1]"},
		"borrowed":                               {claimants{{"a", "n", "10.0.2.1", "10.0.2.1"}}, "a[10.0.2.1]"},
		"of another IPAM":                        {claimants{{"a", "n", "192.168.0.1", ""}}, "a[192.168.0.1]"},
		"noted at home":                          {claimants{{"a", "n", "", "10.0.1.1"}}, "a[10.0.1.1]"},
		"noted before the block is known":        {claimants{{"a", "n", "", "10.0.3.1"}}, "a[] ?[10.0.3.1]"},
		"noted and borrowed":                     {claimants{{"a", "n", "", "10.0.2.1"}}, "a[] ?[10.0.2.1]"},
		"an address of the Internet in the note": {claimants{{"a", "n", "", "8.8.8.8"}}, ""},
		"a note without a node":                  {claimants{{"a", "", "", "10.0.1.1"}}, ""},
		"a note that names a pod's address": {
			claimants{{"victim", "n", "10.0.1.1", "10.0.1.1"}, {"thief", "n", "", "10.0.1.1"}}, "victim[10.0.1.1]",
		},
		"a note that names a borrowed address": {
			claimants{{"victim", "n", "10.0.2.1", ""}, {"thief", "m", "", "10.0.2.1"}}, "victim[10.0.2.1]",
		},
		"a note that names a starting pod's": {claimants{{"victim", "n", "", "10.0.1.1"}, {"thief", "n", "", "10.0.1.1"}},
			"thief[] ?[10.0.1.1] victim[] ?[10.0.1.1]"},
		"notes that name a borrowed address": {claimants{{"victim", "n", "", "10.0.2.1"}, {"thief", "n", "", "10.0.2.1"}},
			"thief[] ?[10.0.2.1] victim[] ?[10.0.2.1]"},
		"a note of another node's pod": {claimants{{"victim", "n", "", "10.0.1.1"}, {"thief", "m", "", "10.0.1.1"}},
			"thief[] ?[10.0.1.1] victim[] ?[10.0.1.1]"},
		"a status of a stolen node": {
			claimants{{"victim", "n", "10.0.1.1", ""}, {"thief", "m", "10.0.1.1", ""}}, "victim[10.0.1.1]",
		},
		"two statuses of an address of none of both": {claimants{{"victim", "n", "10.0.3.1", ""}, {"thief", "m", "10.0.3.1", ""}},
			"thief[] ?[10.0.3.1] victim[] ?[10.0.3.1]"},
		"a sandbox made anew": {claimants{{"a", "n", "10.0.1.1", "10.0.1.2"}}, "a[] ?[10.0.1.1 10.0.1.2]"},
		"its old address at the next pod": {claimants{{"client", "n", "10.0.1.1", "10.0.1.2"}, {"evil", "n", "", "10.0.1.1"}},
			"client[] ?[10.0.1.1 10.0.1.2] evil[] ?[10.0.1.1]"},
		"all pods of a node that has booted": {claimants{{"client", "n", "10.0.1.1", "10.0.1.2"}, {"evil", "n", "10.0.1.2", "10.0.1.1"}},
			"client[] ?[10.0.1.1 10.0.1.2] evil[] ?[10.0.1.1 10.0.1.2]"},
		"the next pod is reported": {claimants{{"client", "n", "10.0.1.1", "10.0.1.2"}, {"evil", "n", "10.0.1.1", "10.0.1.1"}},
			"client[] ?[10.0.1.2] evil[10.0.1.1]"},
		"emptied": {claimants{{"a", "n", "10.0.1.1", "-"}}, "a[] ?[10.0.1.1]"},
		"two pods of a tenant against a denial": {
			claimants{{"denied", "n", "10.0.1.1", "10.0.1.9"}, {"other", "n", "10.0.1.2", "10.0.1.1"}, {"third", "n", "", "10.0.1.1"}},
			"denied[] ?[10.0.1.1 10.0.1.9] other[] ?[10.0.1.1 10.0.1.2] third[] ?[10.0.1.1]",
		},
		"a sandbox made anew outside of pools": {claimants{{"a", "n", "8.8.8.8", "8.8.8.9"}}, "a[] ?[8.8.8.8]"},
		"two statuses without a node, nor a block": {claimants{{"victim", "", "10.0.3.1", ""}, {"thief", "", "10.0.3.1", ""}},
			"thief[] ?[10.0.3.1] victim[] ?[10.0.3.1]"},
		"a note against the status": {claimants{{"a", "n", "10.0.1.1", "8.8.8.8"}}, "a[] ?[10.0.1.1]"},
	} {
		pods := c.pods.pods(t)
		for _, order := range [][]*policyPod{pods, reversed(pods)} {
			table, late := newPodTable(), newPodTable()
			table.settle(home)
			for _, p := range order {
				table.set(p.pod.PodKey, p, false)
				late.set(p.pod.PodKey, p, false)
			}
			late.settle(home)
			for how, table := range map[string]*podTable{"": table, ", whose ground is known later": late} {
				if got, _, _ := strings.Cut(takeAll(table, map[policy.PodKey]*policy.Pod{}), " / "); got != c.want {
					t.Errorf("%s%s: %q, want %q", name, how, got, c.want)
				}
			}
		}
	}
}

func reversed(pods []*policyPod) []*policyPod {
	pods = slices.Clone(pods)
	slices.Reverse(pods)
	return pods
}

// Before anything is known of pools annotations are believed.
func TestAddressesWithoutGround(t *testing.T) {
	table := newPodTable()
	for _, p := range (claimants{{"a", "n", "", "8.8.8.8"}, {"b", "n", "10.0.1.1", ""}}).pods(t) {
		table.set(p.pod.PodKey, p, false)
	}
	if got := takeAll(table, map[policy.PodKey]*policy.Pod{}); got != "a[8.8.8.8] b[10.0.1.1] / a b" {
		t.Error(got)
	}
}

// A node's token can write any address into its annotations.
func TestNodesHaveTheAddressesOfTheirBlocks(t *testing.T) {
	const internal = `{"addresses":[{"type":"InternalIP","address":"192.0.2.1"},{"type":"Hostname","address":"n"}]}`
	tunnel := func(a string) string { return `"projectcalico.org/IPv4VXLANTunnelAddr":"` + a + `"` }
	for name, c := range map[string]struct{ annotations, status, want, problem string }{
		"its own block":                 {tunnel("10.0.1.1"), internal, "[10.0.1.1 192.0.2.1]", ""},
		"a block that is not known yet": {tunnel("10.0.3.1"), internal, "[192.0.2.1]", ""},
		"a pod of another node":         {tunnel("10.0.2.7"), internal, "[192.0.2.1]", "10.0.2.7 is said to be the address of a tunnel device"},
		"the Internet":                  {tunnel("8.8.8.8"), internal, "[192.0.2.1]", "8.8.8.8 is said to be the address of a tunnel device"},
		"the InternalIP of another node": {tunnel("192.0.2.9"), internal, "[192.0.2.1]",
			"192.0.2.9 is said to be the address of a tunnel device"},
		"a reported one in another block": {"", `{"addresses":[{"type":"InternalIP","address":"10.0.2.7"}]}`, "[]",
			"10.0.2.7 lies in a block of node m"},
		"a reported one in its own block": {"", `{"addresses":[{"type":"InternalIP","address":"10.0.1.7"}]}`, "[10.0.1.7]", ""},
	} {
		var n policyNode
		errtest.Must(t, json.Unmarshal([]byte(`{"metadata":{"name":"n","annotations":{`+c.annotations+`}},"status":`+c.status+`}`), &n))
		node, problems := n.on(home)
		if got := fmt.Sprint(node.Addresses); got != c.want {
			t.Errorf("%s: %s, want %s", name, got, c.want)
		}
		if text := fmt.Sprint(problems); (c.problem == "") != (len(problems) == 0) || !strings.Contains(text, c.problem) {
			t.Errorf("%s: problems %s, want %q", name, text, c.problem)
		}
	}
}
