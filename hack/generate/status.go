package main

import (
	"fmt"
	"reflect"
	"strings"
	"time"
)

// fieldTable lists the fields of a struct as JSON has them, those of the structs in it after them. The tag help is a field's
// meaning; one without it is an error, as nobody could find out what it says.
func fieldTable(of reflect.Type) (string, error) {
	rows, err := fieldRows(of, "")
	if err != nil {
		return "", err
	}
	return table(append([][]string{{"Field", "Type", "Meaning"}}, rows...)), nil
}

func fieldRows(of reflect.Type, prefix string) ([][]string, error) {
	var rows [][]string
	for f := range of.Fields() {
		key, _, _ := strings.Cut(f.Tag.Get("json"), ",")
		help := f.Tag.Get("help")
		if key == "" || help == "" {
			return nil, fmt.Errorf("field %s of %s has no tag json or no tag help: say what it means", f.Name, of)
		}
		kind, inner := jsonKind(f.Type)
		rows = append(rows, []string{code(prefix + key), kind, help})
		if inner == nil {
			continue
		}
		if kind == "list" {
			key += "[]"
		}
		more, err := fieldRows(inner, prefix+key+".")
		if err != nil {
			return nil, err
		}
		rows = append(rows, more...)
	}
	return rows, nil
}

// jsonKind names a type in JSON's words; inner is the struct whose fields are to be listed, if there is one.
func jsonKind(t reflect.Type) (kind string, inner reflect.Type) {
	switch {
	case t == reflect.TypeFor[time.Time]():
		return "time", nil
	case t.Kind() == reflect.Pointer:
		return jsonKind(t.Elem())
	case t.Kind() == reflect.Struct:
		return "object", t
	case t.Kind() == reflect.Slice && t.Elem().Kind() == reflect.Struct:
		return "list", t.Elem()
	case t.Kind() == reflect.Slice:
		return "list", nil
	case t.Kind() == reflect.Bool:
		return "boolean", nil
	case t.Kind() == reflect.String:
		return "string", nil
	}
	return "number", nil
}
