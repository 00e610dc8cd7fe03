// Command install is only the installer, for development. In the image it is a part of cmd/tortie.
package main

import (
	"os"

	"github.com/tortie-net/tortie/internal/program/install"
)

func main() { os.Exit(install.Main(os.Args[1:])) }
