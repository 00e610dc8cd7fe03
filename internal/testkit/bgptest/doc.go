// Package bgptest gives tests a network of hosts, this project's BGP speaker in processes on them, other
// implementations (Debian's BIRD 1.6, BIRD 2 and FRR), and a peer that sends raw bytes. Everything is in unnamed
// network namespaces and ends with the test, also when the test's process is killed.
package bgptest
