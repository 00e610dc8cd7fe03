package config

import (
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/tortie-net/tortie/internal/api"
	"github.com/tortie-net/tortie/internal/api/groups"
)

// Env looks up one environment variable. ok is false if it is not set.
type Env func(name string) (value string, ok bool)

// OS returns the process's own environment.
func OS() Env { return os.LookupEnv }

// Var describes one environment variable, as the documentation shows it.
type Var struct {
	Name    string
	Default string
	Help    string
}

// notRead is the tag env of a struct with settings that are read elsewhere.
const notRead = "-"

// Describe lists the variables of a struct of settings, and of the structs in it, in the order of its fields.
func Describe(settings any) []Var { return describe(reflect.TypeOf(settings)) }

func describe(t reflect.Type) (vars []Var) {
	for f := range t.Fields() {
		name := f.Tag.Get("env")
		switch {
		case name == notRead:
		case name != "":
			vars = append(vars, Var{Name: name, Default: f.Tag.Get("default"), Help: f.Tag.Get("help")})
		case f.Type.Kind() == reflect.Struct:
			vars = append(vars, describe(f.Type)...)
		}
	}
	return vars
}

// load fills settings, a pointer to a struct whose fields have the tags env, default and help, and the structs in it;
// with `only`, it fills only these variables. A variable that is set but empty counts as not set: manifests write
// `value: ""` for "the default".
func (p *problems) load(env Env, settings any, only ...string) {
	p.fill(env, reflect.ValueOf(settings).Elem(), only)
}

func (p *problems) fill(env Env, v reflect.Value, only []string) {
	for i := range v.NumField() {
		f := v.Type().Field(i)
		name := f.Tag.Get("env")
		switch {
		case name == notRead:
		case name == "" && f.Type.Kind() == reflect.Struct:
			p.fill(env, v.Field(i), only)
		case name != "" && (len(only) == 0 || slices.Contains(only, name)):
			value := f.Tag.Get("default")
			if set, ok := env(name); ok && strings.TrimSpace(set) != "" {
				value = strings.TrimSpace(set)
			}
			p.set(v.Field(i).Addr().Interface(), name, value, f.Tag.Get("is"))
		}
	}
}

// set parses a value. Its valid forms follow from the type of the field and the tag `is`: see text, integer and
// duration. An empty value is the zero value.
func (p *problems) set(field any, name, value, is string) {
	if value == "" {
		return
	}
	switch into := field.(type) {
	case *string:
		*into = p.text(name, value, is)
	case *[]string:
		for _, item := range splitList(value) {
			*into = append(*into, p.text(name, item, is))
		}
	case *groups.Group:
		in, err := groups.Parse(value)
		if err != nil {
			p.add(name, value, fmt.Sprintf("must be %s or %s, or empty, so that it is found", groups.V1, groups.V3))
		}
		*into = in
	case *bool:
		*into = p.boolean(name, value)
	case **bool:
		*into = new(p.boolean(name, value))
	case *int:
		*into = p.integer(name, value, is)
	case **int:
		*into = new(p.integer(name, value, is))
	case *time.Duration:
		*into = p.duration(name, value, is)
	case **time.Duration:
		*into = new(p.duration(name, value, is))
	case *fs.FileMode:
		*into = p.mode(name, value)
	case *slog.Level:
		if err := into.UnmarshalText([]byte(value)); err != nil {
			p.add(name, value, "must be debug, info, warn or error")
		}
	case *api.Encapsulation:
		*into = p.encapsulation(name, value)
	case *PolicyMode:
		*into = PolicyMode(p.oneOf(name, value, string(PolicyOff), string(PolicyOn), string(PolicyAuto)))
	case *FlowtableMode:
		*into = FlowtableMode(p.oneOf(name, value, string(FlowtableOff), string(FlowtableAuto)))
	default:
		panic(fmt.Sprintf("setting %s: fields of type %T are not known", name, field))
	}
}

// problems collects invalid settings, so that one run shows every mistake.
type problems []error

func (p *problems) add(name, value, remedy string) {
	*p = append(*p, fmt.Errorf("environment variable %s=%q: %s", name, value, remedy))
}

func (p problems) err() error { return errors.Join(p...) }

// forms are the parsers that the tag `is` can name.
var forms = map[string]func(p *problems, name, value string) string{
	"path": (*problems).absolute, "conf": (*problems).confName, "url": (*problems).httpURL, "address": (*problems).hostPort,
	"listen": (*problems).listenAddr, "link": (*problems).interfacePrefix, "number": (*problems).atLeastZero,
}

// text parses a text: by one of forms, or as one of the values that `is` lists with bars between; without `is` any text
// is valid.
func (p *problems) text(name, value, is string) string {
	switch form := forms[is]; {
	case form != nil:
		return form(p, name, value)
	case is != "":
		return p.oneOf(name, value, strings.Split(is, "|")...)
	}
	return value
}

// integer parses a number in a range such as 0-65535, both ends inclusive.
func (p *problems) integer(name, value, between string) int {
	first, last, _ := strings.Cut(between, "-")
	low, _ := strconv.Atoi(first)
	high, _ := strconv.Atoi(last)
	n, err := strconv.Atoi(value)
	if err != nil || n < low || n > high {
		p.add(name, value, fmt.Sprintf("must be a number from %d to %d", low, high))
		return low
	}
	return n
}

// duration parses a duration that is not negative, and at least `is` if that is 1m or 1h.
func (p *problems) duration(name, value, is string) time.Duration {
	least, remedy := time.Duration(0), "must be a time such as 90s or 15m, not negative"
	switch is {
	case "1m":
		least, remedy = time.Minute, "must be a duration of at least a minute, such as 90m or 12h"
	case "1h":
		least, remedy = time.Hour, "must be a duration of at least an hour, such as 720h"
	}
	d, err := time.ParseDuration(value)
	if err != nil || d < least {
		p.add(name, value, remedy)
	}
	return d
}

// boolean accepts Calico's spellings: yes, no, y, n beside Go's.
func (p *problems) boolean(name, value string) bool {
	switch strings.ToLower(value) {
	case "yes", "y":
		return true
	case "no", "n":
		return false
	}
	b, err := strconv.ParseBool(strings.ToLower(value))
	if err != nil {
		p.add(name, value, "must be true or false")
	}
	return b
}

func (p *problems) oneOf(name, value string, allowed ...string) string {
	for _, a := range allowed {
		if strings.EqualFold(a, value) {
			return a
		}
	}
	p.add(name, value, "must be one of "+strings.Join(allowed, ", "))
	return allowed[0]
}

func (p *problems) required(name, value, remedy string) string {
	if value == "" {
		p.add(name, value, remedy)
	}
	return value
}
