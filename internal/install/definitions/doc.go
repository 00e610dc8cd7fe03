// Package definitions keeps a cluster's CustomResourceDefinitions such that this version's programs work, and loses
// nothing.
//
// Helm creates definitions with a chart's first release and never looks at them again. So each upgrade has them applied
// from the chart by a hook, before the new agents start. Missing ones are created. Our own become the chart's. One that
// another installation has made, Calico's as a rule, stays as it is, and only what it lacks and we need is added. In
// either case nothing that the cluster's definition allows is taken away: neither a field, which the API server would
// drop from every object that is written next, nor a version that objects are stored in. Nothing is ever deleted.
package definitions
