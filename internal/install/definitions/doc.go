// Package definitions keeps a cluster's CustomResourceDefinitions such that this version's programs work, and loses
// nothing.
//
// Helm would create the definitions of a chart's crds/ before the chart can detect the cluster's API group, and never
// update them. So a hook applies them from the chart, before the first installation and before each upgrade, for one
// group only. It creates missing definitions, and updates our own to the chart's. A definition of another installation,
// usually Calico's, stays as it is, except that missing fields and values that we need are added. In either case it
// removes nothing that the cluster's definition allows: neither a field, which the API server would drop from every
// object at its next write, nor a version in which objects are stored. Nothing is ever deleted.
package definitions
