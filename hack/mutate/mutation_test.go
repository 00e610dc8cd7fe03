package main

import (
	"go/parser"
	"go/token"
	"strings"
	"testing"
)

// Each mutation of the list changes a text that its function has once. Who changes the code changes the list with it.
func TestMutationsFitTheCode(t *testing.T) {
	all, err := parse(list)
	if err != nil {
		t.Fatal(err)
	}
	told := map[string]bool{}
	for _, m := range all {
		if _, err := mutate("../..", []mutation{m}); err != nil {
			t.Error(err)
		}
		key := m.file + m.function + m.from + "\x00" + m.to
		if told[key] || m.from == m.to {
			t.Errorf("%s: is there before, or changes nothing", m)
		}
		told[key] = true
	}
	files, err := mutate("../..", all)
	if err != nil {
		t.Fatal(err)
	}
	for name, text := range files {
		if _, err := parser.ParseFile(token.NewFileSet(), name, text, 0); err != nil {
			t.Errorf("with all mutations: %v", err)
		}
	}
}

// Statements inside of others choose by themselves, and those that declare variables do so before.
func TestStatementsChoose(t *testing.T) {
	s, err := read("testdata/nested.txt")
	if err != nil {
		t.Fatal(err)
	}
	for i, m := range []mutation{
		{file: "nested.txt", function: "T.nested", from: "a > 0", to: "true"},
		{file: "nested.txt", function: "T.nested", from: "a += 1", to: "a += 2"},
		{file: "nested.txt", function: "T.nested", from: "b := 2 * a", to: "b := 3 * a"},
	} {
		if err := s.add(i+1, m); err != nil {
			t.Fatal(err)
		}
	}
	got := strings.Join(strings.Fields(s.render(0, len(s.text), nil)), " ")
	const want = "package nested type T struct{} func (T) nested(a int) int { " +
		"if mutantOfTheRun == 1 { if true { a += 1 } } else { if a > 0 { if mutantOfTheRun == 2 { a += 2 } else { a += 1 } } } " +
		"b := 2 * a if mutantOfTheRun == 3 { b = 3 * a } return b }"
	if got != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
	if err := s.add(4, mutation{function: "T.nested", from: "gone"}); err == nil {
		t.Error("a text that is not there is no error")
	}
}
