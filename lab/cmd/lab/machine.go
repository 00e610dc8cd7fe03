package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"

	"github.com/tortie-net/tortie/lab/internal/binaries"
	"github.com/tortie-net/tortie/lab/internal/deps"
	"github.com/tortie-net/tortie/lab/internal/probe"
)

func runProbe(ctx context.Context, args []string) error {
	if err := parse(flags("probe"), args, false); err != nil {
		return err
	}
	if err := probe.IPIP(ctx); err != nil {
		return err
	}
	fmt.Println("this kernel has IPIP tunnels")
	return nil
}

func runDeps(ctx context.Context, args []string) error {
	f := flags("deps")
	install := f.Bool("install", false, "install what is missing (as root), without starting services")
	tests := f.Bool("tests", false, "what tests and benchmarks need, too")
	encap := f.String("encap", encapIPIP,
		"what is run is lab demo with this -encap; by default anything, so that a virtual machine is needed where the kernel has no IPIP")
	if err := parse(f, args, false); err != nil {
		return err
	}
	needs := slices.Clone(deps.Lab)
	if *tests {
		needs = append(needs, deps.Tests...)
	}
	choice, err := chooseEncap(ctx, *encap, machineKernel)
	var wrong usageError
	if err != nil && (os.Geteuid() == 0 || errors.As(err, &wrong)) {
		return err
	}
	if choice.inVM || *tests { // tests count instructions in one, on every kernel
		needs = append(needs, deps.VM...)
	}
	cache, err := binaries.DefaultDir()
	if err != nil {
		return err
	}
	places := deps.Places{Cache: cache}
	missing := places.Missing(needs)
	if len(missing) == 0 {
		return nil
	}
	if !*install || os.Geteuid() != 0 {
		return errors.New(deps.Remedy(missing, deps.HaveApt()))
	}
	if err := places.Bring(ctx, missing, os.Stderr); err != nil {
		return err
	}
	if left := places.Missing(needs); len(left) > 0 {
		return fmt.Errorf("still missing after installation, type: %s", deps.Command(left))
	}
	return nil
}
