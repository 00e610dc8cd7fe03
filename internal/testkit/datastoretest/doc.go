// Package datastoretest has what tests of the datastore and of its users share: an in-memory datastore whose requests can be
// made to fail between any two writes, and the cases that it and the real datastores pass alike. It is imported by tests only.
package datastoretest
