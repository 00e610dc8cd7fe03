// Package traffic proves that pods on two nodes reach each other, with packets of pods and not by what agents think: an
// echo on each node, small packets and a transfer of full-sized ones from each to the other, and their loss, latency
// and rate. It is what `helm test` runs. It makes pods of its own, and removes them.
package traffic
