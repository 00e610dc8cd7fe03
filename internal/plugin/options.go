package plugin

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

// Options returns the keys of the network configuration, starting with the CNI specification's.
func Options() []Option {
	options := append([]Option(nil), ofSpecification...)
	walk("", reflect.ValueOf(&netConf{}).Elem(), func(key string, tag reflect.StructTag, v reflect.Value) {
		options = append(options, Option{
			Key:     key,
			Type:    cmp.Or(tag.Get("type"), typeName(v.Kind())),
			Default: tag.Get("default"),
			Help:    tag.Get("help"),
			Instead: tag.Get("instead"),
		})
	})
	return options
}

// walk visits the keys below a struct with their tags and values. Every call of a plugin does so: visit should parse a
// tag only if it must.
func walk(prefix string, v reflect.Value, visit func(key string, tag reflect.StructTag, v reflect.Value)) {
	t := v.Type()
	for i := range t.NumField() {
		field := t.Field(i)
		key := field.Tag.Get("json")
		switch {
		case field.Anonymous || key == "":
		case field.Type.Kind() == reflect.Struct:
			walk(prefix+key+".", v.Field(i), visit)
		default:
			visit(prefix+key, field.Tag, v.Field(i))
		}
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

// setDefaults fills in the defaults of unset keys.
func setDefaults(c *netConf) {
	walk("", reflect.ValueOf(c).Elem(), func(_ string, tag reflect.StructTag, v reflect.Value) {
		if !v.IsZero() {
			return
		}
		text, ok := tag.Lookup("default")
		if !ok {
			return
		}
		switch v.Kind() {
		case reflect.String:
			v.SetString(text)
		case reflect.Int:
			if n, err := strconv.Atoi(text); err == nil {
				v.SetInt(int64(n))
			}
		}
	})
}

// deprecated returns the deprecated keys that are set.
func deprecated(c *netConf) []Option {
	var used []Option
	walk("", reflect.ValueOf(c).Elem(), func(key string, tag reflect.StructTag, v reflect.Value) {
		if v.IsZero() {
			return
		}
		if instead, ok := tag.Lookup("instead"); ok {
			used = append(used, Option{Key: key, Instead: instead})
		}
	})
	return used
}

// Argument is a key of CNI_ARGS, as docs/ shows it.
type Argument struct {
	Key, Help string
}

// Arguments returns the keys of CNI_ARGS that the plugins read.
func Arguments() []Argument {
	var args []Argument
	for field := range reflect.TypeFor[podArgs]().Fields() {
		if !field.Anonymous {
			args = append(args, Argument{Key: field.Name, Help: field.Tag.Get("help")})
		}
	}
	return args
}
