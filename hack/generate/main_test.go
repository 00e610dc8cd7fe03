package main

import (
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

func TestCheckFindsStaleMissingAndOrphanedFiles(t *testing.T) {
	root := t.TempDir()
	if err := os.MkdirAll(filepath.Join(root, crdDir), 0o755); err != nil {
		t.Fatal(err)
	}
	for name, text := range map[string]string{crdDir + "/right.yaml": "1", crdDir + "/stale.yaml": "1", crdDir + "/orphan.yaml": "1"} {
		if err := os.WriteFile(filepath.Join(root, name), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want := files{crdDir + "/right.yaml": []byte("1"), crdDir + "/stale.yaml": []byte("2"), crdDir + "/new.yaml": []byte("3")}
	err := settle(options{root: root, check: true}, want)
	if err == nil || strings.Contains(err.Error(), "right") {
		t.Fatalf("check: %v", err)
	}
	for _, name := range []string{"stale.yaml", "new.yaml", "orphan.yaml", "make generate"} {
		if !strings.Contains(err.Error(), name) {
			t.Errorf("error does not name %s: %v", name, err)
		}
	}
	if err := settle(options{root: root}, want); err != nil {
		t.Fatal(err)
	}
	if err := settle(options{root: root, check: true}, want); err != nil {
		t.Errorf("after writing: %v", err)
	}
}

func TestSectionsMustBeKnownAndWhole(t *testing.T) {
	parts := map[string]string{"env": "new\n"}
	cases := []struct{ name, text, want string }{
		{"unknown", "<!-- generated: evn -->\n<!-- end -->", `unknown section "evn"`},
		{"not closed", "<!-- generated: env -->\n", "1 sections that begin and 0 that are whole"},
		{"right", "<!-- generated: env -->\nold\n<!-- end -->", ""},
	}
	for _, c := range cases {
		err := checkNames("page.md", c.text, parts, map[string]bool{})
		if (err == nil) != (c.want == "") || err != nil && !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: error %v, want %q", c.name, err, c.want)
		}
	}
}

func TestValueTable(t *testing.T) {
	const schema = `{"properties": {"global": {}, "logLevel": {"enum": ["info", "warn"]}, "mtu": {"type": ["integer", "string"], "minimum": 1},
		"pool": {"properties": {"cidr": {"type": "string"}}}, "resources": {"properties": {"node": {"type": "object"}}},
		"extra": {"type": "array", "items": {"type": "boolean"}}}}`
	const text = "# Head.\n\n# Log level.\nlogLevel: info\n# Size.\nmtu: 5\npool:\n  # The range,\n  # or none | all.\n  cidr: 10.0.0.0/8\n# Resources.\nresources:\n  node:\n    requests: {cpu: 50m}\n# Extra.\nextra: []\n"
	got, err := valueTable([]byte(text), []byte(schema))
	if err != nil {
		t.Fatal(err)
	}
	want := "| Value | May be | Default | Meaning |\n|---|---|---|---|\n" +
		"| `logLevel` | `info`, `warn` | `info` | Log level. |\n" +
		"| `mtu` | number, at least 1 or text | `5` | Size. |\n" +
		"| `pool.cidr` | text | `10.0.0.0/8` | The range, or none \\| all. |\n" +
		"| `resources.node` | object | `{requests: {cpu: 50m}}` | Resources. |\n" +
		"| `extra` | list of: `true`, `false` | `[]` | Extra. |\n"
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("table (-want +got):\n%s", diff)
	}
	for name, c := range map[string]struct{ text, want string }{
		"no comment":     {strings.Replace(text, "# Extra.\n", "", 1), "extra of the chart has no comment"},
		"not in schema":  {text + "# New.\nnew: 1\n", "new of the chart is not in values.schema.json"},
		"not in values":  {strings.Replace(text, "# Size.\nmtu: 5\n", "", 1), "has mtu, which is not in values.yaml"},
		"none in a part": {strings.Replace(text, "  cidr:", "  cird:", 1), "pool.cird of the chart is not in"},
	} {
		if got, err := valueTable([]byte(c.text), []byte(schema)); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: error %v, want %q:\n%s", name, err, c.want, got)
		}
	}
}

func TestFieldList(t *testing.T) {
	type inner struct {
		Name string    `json:"name,omitempty" help:"Its name."`
		At   time.Time `json:"at,omitzero" help:"When."`
	}
	got, err := fieldList(reflect.TypeFor[struct {
		Ready bool     `json:"ready" help:"Whether."`
		Count uint32   `json:"count" help:"How many."`
		Lines []string `json:"lines" help:"Lines."`
		One   *inner   `json:"one" help:"One."`
		All   []inner  `json:"all" help:"All."`
		Few   []struct {
			From string `json:"from" help:"From where."`
		} `json:"few" help:"Few."`
	}]())
	if err != nil {
		t.Fatal(err)
	}
	want := "- `ready` (boolean): Whether.\n- `count` (number): How many.\n- `lines` (list): Lines.\n" +
		"- `one` (object): One.\n- `one.name` (string): Its name.\n- `one.at` (time): When.\n" +
		"- `all` (list): All. Fields as of `one`.\n- `few` (list): Few.\n- `few[].from` (string): From where.\n"
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("table (-want +got):\n%s", diff)
	}
	type silent struct {
		Mute int `json:"mute"`
	}
	if got, err := fieldList(reflect.TypeFor[struct {
		All []silent `json:"all" help:"All."`
	}]()); err == nil || !strings.Contains(err.Error(), "Mute") {
		t.Errorf("a field without a meaning: %v\n%s", err, got)
	}
}
