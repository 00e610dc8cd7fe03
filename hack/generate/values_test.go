package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"go.yaml.in/yaml/v3"

	"github.com/tortie-net/tortie/internal/testkit/errtest"
)

// valueSchema is the used part of the chart's JSON schema.
type valueSchema struct {
	Properties  map[string]*valueSchema `json:"properties"`
	Ref         string                  `json:"$ref"` // reference to a definition of the root
	Definitions map[string]*valueSchema `json:"definitions"`
}

// resolve replaces references by the definitions.
func (s *valueSchema) resolve(definitions map[string]*valueSchema) {
	for name, property := range s.Properties {
		if shared := definitions[strings.TrimPrefix(property.Ref, "#/definitions/")]; shared != nil {
			s.Properties[name] = shared
		}
		s.Properties[name].resolve(definitions)
	}
}

// helmsOwn are values in the schema that Helm passes to every chart.
var helmsOwn = []string{"global"}

// checkValues returns an error for each leaf of values.yaml without a comment above it or its group, or a property of
// the schema, and for each property of the schema without a value.
func checkValues(text, schema []byte) error {
	var doc yaml.Node
	if err := yaml.Unmarshal(text, &doc); err != nil {
		return fmt.Errorf("reading the chart's values: %w", err)
	}
	var root valueSchema
	if err := json.Unmarshal(schema, &root); err != nil {
		return fmt.Errorf("reading the schema of the chart's values: %w", err)
	}
	root.resolve(root.Definitions)
	for _, name := range helmsOwn {
		delete(root.Properties, name)
	}
	return checkBelow("", doc.Content[0], &root, "")
}

func checkBelow(prefix string, node *yaml.Node, schema *valueSchema, inherited string) (err error) {
	var names []string
	for i := 0; i+1 < len(node.Content); i += 2 {
		key, value := node.Content[i], node.Content[i+1]
		names = append(names, key.Value)
		err = errors.Join(err, checkValue(prefix+key.Value, key, value, schema.Properties[key.Value], inherited))
	}
	for name := range schema.Properties {
		if !slices.Contains(names, name) {
			err = errors.Join(err, fmt.Errorf("values.schema.json has %s%s, which is not in values.yaml", prefix, name))
		}
	}
	return err
}

func checkValue(name string, key, value *yaml.Node, rule *valueSchema, inherited string) error {
	help := key.HeadComment
	if i := strings.LastIndex(help, "\n\n"); i >= 0 {
		help = help[i:] // what is above is the file's header
	}
	if help == "" {
		help = inherited
	}
	switch {
	case rule == nil:
		return fmt.Errorf("value %s of the chart is not in values.schema.json", name)
	case hasLeaves(value):
		return checkBelow(name+".", value, rule, help)
	case help == "":
		return fmt.Errorf("value %s of the chart has no comment above it", name)
	}
	return nil
}

// hasLeaves distinguishes a group of settings, in block style, from a value that is a map or a Kubernetes object, such
// as resources.
func hasLeaves(node *yaml.Node) bool {
	return node.Kind == yaml.MappingNode && node.Style != yaml.FlowStyle && len(node.Content) > 0 &&
		!slices.Contains([]string{"requests", "limits"}, node.Content[0].Value)
}

// TestValuesAreDescribed: docs/chart.md leaves the values to values.yaml.
func TestValuesAreDescribed(t *testing.T) {
	chart := filepath.Join(repository, "charts/tortie")
	values, err := os.ReadFile(filepath.Join(chart, "values.yaml"))
	errtest.Must(t, err)
	schema, err := os.ReadFile(filepath.Join(chart, "values.schema.json"))
	errtest.Must(t, err)
	if err := checkValues(values, schema); err != nil {
		t.Error(err)
	}
}

func TestCheckValues(t *testing.T) {
	const schema = `{"properties": {"global": {}, "logLevel": {}, "mtu": {}, "pool": {"properties": {"cidr": {"type": "string"}}},
		"resources": {"properties": {"node": {"type": "object"}}}, "extra": {"type": "array"}}}`
	const text = "# Head.\n\n# Log level.\nlogLevel: info\n# Size.\nmtu: 5\npool:\n  # The range,\n  # or none | all.\n  cidr: 10.0.0.0/8\n" +
		"# Resources.\nresources:\n  node:\n    requests: {cpu: 50m}\n# Extra.\nextra: []\n"
	if err := checkValues([]byte(text), []byte(schema)); err != nil {
		t.Error(err)
	}
	for name, c := range map[string]struct{ text, want string }{
		"no comment":     {strings.Replace(text, "# Extra.\n", "", 1), "extra of the chart has no comment"},
		"not in schema":  {text + "# New.\nnew: 1\n", "new of the chart is not in values.schema.json"},
		"not in values":  {strings.Replace(text, "# Size.\nmtu: 5\n", "", 1), "has mtu, which is not in values.yaml"},
		"none in a part": {strings.Replace(text, "  cidr:", "  cird:", 1), "pool.cird of the chart is not in"},
	} {
		if err := checkValues([]byte(c.text), []byte(schema)); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: error %v, want %q", name, err, c.want)
		}
	}
}
