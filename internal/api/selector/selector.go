// Package selector parses and evaluates Calico's label selectors, such as
//
//	has(rack) && zone in {'a', "b"} && !(kind == 'edge')
//
// It is pure. The grammar, loosest first: a || b, a && b, !a, then a comparison, has(k), all(), global() or a bracket.
// A comparison with != or not in is true when the label is absent. White space is blanks and tabs. Operators of two
// words may be written as one.
package selector

import (
	"fmt"
	"slices"
	"strings"
)

// Selector decides on a set of labels.
type Selector struct {
	text  string
	eval  func(labels map[string]string) bool
	keys  []string
	needs []Need
	size  int
	// global is whether the selector contains global().
	global bool
}

// String returns the text that the selector was parsed from, or that FromLabels wrote.
func (s Selector) String() string { return s.text }

// Keys returns the labels that the selector refers to, in ascending order: Matches ignores others.
func (s Selector) Keys() []string { return s.keys }

// Matches reports whether the labels satisfy the selector. The zero Selector matches everything.
func (s Selector) Matches(labels map[string]string) bool {
	return s.eval == nil || s.eval(labels)
}

// Global reports whether global() is in the selector.
func (s Selector) Global() bool { return s.global }

// Parse reads a selector. Empty text matches everything. An error names the text and where it went wrong.
func Parse(text string) (Selector, error) { return parse(text, "") }

// ParseScoped reads a selector of namespaces. all() matches objects with the label, which are in a namespace; global()
// matches objects without it.
func ParseScoped(text, label string) (Selector, error) { return parse(text, label) }

func parse(text, scope string) (Selector, error) {
	if strings.Trim(text, blanks) == "" {
		return Selector{text: text}, nil
	}
	tokens, err := tokenize(text)
	if err != nil {
		return Selector{}, fmt.Errorf("selector %q: %w", text, err)
	}
	p := &parser{tokens: tokens, scope: scope}
	eval, err := p.or()
	if err == nil && p.peek().kind != end {
		err = p.unexpected("an operator or the end")
	}
	if err != nil {
		return Selector{}, fmt.Errorf("selector %q: %w", text, err)
	}
	if p.terms == 1 && len(p.keys) == 0 {
		p.terms = 0 // all() alone is no condition
	}
	slices.Sort(p.keys)
	return Selector{text: text, eval: eval.matches, keys: slices.Compact(p.keys), needs: eval.needs, size: p.terms, global: p.global}, nil
}

// evaluator is a part of a selector.
type evaluator struct {
	matches func(map[string]string) bool
	needs   []Need
}

func evaluate(matches func(map[string]string) bool) evaluator { return evaluator{matches: matches} }

// maxDepth bounds brackets and negations, so that hostile text cannot exhaust the stack.
const maxDepth = 100

type parser struct {
	tokens []token
	pos    int
	depth  int
	keys   []string // labels that were named so far
	scope  string   // see ParseScoped
	global bool
	terms  int
}

func (p *parser) peek() token { return p.tokens[p.pos] }

func (p *parser) next() token {
	t := p.tokens[p.pos]
	if t.kind != end {
		p.pos++
	}
	return t
}

// accept consumes the next token if its text is text.
func (p *parser) accept(text string) bool {
	if t := p.peek(); t.kind != literal && t.kind != end && t.text == text {
		p.next()
		return true
	}
	return false
}

func (p *parser) expect(text string) error {
	if !p.accept(text) {
		return p.unexpected("'" + text + "'")
	}
	return nil
}

func (p *parser) unexpected(wanted string) error {
	t := p.peek()
	if t.kind == end {
		return fmt.Errorf("it ends where %s was expected", wanted)
	}
	return fmt.Errorf("at character %d: %q where %s was expected", t.at+1, t.text, wanted)
}

func (p *parser) or() (evaluator, error) {
	return p.chain("||", p.and, func(a, b evaluator) evaluator {
		return evaluate(func(l map[string]string) bool { return a.matches(l) || b.matches(l) })
	})
}

func (p *parser) and() (evaluator, error) {
	return p.chain("&&", p.not, func(a, b evaluator) evaluator {
		return evaluator{func(l map[string]string) bool { return a.matches(l) && b.matches(l) }, slices.Concat(a.needs, b.needs)}
	})
}

func (p *parser) chain(op string, operand func() (evaluator, error), join func(a, b evaluator) evaluator) (evaluator, error) {
	left, err := operand()
	for err == nil && p.accept(op) {
		var right evaluator
		if right, err = operand(); err == nil {
			left = join(left, right)
		}
	}
	return left, err
}

func (p *parser) not() (evaluator, error) {
	p.depth++
	defer func() { p.depth-- }()
	if p.depth > maxDepth {
		return evaluator{}, fmt.Errorf("at character %d: more than %d brackets and negations in one another", p.peek().at+1, maxDepth)
	}
	if !p.accept("!") {
		return p.primary()
	}
	inner, err := p.not()
	return evaluate(func(l map[string]string) bool { return !inner.matches(l) }), err
}

func (p *parser) primary() (evaluator, error) {
	if p.accept("(") {
		inner, err := p.or()
		if err != nil {
			return evaluator{}, err
		}
		return inner, p.expect(")")
	}
	if p.peek().kind != word {
		return evaluator{}, p.unexpected("a label name, has(…), all(), '!' or '('")
	}
	p.terms++
	name := p.next()
	if bracket := p.peek(); bracket.kind == symbol && bracket.text == "(" && bracket.at == name.at+len(name.text) {
		p.next()
		return p.call(name.text)
	}
	return p.comparison(name.text)
}

// call parses what follows "name(".
func (p *parser) call(name string) (evaluator, error) {
	switch name {
	case "all":
		return p.scoped(true), p.expect(")")
	case "global":
		p.global = true
		return p.scoped(false), p.expect(")")
	case "has":
		if p.peek().kind != word {
			return evaluator{}, p.unexpected("a label name")
		}
		return p.has(p.next().text, true), p.expect(")")
	default:
		return evaluator{}, fmt.Errorf("unknown function %s(): use has(LABEL), all() or global()", name)
	}
}

// scoped matches everything, or with a scope only objects in a namespace, or only objects in none.
func (p *parser) scoped(namespaced bool) evaluator {
	if p.scope == "" {
		return evaluate(func(map[string]string) bool { return true })
	}
	return p.has(p.scope, namespaced)
}

func (p *parser) has(key string, want bool) evaluator {
	p.keys = append(p.keys, key)
	return evaluate(func(l map[string]string) bool { _, ok := l[key]; return ok == want })
}

func (p *parser) comparison(key string) (evaluator, error) {
	p.keys = append(p.keys, key)
	op, err := p.operator()
	if err != nil {
		return evaluator{}, err
	}
	if op == "in" || op == "not in" {
		values, err := p.set()
		return among(key, values, op == "in"), err
	}
	value, err := p.literal()
	if err != nil || op == "==" {
		return among(key, []string{value}, true), err
	}
	compare := comparisons[op]
	return evaluate(func(l map[string]string) bool {
		v, ok := l[key]
		return compare(v, value, ok)
	}), nil
}

// among compares whether the label is present with one of the values to want.
func among(key string, values []string, want bool) evaluator {
	values = slices.Compact(slices.Sorted(slices.Values(values)))
	e := evaluate(func(l map[string]string) bool {
		v, ok := l[key]
		_, found := slices.BinarySearch(values, v)
		return (ok && found) == want
	})
	if want && len(values) > 0 {
		e.needs = []Need{{key, values}}
	}
	return e
}

var comparisons = map[string]func(have, want string, ok bool) bool{
	"!=":          func(have, want string, ok bool) bool { return !ok || have != want },
	"contains":    func(have, want string, ok bool) bool { return ok && strings.Contains(have, want) },
	"starts with": func(have, want string, ok bool) bool { return ok && strings.HasPrefix(have, want) },
	"ends with":   func(have, want string, ok bool) bool { return ok && strings.HasSuffix(have, want) },
}

// together maps two-word operators that are written as one.
var together = map[string]string{"notin": "not in", "startswith": "starts with", "endswith": "ends with"}

// operator reads one operator; two-word operators are joined by one space.
func (p *parser) operator() (string, error) {
	const wanted = "==, !=, in, not in, contains, starts with or ends with"
	t := p.peek()
	switch {
	case t.kind == symbol && (t.text == "==" || t.text == "!="), t.kind == word && (t.text == "in" || t.text == "contains"):
		return p.next().text, nil
	case t.kind == word && together[t.text] != "":
		return together[p.next().text], nil
	case t.kind == word && t.text == "not":
		p.next()
		return "not in", p.expect("in")
	case t.kind == word && (t.text == "starts" || t.text == "ends"):
		p.next()
		return t.text + " with", p.expect("with")
	}
	return "", p.unexpected(wanted)
}

func (p *parser) literal() (string, error) {
	if p.peek().kind != literal {
		return "", p.unexpected("a quoted value")
	}
	return p.next().text, nil
}

// set reads {'a', 'b'}; it may be empty, and a comma may follow the last value.
func (p *parser) set() ([]string, error) {
	if err := p.expect("{"); err != nil {
		return nil, err
	}
	var values []string
	for !p.accept("}") {
		v, err := p.literal()
		if err != nil {
			return nil, err
		}
		values = append(values, v)
		if !p.accept(",") {
			return values, p.expect("}")
		}
	}
	return values, nil
}
