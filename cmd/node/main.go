// Since Go 1.24 listeners are Multipath TCP, on which the kernel refuses what BGP needs: a TTL and MD5 keys.
//go:debug multipathtcp=0

// Command node is the agent alone, for development and tests. In the image it is a part of cmd/tortie.
package main

import (
	"os"

	"github.com/tortie-net/tortie/internal/program/node"
)

func main() { os.Exit(node.Main(os.Args[1:])) }
