package migrate

import (
	"encoding/json"
	"errors"
	"flag"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/tortie-net/tortie/internal/api"
	"github.com/tortie-net/tortie/internal/api/groups"
	"github.com/tortie-net/tortie/internal/testkit/errtest"
)

func TestParse(t *testing.T) {
	for _, c := range []struct {
		args []string
		want command
	}{
		{[]string{"status"}, command{name: "status"}},
		{[]string{"start", "--to", "v3"}, command{"start", groups.V3}},
		{[]string{"start", "-to=v1"}, command{"start", groups.V1}},
		{[]string{"abort"}, command{name: "abort"}},
		{[]string{"finish", "--yes"}, command{name: "finish"}},
	} {
		if got, err := parse(c.args); err != nil || got != c.want {
			t.Errorf("%q: %+v (%v), want %+v", c.args, got, err, c.want)
		}
	}
	for words, args := range map[string][]string{
		"": {}, "move": {"move"}, "--to v1 v3": {"start"}, "v2": {"start", "--to", "v2"}, "--yes": {"finish"}, "now": {"status", "now"},
		"-force": {"abort", "-force"},
	} {
		if got, err := parse(args); err == nil || !errtest.Names(err, words) {
			t.Errorf("%q: %+v (%v), want an error that names %s", args, got, err, words)
		}
	}
	for _, args := range [][]string{{"-h"}, {"help"}, {"start", "-h"}} {
		if _, err := parse(args); !errors.Is(err, flag.ErrHelp) {
			t.Errorf("%q: %v, want %v", args, err, flag.ErrHelp)
		}
	}
}

// TestState takes both ClusterInformation through a move, the way back and what may come in between.
func TestState(t *testing.T) {
	const none, ready, locks = 0, 1, 2
	copies, there := mark{To: groups.V3, ID: "a"}, mark{To: groups.V3, ID: "a", Switched: true}
	copiesBack := mark{To: groups.V1, ID: "b"}
	back, aborted := switched(copiesBack), mark{To: groups.V3, ID: "b", Switched: true}
	aborting, abortingBack := mark{To: groups.V3, ID: "a", Aborting: true}, mark{To: groups.V1, ID: "b", Aborting: true}
	info := func(is int, m mark) *object {
		if is == none {
			return nil
		}
		o := &object{of: information, Spec: json.RawMessage(`{"other":{"kept":18446744073709551615}}`)}
		errtest.Must(t, o.set(is == ready, m))
		return o
	}
	for _, c := range []struct {
		when         string
		v1, v3       int
		mark1, mark3 mark
		want         phase
		to, now      groups.Group
	}{
		{"new cluster", none, none, mark{}, mark{}, idle, "", ""},
		{"v1", ready, none, mark{}, mark{}, idle, "", groups.V1},
		{"locked by a person", locks, none, mark{}, mark{}, idle, "", groups.V1},
		{"copying", locks, none, copies, mark{}, copying, groups.V3, groups.V1},
		{"the switch", locks, none, there, mark{}, switching, groups.V3, groups.V3}, // or v3 has lost it
		{"moved", locks, ready, there, there, moved, groups.V3, groups.V3},
		{"moved, and locked by a person", locks, locks, there, there, moved, groups.V3, groups.V3},
		{"moved, and the answer was lost", locks, ready, copies, there, moved, groups.V3, groups.V3},
		{"moved, and v1's was created anew", locks, ready, mark{}, there, moved, groups.V3, groups.V3},
		{"v1's is gone", none, ready, mark{}, there, idle, "", groups.V3},
		{"the way back is copied", none, locks, mark{}, copiesBack, copying, groups.V1, groups.V3},
		{"being aborted", locks, none, aborting, mark{}, copying, groups.V3, groups.V1},
		{"being aborted, and a late request opens the target", locks, ready, aborting, there, unclear, groups.V3, groups.V3},
		{"the way back is being aborted", locks, locks, aborted, abortingBack, copying, groups.V1, groups.V3},
		{"the way back is aborted", locks, ready, aborted, aborted, moved, groups.V3, groups.V3},
		{"the way back is done", ready, locks, back, back, moved, groups.V1, groups.V1},
		{"v1 is unlocked by hand", ready, ready, there, there, unclear, groups.V3, groups.V1},
		{"v1 is unlocked and v3 locked by hand", ready, locks, there, there, unclear, groups.V3, groups.V1},
		{"v1's is of another program", ready, ready, mark{}, there, unclear, groups.V3, groups.V1},
		{"v1's is of a backup, and v3 is locked", ready, locks, back, there, unclear, groups.V3, groups.V1},
		{"v3's is of another program", locks, ready, there, mark{}, unclear, groups.V3, groups.V3},
		{"v3's is of another program, while it is copied", locks, locks, copies, mark{}, unclear, groups.V3, groups.V1},
		{"v1's is of another program, while it is copied", ready, locks, mark{}, copiesBack, unclear, groups.V1, groups.V1},
		{"v1's is of an earlier move, while it is copied", ready, locks, there, copiesBack, unclear, groups.V1, groups.V1},
	} {
		got := read(map[groups.Group]*object{groups.V1: info(c.v1, c.mark1), groups.V3: info(c.v3, c.mark3)})
		if got.phase != c.want || got.To != c.to || got.now != c.now {
			t.Errorf("%s: %s to %q, now %q, want %s to %q, now %q", c.when, got.phase, got.To, got.now, c.want, c.to, c.now)
		}
	}
	early := map[groups.Group]*object{groups.V1: info(locks, mark{}), groups.V3: info(ready, mark{})}
	early[groups.V1].ResourceVersion, early[groups.V3].ResourceVersion = "10", "9"
	if got := read(early); got.phase != unclear || got.now != groups.V3 || !errtest.Names(got.doubt(), "crd.projectcalico.org/v1 used=true") {
		t.Errorf("v3 was ready before v1 was locked: %+v, %v", got, got.doubt())
	}
	early[groups.V3].ResourceVersion = "11"
	if got := read(early); got.phase != idle || got.now != groups.V3 {
		t.Errorf("v3 is ready since v1 was locked: %+v", got)
	}
	calicos := map[groups.Group]*object{groups.V1: info(locks, back), groups.V3: info(ready, back)}
	calicos[groups.V3].Annotations[calicoMigration+"locked-by"] = "c"
	if got := read(calicos); got.phase != idle || !got.byCalico || got.now != groups.V3 {
		t.Errorf("moved by Calico's migration after an earlier move: %+v", got)
	}
	calicos[groups.V1] = info(locks, copies)
	if got := read(calicos); got.phase != unclear || got.byCalico {
		t.Errorf("a ClusterInformation like that of Calico's migration, during another move: %+v", got)
	}
	errtest.Must(t, calicos[groups.V3].set(false, copiesBack))
	if ofCalico(calicos[groups.V3]) {
		t.Error("a move has kept what Calico's migration has noted")
	}
	const text = `{"to":"projectcalico.org/v3","id":"a","switched":true}` // the chart's policies read it
	if got := info(locks, mark{To: groups.V3, ID: "a", Switched: true}).Annotations[groups.Moving]; got != text {
		t.Errorf("mark %s, want %s", got, text)
	}
	if got := string(info(ready, mark{}).Spec); got != `{"datastoreReady":true,"other":{"kept":18446744073709551615}}` {
		t.Errorf("spec %s", got)
	}
}

func TestLacks(t *testing.T) {
	for _, c := range []struct{ have, want, at string }{
		{`{"a":1,"b":{"c":[null,2]}}`, `{"a":1,"b":{"c":[null,2]}}`, ""},
		{`{"a":1,"default":true}`, `{"a":1}`, ""},
		{`{}`, `{"a":null}`, ""},
		{`{"a":{}}`, `{"a":{"b":null}}`, ""},
		{`{}`, `{"a":false}`, "spec.a"},
		{`{"a":{"b":1}}`, `{"a":{"b":2}}`, "spec.a.b"},
		{`{"a":[1,2]}`, `{"a":[1]}`, "spec.a"},
		{`{"a":[0]}`, `{"a":[null]}`, "spec.a"},
		{`{"a":"1"}`, `{"a":1}`, "spec.a"},
		{`{"a":1795190637820903757}`, `{"a":1795190637820903756}`, "spec.a"},
		{``, `{"a":1}`, "spec"},
		{`{}`, `{`, "spec"},
	} {
		if at := lacks(json.RawMessage(c.have), json.RawMessage(c.want)); at != c.at {
			t.Errorf("%s lacks %q of %s, want %q", c.have, at, c.want, c.at)
		}
	}
}

// TestPlan has each decision on an object.
func TestPlan(t *testing.T) {
	handle := func(name, spec string) *object {
		return &object{of: kinds[19], Meta: api.Meta{Name: name}, Spec: json.RawMessage(spec)}
	}
	written := func(name, spec, id string) *object { return convert(handle(name, spec), groups.V3, id, nil) }
	kept := handle("gone-of-others", `{}`)
	altered := written("altered", `{"a":1}`, "now")
	altered.Spec = json.RawMessage(`{"a":2}`)
	leaving, left := handle("leaving", `{}`), written("left", `{}`, "now")
	leaving.DeletionTimestamp, left.DeletionTimestamp = "2026-11-30T08:00:00Z", "2026-11-30T08:00:00Z"
	leaving.Foreign = &api.Foreign{Finalizers: []string{"a/b", "c/d"}}
	labelled := handle("labels", `{}`)
	labelled.Labels = map[string]string{"a": "b"}
	p := planKind(kinds[19],
		[]*object{handle("new", `{}`), handle("same", `{"a":1}`), handle("same-of-others", `{"a":1}`), handle("changed", `{"a":{}}`),
			handle("changed-of-earlier", `{"a":1}`), handle("altered", `{"a":1}`), handle("labels", `{}`),
			leaving, handle("left", `{}`)},
		[]*object{written("same", `{"a":1}`, "now"), handle("same-of-others", `{"a":1,"b":2}`), written("changed", `{"a":{"b":1}}`, "now"),
			written("changed-of-earlier", `{"a":2}`, "then"), altered, written("gone", `{}`, "now"), kept, labelled,
			left},
		groups.V3, "now", nil)
	names := func(objects []*object) (all []string) {
		for _, o := range objects {
			all = append(all, o.Name)
		}
		return all
	}
	slices.Sort(p.conflicts)
	got := []any{names(p.create), names(p.update), names(p.remove), p.conflicts, p.equal}
	want := []any{[]string{"leaving", "new"}, []string{"changed"}, []string{"gone"}, []string{
		"IPAMHandle altered: the target has not kept spec.a", "IPAMHandle changed-of-earlier: spec.a differs",
		"IPAMHandle gone-of-others: it is in the target alone", "IPAMHandle labels: metadata.labels differ",
		"IPAMHandle leaving: it is being deleted in the source: wait until its finalizers are gone, or take them off: a/b, c/d",
		"IPAMHandle left: it is being deleted in the target: wait until it is gone",
	}, 2}
	if d := cmp.Diff(want, got); d != "" {
		t.Errorf("create, update, remove, conflicts, equal (-want +got):\n%s", d)
	}
}

func TestPods(t *testing.T) {
	spec := func(env string) json.RawMessage {
		return json.RawMessage(`{"containers":[{"name":"a"},{"name":"b","env":[{"name":"A","value":"projectcalico.org/v3"},` + env + `]}]}`)
	}
	for env, want := range map[string]groups.Group{
		`{"name":"CALICO_API_GROUP","value":"ProjectCalico.org/v3"}`: groups.V3, `{"name":"CALICO_API_GROUP","value":""}`: "",
		`{"name":"CALICO_API_GROUP","valueFrom":{"fieldRef":{"fieldPath":"metadata.name"}}}`: "",
		`{"name":"CALICO_API_GROUP","value":"crd.projectcalico.org/v1"}`:                     groups.V1,
	} {
		if got := setGroup(spec(env)); got != want {
			t.Errorf("%s: group %q, want %q", env, got, want)
		}
	}
	pods := []*object{{Spec: json.RawMessage(`{"nodeName":"n"}`)}, {Spec: json.RawMessage(`{}`)}, {Spec: json.RawMessage(`{"nodeName":"m"}`)},
		{Spec: json.RawMessage(`{"nodeName":"n"}`)}}
	if got := nodesOf(pods); !slices.Equal(got, []string{"m", "n"}) {
		t.Errorf("nodes %v", got)
	}
}
