package messages

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/tortie-net/tortie/internal/testkit/errtest"
)

// message is the name of an Event, alert or policy, with its position.
type message struct {
	class string // event, refusal or alert
	name  string
	at    string
}

// sources is what programs and chart have.
type sources struct {
	names []message
	words map[string]bool // texts of one word, some of which are names by other ways
}

// file is one parsed Go file, and the constants of its package.
type file struct {
	tree   *ast.File
	consts map[string]string
	fset   *token.FileSet
}

// readSources parses the sources of all programs, without packages for tests.
func readSources(t *testing.T) *sources {
	t.Helper()
	s := &sources{words: map[string]bool{}}
	for _, dir := range goDirs(t) {
		for _, f := range parseDir(t, dir) {
			s.read(f)
		}
	}
	s.readAlerts(t)
	s.readFences(t)
	if len(s.names) < 50 {
		t.Fatalf("found only %d names: the test would prove nothing", len(s.names))
	}
	return s
}

var testPackage = regexp.MustCompile(`/(testkit|tests)$`)

func goDirs(t *testing.T) (dirs []string) {
	t.Helper()
	for _, top := range []string{"cmd", "internal"} {
		err := filepath.WalkDir(filepath.Join(root, top), func(path string, d fs.DirEntry, err error) error {
			switch {
			case err != nil:
				return err
			case !d.IsDir():
				return nil
			case testPackage.MatchString(path) || d.Name() == "testdata":
				return filepath.SkipDir
			}
			dirs = append(dirs, path)
			return nil
		})
		errtest.Must(t, err)
	}
	return dirs
}

func parseDir(t *testing.T, dir string) (files []*file) {
	t.Helper()
	names, err := filepath.Glob(filepath.Join(dir, "*.go"))
	errtest.Must(t, err)
	fset, consts := token.NewFileSet(), map[string]string{}
	for _, name := range names {
		if strings.HasSuffix(name, "_test.go") {
			continue
		}
		tree, err := parser.ParseFile(fset, name, nil, parser.SkipObjectResolution)
		errtest.Must(t, err)
		files = append(files, &file{tree, consts, fset})
		for _, d := range tree.Decls {
			noteConstants(d, consts)
		}
	}
	return files
}

// noteConstants records the values of constants of type string.
func noteConstants(d ast.Decl, consts map[string]string) {
	decl, ok := d.(*ast.GenDecl)
	if !ok || decl.Tok != token.CONST {
		return
	}
	for _, spec := range decl.Specs {
		v := spec.(*ast.ValueSpec)
		for i, value := range v.Values {
			if text, ok := (&file{consts: consts}).text(value); ok {
				consts[v.Names[i].Name] = text
			}
		}
	}
}

// text returns the value of a constant text.
func (f *file) text(e ast.Expr) (string, bool) {
	switch e := e.(type) {
	case *ast.BasicLit:
		if e.Kind == token.STRING {
			text, err := strconv.Unquote(e.Value)
			return text, err == nil
		}
	case *ast.ParenExpr:
		return f.text(e.X)
	case *ast.Ident:
		text, ok := f.consts[e.Name]
		return text, ok
	}
	return "", false
}

// selected returns the last name of a function or a variable: Warn of a.Log.Warn.
func selected(e ast.Expr) string {
	switch e := e.(type) {
	case *ast.Ident:
		return e.Name
	case *ast.SelectorExpr:
		return e.Sel.Name
	}
	return ""
}

func (s *sources) read(f *file) {
	for _, d := range f.tree.Decls {
		s.readDecl(f, d)
	}
	ast.Inspect(f.tree, func(n ast.Node) bool {
		if lit, ok := n.(*ast.BasicLit); ok {
			if text, ok := f.text(lit); ok {
				s.words[text] = oneWord.MatchString(text)
			}
		}
		if call, ok := n.(*ast.CallExpr); ok {
			s.readCall(f, call)
		}
		return true
	})
}

// readDecl finds the reasons of Events in constants and tables.
func (s *sources) readDecl(f *file, d ast.Decl) {
	if decl, ok := d.(*ast.GenDecl); ok && (decl.Tok == token.VAR || decl.Tok == token.CONST) {
		for _, spec := range decl.Specs {
			v := spec.(*ast.ValueSpec)
			for i, value := range v.Values {
				s.readVar(f, v.Names[i].Name, value)
			}
		}
	}
	if decl, ok := d.(*ast.FuncDecl); ok && decl.Name.Name == "classify" {
		ast.Inspect(decl, func(n ast.Node) bool {
			if r, ok := n.(*ast.ReturnStmt); ok && len(r.Results) == 3 {
				s.add(f, r.Results[1])
			}
			return true
		})
	}
}

// eventName matches constants of reasons of Events or conditions, which are one word.
var (
	eventName = regexp.MustCompile(`^([eE]vent|reason)[A-Z]`)
	oneWord   = regexp.MustCompile(`^[A-Z][A-Za-z]+$`)
)

func (s *sources) readVar(f *file, name string, value ast.Expr) {
	switch value := value.(type) {
	case *ast.BasicLit:
		if eventName.MatchString(name) {
			s.add(f, value)
		}
	case *ast.CompositeLit:
		if name != "reasons" {
			return
		}
		for _, e := range value.Elts {
			if pair, ok := e.(*ast.KeyValueExpr); ok {
				s.add(f, pair.Value)
			}
		}
	}
}

func (s *sources) readCall(f *file, call *ast.CallExpr) {
	name := selected(call.Fun)
	switch method, _ := call.Fun.(*ast.SelectorExpr); {
	case method != nil && slices.Contains([]string{"Warn", "WarnOfPast", "Note"}, name) && len(call.Args) == 3:
		s.add(f, call.Args[1])
	case name == "InSelf":
		s.add(f, call.Args[0])
	}
}

func (f *file) at(n ast.Node) string {
	return strings.TrimPrefix(f.fset.Position(n.Pos()).String(), root+"/")
}

// add adds a reason; what is more than a word is the text of a log.
func (s *sources) add(f *file, e ast.Expr) {
	if text, ok := f.text(e); ok && oneWord.MatchString(text) {
		s.names = append(s.names, message{"event", text, f.at(e)})
	}
}

var (
	alert = regexp.MustCompile(`alert: (\w+)`)
	// Prefixes of the policies' messages, by which they are searched for.
	fences = []string{"tortie fences nodes", "tortie fences hooks", "tortie fences pods", "tortie fences kube-controllers",
		"the datastore is locked"}
	refusal = regexp.MustCompile(`(?m)^ +message(?:Expression)?: ["']*(.+)$`)
)

// readFences adds the prefixes, of which each message of the policies that refuse requests has one.
func (s *sources) readFences(t *testing.T) {
	t.Helper()
	const path = "charts/tortie/templates/fencing.yaml"
	text, err := os.ReadFile(filepath.Join(root, path))
	errtest.Must(t, err)
	for _, found := range refusal.FindAllStringSubmatch(string(text), -1) {
		if !slices.ContainsFunc(fences, func(words string) bool { return strings.HasPrefix(found[1], words) }) {
			t.Errorf("%s: %q begins with none of %q, by which it is found", path, found[1], fences)
		}
	}
	for _, words := range fences {
		s.names = append(s.names, message{"refusal", words, path})
	}
}

// readAlerts adds the names of the alerts.
func (s *sources) readAlerts(t *testing.T) {
	t.Helper()
	const path = "charts/tortie/files/alerts.yaml"
	text, err := os.ReadFile(filepath.Join(root, path))
	errtest.Must(t, err)
	for _, found := range alert.FindAllStringSubmatch(string(text), -1) {
		s.names = append(s.names, message{"alert", found[1], path})
	}
}
