// Package cnitest gives tests of the plugins the built programs, and nodes to run them on. It removes its own objects,
// and never changes the machine's own files and network.
package cnitest
