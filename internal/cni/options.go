package cni

import (
	"cmp"
	"reflect"
	"strconv"
)

// Option is a key of the network configuration, as docs/ shows it.
type Option struct {
	Key     string // with a dot for each level
	Type    string
	Default string
	Help    string
	Instead string // the key to use instead of a deprecated one
}

// ofSpecification are the keys that the CNI specification defines.
var ofSpecification = []Option{
	{Key: "name", Type: "string", Help: "Name of the network: letters, digits, _, . and -. Required. It is the first part of IPAM handles."},
	{Key: "cniVersion", Type: "string", Default: "0.2.0", Help: "Version of the CNI specification in which results are printed."},
	{Key: "type", Type: "string", Help: "calico. The runtime finds the plugin by it."},
}

// Options lists the keys of the network configuration, those of the CNI specification first.
func Options() []Option {
	options := append([]Option(nil), ofSpecification...)
	walk("", reflect.ValueOf(&netConf{}).Elem(), func(o Option, _ reflect.Value) { options = append(options, o) })
	return options
}

// walk visits the keys below a struct with their values.
func walk(prefix string, v reflect.Value, visit func(Option, reflect.Value)) {
	for i := range v.NumField() {
		field, value := v.Type().Field(i), v.Field(i)
		key := field.Tag.Get("json")
		if field.Anonymous || key == "" {
			continue
		}
		if value.Kind() == reflect.Struct {
			walk(prefix+key+".", value, visit)
			continue
		}
		visit(Option{
			Key:     prefix + key,
			Type:    cmp.Or(field.Tag.Get("type"), typeName(value.Kind())),
			Default: field.Tag.Get("default"),
			Help:    field.Tag.Get("help"),
			Instead: field.Tag.Get("instead"),
		}, value)
	}
}

func typeName(kind reflect.Kind) string {
	switch kind {
	case reflect.Bool:
		return "boolean"
	case reflect.Int, reflect.Float64:
		return "number"
	case reflect.Slice:
		return "list"
	}
	return "string"
}

// setDefaults fills in the defaults of what is not set.
func setDefaults(c *netConf) {
	walk("", reflect.ValueOf(c).Elem(), func(o Option, v reflect.Value) {
		if !v.IsZero() || o.Default == "" {
			return
		}
		switch v.Kind() {
		case reflect.String:
			v.SetString(o.Default)
		case reflect.Int:
			if n, err := strconv.Atoi(o.Default); err == nil {
				v.SetInt(int64(n))
			}
		}
	})
}

// deprecated lists the deprecated keys that are set.
func deprecated(c *netConf) []Option {
	var used []Option
	walk("", reflect.ValueOf(c).Elem(), func(o Option, v reflect.Value) {
		if o.Instead != "" && !v.IsZero() {
			used = append(used, o)
		}
	})
	return used
}

// Argument is a key of CNI_ARGS, as docs/ shows it.
type Argument struct {
	Key, Help string
}

// Arguments lists the keys of CNI_ARGS that the plugins read.
func Arguments() []Argument {
	var args []Argument
	for field := range reflect.TypeFor[podArgs]().Fields() {
		if !field.Anonymous {
			args = append(args, Argument{Key: field.Name, Help: field.Tag.Get("help")})
		}
	}
	return args
}
