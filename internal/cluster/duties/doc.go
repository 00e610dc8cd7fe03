// Package duties keeps an agent's objects in the datastore: the objects that plugins and other agents expect, its own
// Node's annotations and condition, and the address of its tunnel.
//
// Everything is idempotent, and any number of agents may do it at the same time. Correct objects are not written.
package duties
