package main

import (
	"errors"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"path/filepath"
	"reflect"
	"strconv"
)

// input is a user input of the plugins: a configuration key, an argument or an annotation.
type input struct {
	name    string
	kind    string // its type, or where it is set
	deflt   string
	help    string
	instead string // replacement of a deprecated input
}

// pluginInputs are the declared inputs of the plugins. The source is parsed, as this module does not have the dependencies of the packages.
type pluginInputs struct {
	options, arguments, annotations []input
}

func readPluginInputs(root string) (*pluginInputs, error) {
	src, err := parseDir(filepath.Join(root, "internal/plugin"))
	if err != nil {
		return nil, err
	}
	constants, err := parseDir(filepath.Join(root, "internal/api"))
	if err != nil {
		return nil, err
	}
	in := &pluginInputs{options: src.literals("ofSpecification", nil)}
	in.options = append(in.options, src.keys("netConf", "")...)
	in.arguments = src.fields("podArgs")
	in.annotations = src.literals("annotations", constants)
	if len(in.options) < 50 || len(in.arguments) < 3 || len(in.annotations) < 5 {
		return nil, fmt.Errorf("found only %d keys, %d arguments and %d annotations in internal/plugin: were the declarations renamed?",
			len(in.options), len(in.arguments), len(in.annotations))
	}
	return in, errors.Join(described(in.options), described(in.arguments), described(in.annotations))
}

func described(inputs []input) error {
	for _, i := range inputs {
		if i.name == "" || i.help == "" {
			return fmt.Errorf("%q of the plugins has no name or no help: %+v", i.name, i)
		}
	}
	return nil
}

// source is the declarations of a package by name.
type source struct {
	structs map[string]*ast.StructType
	values  map[string]ast.Expr
}

func parseDir(dir string) (*source, error) {
	paths, err := filepath.Glob(filepath.Join(dir, "*.go"))
	if err != nil {
		return nil, fmt.Errorf("reading declarations: %w", err)
	}
	s := &source{structs: map[string]*ast.StructType{}, values: map[string]ast.Expr{}}
	for _, path := range paths {
		file, err := parser.ParseFile(token.NewFileSet(), path, nil, parser.SkipObjectResolution)
		if err != nil {
			return nil, fmt.Errorf("reading declarations: %w", err)
		}
		ast.Inspect(file, s.note)
	}
	return s, nil
}

func (s *source) note(n ast.Node) bool {
	switch n := n.(type) {
	case *ast.FuncDecl:
		return false
	case *ast.TypeSpec:
		if t, ok := n.Type.(*ast.StructType); ok {
			s.structs[n.Name.Name] = t
		}
	case *ast.ValueSpec:
		for i, name := range n.Names {
			if i < len(n.Values) {
				s.values[name.Name] = n.Values[i]
			}
		}
	}
	return true
}

// keys returns the JSON keys of a struct, those of nested structs with dots.
func (s *source) keys(name, prefix string) []input {
	var keys []input
	for _, field := range s.structs[name].Fields.List {
		tag := tagOf(field)
		key := tag.Get("json")
		if key == "" {
			continue
		}
		if of, ok := field.Type.(*ast.Ident); ok && s.structs[of.Name] != nil {
			keys = append(keys, s.keys(of.Name, prefix+key+".")...)
			continue
		}
		kind := tag.Get("type")
		if kind == "" {
			kind = kindOf(field.Type)
		}
		deflt := tag.Get("default")
		if deflt == "" && kind == "boolean" {
			deflt = "false"
		}
		keys = append(keys, input{prefix + key, kind, deflt, tag.Get("help"), tag.Get("instead")})
	}
	return keys
}

// fields returns the fields of a struct by their Go names.
func (s *source) fields(name string) []input {
	var all []input
	for _, field := range s.structs[name].Fields.List {
		for _, n := range field.Names {
			all = append(all, input{name: n.Name, help: tagOf(field).Get("help")})
		}
	}
	return all
}

func tagOf(field *ast.Field) reflect.StructTag {
	if field.Tag == nil {
		return ""
	}
	text, err := strconv.Unquote(field.Tag.Value)
	if err != nil {
		return ""
	}
	return reflect.StructTag(text)
}

func kindOf(t ast.Expr) string {
	switch t := t.(type) {
	case *ast.ArrayType:
		return "list"
	case *ast.Ident:
		switch t.Name {
		case "bool":
			return "boolean"
		case "int", "float64":
			return "number"
		}
	}
	return "string"
}

// literals returns the items of a list of composite literals. A name may be a constant of another package.
func (s *source) literals(name string, constants *source) []input {
	list, ok := s.values[name].(*ast.CompositeLit)
	if !ok {
		return nil
	}
	var all []input
	for _, element := range list.Elts {
		item, ok := element.(*ast.CompositeLit)
		if !ok {
			continue
		}
		fields := map[string]string{}
		for _, e := range item.Elts {
			if kv, ok := e.(*ast.KeyValueExpr); ok {
				fields[fmt.Sprint(kv.Key)] = constants.text(kv.Value)
			}
		}
		of := fields["Type"]
		if of == "" {
			of = "pod"
			if fields["OfNamespace"] == "true" {
				of = "pod, else namespace"
			}
		}
		all = append(all, input{fields["Key"], of, fields["Default"] + fields["Form"], fields["Help"], ""})
	}
	return all
}

// text returns the value of a literal or of a constant of the package.
func (s *source) text(e ast.Expr) string {
	switch e := e.(type) {
	case *ast.Ident: // true and false
		return e.Name
	case *ast.SelectorExpr:
		if s == nil {
			return ""
		}
		return literal(s.values[e.Sel.Name])
	}
	return literal(e)
}

// rows are the inputs in the form of settingsPath, deprecated keys last.
func (in *pluginInputs) rows() (all [][]string) {
	var old [][]string
	for _, o := range in.options {
		row := []string{"calico, calico-ipam", "key", o.name, o.kind, o.deflt, o.help}
		if o.instead != "" {
			row[5] += " Deprecated: use " + o.instead + "."
			old = append(old, row)
			continue
		}
		all = append(all, row)
	}
	all = append(all, old...)
	for _, a := range in.arguments {
		all = append(all, []string{"calico, calico-ipam", "argument of CNI_ARGS", a.name, "string", "", a.help})
	}
	for _, a := range in.annotations {
		all = append(all, []string{"calico", "annotation of " + a.kind, a.name, a.deflt, "", a.help})
	}
	return all
}
