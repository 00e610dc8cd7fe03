package main

import (
	"encoding/json"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v3"
)

// valueSchema is the used part of the chart's JSON schema.
type valueSchema struct {
	Type        any                     `json:"type"`
	Enum        []any                   `json:"enum"`
	Properties  map[string]*valueSchema `json:"properties"`
	Items       *valueSchema            `json:"items"`
	Minimum     *int64                  `json:"minimum"`
	Maximum     *int64                  `json:"maximum"`
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

// valueTable returns a row for each leaf of values.yaml: the comment above is its description, the schema has its type. A value without either
// is an error, and so is a property of the schema without a value.
func valueTable(text, schema []byte) (string, error) {
	var doc yaml.Node
	if err := yaml.Unmarshal(text, &doc); err != nil {
		return "", fmt.Errorf("reading the chart's values: %w", err)
	}
	var root valueSchema
	if err := json.Unmarshal(schema, &root); err != nil {
		return "", fmt.Errorf("reading the schema of the chart's values: %w", err)
	}
	root.resolve(root.Definitions)
	for _, name := range helmsOwn {
		delete(root.Properties, name)
	}
	rows, err := valueRows("", doc.Content[0], &root, "")
	if err != nil {
		return "", err
	}
	return table(append([][]string{{"Value", "May be", "Default", "Meaning"}}, rows...)), nil
}

func valueRows(prefix string, node *yaml.Node, schema *valueSchema, inherited string) ([][]string, error) {
	var rows [][]string
	var names []string
	for i := 0; i+1 < len(node.Content); i += 2 {
		key, value := node.Content[i], node.Content[i+1]
		names = append(names, key.Value)
		name, help := prefix+key.Value, comment(key.HeadComment)
		if help == "" {
			help = inherited
		}
		rule := schema.Properties[key.Value]
		if rule == nil {
			return nil, fmt.Errorf("value %s of the chart is not in values.schema.json", name)
		}
		// A map in block style is a group of settings; one in flow style is a value.
		if value.Kind == yaml.MappingNode && value.Style != yaml.FlowStyle && hasLeaves(value) {
			below, err := valueRows(name+".", value, rule, help)
			if err != nil {
				return nil, err
			}
			rows = append(rows, below...)
			continue
		}
		row, err := valueRow(name, help, value, rule)
		if err != nil {
			return nil, err
		}
		rows = append(rows, row)
	}
	for name := range schema.Properties {
		if !slices.Contains(names, name) {
			return nil, fmt.Errorf("values.schema.json has %s%s, which is not in values.yaml: nobody would learn of it", prefix, name)
		}
	}
	return rows, nil
}

func valueRow(name, help string, value *yaml.Node, rule *valueSchema) ([]string, error) {
	if help == "" {
		return nil, fmt.Errorf("value %s of the chart has no comment above it", name)
	}
	text, err := flow(value)
	if err != nil {
		return nil, fmt.Errorf("value %s of the chart: %w", name, err)
	}
	return []string{code(name), rule.words(), code(text), help}, nil
}

// words describes the allowed values.
func (s *valueSchema) words() string {
	if len(s.Enum) > 0 {
		var all []string
		for _, value := range s.Enum {
			all = append(all, code(fmt.Sprint(value)))
		}
		return strings.Join(all, ", ")
	}
	switch kind := s.Type.(type) {
	case []any:
		var all []string
		for _, one := range kind {
			narrowed := *s
			narrowed.Type = one
			all = append(all, narrowed.words())
		}
		return strings.Join(all, " or ")
	case string:
		return s.kindWords(kind)
	}
	return "anything"
}

func (s *valueSchema) kindWords(kind string) string {
	switch kind {
	case "boolean":
		return "`true`, `false`"
	case "integer":
		return "number" + s.bounds()
	case "string":
		return "text"
	case "array":
		if s.Items == nil {
			return "list"
		}
		return "list of: " + s.Items.words()
	}
	return kind
}

func (s *valueSchema) bounds() string {
	number := func(n *int64) string { return strconv.FormatInt(*n, 10) }
	switch {
	case s.Minimum != nil && s.Maximum != nil:
		return ", " + number(s.Minimum) + " to " + number(s.Maximum)
	case s.Minimum != nil:
		return ", at least " + number(s.Minimum)
	case s.Maximum != nil:
		return ", at most " + number(s.Maximum)
	}
	return ""
}

// hasLeaves distinguishes a group of settings from a value that is a Kubernetes object, such as the resources of a container.
func hasLeaves(node *yaml.Node) bool {
	return node.Kind == yaml.MappingNode && len(node.Content) > 0 && !isObject(node)
}

func isObject(node *yaml.Node) bool {
	return node.Content[0].Value == "requests" || node.Content[0].Value == "limits"
}

func flow(node *yaml.Node) (string, error) {
	copied := *node
	copied.Style = yaml.FlowStyle
	copied.HeadComment, copied.FootComment = "", ""
	if node.Kind == yaml.ScalarNode {
		return node.Value, nil
	}
	text, err := yaml.Marshal(&copied)
	return strings.TrimSpace(string(text)), err
}

// comment returns the comment above a key as a sentence. A comment of several paragraphs includes the file's header.
func comment(text string) string {
	paragraphs := strings.Split(strings.TrimSpace(text), "\n\n")
	last := paragraphs[len(paragraphs)-1]
	var words []string
	for line := range strings.Lines(last) {
		words = append(words, strings.Fields(strings.TrimPrefix(strings.TrimSpace(line), "#"))...)
	}
	return strings.Join(words, " ")
}
