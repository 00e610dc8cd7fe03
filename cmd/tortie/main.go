// Since Go 1.24 listeners use Multipath TCP, on which the kernel refuses the TTL and MD5 keys that BGP needs.
//go:debug multipathtcp=0

// Command tortie contains the image's programs that use the Kubernetes client: in one file they share the client and
// Go's runtime, which are most of it. It runs the program of the name by which it is executed, such as node, or of its
// first argument.
//
//	/usr/bin/node status
//	tortie node status
package main

import (
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/tortie-net/tortie/internal/app/version"
	"github.com/tortie-net/tortie/internal/program/controllers"
	"github.com/tortie-net/tortie/internal/program/hook"
	"github.com/tortie-net/tortie/internal/program/install"
	"github.com/tortie-net/tortie/internal/program/node"
)

// programs are the main functions by name. They are called with the arguments without the name, and return the exit
// code.
var programs = map[string]func(args []string) int{
	"hook":             hook.Main,
	"install":          install.Main,
	"kube-controllers": controllers.Main,
	"node":             node.Main,
}

func main() {
	name, args := choose(os.Args)
	if program, ok := programs[name]; ok {
		os.Exit(program(args))
	}
	usage := fmt.Sprintf(
		"there are %s\nusage: tortie PROGRAM [ARGUMENT]..., or call it by a program's name; tortie PROGRAM -h; tortie -v prints the version\n",
		strings.Join(slices.Sorted(maps.Keys(programs)), ", "))
	switch name {
	case "-v", "-version", "--version", "version":
		fmt.Println(version.About("tortie"))
	case "-h", "-help", "--help", "help":
		fmt.Print("tortie: the programs of Tortie's image: ", usage)
	default:
		fmt.Fprintf(os.Stderr, "tortie: unknown program %q: %s", name, usage)
		os.Exit(2)
	}
}

// choose splits a command line into a program's name, which need not exist, and that program's arguments.
func choose(argv []string) (name string, args []string) {
	if len(argv) == 0 {
		return "", nil
	}
	if base := filepath.Base(argv[0]); programs[base] != nil {
		return base, argv[1:]
	}
	if len(argv) == 1 {
		return "", nil
	}
	return argv[1], argv[2:]
}
