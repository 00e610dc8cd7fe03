//go:build ignore

// Command empty does nothing: the floor of a process.
package main

func main() {}
