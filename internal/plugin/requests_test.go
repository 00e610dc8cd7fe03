package plugin_test

import (
	"fmt"
	"os"
	"path"
	"slices"
	"strings"
	"testing"

	"github.com/tortie-net/tortie/internal/api/groups"
	"github.com/tortie-net/tortie/internal/plugin/facts"
	"github.com/tortie-net/tortie/internal/testkit/difftest"
	"github.com/tortie-net/tortie/internal/testkit/errtest"
)

// What the API server is asked for, in rounds: the requests of one round wait for no answer of each other. Calico
// (master after v3.32.1) makes 25 requests for the first pod of a node, 20 for any other and 18 for DEL, nearly all of
// them in rounds of their own, over two connections. 30 nodes that boot with 30 pods each are 900 times the second
// list.
var (
	roundsOfFirstAdd = [][]string{ // 14: the plugin finds the API group by ClusterInformation, and remembers it
		{"calico GET clusterinformations", "calico GET namespaces", "calico GET pods"},
		{"calico GET ipamconfigs", "calico LIST blockaffinities", "calico LIST ippools", "calico LIST ipreservations"},
		{"calico LIST blockaffinities", "calico LIST ipamblocks"},
		{"calico POST blockaffinities", "calico POST ipamhandles"},
		{"calico POST ipamblocks"},
		{"calico PUT blockaffinities"},
		{"calico PATCH pods/status"},
	}
	roundsOfAdd = [][]string{ // 11
		{
			"calico GET clusterinformations", "calico GET ipamconfigs", "calico GET namespaces", "calico GET pods",
			"calico LIST blockaffinities", "calico LIST ippools", "calico LIST ipreservations",
		},
		{"calico GET ipamblocks", "calico POST ipamhandles"},
		{"calico PUT ipamblocks"},
		{"calico PATCH pods/status"},
	}
	roundsOfAddWithoutGroup = [][]string{ // 11, in one round more
		{"calico GET clusterinformations", "calico GET namespaces", "calico GET pods"},
		{"calico GET ipamconfigs", "calico LIST blockaffinities", "calico LIST ippools", "calico LIST ipreservations"},
		{"calico GET ipamblocks", "calico POST ipamhandles"},
		{"calico PUT ipamblocks"},
		{"calico PATCH pods/status"},
	}
	roundsOfAddWithFacts = [][]string{ // 4: the block is as the last plugin of the node has written it
		{"calico GET pods", "calico POST ipamhandles"},
		{"calico PUT ipamblocks"},
		{"calico PATCH pods/status"},
	}
	roundsOfAddOfPlainPod = [][]string{ // 3: likewise, and the agent watches pods
		{"calico POST ipamhandles"},
		{"calico PUT ipamblocks"},
		{"calico PATCH pods/status"},
	}
	roundsOfCheck = [][]string{ // 2: the kernel knows all else
		{"calico GET ipamhandles"},
		{"calico GET ipamblocks"},
	}
	roundsOfDel = [][]string{ // 6: how long addresses cool down, which Calico asks too since 3.33, the ADD has noted
		{"calico GET clusterinformations", "calico GET ipamhandles"},
		{"calico GET ipamblocks", "calico PATCH pods/status"},
		{"calico PUT ipamblocks"},
		{"calico DELETE ipamhandles"},
	}
	roundsOfDelWithoutGroup = [][]string{ // 6, in one round more
		{"calico GET clusterinformations"},
		{"calico GET ipamhandles", "calico PATCH pods/status"},
		{"calico GET ipamblocks"},
		{"calico PUT ipamblocks"},
		{"calico DELETE ipamhandles"},
	}
	roundsOfDelWithFacts = [][]string{ // 4, as above
		{"calico GET ipamhandles", "calico PATCH pods/status"},
		{"calico PUT ipamblocks"},
		{"calico DELETE ipamhandles"},
	}
	roundsOfDelAgain = [][]string{ // 4: among them the look for a handle of Calico 2
		{"calico GET clusterinformations", "calico GET ipamhandles"},
		{"calico GET ipamhandles", "calico PATCH pods/status"},
	}
)

// lookingForGroup returns the rounds of a world where no plugin has found the API group yet: a cluster of
// projectcalico.org/v3 takes one more, for its ClusterInformation, since crd.projectcalico.org/v1 has none.
func lookingForGroup(in groups.Group, rounds [][]string) [][]string {
	if in == groups.V1 {
		return rounds
	}
	return slices.Insert(slices.Clone(rounds), 1, []string{"calico GET clusterinformations"})
}

// docs/benchmarks.md has the numbers of these requests by verb, and those with projectcalico.org/v3 where they differ.
func TestTableOfRequests(t *testing.T) {
	const head = "| call | requests | rounds | GET | LIST | POST | PUT | PATCH | DELETE |\n|---|---|---|---|---|---|---|---|---|\n"
	page, err := os.ReadFile("../../docs/benchmarks.md")
	errtest.Must(t, err)
	_, got, _ := strings.Cut(string(page), head)
	got, _, _ = strings.Cut(got, "\n\n")
	var want []string
	for _, call := range []struct {
		name   string
		rounds [][]string
		first  bool // no plugin has found the API group yet
	}{
		{"the first ADD on a node, without facts", roundsOfFirstAdd, true},
		{"ADD without facts", roundsOfAdd, false},
		{"ADD with facts", roundsOfAddWithFacts, false},
		{"ADD with facts where policies are enforced", roundsOfAddOfPlainPod, false},
		{"CHECK", roundsOfCheck, false},
		{"DEL without facts", roundsOfDel, false},
		{"DEL with facts", roundsOfDelWithFacts, false},
		{"DEL again", roundsOfDelAgain, false},
	} {
		v1, v3 := numbers(call.rounds), numbers(call.rounds)
		if call.first {
			v3 = numbers(lookingForGroup(groups.V3, call.rounds))
		}
		line := "| " + call.name + " |"
		for i, n := range v1 {
			switch {
			case n != v3[i]:
				line += fmt.Sprintf(" %d (v3: %d) |", n, v3[i])
			case n > 0:
				line += fmt.Sprintf(" %d |", n)
			default:
				line += " |"
			}
		}
		want = append(want, line)
	}
	difftest.Want(t, "the table of docs/benchmarks.md", want, strings.Split(got, "\n"))
}

// numbers returns how many requests there are, in how many rounds, and how many of each verb.
func numbers(rounds [][]string) []int {
	all := slices.Concat(rounds...)
	n := []int{len(all), len(rounds)}
	for _, verb := range []string{"GET", "LIST", "POST", "PUT", "PATCH", "DELETE"} {
		of := slices.DeleteFunc(slices.Clone(all), func(request string) bool { return strings.Fields(request)[1] != verb })
		n = append(n, len(of))
	}
	return n
}

// It is not parallel: its pool is for every node, so that nobody has to read the Node.
func TestRequests(t *testing.T) {
	for _, in := range groups.All {
		t.Run(path.Base(string(in)), func(t *testing.T) {
			api, _ := inGroups(t, in)
			testRequests(t, newEmptyWorldOn(t, api))
		})
	}
}

func testRequests(t *testing.T, w *world) {
	w.api.create(t,
		manifest(t, fmt.Sprintf(`{apiVersion: crd.projectcalico.org/v1, kind: IPPool, metadata: {name: %s}, spec: {cidr: %s}}`, w.name, w.cidr)))
	w.api.settle(t)
	first, s, known := w.newPod(t, "first"), w.newPod(t, "web"), w.newPod(t, "known")
	held := &rounds{}
	w.proxy.setRule(held.rule)
	asked := func(what string, verb func(testing.TB) answer, want [][]string) answer {
		t.Helper()
		held.expect(want)
		a := verb(t).ok(t)
		difftest.Want(t, fmt.Sprintf("requests of %s, round by round", what), want, held.took())
		if n := w.proxy.takeConnections(); n > 1 || n == 0 && want != nil {
			t.Errorf("%s made %d connections", what, n)
		}
		w.api.settle(t)
		return a
	}
	asked("the first ADD on a node", first.add, lookingForGroup(w.api.group, roundsOfFirstAdd))
	added := asked("ADD", s.add, roundsOfAdd)
	check := func(t testing.TB) answer { return s.check(t, added) }
	asked("CHECK", check, roundsOfCheck)
	asked("DEL", s.del, roundsOfDel)
	asked("DEL again", s.del, roundsOfDelAgain)
	w.host.remove(t, facts.GroupFile)
	asked("ADD that does not know the API group", s.add, lookingForGroup(w.api.group, roundsOfAddWithoutGroup))
	w.host.remove(t, facts.GroupFile)
	asked("DEL that does not know the API group", s.del, lookingForGroup(w.api.group, roundsOfDelWithoutGroup))
	w.api.delete(t, "Pod", w.name, "web")
	asked("DEL of a pod that is gone", s.del, roundsOfDelAgain)

	w.tellFacts(t, nil)
	added = asked("ADD with facts", known.add, roundsOfAddWithFacts)
	check = func(t testing.TB) answer { return known.check(t, added) }
	w.tellFacts(t, nil)
	asked("CHECK with facts", check, roundsOfCheck)
	w.tellFacts(t, nil)
	asked("DEL with facts", known.del, roundsOfDelWithFacts)

	w.tellPlain(t, known)
	asked("ADD of a plain pod", known.add, roundsOfAddOfPlainPod)
	w.tellPlain(t, known)
	asked("DEL of a plain pod", known.del, roundsOfDelWithFacts)

	// Policies cost no request, in force or not.
	w.tellFacts(t, nil)
	policed := func(verb string) func(testing.TB) answer {
		return func(t testing.TB) answer {
			return w.host.call(t, known.call(t, verb, set("policy_enforced", true), set("policy_setup_timeout_seconds", 1)))
		}
	}
	asked("ADD with policies", policed("ADD"), roundsOfAddWithFacts)
	asked("DEL with policies", policed("DEL"), roundsOfDelWithFacts)
}
