// Package datastoretest has an in-memory datastore whose requests can be made to fail between any two writes, and the
// conformance cases that it and the real datastores pass. It is imported by tests only.
package datastoretest
