package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// The reference plugins, built for the comparison: other networks delegate to them.
var referencePlugins = []string{
	"github.com/containernetworking/plugins/plugins/main/ptp",
	"github.com/containernetworking/plugins/plugins/ipam/host-local",
}

// floors are programs of this directory: the measured ones, and weigh.
var floors = []string{"empty", "get", "veth", "weigh"}

// assemble creates a directory of all programs of a node: the reference plugins and floors, built as the Makefile
// builds ours, and the programs in bin.
func assemble(ctx context.Context, root, bin, dir string) error {
	for _, pkg := range referencePlugins {
		if err := build(ctx, root, filepath.Join(dir, filepath.Base(pkg)), pkg); err != nil {
			return err
		}
	}
	for _, name := range floors {
		if err := build(ctx, root, filepath.Join(dir, name), filepath.Join(root, "hack", "bench", "floor", name+".go")); err != nil {
			return err
		}
	}
	programs, err := os.ReadDir(bin)
	if err != nil {
		return fmt.Errorf("-bin: %w (run `make build`)", err)
	}
	for _, p := range programs {
		if err := place(filepath.Join(bin, p.Name()), filepath.Join(dir, p.Name())); err != nil {
			return err
		}
	}
	return evict(dir)
}

// evict removes files from the page cache, so that all are read as after a boot. The way in which a file was cached
// affects how much of it is mapped at once: a file written in one piece is cached in huge pages, each of which counts
// as a whole.
func evict(dir string) error {
	files, err := os.ReadDir(dir)
	if err != nil {
		return err
	}
	for _, file := range files {
		f, err := os.Open(filepath.Join(dir, file.Name()))
		if err != nil {
			return err
		}
		err = f.Sync() // dirty pages are not evicted
		if err == nil {
			err = unix.Fadvise(int(f.Fd()), 0, 0, unix.FADV_DONTNEED)
		}
		if err = errors.Join(err, f.Close()); err != nil {
			return fmt.Errorf("take %s out of the page cache: %w", file.Name(), err)
		}
	}
	return nil
}

// place copies a program, unless the directory has one with that name, so that this repository's reference plugins are
// used. A link would not work: the next `make build` may overwrite the file, or a node's mounts hide it.
func place(from, to string) error {
	info, err := os.Stat(from)
	if err != nil || !info.Mode().IsRegular() {
		return err
	}
	if _, err := os.Lstat(to); err == nil {
		return nil
	}
	data, err := os.ReadFile(from)
	if err != nil {
		return err
	}
	return os.WriteFile(to, data, info.Mode().Perm())
}

// build builds in the root module, with the versions that the plugins are linked with.
func build(ctx context.Context, root, to, what string) error {
	cmd := exec.CommandContext(ctx, "go", "build", "-trimpath", "-buildvcs=false", "-ldflags=-s -w", "-o", to, what)
	cmd.Dir = root
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("build %s: %w\n%s", what, err, out)
	}
	return nil
}
