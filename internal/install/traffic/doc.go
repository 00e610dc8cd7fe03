// Package traffic proves that pods on two nodes reach each other, with packets of pods and not by the agents' state: an
// echo on each node, small packets and a transfer of full-sized ones from each to the other, and their loss, latency
// and rate. `helm test` runs it. It makes pods of its own, and removes them.
package traffic
