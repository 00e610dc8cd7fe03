// Since Go 1.24 listeners use Multipath TCP, on which the kernel refuses the TTL and MD5 keys that BGP needs.
//go:debug multipathtcp=0

// Command node is only the agent, for development and tests. In the image it is a part of cmd/tortie.
package main

import (
	"os"

	"github.com/tortie-net/tortie/internal/program/node"
)

func main() { os.Exit(node.Main(os.Args[1:])) }
