package main

import (
	"strings"

	"github.com/tortie-net/tortie/internal/plugin"
)

// optionList lists the wanted keys of the plugins' configuration, deprecated ones last. What has no type is a string.
func optionList(wanted func(key string) bool) string {
	var list, old string
	for _, o := range plugin.Options() {
		kind, otherwise := strings.TrimPrefix(o.Type, "string"), o.Default
		if otherwise == "" && kind == "boolean" {
			otherwise = "false"
		}
		switch {
		case !wanted(o.Key):
		case o.Instead != "":
			old += item(code(o.Key), o.Help+" Deprecated: use "+code(o.Instead)+".", kind, code(otherwise))
		default:
			list += item(code(o.Key), o.Help, kind, code(otherwise))
		}
	}
	return list + old
}

// ofIPAM selects the keys that docs/ipam.md lists; docs/cni.md lists the others.
func ofIPAM(key string) bool { return strings.HasPrefix(key, "ipam") }

func ofCNI(key string) bool { return !ofIPAM(key) }

func argumentList() (list string) {
	for _, a := range plugin.Arguments() {
		list += item(code(a.Key), a.Help)
	}
	return list
}

func annotationList() (list string) {
	for _, a := range plugin.Annotations() {
		of := "pod"
		if a.OfNamespace {
			of = "pod, else namespace"
		}
		list += item(code(a.Key), a.Help+" Value: "+a.Form+".", of)
	}
	return list
}
