package main

import (
	"fmt"
	"reflect"
	"strings"
	"time"
)

// fieldList lists the fields of a struct as JSON has them, those of the structs in it after them. The tag help is a field's
// meaning; one without it is an error. A field without a type is a string. A struct that is there twice is listed once.
func fieldList(of reflect.Type) (string, error) {
	lines, err := fieldLines(of, "", map[reflect.Type]string{})
	if err != nil {
		return "", err
	}
	return strings.Join(lines, ""), nil
}

func fieldLines(of reflect.Type, prefix string, listed map[reflect.Type]string) ([]string, error) {
	var lines []string
	for f := range of.Fields() {
		key, _, _ := strings.Cut(f.Tag.Get("json"), ",")
		help := f.Tag.Get("help")
		if key == "" || help == "" {
			return nil, fmt.Errorf("field %s of %s has no tag json or no tag help: say what it means", f.Name, of)
		}
		kind, inner := jsonKind(f.Type)
		line := item(code(prefix+key), help, strings.TrimPrefix(kind, "string"))
		if inner == nil {
			lines = append(lines, line)
			continue
		}
		if kind == "list" {
			key += "[]"
		}
		if there := listed[inner]; there != "" {
			lines = append(lines, fmt.Sprintf("%s Fields as of `%s`.\n", strings.TrimSuffix(line, "\n"), there))
			continue
		}
		listed[inner] = prefix + key
		more, err := fieldLines(inner, prefix+key+".", listed)
		if err != nil {
			return nil, err
		}
		lines = append(append(lines, line), more...)
	}
	return lines, nil
}

// jsonKind returns the JSON type of a type; inner is the struct whose fields are listed, if any.
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
