// Package duties keeps an agent's objects in the datastore: the objects that plugins and other agents expect, its own
// Node's annotations and condition, and the address of its tunnel.
//
// Everything is idempotent and may be done by any number of agents at the same time; what is right already is not
// written.
package duties
