// Command kube-controllers is only the controllers, for development and tests. In the image it is a part of cmd/tortie.
package main

import (
	"os"

	"github.com/tortie-net/tortie/internal/program/controllers"
)

func main() { os.Exit(controllers.Main(os.Args[1:])) }
