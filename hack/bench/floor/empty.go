//go:build ignore

// Command empty does nothing: what is left is what a process costs.
package main

func main() {}
