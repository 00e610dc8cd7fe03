package selector

import (
	"fmt"
	"strings"
)

type kind int

const (
	end     kind = iota
	word         // a label name, a function or an operator in letters
	literal      // a quoted value
	symbol
)

type token struct {
	kind kind
	text string
	at   int // byte offset in the selector
}

const blanks = " \t"

// symbols, longest first: "!=" must win over "!".
var symbols = []string{"==", "!=", "&&", "||", "!", "(", ")", "{", "}", ","}

// tokenize splits a selector; the last token is always of kind end.
func tokenize(text string) ([]token, error) {
	var tokens []token
	for i := 0; i < len(text); {
		if strings.IndexByte(blanks, text[i]) >= 0 {
			i++
			continue
		}
		t, size, err := scan(text, i)
		if err != nil {
			return nil, err
		}
		tokens = append(tokens, t)
		i += size
	}
	return append(tokens, token{kind: end, at: len(text)}), nil
}

// scan reads the token at offset i and returns its length in the text.
func scan(text string, i int) (token, int, error) {
	rest := text[i:]
	if q := rest[0]; q == '\'' || q == '"' {
		n := strings.IndexByte(rest[1:], q)
		if n < 0 {
			return token{}, 0, fmt.Errorf("at character %d: the quote %c is not closed", i+1, q)
		}
		return token{literal, rest[1 : n+1], i}, n + 2, nil
	}
	for _, s := range symbols {
		if strings.HasPrefix(rest, s) {
			return token{symbol, s, i}, len(s), nil
		}
	}
	n := strings.IndexFunc(rest, func(r rune) bool { return !inName(r) })
	if n < 0 {
		n = len(rest)
	}
	if n == 0 {
		return token{}, 0, fmt.Errorf("at character %d: unexpected %q", i+1, []rune(rest)[0])
	}
	return token{word, rest[:n], i}, n, nil
}

// inName reports whether a label name may contain r.
func inName(r rune) bool {
	return r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || strings.ContainsRune("_./-", r)
}
