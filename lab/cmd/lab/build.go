package main

import (
	"context"
	"fmt"
	"os"

	"github.com/tortie-net/tortie/lab/internal/binaries"
)

func runBuild(ctx context.Context, args []string) error {
	f := flags("build")
	if err := parse(f, args, true); err != nil {
		return err
	}
	names := f.Args()
	if len(names) == 0 {
		for _, t := range binaries.Targets {
			names = append(names, t.Name)
		}
	}
	c, err := binaries.Open(os.Stderr)
	if err != nil {
		return err
	}
	paths, err := c.Paths(ctx, names...)
	if err != nil {
		return err
	}
	for _, path := range paths {
		fmt.Println(path)
	}
	return nil
}
