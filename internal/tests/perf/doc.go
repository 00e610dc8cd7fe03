// Package perf counts the instructions that packets cost between pods, and those of the agent's own work, in a virtual
// machine in which an instruction takes a nanosecond (lab vmtest -count). Other load of the machine changes nothing;
// what is left between runs of the same code are the kernel's hash tables and, of WireGuard, its threads, for which
// testdata/ratios.csv has tolerances. It knows no caches, no network card and no second processor: what it shows is
// work, not time.
package perf
