// Package api holds Calico's and Kubernetes' resources as plain data, under their names on the wire.
//
// It owns no behaviour beyond naming and encoding: no I/O, no defaults that need a cluster, and no Kubernetes library,
// so that the CNI plugins, which run for every pod, stay small. The custom resources are named as in the group
// crd.projectcalico.org/v1; the CustomResourceDefinitions in charts/tortie/definitions, of both groups, are generated
// from these types.
package api
