package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"time"
)

// start is the cost of starting a program.
type start struct {
	name, program string
	args          []string
	bytes         int64
	took          []cost
	size          footprint
}

func (s start) execution() execution {
	return execution{program: cniBin + "/" + s.program, args: s.args}
}

func (s start) all(of func(cost) time.Duration) durations { return costs{s.took}.all(of) }

// versioned are our programs with -v; a runtime starts them for every pod.
var versioned = []string{"calico", "calico-ipam"}

// shipped are all programs that the image installs on a host.
var shipped = []string{"calico", "calico-ipam", "portmap", "bandwidth", "loopback", "tortie"}

// runStarts alternates an empty program and ours with -v. Other plugins are left out, as their -v is not comparable.
func runStarts(ctx context.Context, n *node, dir string, o options) ([]start, error) {
	all := []start{{name: nameEmpty, program: "empty"}}
	for _, name := range versioned {
		if o.conf == "" {
			all = append(all, start{name: "`" + name + " -v`", program: name, args: []string{"-v"}})
		}
	}
	for range o.size.starts {
		if ctx.Err() != nil {
			return nil, context.Cause(ctx)
		}
		for i := range all {
			took, _, err := n.run(all[i].execution())
			if err != nil {
				return nil, err
			}
			all[i].took = append(all[i].took, took)
		}
	}
	for i := range all {
		info, err := os.Stat(filepath.Join(dir, all[i].program))
		if err != nil {
			return nil, fmt.Errorf("find program: %w (run `make build`)", err)
		}
		all[i].bytes = info.Size()
		if all[i].size, err = n.trace(all[i].execution()); err != nil {
			return nil, err
		}
	}
	return all, nil
}

// programSize is one file's size.
type programSize struct {
	name  string
	bytes int64
}

// runSizes returns the sizes of the files that exist (another plugin's directory has others).
func runSizes(dir string) []programSize {
	var all []programSize
	for _, name := range shipped {
		if info, err := os.Stat(filepath.Join(dir, name)); err == nil {
			all = append(all, programSize{name, info.Size()})
		}
	}
	return all
}
