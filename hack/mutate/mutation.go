package main

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
)

// mutation is a change of a function's text.
type mutation struct {
	line               int
	file, function, is string
	from, to           string
	equivalent         string // why no test can detect it; empty: one must
}

func (m mutation) String() string {
	return fmt.Sprintf("mutations.txt:%d: %s: %s: %s", m.line, m.file, m.function, m.is)
}

// parse reads the list. A line that begins with no space names a file, " function: its meaning" begins a mutation, " -
// " has a text that occurs once in the function, " + " its replacement, and " = " the reason why no difference is
// visible.
func parse(text string) (all []mutation, err error) {
	file := ""
	for i, line := range strings.Split(text, "\n") {
		last := len(all) - 1
		switch {
		case strings.TrimSpace(line) == "" || strings.HasPrefix(line, "#"):
		case !strings.HasPrefix(line, " "):
			file = line
		case strings.HasPrefix(line, "    - "):
			all[last].from = strings.ReplaceAll(line[6:], "⏎", "\n")
		case strings.HasPrefix(line, "    +"):
			all[last].to = strings.ReplaceAll(strings.TrimPrefix(line[5:], " "), "⏎", "\n")
		case strings.HasPrefix(line, "    = "):
			all[last].equivalent = line[6:]
		default:
			function, is, ok := strings.Cut(strings.TrimSpace(line), ": ")
			if !ok {
				return nil, fmt.Errorf("mutations.txt:%d: %q is no mutation: write \"  function: what it stands for\"", i+1, line)
			}
			all = append(all, mutation{line: i + 1, file: file, function: function, is: is})
		}
	}
	return all, nil
}

// variable is the environment variable with the number of a run's mutation, from 1 on.
const variable = "TORTIE_MUTANT"

// mutate returns the files of the mutations with all of these in them, and in each package one more file, which reads
// the variable.
func mutate(root string, mutations []mutation) (map[string][]byte, error) {
	files, texts := map[string]*source{}, map[string][]byte{}
	for i, m := range mutations {
		if files[m.file] == nil {
			s, err := read(filepath.Join(root, m.file))
			if err != nil {
				return nil, err
			}
			files[m.file] = s
			texts[path.Join(path.Dir(m.file), "mutant_of_the_run.go")] = fmt.Appendf(nil, `package %s

import (
	"os"
	"strconv"
)

var mutantOfTheRun, _ = strconv.Atoi(os.Getenv(%q))
`, s.name, variable)
		}
		if err := files[m.file].add(i+1, m); err != nil {
			return nil, fmt.Errorf("%s: %w", m, err)
		}
	}
	for file, s := range files {
		texts[file] = []byte(s.render(0, len(s.text), nil))
	}
	return texts, nil
}

// source is a file with statements that are replaced.
type source struct {
	text, name string
	functions  map[string]*ast.FuncDecl
	base       int
	sites      []*site // by position, the outer ones first
}

// site is a statement with its replacements, by the number of a mutation.
type site struct {
	statement  ast.Stmt
	start, end int
	others     map[int]string
}

func read(file string) (*source, error) {
	text, err := os.ReadFile(file)
	if err != nil {
		return nil, err
	}
	set := token.NewFileSet()
	f, err := parser.ParseFile(set, file, text, parser.SkipObjectResolution)
	if err != nil {
		return nil, err
	}
	s := &source{text: string(text), name: f.Name.Name, functions: map[string]*ast.FuncDecl{}, base: set.File(f.Pos()).Base()}
	for _, d := range f.Decls {
		if d, ok := d.(*ast.FuncDecl); ok {
			s.functions[nameOf(d)] = d
		}
	}
	return s, nil
}

// nameOf returns the name of a function, preceded by the name of its receiver's type.
func nameOf(d *ast.FuncDecl) string {
	if d.Recv == nil {
		return d.Name.Name
	}
	of := d.Recv.List[0].Type
	if pointer, ok := of.(*ast.StarExpr); ok {
		of = pointer.X
	}
	if generic, ok := of.(*ast.IndexExpr); ok {
		of = generic.X
	}
	return fmt.Sprint(of) + "." + d.Name.Name
}

// add finds the innermost statement with the text.
func (s *source) add(number int, m mutation) error {
	d := s.functions[m.function]
	if d == nil {
		return fmt.Errorf("%s has no function %s", m.file, m.function)
	}
	first, behind := int(d.Body.Pos())-s.base, int(d.Body.End())-s.base
	if n := strings.Count(s.text[first:behind], m.from); n != 1 || m.from == "" {
		return fmt.Errorf("the function has %q %d times, want once: change the mutation with the code", m.from, n)
	}
	at := first + strings.Index(s.text[first:behind], m.from)
	found := &site{}
	consider := func(list []ast.Stmt) {
		for _, one := range list {
			start, end := int(one.Pos())-s.base, int(one.End())-s.base
			if _, isCase := one.(*ast.CaseClause); !isCase && start <= at && at+len(m.from) <= end {
				found = &site{statement: one, start: start, end: end, others: map[int]string{}}
			}
		}
	}
	ast.Inspect(d.Body, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.BlockStmt:
			consider(n.List)
		case *ast.CaseClause:
			consider(n.Body)
		}
		return true
	})
	if found.statement == nil {
		return fmt.Errorf("%q is in no statement", m.from)
	}
	if i := slices.IndexFunc(s.sites, func(other *site) bool { return other.start == found.start && other.end == found.end }); i >= 0 {
		found = s.sites[i]
	} else {
		s.sites = append(s.sites, found)
		slices.SortFunc(s.sites, func(a, b *site) int {
			if a.start != b.start {
				return a.start - b.start
			}
			return b.end - a.end
		})
	}
	found.others[number] = s.text[found.start:at] + m.to + s.text[at+len(m.from):found.end]
	return nil
}

// render returns the text of a part, in which each site except of chooses.
func (s *source) render(start, end int, of *site) string {
	var b strings.Builder
	for _, inner := range s.sites {
		if inner == of || inner.start < start || inner.end > end {
			continue
		}
		b.WriteString(s.text[start:inner.start])
		b.WriteString(s.choice(inner))
		start = inner.end
	}
	return b.String() + s.text[start:end]
}

// choice returns a statement that executes the mutation of the run. A statement that declares variables is always
// executed, and repeated by the mutation.
func (s *source) choice(of *site) string {
	plain, numbers := s.render(of.start, of.end, of), make([]int, 0, len(of.others))
	for n := range of.others {
		numbers = append(numbers, n)
	}
	slices.Sort(numbers)
	var b strings.Builder
	define, declares := of.statement.(*ast.AssignStmt)
	if declares = declares && define.Tok == token.DEFINE; declares {
		b.WriteString(plain + "\n")
	}
	for i, n := range numbers {
		text := of.others[n]
		if declares {
			text = strings.Replace(text, ":=", "=", 1)
		}
		if i > 0 {
			b.WriteString(" else ")
		}
		fmt.Fprintf(&b, "if mutantOfTheRun == %d {\n%s\n}", n, text)
	}
	if !declares {
		fmt.Fprintf(&b, " else {\n%s\n}", plain)
	}
	return b.String()
}
