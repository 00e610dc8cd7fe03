// Package etcd is the datastore in etcd v3, under the keys and in the values of Calico. It writes below /calico/ and
// nowhere else.
//
// It speaks etcd's gRPC over net/http's HTTP/2 and encodes the few messages that it needs by hand. The plugins run for
// every pod, and etcd's own client, go.etcd.io/etcd/client/v3, is too heavy for them: docs/design/datastore.md has the
// numbers.
package etcd
