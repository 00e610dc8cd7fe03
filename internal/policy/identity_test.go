package policy

import (
	"maps"
	"slices"
	"testing"

	"github.com/tortie-net/tortie/internal/api"
	"github.com/tortie-net/tortie/internal/api/selector"
)

// hostile are names that would end a part of a text which joins several.
var hostile = []string{"a", "b", "a,b", "b,a", "a b", "a)", "a: b", "(a", `"a"`, `a", "b`, "'", "a\nb", "a\x00b", "\xff", `\xff`, "", ",",
	"in a: ", "unknown a", "\x00\x00\x00\x01a"}

func (w world) hostileSelector(calico bool) selector.Selector {
	switch {
	case w.chance(30):
		return selector.Selector{}
	case calico:
		return parsed(pick(w, calicoSelectors...))
	}
	key := pick(w, `k`, `k == "a" && k`, `k) && has(k`, "k in {")
	s, err := selector.FromLabels(api.LabelSelector{MatchLabels: map[string]string{key: pick(w, hostile...)}})
	if err != nil {
		panic(err)
	}
	return s
}

// hostilePods is a selection, and the same one written in another way.
func (w world) hostilePods() (p, same Pods) {
	p = Pods{Calico: w.chance(70), Owner: pick(w, hostile...), Namespace: pick(w, "", pick(w, hostile...)), ByAccount: w.chance(10)}
	p.Namespaces, p.Labels, p.AccountLabels = w.hostileSelector(p.Calico), w.hostileSelector(p.Calico), w.hostileSelector(p.Calico)
	p.Scope = pick(w, Everywhere, Everywhere, Global)
	for range w.IntN(4) {
		p.Accounts = append(p.Accounts, pick(w, hostile...))
	}
	same = p
	same.Owner, same.Accounts = pick(w, hostile...), append([]string{}, p.Accounts...)
	slices.Reverse(same.Accounts)
	if len(p.Accounts) > 0 {
		same.Accounts = append(same.Accounts, p.Accounts[0])
	}
	if p.Namespace != "" {
		same.Namespaces = w.hostileSelector(p.Calico)
	}
	return p, same
}

// equalSelections compares all that decides, part by part.
func equalSelections(a, b *Pods) bool {
	accounts := func(p *Pods) map[string]bool {
		all := map[string]bool{}
		for _, name := range p.Accounts {
			all[name] = true
		}
		return all
	}
	return a.Calico == b.Calico && a.Scope == b.Scope && a.ByAccount == b.ByAccount && a.Namespace == b.Namespace &&
		(a.Namespace != "" || a.Namespaces.String() == b.Namespaces.String()) && a.Labels.String() == b.Labels.String() &&
		a.AccountLabels.String() == b.AccountLabels.String() && maps.Equal(accounts(a), accounts(b))
}

// Whatever users have for names: two selections have one identity if, and only if, they are equal, and then they select
// the same.
func TestSelectionsAreToldApart(t *testing.T) {
	w := newWorld(1)
	seen := map[string]*Pods{}
	tried := 20_000
	if testing.Short() {
		tried = 5_000
	}
	for range tried {
		p, same := w.hostilePods()
		if p.identity() != same.identity() {
			t.Fatalf("equal selections have two identities:\n%#v\n%#v", p, same)
		}
		for _, one := range []*Pods{&p, &same} {
			first := seen[one.identity()]
			if first == nil {
				seen[one.identity()] = one
				continue
			}
			if !equalSelections(first, one) {
				t.Fatalf("different selections have one identity:\n%#v\n%#v", *first, *one)
			}
			sameAnswers(t, w, first, one)
		}
	}
	for id, one := range seen {
		for _, name := range hostile {
			other := *one
			if other.Accounts = append(slices.Clone(one.Accounts), name); !slices.Contains(one.Accounts, name) && other.identity() == id {
				t.Fatalf("%#v has the identity of one with account %q, too", *one, name)
			}
		}
	}
}

func sameAnswers(t *testing.T, w world, a, b *Pods) {
	t.Helper()
	for range 4 {
		key := PodKey{pick(w, hostile...), "p"}
		pod := &Pod{PodKey: key, Labels: map[string]string{"k": pick(w, hostile...), "a": pick(w, "1", "2")}, Account: pick(w, hostile...)}
		d := directory{namespaces: map[string]map[string]string{pick(w, hostile...): {"a": "1", "k": pick(w, hostile...)}}}
		if w.chance(50) {
			d.accounts = map[Account]map[string]string{{key.Namespace, pod.Account}: {"a": pick(w, "1", "2")}}
		}
		for _, unknown := range []bool{false, true} {
			if a.selects(d, pod, unknown) != b.selects(d, pod, unknown) {
				t.Fatalf("one identity, two answers for %+v:\n%#v\n%#v", pod, *a, *b)
			}
		}
	}
}

// Whatever names a tenant's policy has, which is met first: an administrator's decides as it does alone.
func TestPoliciesDecideAsAlone(t *testing.T) {
	admin := policyIn(t, `{"spec":{"order":2,"types":["Ingress"],"ingress":[{"action":"Deny","source":{"serviceAccounts":{"names":["a",`+
		`"b"]},"namespaceSelector":"all()"}},{"action":"Allow"}]}}`, "")
	for _, name := range hostile {
		tenant := policyIn(t, `{"spec":{"order":1,"selector":"app == 'a'","types":["Ingress"],"ingress":[{"action":"Deny",`+
			`"source":{"serviceAccounts":{"names":["c"]},"namespaceSelector":"all()"}}]}}`, "x")
		tenant.Rules[Ingress][0].Peers[0].Match.Select.Accounts = []string{name} // also one that is refused
		state := cluster(admin, tenant)
		for _, pod := range state.Pods {
			pod.Account = "a"
		}
		compare(t, state, &Compile(state).Ruleset)
	}
}
