// Package node is the agent: it turns what the cluster says and what BGP has learned into what this node's kernel and its
// BGP speaker should hold, and makes them so.
//
// The data flows one way: snapshot.go (what is known, as one value) -> desired.go (pure) -> reconcile.go (the Sync of each
// part). One goroutine owns all state; watches, kernel events and BGP events only wake it. startup.go and tunnel.go do what
// the agent owes the datastore; status.go tells people.
package node
