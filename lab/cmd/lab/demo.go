package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"time"

	"github.com/tortie-net/tortie/lab"
	"github.com/tortie-net/tortie/lab/internal/binaries"
	"github.com/tortie-net/tortie/lab/internal/demo"
	"github.com/tortie-net/tortie/lab/internal/probe"
	"github.com/tortie-net/tortie/lab/internal/vmproto"
)

// Of the virtual machine that the demo runs in where the kernel has no IPIP.
const (
	demoMemory  = 4096
	demoTimeout = 30 * time.Minute
)

func runDemo(ctx context.Context, args []string) error {
	f := flags("demo")
	keep := f.Bool("keep", false, "leave the cluster running")
	record := f.String("record", "", "file that the transcript is written to as well")
	if err := parse(f, args, false); err != nil {
		return err
	}
	if os.Geteuid() != 0 {
		return errors.New("lab demo: it makes namespaces and mounts, so it must be run as root")
	}
	root, err := demoFiles()
	if err != nil {
		return err
	}
	err = probe.IPIP(ctx)
	if errors.Is(err, probe.ErrNoIPIP) {
		return demoInVM(ctx, *keep, *record)
	}
	if err != nil {
		return err
	}
	return demoHere(ctx, root, *keep, *record)
}

// demoFiles returns the root of the clone and makes sure that what the demo needs of it is there.
func demoFiles() (string, error) {
	c, err := binaries.Open(os.Stderr)
	if err != nil {
		return "", err
	}
	root := filepath.Dir(c.Module)
	for _, file := range []string{imageArchive, "charts/tortie"} {
		if _, err := os.Stat(filepath.Join(root, file)); err != nil {
			return "", fmt.Errorf("the demo needs %s: make image: %w", file, err)
		}
	}
	return root, nil
}

// imageArchive is what make image writes.
const imageArchive = "dist/tortie.tar"

func demoHere(ctx context.Context, root string, keep bool, record string) (err error) {
	slow, err := scale()
	if err != nil {
		return err
	}
	var transcript io.Writer = os.Stdout
	if record != "" {
		file, err := os.Create(record)
		if err != nil {
			return err
		}
		defer file.Close()
		transcript = io.MultiWriter(os.Stdout, file)
	}
	l, err := lab.Start(ctx, lab.Config{
		Name: demo.Name, Nodes: demo.Nodes, Images: []string{filepath.Join(root, imageArchive)}, Log: os.Stderr, Detach: keep, TimeScale: slow,
	})
	if err != nil {
		return err
	}
	if !keep {
		defer func() { err = errors.Join(err, l.Stop(context.WithoutCancel(ctx))) }()
	}
	d := demo.Demo{Lab: l, Root: root, Out: transcript, TimeScale: slow}
	if err := d.Run(ctx); err != nil {
		return err
	}
	if keep {
		fmt.Fprintf(os.Stderr, "\nThe cluster keeps running:\n  bin/lab kubectl -name %[1]s get pods -A\n  bin/lab exec -name %[1]s node1 ip route\n  bin/lab down -name %[1]s\n", demo.Name)
	}
	return nil
}

// demoInVM runs this program again, inside a virtual machine.
func demoInVM(ctx context.Context, keep bool, record string) error {
	fmt.Fprintln(os.Stderr, "This kernel has no IPIP tunnels: the demo runs in a virtual machine with Debian's kernel (slower: some minutes).")
	m, err := newMachine(ctx)
	if err != nil {
		return err
	}
	self, err := os.Executable()
	if err != nil {
		return err
	}
	wd, err := os.Getwd()
	if err != nil {
		return err
	}
	m.Config = vmproto.Config{Program: self, Args: []string{"demo"}, Env: passedOn(), Dir: wd, SharedRoot: true}
	m.MemoryMB, m.Timeout = demoMemory, demoTimeout
	if record != "" {
		abs, err := filepath.Abs(record)
		if err != nil {
			return err
		}
		m.Args = append(m.Args, "-record", abs)
		m.Shares = map[string]string{"out": filepath.Dir(abs)}
	}
	return exitCode(m.Run(ctx))
}
