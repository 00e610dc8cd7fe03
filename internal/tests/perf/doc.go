// Package perf counts the instructions of packets between pods, and of the agent's own work, in a virtual machine in
// which an instruction takes a nanosecond (lab vmtest -count). Other load of the machine changes nothing. Runs of the
// same code still differ by the kernel's hash tables and, for WireGuard, its threads; testdata/ratios.csv has
// tolerances for these. Caches, network cards and a second processor do not count: the result is work, not time.
package perf
