package main

import (
	"cmp"

	"github.com/tortie-net/tortie/internal/plugin"
)

// pluginInputs returns the plugins' inputs from users, in the form of settingsPath: keys of the configuration,
// deprecated ones last, arguments and annotations.
func pluginInputs() (all [][]string) {
	var old [][]string
	for _, o := range plugin.Options() {
		row := []string{"calico, calico-ipam", "key", o.Key, cmp.Or(o.Type, "string"), o.Default, o.Help}
		if o.Type == "boolean" && o.Default == "" {
			row[4] = "false"
		}
		if o.Instead != "" {
			row[5] += " Deprecated: use " + o.Instead + "."
			old = append(old, row)
			continue
		}
		all = append(all, row)
	}
	all = append(all, old...)
	for _, a := range plugin.Arguments() {
		all = append(all, []string{"calico, calico-ipam", "argument of CNI_ARGS", a.Key, "string", "", a.Help})
	}
	for _, a := range plugin.Annotations() {
		of := "pod"
		if a.OfNamespace {
			of = "pod, else namespace"
		}
		all = append(all, []string{"calico", "annotation of " + of, a.Key, a.Form, "", a.Help})
	}
	return all
}
