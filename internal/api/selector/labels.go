package selector

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/tortie-net/tortie/internal/api"
)

// FromLabels makes a Selector of a Kubernetes label selector. An empty one matches everything. Equal selectors have
// equal texts, in whatever order they were written, and different ones different texts. The text is for display and
// comparison: Parse may refuse it. An error names the condition and its requirement.
func FromLabels(labels api.LabelSelector) (Selector, error) {
	var all []condition
	for _, key := range slices.Sorted(maps.Keys(labels.MatchLabels)) {
		all = append(all, condition{key: key, operator: api.SelectorIn, values: []string{labels.MatchLabels[key]}})
	}
	for i, r := range labels.MatchExpressions {
		c, err := newCondition(r)
		if err != nil {
			return Selector{}, fmt.Errorf("matchExpressions[%d]: %w", i, err)
		}
		all = append(all, c)
	}
	slices.SortFunc(all, func(a, b condition) int { return strings.Compare(a.String(), b.String()) })
	return join(slices.CompactFunc(all, func(a, b condition) bool { return a.String() == b.String() })), nil
}

// Need is a required label, with its possible values.
type Need struct {
	Key    string
	Values []string
}

// Needs returns labels that all matches of the selector have, as far as they are known.
func (s Selector) Needs() []Need { return s.needs }

// Size returns the number of conditions, including all() and global() beside others: the cost of Matches.
func (s Selector) Size() int { return s.size }

// condition is one term of a label selector; all of them must hold.
type condition struct {
	key, operator string
	values        []string // ascending
}

func newCondition(r api.LabelSelectorRequirement) (condition, error) {
	c := condition{key: r.Key, operator: r.Operator, values: slices.Compact(slices.Sorted(slices.Values(r.Values)))}
	switch r.Operator {
	case api.SelectorIn, api.SelectorNotIn:
		if len(r.Values) == 0 {
			return c, fmt.Errorf("operator %s of label %q has no values: give at least one", r.Operator, r.Key)
		}
	case api.SelectorExists, api.SelectorDoesNotExist:
		if len(r.Values) > 0 {
			return c, fmt.Errorf("operator %s of label %q has values: leave them out", r.Operator, r.Key)
		}
	default:
		return c, fmt.Errorf("operator %q of label %q is unknown: use In, NotIn, Exists or DoesNotExist", r.Operator, r.Key)
	}
	if r.Key == "" {
		return c, fmt.Errorf("key is empty: name a label")
	}
	return c, nil
}

// String returns the condition in the syntax of Parse, if its values can be quoted so and its key is a name. Other
// keys, which the API server accepts in custom resources, are quoted, so that none looks like a condition.
func (c condition) String() string {
	key := c.key
	if strings.ContainsFunc(key, func(r rune) bool { return !inName(r) }) {
		key = strconv.Quote(key)
	}
	switch {
	case c.operator == api.SelectorExists:
		return "has(" + key + ")"
	case c.operator == api.SelectorDoesNotExist:
		return "!has(" + key + ")"
	case len(c.values) == 1 && c.operator == api.SelectorIn:
		return fmt.Sprintf("%s == %q", key, c.values[0])
	case len(c.values) == 1:
		return fmt.Sprintf("%s != %q", key, c.values[0])
	}
	quoted := make([]string, len(c.values))
	for i, v := range c.values {
		quoted[i] = fmt.Sprintf("%q", v)
	}
	operator := map[string]string{api.SelectorIn: "in", api.SelectorNotIn: "not in"}[c.operator]
	return key + " " + operator + " {" + strings.Join(quoted, ", ") + "}"
}

func (c condition) matches(labels map[string]string) bool {
	value, ok := labels[c.key]
	switch c.operator {
	case api.SelectorExists:
		return ok
	case api.SelectorDoesNotExist:
		return !ok
	case api.SelectorIn:
		return ok && c.has(value)
	default:
		return !ok || !c.has(value)
	}
}

func (c condition) has(value string) bool {
	_, found := slices.BinarySearch(c.values, value)
	return found
}

func join(all []condition) Selector {
	if len(all) == 0 {
		return Selector{}
	}
	s := Selector{size: len(all), eval: func(labels map[string]string) bool {
		return !slices.ContainsFunc(all, func(c condition) bool { return !c.matches(labels) })
	}}
	texts := make([]string, len(all))
	for i, c := range all {
		texts[i] = c.String()
		s.keys = append(s.keys, c.key)
		if c.operator == api.SelectorIn {
			s.needs = append(s.needs, Need{c.key, c.values})
		}
	}
	slices.Sort(s.keys)
	s.text, s.keys = strings.Join(texts, " && "), slices.Compact(s.keys)
	return s
}
