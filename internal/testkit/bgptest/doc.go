// Package bgptest gives tests a network of hosts, this project's BGP speaker on them as processes, other people's speakers
// (Debian's BIRD 1.6, BIRD 2, FRR and gobgpd), and a peer of raw bytes. All of it lives in network namespaces without a name and ends
// with the test, also when the test's process is killed.
package bgptest
