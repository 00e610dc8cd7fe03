package config

import (
	"errors"
	"fmt"
	"os"
	"reflect"
	"strconv"
	"strings"
)

// Env looks up one environment variable. ok is false if it is not set.
type Env func(name string) (value string, ok bool)

// OS is the process's own environment.
func OS() Env { return os.LookupEnv }

// Var describes one environment variable, as the documentation shows it.
type Var struct {
	Name    string
	Default string
	Help    string
}

// Describe lists the variables of a raw struct, and of those embedded in it, in the order of its fields.
func Describe(raw any) []Var { return describe(reflect.TypeOf(raw)) }

func describe(t reflect.Type) []Var {
	vars := make([]Var, 0, t.NumField())
	for f := range t.Fields() {
		if f.Anonymous {
			vars = append(vars, describe(f.Type)...)
			continue
		}
		vars = append(vars, Var{Name: f.Tag.Get("env"), Default: f.Tag.Get("default"), Help: f.Tag.Get("help")})
	}
	return vars
}

// load fills raw, a pointer to a struct of strings with tags env, default and help, and what is embedded in it. A variable
// that is set but empty counts as not set: manifests write `value: ""` for "the default".
func load(env Env, raw any) { fill(env, reflect.ValueOf(raw).Elem()) }

func fill(env Env, v reflect.Value) {
	for i := range v.NumField() {
		f := v.Type().Field(i)
		if f.Anonymous {
			fill(env, v.Field(i))
			continue
		}
		value := f.Tag.Get("default")
		if set, ok := env(f.Tag.Get("env")); ok && strings.TrimSpace(set) != "" {
			value = strings.TrimSpace(set)
		}
		v.Field(i).SetString(value)
	}
}

// problems collects what is wrong, so that one run shows every mistake.
type problems []error

func (p *problems) add(name, value, remedy string) {
	*p = append(*p, fmt.Errorf("environment variable %s=%q: %s", name, value, remedy))
}

func (p problems) err() error { return errors.Join(p...) }

func (p *problems) integer(name, value string, low, high int) int {
	n, err := strconv.Atoi(value)
	if err != nil || n < low || n > high {
		p.add(name, value, fmt.Sprintf("must be a number from %d to %d", low, high))
		return low
	}
	return n
}

// boolean takes what Calico takes.
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
