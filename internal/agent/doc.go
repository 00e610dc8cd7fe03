// Package agent is the agent of a node: it turns the state of the cluster and the paths that BGP has learned into the
// desired state of this node's kernel and BGP speaker, and programs them.
//
// The data flows one way: watches, kernel and BGP -> one value (desired.Snapshot) -> the desired state, purely (package
// desired) -> the Sync of each part (reconcile.go). One goroutine owns all state; watches, kernel events and BGP events
// only wake it. speak.go connects it to BGP, devices.go to the tunnels, facts.go and journal.go to the plugins;
// status.go, report.go, metrics.go and events.go show it to operators.
package agent
