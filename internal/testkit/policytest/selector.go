package policytest

import (
	"slices"
	"strings"
)

// isSelector reports whether a text is in Calico's selector language.
func isSelector(text string) bool {
	_, ok := evalSelector(text, view{})
	return ok
}

// EvalSelector evaluates a selector on labels; ok is false if the text is no selector.
func EvalSelector(text string, labels map[string]string) (matches, ok bool) {
	return evalSelector(text, view{labels: labels, all: true, global: true})
}

// view is the input of a selector: labels, and the results of its functions all() and global().
type view struct {
	labels      map[string]string
	all, global bool
}

// evalSelector evaluates a selector in one pass over its text; ok is false for a text that is none.
//
//	selector := "" | or
//	or       := and { "||" and }
//	and      := op { "&&" op }
//	op       := { "!" } ( "(" or ")" | "all()" | "global()" | "has(" label ")" | cmp )
//	cmp      := label ( "==" str | "!=" str | "in" set | ("not in"|"notin") set
//	          | "contains" str | ("starts with"|"startswith") str | ("ends with"|"endswith") str )
//	set      := "{" [ str { "," str } [","] ] "}"
func evalSelector(text string, v view) (matches, ok bool) {
	if strings.Trim(text, blanks) == "" {
		return v.all, true
	}
	e := &evaluation{view: v, rest: text}
	matches = e.or()
	e.skip()
	return matches, !e.failed && e.rest == ""
}

const (
	blanks     = " \t"
	labelChars = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_./-"
)

// evaluation reads its text from the left. Both sides of each operator are read, whatever the result of the first one.
type evaluation struct {
	view
	rest   string
	failed bool
}

func (e *evaluation) skip() { e.rest = strings.TrimLeft(e.rest, blanks) }

// take consumes a token if the text goes on with it, and reports whether it did.
func (e *evaluation) take(token string) (found bool) {
	e.skip()
	e.rest, found = strings.CutPrefix(e.rest, token)
	return found
}

func (e *evaluation) need(token string) { e.failed = !e.take(token) || e.failed }

func (e *evaluation) or() bool {
	result := e.and()
	for e.take("||") {
		right := e.and()
		result = result || right
	}
	return result
}

func (e *evaluation) and() bool {
	result := e.op()
	for e.take("&&") {
		right := e.op()
		result = result && right
	}
	return result
}

func (e *evaluation) op() bool {
	switch {
	case e.take("!"):
		return !e.op()
	case e.take("("):
		result := e.or()
		e.need(")")
		return result
	case e.take("all("):
		e.need(")")
		return e.all
	case e.take("global("):
		e.need(")")
		return e.global
	case e.take("has("):
		_, has := e.labels[e.label()]
		e.need(")")
		return has
	}
	value, has := e.labels[e.label()]
	return e.compare(value, has)
}

// label reads a label's name.
func (e *evaluation) label() string {
	e.skip()
	rest := strings.TrimLeft(e.rest, labelChars)
	name := e.rest[:len(e.rest)-len(rest)]
	e.rest, e.failed = rest, e.failed || name == ""
	return name
}

// compare reads an operator and its operand. An absent label equals nothing and is in no set.
func (e *evaluation) compare(value string, has bool) bool {
	switch {
	case e.take("=="):
		return e.str() == value && has
	case e.take("!="):
		return e.str() != value || !has
	case e.take("contains"):
		return strings.Contains(value, e.str()) && has
	case e.twoWords("starts", "with"):
		return strings.HasPrefix(value, e.str()) && has
	case e.twoWords("ends", "with"):
		return strings.HasSuffix(value, e.str()) && has
	case e.twoWords("not", "in"):
		return !slices.Contains(e.set(), value) || !has
	}
	e.need("in")
	return slices.Contains(e.set(), value) && has
}

// twoWords reads an operator of two words, with or without blanks between them.
func (e *evaluation) twoWords(first, second string) bool {
	whole := e.rest
	if e.take(first) && e.take(second) {
		return true
	}
	e.rest = whole
	return false
}

// str reads a value in quotes of either kind; it may contain the other kind.
func (e *evaluation) str() string {
	for _, quote := range []string{"'", `"`} {
		if e.take(quote) {
			value, rest, closed := strings.Cut(e.rest, quote)
			e.rest, e.failed = rest, e.failed || !closed
			return value
		}
	}
	e.failed = true
	return ""
}

// set reads values in braces, each followed by a comma, which is optional for the last one.
func (e *evaluation) set() (values []string) {
	e.need("{")
	for !e.failed && !e.take("}") {
		values = append(values, e.str())
		if !e.take(",") {
			e.need("}")
			return values
		}
	}
	return values
}
