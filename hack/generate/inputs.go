package main

import (
	"slices"

	"github.com/tortie-net/tortie/internal/api"
	"github.com/tortie-net/tortie/internal/app/cniconf"
)

// inputsPath is the list of inputs that users of Calico write on objects of Kubernetes and in the conflist, with their
// fates.
const inputsPath = "docs/calico-inputs.csv"

func inputs() [][]string {
	rows := [][]string{{"On", "Annotation or key", "Tortie", "Remark"}}
	for _, i := range slices.Concat(api.CalicoAnnotations, cniconf.Keys) {
		on := i.On
		if on == "calico" {
			on = "calico in the conflist"
		}
		rows = append(rows, []string{on, i.Key, string(i.Fate), i.Why})
	}
	return append(rows,
		[]string{"any of these", "others of projectcalico.org", string(api.Named), "misspelt, of another product, or of a later Calico"},
		[]string{"calico in the conflist", "others", string(api.Named), "likewise; with another IPAM plugin those in ipam are its own"})
}
