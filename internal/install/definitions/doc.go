// Package definitions keeps a cluster's CustomResourceDefinitions such that this version's programs work, and loses
// nothing.
//
// Helm would create those of a chart's crds/ before the chart can look which API group the cluster has, and never look at
// them again. So a hook applies them from the chart, before the first installation and before each upgrade: those of one
// group only. Missing ones are created. Our own become the chart's. One that
// another installation has made, Calico's as a rule, stays as it is, and only what it lacks and we need is added. In
// either case nothing that the cluster's definition allows is taken away: neither a field, which the API server would
// drop from every object that is written next, nor a version that objects are stored in. Nothing is ever deleted.
package definitions
