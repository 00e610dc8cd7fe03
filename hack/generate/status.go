package main

import (
	"fmt"
	"reflect"
	"strings"
	"time"

	"github.com/tortie-net/tortie/internal/agent/nodestatus"
)

// fieldsPath is the list of the output fields of node status and node diagnose.
const fieldsPath = "docs/fields.csv"

func fields() ([]byte, error) {
	rows := [][]string{{"Of", "Field", "Type", "Meaning"}}
	for _, one := range []struct {
		name string
		of   reflect.Type
	}{{"/status", reflect.TypeFor[nodestatus.Report]()}, {"node diagnose", reflect.TypeFor[nodestatus.Diagnosis]()}} {
		more, err := fieldRows(one.of, "", map[reflect.Type]string{})
		if err != nil {
			return nil, err
		}
		for _, row := range more {
			rows = append(rows, append([]string{one.name}, row...))
		}
	}
	return commaSeparated(rows)
}

// fieldRows lists the fields of a struct as in JSON, followed by the fields of its structs: name, type, meaning. The
// tag help is a field's meaning; a field without it is an error. A struct that occurs twice is listed once.
func fieldRows(of reflect.Type, prefix string, listed map[reflect.Type]string) (rows [][]string, err error) {
	for f := range of.Fields() {
		key, _, _ := strings.Cut(f.Tag.Get("json"), ",")
		help := f.Tag.Get("help")
		if key == "" || help == "" {
			return nil, fmt.Errorf("field %s of %s has no tag json or no tag help: say what it means", f.Name, of)
		}
		kind, inner := jsonKind(f.Type)
		name := prefix + key
		if kind == "list" {
			key += "[]"
		}
		if there := listed[inner]; there != "" {
			rows = append(rows, []string{name, kind, help + " Fields as of " + there + "."})
			continue
		}
		rows = append(rows, []string{name, kind, help})
		if inner == nil {
			continue
		}
		listed[inner] = prefix + key
		more, err := fieldRows(inner, prefix+key+".", listed)
		if err != nil {
			return nil, err
		}
		rows = append(rows, more...)
	}
	return rows, nil
}

// jsonKind returns the JSON type of a type; inner is the struct with fields to list, if any.
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
