// Package cnitest gives tests what the real plugins need around them: the programs, and nodes to run them on. It owns what it
// makes, and never touches the machine's own files and network.
package cnitest
