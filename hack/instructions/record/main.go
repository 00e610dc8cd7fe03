// Command record writes the counts of runs of internal/tests/perf into testdata/ratios.csv, each output as KERNEL=FILE:
//
//	record -root .. stable=FILE newest=FILE
package main

import (
	"flag"
	"fmt"
	"os"
	"slices"
	"strings"

	"github.com/tortie-net/tortie/hack/instructions"
)

func main() {
	root := flag.String("root", ".", "root of the repository")
	worse := flag.Bool("worse", false, "write figures that are worse than before, too")
	flag.Parse()
	if err := record(*root, flag.Args(), *worse); err != nil {
		fmt.Fprintf(os.Stderr, "record: %v\n", err)
		os.Exit(1)
	}
}

func record(root string, args []string, worse bool) error {
	runs := map[string][]string{}
	for _, arg := range args {
		kernel, path, _ := strings.Cut(arg, "=")
		if !slices.Contains(instructions.Kernels, kernel) || path == "" {
			return fmt.Errorf("%q is not KERNEL=FILE: kernels are %s", arg, strings.Join(instructions.Kernels, ", "))
		}
		runs[kernel] = append(runs[kernel], path)
	}
	return instructions.Record(root, runs, worse)
}
