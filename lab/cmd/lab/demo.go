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
	"github.com/tortie-net/tortie/lab/internal/preflight"
	"github.com/tortie-net/tortie/lab/internal/probe"
	"github.com/tortie-net/tortie/lab/internal/vm"
	"github.com/tortie-net/tortie/lab/internal/vmproto"
)

// Limits of the virtual machine that runs the demo if the kernel has no IPIP.
const (
	demoMemory  = 4096
	demoTimeout = 30 * time.Minute
	// countedTimeout is for a machine that counts instructions, beside suites that use most of the processors.
	countedTimeout = 50 * time.Minute
)

func runDemo(ctx context.Context, args []string) error {
	f := flags("demo")
	var o demoOptions
	f.StringVar(&o.name, "name", demo.Name, "name of the lab")
	f.BoolVar(&o.keep, "keep", false, "leave the cluster running")
	f.StringVar(&o.record, "record", "", "file that the transcript is written to as well")
	f.StringVar(&o.encap, "encap", encapAuto, "what packets between nodes travel in: ipip, in a virtual machine where the kernel has none, "+
		"vxlan, or auto, ipip if the kernel has it, else vxlan")
	counting := countFlag(f)
	if err := parse(f, args, false); err != nil {
		return err
	}
	o.counting = *counting
	if err := preflight.Check(preflight.Needs{What: "the demo", Root: "makes namespaces and mounts"}); err != nil {
		return err
	}
	choice, err := chooseEncap(ctx, o.encap, machineKernel)
	if err != nil {
		return err
	}
	if o.counting && !choice.inVM {
		if o.encap != encapIPIP {
			return usageError{"-count: needs -encap ipip, which has a virtual machine"}
		}
		choice = encapChoice{encap: demo.IPIP, inVM: true}
	}
	if choice.say != "" {
		fmt.Fprintln(os.Stderr, choice.say)
	}
	root, err := demoFiles()
	if err != nil {
		return err
	}
	switch {
	case choice.inVM && o.keep:
		return usageError{"-keep: the demo with IPIP would run in a virtual machine, which ends with it; -encap vxlan leaves a cluster running"}
	case choice.inVM:
		return demoInVM(ctx, o)
	}
	o.shown = choice.encap
	return demoHere(ctx, root, o)
}

type demoOptions struct {
	name   string
	keep   bool
	record string
	encap  string
	shown  *demo.Encap
	// counting: in a virtual machine that counts instructions, which is slower, and does not depend on another program's
	// load.
	counting bool
}

// Values of -encap.
const (
	encapAuto  = "auto"
	encapIPIP  = "ipip"
	encapVXLAN = "vxlan"
)

// encapChoice is the demo's encapsulation, and the place of the demo.
type encapChoice struct {
	encap *demo.Encap
	// inVM: in a virtual machine with a kernel that has it.
	inVM bool
	// say is the text to print about it.
	say string
}

// kernel checks a kernel's features, with probe.ErrNoIPIP and probe.ErrNoVXLAN if they are missing.
type kernel struct{ ipip, vxlan func(context.Context) error }

// machineKernel is the running kernel.
var machineKernel = kernel{ipip: probe.IPIP, vxlan: probe.VXLAN}

// chooseEncap chooses by the wanted encapsulation and the kernel's features.
func chooseEncap(ctx context.Context, want string, has kernel) (encapChoice, error) {
	const inVM = "This kernel has no IPIP tunnels: the demo runs in a virtual machine with Debian's kernel (without KVM slower: some minutes)."
	switch want {
	case encapVXLAN:
		if err := has.vxlan(ctx); err != nil {
			return encapChoice{}, fmt.Errorf("%w: make demo ENCAP=ipip shows IPIP, in a virtual machine if need be", err)
		}
		return encapChoice{encap: demo.VXLAN}, nil
	case encapIPIP, encapAuto:
	default:
		return encapChoice{}, usageError{fmt.Sprintf("-encap %s: auto, ipip or vxlan", want)}
	}
	err := has.ipip(ctx)
	if err == nil {
		return encapChoice{encap: demo.IPIP}, nil
	}
	if !errors.Is(err, probe.ErrNoIPIP) {
		return encapChoice{}, err
	}
	if want == encapAuto {
		err = has.vxlan(ctx)
		if err == nil {
			return encapChoice{encap: demo.VXLAN, say: "This kernel has no IPIP tunnels: the demo shows VXLAN, the other encapsulation. " +
				"For tunl0, in a virtual machine with Debian's kernel (without KVM slower: some minutes): make demo ENCAP=ipip"}, nil
		}
		if !errors.Is(err, probe.ErrNoVXLAN) {
			return encapChoice{}, err
		}
	}
	return encapChoice{encap: demo.IPIP, inVM: true, say: inVM}, nil
}

// demoFiles returns the root of the clone and builds the missing files that the demo needs.
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

// imageArchive is the archive that make image writes.
const imageArchive = "dist/tortie.tar"

func demoHere(ctx context.Context, root string, o demoOptions) (err error) {
	slow, err := scale()
	if err != nil {
		return err
	}
	var transcript io.Writer = os.Stdout
	if o.record != "" {
		file, err := os.Create(o.record)
		if err != nil {
			return err
		}
		defer file.Close()
		if _, err := fmt.Fprintf(file, "<!-- Written by bin/lab demo -record. -->\n\n"); err != nil {
			return err
		}
		transcript = io.MultiWriter(os.Stdout, file)
	}
	l, err := lab.Start(ctx, lab.Config{
		Name: o.name, Nodes: demo.Nodes, Images: []string{filepath.Join(root, imageArchive)}, Log: os.Stderr,
		Detach: o.keep, TimeScale: slow,
	})
	if err != nil {
		return err
	}
	d := demo.Demo{Lab: l, Root: root, Encap: o.shown, Out: transcript, TimeScale: slow}
	err = d.Run(ctx)
	if err == nil && o.keep {
		sayKept(o.name)
		return nil
	}
	return errors.Join(err, l.Stop(context.WithoutCancel(ctx)))
}

func sayKept(name string) {
	fmt.Fprintf(os.Stderr, `
The cluster keeps running. Look around:
  bin/lab kubectl -name %[1]s get pods -A -o wide
  bin/lab kubectl -name %[1]s exec debug -- ip route
  bin/lab exec -name %[1]s node1 ip route
and end it:
  bin/lab down -name %[1]s
`, name)
}

// demoInVM runs this program again, inside a virtual machine.
func demoInVM(ctx context.Context, o demoOptions) error {
	m, err := demoMachine(ctx, o)
	if err != nil {
		return err
	}
	return exitCode(m.Run(ctx))
}

func demoMachine(ctx context.Context, o demoOptions) (vm.Machine, error) {
	m, err := newMachine(ctx, demoMemory, o.counting, vm.Stable, lab.DefaultPrograms...)
	if err != nil {
		return m, err
	}
	self, err := os.Executable()
	if err != nil {
		return m, err
	}
	wd, err := os.Getwd()
	if err != nil {
		return m, err
	}
	m.Config = vmproto.Config{Program: self, Args: []string{"demo", "-name", o.name, "-encap", encapIPIP}, Env: passedOn(m),
		Dir: wd, SharedRoot: true}
	if m.Timeout = demoTimeout; o.counting {
		m.Timeout = countedTimeout
	}
	if o.record != "" {
		abs, err := filepath.Abs(o.record)
		if err != nil {
			return m, err
		}
		m.Args = append(m.Args, "-record", abs)
		m.Shares = map[string]string{"out": filepath.Dir(abs)}
	}
	return m, nil
}
