// Package datastoretest has an in-memory datastore with requests that can fail between any two writes, and the
// conformance cases that it and the real datastores pass. Only tests import it.
package datastoretest
