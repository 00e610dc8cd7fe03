package definitions

import (
	"math/rand/v2"
	"os"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/yaml"

	"github.com/tortie-net/tortie/internal/testkit/difftest"
	"github.com/tortie-net/tortie/internal/testkit/errtest"
)

// definition returns one of the given schema, for version v1, which is stored.
func definition(t *testing.T, label, schema string) *unstructured.Unstructured {
	t.Helper()
	text := `{apiVersion: apiextensions.k8s.io/v1, kind: CustomResourceDefinition, metadata: {name: pools.example.org, labels: {` +
		label + `}},
spec: {group: example.org, scope: Cluster, names: {kind: Pool, plural: pools}, conversion: {strategy: None},
versions: [{name: v1, served: true, storage: true, schema: {openAPIV3Schema: ` + schema + `}}]}}`
	d := &unstructured.Unstructured{}
	json, err := yaml.YAMLToJSON([]byte(text))
	if err == nil {
		err = d.UnmarshalJSON(json)
	}
	errtest.Must(t, err)
	return d
}

const (
	ours   = Label + ": " + Owner
	theirs = "app: calico"
)

func TestDecide(t *testing.T) {
	for name, c := range map[string]struct {
		label, have, want string
		action            Action
		result            string // the schema, if one is written
	}{
		"same": {ours, "{type: object, properties: {a: {type: string}}}",
			"{type: object, properties: {a: {type: string}}}", Keep, ""},
		"a field more": {ours,
			"{type: object, properties: {a: {type: string}}}", "{type: object, properties: {a: {type: string}, b: {type: integer}}}", Replace,
			"{type: object, properties: {a: {type: string}, b: {type: integer}}}"},
		"a field less": {ours, "{type: object, properties: {a: {type: string}, b: {type: integer}}}",
			"{type: object, properties: {a: {type: string}}}", Keep, ""},
		"another rule": {ours, "{type: object, properties: {a: {type: string, maxLength: 3}}}",
			"{type: object, properties: {a: {type: string, maxLength: 9}}}", Replace,
			"{type: object, properties: {a: {type: string, maxLength: 9}}}"},
		"theirs has all": {theirs, "{type: object, properties: {a: {type: string, maxLength: 3}, x: {type: string}}}",
			"{type: object, properties: {a: {type: string}}}", Leave, ""},
		"theirs lacks one": {theirs, "{type: object, properties: {x: {type: string}}}", "{type: object, properties: {a: {type: string}}}",
			Extend, "{type: object, properties: {x: {type: string}, a: {type: string}}}"},
		"theirs keeps all": {theirs, "{type: object, x-kubernetes-preserve-unknown-fields: true}",
			"{type: object, properties: {a: {type: string}}}", Leave, ""},
		"theirs is a map": {theirs, "{type: object, additionalProperties: {type: string}}",
			"{type: object, properties: {a: {type: string}}}", Leave, ""},
		"without properties": {theirs, "{type: object}", "{type: object, properties: {a: {type: string}}}", Extend,
			"{type: object, properties: {a: {type: string}}}"},
		"in a list": {theirs, "{type: array, items: {type: object, properties: {x: {type: string}}}}",
			"{type: array, items: {type: object, properties: {a: {type: string}}}}", Extend,
			"{type: array, items: {type: object, properties: {x: {type: string}, a: {type: string}}}}"},
		"in a map's values": {theirs, "{type: object, additionalProperties: {type: object, properties: {x: {type: string}}}}",
			"{type: object, additionalProperties: {type: object, properties: {a: {type: string}}}}", Extend,
			"{type: object, additionalProperties: {type: object, properties: {x: {type: string}, a: {type: string}}}}"},
		"a value more": {theirs, "{type: string, enum: [Always]}", "{type: string, enum: [Always, Never]}", Extend,
			"{type: string, enum: [Always, Never]}"},
		"every value":       {theirs, "{type: string}", "{type: string, enum: [Always]}", Leave, ""},
		"another type":      {theirs, "{type: string}", "{type: object, properties: {a: {type: string}}}", Leave, ""},
		"a value that went": {ours, "{type: string, enum: [Always, Sometimes]}", "{type: string, enum: [Always]}", Keep, ""},
		"somebody's old rule": {theirs, "{type: object, required: [x], properties: {x: {type: string}}}",
			"{type: object, properties: {x: {type: string}}}", Leave, ""},
	} {
		t.Run(name, func(t *testing.T) {
			have, want := definition(t, c.label, c.have), definition(t, ours, c.want)
			before := have.DeepCopy()
			got, err := Decide(have, want)
			errtest.Must(t, err)
			if diff := cmp.Diff(before.Object, have.Object); diff != "" {
				t.Errorf("Decide changed its argument:\n%s", diff)
			}
			if got.Action != c.action {
				t.Fatalf("the definition is %s, want %s", got.Action, c.action)
			}
			if got.Object == nil {
				return
			}
			difftest.Want(t, "what is written", definition(t, c.label, c.result).Object["spec"], got.Object.Object["spec"])
		})
	}
}

func TestDecideOnVersions(t *testing.T) {
	have, want := definition(t, ours, "{type: object}"), definition(t, ours, "{type: object}")
	versions, _, _ := unstructured.NestedSlice(have.Object, "spec", "versions")
	old := map[string]any{"name": "v1beta1", "served": true, "storage": true,
		"schema": map[string]any{"openAPIV3Schema": map[string]any{"type": "object"}}}
	versions[0].(map[string]any)["storage"] = false
	errtest.Must(t, unstructured.SetNestedSlice(have.Object, append(versions, old), "spec", "versions"))
	got, err := Decide(have, want)
	if err != nil || got.Action != Replace {
		t.Fatalf("%s, %v: want a replacement", got.Action, err)
	}
	after, _, _ := unstructured.NestedSlice(got.Object.Object, "spec", "versions")
	if len(after) != 2 {
		t.Fatalf("versions %v: the one that objects are stored in is gone", after)
	}
	for _, v := range after {
		if version := v.(map[string]any); version["storage"] != (version["name"] == "v1") {
			t.Errorf("version %v has storage %v", version["name"], version["storage"])
		}
	}
}

func TestDecideRefuses(t *testing.T) {
	have, want := definition(t, theirs, "{type: object}"), definition(t, ours, "{type: object}")
	errtest.Must(t, unstructured.SetNestedField(have.Object, "Namespaced", "spec", "scope"))
	_, err := Decide(have, want)
	for _, part := range []string{"pools.example.org", `"Namespaced"`, `"Cluster"`, "kubectl"} {
		if err == nil || !strings.Contains(err.Error(), part) {
			t.Errorf("error %v, want %q in it", err, part)
		}
	}
}

func TestReadOurOwn(t *testing.T) {
	all, err := Read(os.DirFS("../../../charts/tortie/definitions/v1"))
	if err != nil || len(all) < 12 {
		t.Fatalf("%d definitions, %v", len(all), err)
	}
	for _, d := range all {
		if d.GetLabels()[Label] != Owner {
			t.Errorf("%s is not marked as ours: an upgrade would take it for somebody else's", d.GetName())
		}
		got, err := Decide(d, d)
		if err != nil || got.Action != Keep {
			t.Errorf("%s beside itself is %s, %v", d.GetName(), got.Action, err)
		}
	}
}

// TestMergeLosesNothing has random schemas: the result has all fields and allowed values of both, and base's own rules;
// a second merge changes nothing.
func TestMergeLosesNothing(t *testing.T) {
	for seed := range uint64(3000) {
		random := rand.New(rand.NewPCG(seed, 0))
		base, other := randomSchema(random, 0), randomSchema(random, 0)
		wrap := func(s map[string]any) map[string]any {
			return map[string]any{"versions": []any{map[string]any{"name": "v1", "schema": map[string]any{"openAPIV3Schema": s}}}}
		}
		once := merge(wrap(base), wrap(other))
		versions, _, _ := unstructured.NestedSlice(once, "versions")
		got := schemaOf(versions[0])
		for side, s := range map[string]map[string]any{"base": base, "other": other} {
			if lost := missing("", got, s, side == "base"); lost != "" {
				t.Fatalf("seed %d: %s of %s is lost:\nbase  %v\nother %v\ngot   %v", seed, lost, side, base, other, got)
			}
		}
		if diff := cmp.Diff(once, merge(once, wrap(other))); diff != "" {
			t.Fatalf("seed %d: merged once more:\n%s", seed, diff)
		}
	}
}

func randomSchema(random *rand.Rand, depth int) map[string]any {
	switch kind := random.IntN(5); {
	case depth > 3 || kind == 0:
		s := map[string]any{"type": "string"}
		if random.IntN(2) == 0 {
			s[enum] = []any{string(rune('A' + random.IntN(4))), "Z"}
		}
		return s
	case kind == 1:
		return map[string]any{"type": "array", items: randomSchema(random, depth+1)}
	case kind == 2:
		return map[string]any{"type": "object", values: randomSchema(random, depth+1)}
	default:
		fields := map[string]any{}
		for range random.IntN(4) {
			fields[string(rune('a'+random.IntN(5)))] = randomSchema(random, depth+1)
		}
		s := map[string]any{"type": "object", properties: fields}
		if random.IntN(4) == 0 {
			s[preserve] = true
		}
		return s
	}
}

// missing names a field or value of s that the API server would drop or refuse by the schema got; with whole every
// field must be in got, even if unknown fields are kept.
func missing(path string, got, s map[string]any, whole bool) string {
	if got["type"] != s["type"] {
		return "" // base decides
	}
	allowed, limited := got[enum].([]any)
	more, _ := s[enum].([]any)
	for _, value := range more {
		found := !limited
		for _, a := range allowed {
			found = found || a == value
		}
		if !found {
			return path + " value " + value.(string)
		}
	}
	for _, key := range []string{items, values} {
		inner, ok := s[key].(map[string]any)
		have, described := got[key].(map[string]any)
		if ok && described {
			if lost := missing(path+"[]", have, inner, whole); lost != "" {
				return lost
			}
		}
	}
	fields, _ := s[properties].(map[string]any)
	have, _ := got[properties].(map[string]any)
	for name, field := range fields {
		there, ok := have[name].(map[string]any)
		switch {
		case ok:
			if lost := missing(path+"."+name, there, field.(map[string]any), whole); lost != "" {
				return lost
			}
		case whole || got[preserve] != true && got[values] == nil:
			return path + "." + name
		}
	}
	return ""
}
