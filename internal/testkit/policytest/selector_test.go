package policytest

import (
	"testing"
)

// The selector language, for a label a with value x and an absent label.
func TestSelector(t *testing.T) {
	for text, want := range map[string]string{
		"": "true", " \t": "true", "all()": "true", "global()": "false", "!global()": "true", "has(a)": "true",
		"has( b )": "false", "!has(b)": "true",
		"a == 'x'": "true", `a=="x"`: "true", "a != 'x'": "false", "b != 'x'": "true", "b == ''": "false", "a == ''": "false",
		"a in {'x'}": "true", "a in{'y','x',}": "true", "a in {}": "false", "a not in {}": "true", "a notin {'x'}": "false",
		"a not  in {'y'}": "true",
		"b in {'x'}":      "false", "b not in {'x'}": "true", "a contains 'x'": "true", "a contains ''": "true", "b contains ''": "false",
		"a starts with 'x'": "true", "a startswith 'y'": "false", "b starts with ''": "false",
		"a ends\twith 'x'": "true", "a endswith'x'": "true",
		"!!has(a)": "true", "!a == 'x'": "false", "! ! !has(a)": "false", "!(has(a) && has(b))": "true",
		"has(b) || has(a) && has(b)": "false", "has(a) || has(b) && has(b)": "true", "(has(a) || has(b)) && has(b)": "false",
		"c/d_e.f-9 == 'it\"s'": "true", "has == 'x'": "false", "a == \"'\"": "false", "all( )": "true",

		"has (a)": "no", "a": "no", "a =": "no", "a = 'x'": "no", "a == x": "no", "a == 'x": "no", "(has(a)": "no", "has(a))": "no",
		"has()": "no", "&&": "no",
		"has(a) &&": "no", "has(a) has(b)": "no", "a in 'x'": "no", "a in {'x' 'y'}": "no", "a in {,}": "no", "a in {'x'": "no",
		"a not {'x'}": "no", "!": "no",
		"a\n== 'x'": "no", "ä == 'x'": "no", "all": "no", "all(a)": "no", "a not != 'x'": "no", "a starts 'x'": "no",
		"()": "no", "has('a')": "no", "all() | all()": "no",
	} {
		labels := map[string]string{"a": "x", "c/d_e.f-9": `it"s`}
		got, ok := evalSelector(text, view{labels: labels, all: true})
		if is := map[bool]string{true: map[bool]string{true: "true", false: "false"}[got], false: "no"}[ok]; is != want {
			t.Errorf("%q: %s", text, is)
		}
	}
}
