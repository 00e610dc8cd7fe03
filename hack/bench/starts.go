package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
)

// start is what a program costs before it does anything.
type start struct {
	name  string
	bytes int64
	costs costs // of printing its version
	size  footprint
}

// versioned are our programs that answer -v; a runtime starts them for every pod.
var versioned = []string{"calico", "calico-ipam"}

// shipped are all programs that the image puts on a host.
var shipped = []string{"calico", "calico-ipam", "portmap", "bandwidth", "loopback", "install", "node"}

// runStarts lets an empty program and ours print their version in turn.
func runStarts(ctx context.Context, n *node, dir string, o options) ([]start, error) {
	all := []start{{name: nameEmpty}}
	programs := []execution{{program: cniBin + "/empty"}}
	for _, name := range versioned {
		if o.conf != "" {
			break // another plugin's answer to -v, if it has one, is its own
		}
		all = append(all, start{name: "`" + name + " -v`"})
		programs = append(programs, execution{program: cniBin + "/" + name, args: []string{"-v"}})
	}
	for i, e := range programs {
		info, err := os.Stat(filepath.Join(dir, filepath.Base(e.program)))
		if err != nil {
			return nil, fmt.Errorf("find program: %w (run `make build`)", err)
		}
		all[i].bytes = info.Size()
		all[i].costs = costs{nil}
	}
	for range o.size.starts {
		if ctx.Err() != nil {
			return nil, context.Cause(ctx)
		}
		for i, e := range programs {
			took, _, err := n.run(e)
			if err != nil {
				return nil, err
			}
			all[i].costs[0] = append(all[i].costs[0], took)
		}
	}
	for i, e := range programs {
		var err error
		if all[i].size, err = n.trace(e); err != nil {
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

// runSizes measures the files; those that are not there (another plugin's directory has others) are left out.
func runSizes(dir string) []programSize {
	var all []programSize
	for _, name := range shipped {
		if info, err := os.Stat(filepath.Join(dir, name)); err == nil {
			all = append(all, programSize{name, info.Size()})
		}
	}
	return all
}
