// Package demo shows Tortie at work on a cluster of three nodes, in seventeen steps.
//
// Each step runs real commands, shows their output, and checks it. The first failed check ends the demo. The output is
// Markdown that also reads well on a terminal.
package demo

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/tortie-net/tortie/lab"
	"github.com/tortie-net/tortie/lab/internal/kubeapi"
	"github.com/tortie-net/tortie/lab/internal/netns"
)

// Name is the name of the demo's lab when none is given.
const Name = "demo"

// Image is the name of the product's image in the archive that `make image` writes.
const Image = "docker.io/tortie-net/tortie"

// Nodes are the demo's nodes.
var Nodes = []string{"master", "node1", "node2"}

// stepTimeout bounds the commands of one step on a fast machine.
const stepTimeout = 2 * time.Minute

// Demo is one run.
type Demo struct {
	Lab *lab.Lab
	// Root is the root of the clone: the chart lies in it.
	Root string
	// Encap is IPIP or VXLAN.
	Encap *Encap
	// Out takes the transcript.
	Out io.Writer
	// TimeScale multiplies all deadlines.
	TimeScale float64

	path  string // PATH with kubectl and helm
	api   *kubeapi.Client
	facts facts
}

// facts are results of steps that later steps use.
type facts struct {
	podIP, pod2IP string
	// blocks are the nodes' blocks, addresses the nodes' own addresses, ends the addresses of VXLAN tunnels, by node.
	blocks, addresses, ends map[string]string
}

// step is one of the demo's steps: its explanation and its action.
type step struct {
	title string
	text  string
	run   func(*Demo, context.Context) error
}

// Run installs the chart and goes through the steps. The error names the failed step.
func (d *Demo) Run(ctx context.Context) error {
	if err := d.findTools(ctx); err != nil {
		return err
	}
	var err error
	// Waiting needs no program: in an emulator each of them takes a second.
	if d.api, err = kubeapi.New(d.Lab.Kubeconfig(), netns.Dialer(d.Lab.NetNS())); err != nil {
		return err
	}
	start := time.Now()
	d.say("# The demo\n\n%s\n", intro)
	steps := append([]step{installStep}, d.steps()...)
	for i, s := range steps {
		d.say("## %d. %s\n\n%s\n", i, s.title, s.text)
		stepCtx, cancel := context.WithTimeout(ctx, d.scaled(stepTimeout))
		err := s.run(d, stepCtx)
		cancel()
		if err != nil {
			return fmt.Errorf("step %d (%s): %w", i, s.title, err)
		}
	}
	d.say("All %d steps showed what they should, in %.0f s.", len(steps)-1, time.Since(start).Seconds())
	return nil
}

func (d *Demo) scaled(t time.Duration) time.Duration {
	return time.Duration(float64(t) * max(d.TimeScale, 1))
}

// timeout returns a duration in the format of kubectl and helm.
func (d *Demo) timeout() string { return d.scaled(stepTimeout).String() }

func (d *Demo) say(format string, args ...any) {
	fmt.Fprintf(d.Out, format+"\n", args...)
}

// findTools sets the path by which commands find kubectl and helm.
func (d *Demo) findTools(ctx context.Context) error {
	var dirs []string
	for _, tool := range []string{"kubectl", "helm"} {
		cmd, err := d.Lab.Command(ctx, tool)
		if err != nil {
			return err
		}
		dirs = append(dirs, filepath.Dir(cmd.Path))
	}
	d.path = strings.Join(append(dirs, "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"), ":")
	return nil
}

// kubectl runs a shell line next to the control plane, with kubectl and helm; it shows the line and all its output.
func (d *Demo) kubectl(ctx context.Context, line string) (string, error) {
	return d.shell(ctx, "$", line, func(out io.Writer) error {
		cmd := exec.CommandContext(ctx, "sh", "-c", line)
		cmd.Dir = d.Root
		cmd.Env = []string{"PATH=" + d.path, "HOME=" + os.Getenv("HOME"), "KUBECONFIG=" + d.Lab.Kubeconfig()}
		d.prepare(cmd, out)
		return netns.Do(d.Lab.NetNS(), cmd.Run)
	})
}

// background runs a shell line next to the control plane without showing it, until stop is called; stop returns why it
// ended if it ended before.
func (d *Demo) background(ctx context.Context, line string) (stop func() error) {
	quiet := *d
	quiet.Out = io.Discard
	ctx, cancel := context.WithCancel(ctx)
	ended := make(chan error, 1)
	go func() {
		_, err := quiet.kubectl(ctx, line)
		if ctx.Err() != nil {
			err = nil // stopped
		}
		ended <- err
	}()
	return func() error {
		cancel()
		return <-ended
	}
}

// node runs a shell line in a node's namespaces and shows it and all its output.
func (d *Demo) node(ctx context.Context, name, line string) (string, error) {
	return d.shell(ctx, name+"#", line, func(out io.Writer) error {
		return d.Lab.Attach(ctx, name, []string{"sh", "-c", line}, func(c *exec.Cmd) { d.prepare(c, out) })
	})
}

// prepare makes a deadline end the whole pipeline, not only the shell: its last program would keep the output open.
func (d *Demo) prepare(cmd *exec.Cmd, out io.Writer) {
	cmd.Stdout, cmd.Stderr = out, out
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	cmd.WaitDelay = time.Second
}

func (d *Demo) shell(ctx context.Context, prompt, line string, run func(io.Writer) error) (string, error) {
	d.show(prompt + " " + line)
	var out bytes.Buffer
	err := run(&out)
	d.show(out.String())
	d.say("")
	if err != nil {
		return out.String(), errors.Join(fmt.Errorf("%s %s: %w", prompt, line, err), ctx.Err())
	}
	return out.String(), nil
}

// show prints text as a block of Markdown: indented by four.
func (d *Demo) show(text string) {
	for line := range strings.Lines(text) {
		d.say("    %s", strings.TrimRight(line, " \n"))
	}
}
