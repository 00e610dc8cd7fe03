// Package perf counts the instructions that packets cost between pods, and those of the agent's own work, in a virtual machine in which an instruction
// takes a nanosecond (lab vmtest -count). Other load of the machine changes nothing, so that a change of a hundredth is one of the code. It knows no
// caches, no network card and no second processor: what it shows is work, not time.
package perf
