package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"

	"github.com/tortie-net/tortie/lab/internal/binaries"
)

// cache finds the sources from the working directory, or else from where this program lies (bin/ of the clone).
func cache() (*binaries.Cache, error) {
	dir, err := binaries.DefaultDir()
	if err != nil {
		return nil, err
	}
	wd, err := os.Getwd()
	if err != nil {
		return nil, err
	}
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	module, err := binaries.FindModule(wd, filepath.Dir(self))
	if err != nil {
		return nil, err
	}
	return &binaries.Cache{Dir: dir, Module: module, Log: os.Stderr}, nil
}

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
	c, err := cache()
	if err != nil {
		return err
	}
	for _, name := range names {
		path, err := c.Path(ctx, name)
		if err != nil {
			return err
		}
		fmt.Println(path)
	}
	return nil
}
