package main

import (
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/tortie-net/tortie/internal/api/groups"
	"github.com/tortie-net/tortie/internal/testkit/difftest"
	"github.com/tortie-net/tortie/internal/testkit/errtest"
)

func TestCheckFindsStaleMissingAndOrphanedFiles(t *testing.T) {
	crdDir := definitionDirs[groups.V3]
	root := t.TempDir()
	errtest.Must(t, os.MkdirAll(filepath.Join(root, crdDir), 0o755))
	for name, text := range map[string]string{crdDir + "/right.yaml": "1", crdDir + "/stale.yaml": "1", crdDir + "/orphan.yaml": "1"} {
		errtest.Must(t, os.WriteFile(filepath.Join(root, name), []byte(text), 0o644))
	}
	want := files{crdDir + "/right.yaml": []byte("1"), crdDir + "/stale.yaml": []byte("2"), crdDir + "/new.yaml": []byte("3")}
	err := settle(options{root: root, check: true}, want)
	if err == nil || strings.Contains(err.Error(), "right") {
		t.Fatalf("check: %v", err)
	}
	difftest.Contains(t, err.Error(), "stale.yaml", "new.yaml", "orphan.yaml", "make generate")
	errtest.Must(t, settle(options{root: root}, want))
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

func TestFieldRows(t *testing.T) {
	type inner struct {
		Name string    `json:"name,omitempty" help:"Its name."`
		At   time.Time `json:"at,omitzero" help:"When."`
	}
	got, err := fieldRows(reflect.TypeFor[struct {
		Ready bool     `json:"ready" help:"Whether."`
		Count uint32   `json:"count" help:"How many."`
		Lines []string `json:"lines" help:"Lines."`
		One   *inner   `json:"one" help:"One."`
		All   []inner  `json:"all" help:"All."`
		Few   []struct {
			From string `json:"from" help:"From where."`
		} `json:"few" help:"Few."`
	}](), "", map[reflect.Type]string{})
	errtest.Must(t, err)
	want := [][]string{
		{"ready", "boolean", "Whether."}, {"count", "number", "How many."}, {"lines", "list", "Lines."},
		{"one", "object", "One."}, {"one.name", "string", "Its name."}, {"one.at", "time", "When."},
		{"all", "list", "All. Fields as of one."}, {"few", "list", "Few."}, {"few[].from", "string", "From where."},
	}
	difftest.Want(t, "rows", want, got)
	type silent struct {
		Mute int `json:"mute"`
	}
	if got, err := fieldRows(reflect.TypeFor[struct {
		All []silent `json:"all" help:"All."`
	}](), "", map[reflect.Type]string{}); err == nil || !strings.Contains(err.Error(), "Mute") {
		t.Errorf("a field without a meaning: %v\n%v", err, got)
	}
}
