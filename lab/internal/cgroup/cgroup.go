// Package cgroup creates a cgroup for each node of a lab, in every mounted hierarchy of the machine: one with cgroup
// v2, several with v1.
//
// It owns the cgroups tortie-LAB and their children. Without separate ones, the kubelets of two nodes would conflict in
// /kubepods. If the root of a v2 machine does not delegate a controller that a kubelet needs, it enables that
// controller, and disables it at the end.
package cgroup

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// needed are the controllers that a kubelet needs, and io, which containerd uses if available.
var needed = []string{"cpu", "cpuset", "memory", "pids", "io"}

// leaf is the cgroup below a node's own for the node's daemons: v2 allows no process in a cgroup that delegates
// controllers.
const leaf = "daemons"

// Hierarchy is a mounted cgroup file system.
type Hierarchy struct {
	// Mount is its mount point on the machine.
	Mount string
	// Options are the mount options that select it: its controllers, or none and a name. They are empty for v2.
	Options []string
}

// Layout is the machine's set of cgroup hierarchies.
type Layout struct {
	// V2: there is one hierarchy, of version 2.
	V2          bool
	Hierarchies []Hierarchy
}

// Detect reads the layout from the mounts of this process.
func Detect() (Layout, error) {
	f, err := os.Open("/proc/self/mountinfo")
	if err != nil {
		return Layout{}, fmt.Errorf("find the cgroups: %w", err)
	}
	defer f.Close()
	var l Layout
	s := bufio.NewScanner(f)
	for s.Scan() {
		l.add(s.Text())
	}
	if err := s.Err(); err != nil {
		return Layout{}, fmt.Errorf("find the cgroups: %w", err)
	}
	if len(l.Hierarchies) == 0 {
		return Layout{}, errors.New("no cgroup hierarchy below /sys/fs/cgroup: mount one (mount -t cgroup2 none /sys/fs/cgroup)")
	}
	return l, nil
}

// add parses a line of mountinfo(5): mount point in field 5; after the lone dash type, source and superblock options.
func (l *Layout) add(line string) {
	left, right, ok := strings.Cut(line, " - ")
	before, after := strings.Fields(left), strings.Fields(right)
	if !ok || len(before) < 5 || len(after) < 3 {
		return
	}
	mount, kind := before[4], after[0]
	switch {
	case kind == "cgroup2" && mount == "/sys/fs/cgroup":
		*l = Layout{V2: true, Hierarchies: []Hierarchy{{Mount: mount}}}
	case kind == "cgroup" && !l.V2 && filepath.Dir(mount) == "/sys/fs/cgroup":
		l.Hierarchies = append(l.Hierarchies, Hierarchy{Mount: mount, Options: v1Options(after[2])})
	}
}

// v1Options returns the superblock options that identify a hierarchy.
func v1Options(super string) []string {
	var keep []string
	for _, o := range strings.Split(super, ",") {
		switch {
		case o == "rw", o == "ro", o == "xattr", o == "clone_children", o == "noprefix", strings.HasPrefix(o, "release_agent="):
		case strings.HasPrefix(o, "name="):
			keep = append(keep, "none", o)
		default:
			keep = append(keep, o)
		}
	}
	return keep
}

func top(lab string) string { return "tortie-" + lab }

// Create creates a node's cgroups, and returns the controllers that it had to enable in the root of a v2 hierarchy.
func (l Layout) Create(lab, node string) (enabled []string, err error) {
	for _, h := range l.Hierarchies {
		dir := filepath.Join(h.Mount, top(lab), node)
		if err := os.MkdirAll(dir, 0o755); err != nil {
			return enabled, fmt.Errorf("make the cgroup of node %s: %w", node, err)
		}
		if l.V2 {
			enabled, err = delegate(h.Mount)
			if err == nil {
				_, err = delegate(filepath.Dir(dir))
			}
		} else if slices.Contains(h.Options, "cpuset") {
			err = errors.Join(fillCpuset(filepath.Dir(dir)), fillCpuset(dir))
		}
		if err != nil {
			return enabled, fmt.Errorf("set up the cgroup %s: %w", dir, err)
		}
	}
	return enabled, nil
}

// delegate enables every needed controller of a cgroup for its children, and returns those that were not enabled
// before.
func delegate(dir string) ([]string, error) {
	has, err := fields(filepath.Join(dir, "cgroup.controllers"))
	if err != nil {
		return nil, err
	}
	control := filepath.Join(dir, "cgroup.subtree_control")
	on, err := fields(control)
	if err != nil {
		return nil, err
	}
	var enabled []string
	for _, c := range needed {
		if !slices.Contains(has, c) || slices.Contains(on, c) {
			continue
		}
		if err := os.WriteFile(control, []byte("+"+c), 0); err != nil {
			return enabled, fmt.Errorf("enable controller %s: %w", c, err)
		}
		enabled = append(enabled, c)
	}
	return enabled, nil
}

func fields(path string) ([]string, error) {
	b, err := os.ReadFile(path)
	return strings.Fields(string(b)), err
}

// fillCpuset copies the parent's processors and memory nodes: in v1 they are initially empty, and no process may enter.
func fillCpuset(dir string) error {
	for _, name := range []string{"cpuset.cpus", "cpuset.mems"} {
		b, err := os.ReadFile(filepath.Join(filepath.Dir(dir), name))
		if err != nil {
			return err
		}
		if err := os.WriteFile(filepath.Join(dir, name), b, 0); err != nil {
			return err
		}
	}
	return nil
}

// Join moves the calling process into a node's cgroups.
func (l Layout) Join(lab, node string) error {
	for _, h := range l.Hierarchies {
		procs := filepath.Join(h.Mount, top(lab), node, "cgroup.procs")
		if err := os.WriteFile(procs, []byte("0"), 0); err != nil {
			return fmt.Errorf("enter the cgroup: %w", err)
		}
	}
	return nil
}

// Mount mounts the hierarchies below dir (a node's /sys/fs/cgroup), as seen from the caller's cgroup namespace: its own
// cgroup is their root.
func (l Layout) Mount(dir string) error {
	if l.V2 {
		if err := unix.Mount("cgroup2", dir, "cgroup2", 0, ""); err != nil {
			return fmt.Errorf("mount cgroup2: %w", err)
		}
		return l.enterLeaf(dir)
	}
	if err := unix.Mount("tmpfs", dir, "tmpfs", 0, "mode=755"); err != nil {
		return fmt.Errorf("mount %s: %w", dir, err)
	}
	for _, h := range l.Hierarchies {
		name := filepath.Base(h.Mount)
		target := filepath.Join(dir, name)
		if err := os.Mkdir(target, 0o755); err != nil {
			return err
		}
		if err := unix.Mount("cgroup", target, "cgroup", 0, strings.Join(h.Options, ",")); err != nil {
			return fmt.Errorf("mount cgroup %s: %w", name, err)
		}
		if err := linkEach(dir, name); err != nil {
			return err
		}
	}
	return nil
}

// linkEach links each controller of a shared hierarchy (cpu,cpuacct) by its own name.
func linkEach(dir, name string) error {
	controllers := strings.Split(name, ",")
	if len(controllers) == 1 {
		return nil
	}
	for _, c := range controllers {
		if err := os.Symlink(name, filepath.Join(dir, c)); err != nil {
			return err
		}
	}
	return nil
}

func (l Layout) enterLeaf(dir string) error {
	own := filepath.Join(dir, leaf)
	if err := os.Mkdir(own, 0o755); err != nil {
		return err
	}
	if err := os.WriteFile(filepath.Join(own, "cgroup.procs"), []byte("0"), 0); err != nil {
		return fmt.Errorf("enter the cgroup of the daemons: %w", err)
	}
	_, err := delegate(dir)
	return err
}

// Remove kills the processes in a lab's cgroups and removes these, and disables the controllers that Create enabled
// unless another cgroup uses them. Missing cgroups are not an error.
func (l Layout) Remove(ctx context.Context, lab string, enabled []string) error {
	var errs []error
	for _, h := range l.Hierarchies {
		dir := filepath.Join(h.Mount, top(lab))
		if err := removeTree(ctx, dir); err != nil {
			errs = append(errs, fmt.Errorf("remove the cgroup %s: %w", dir, err))
		}
		for _, c := range enabled {
			err := os.WriteFile(filepath.Join(h.Mount, "cgroup.subtree_control"), []byte("-"+c), 0)
			if err != nil && !errors.Is(err, unix.EBUSY) {
				errs = append(errs, fmt.Errorf("disable controller %s again: %w", c, err))
			}
		}
	}
	return errors.Join(errs...)
}

// Empty kills the processes of a node and removes its cgroups. Missing cgroups are not an error.
func (l Layout) Empty(ctx context.Context, lab, node string) error {
	var errs []error
	for _, h := range l.Hierarchies {
		if err := removeTree(ctx, filepath.Join(h.Mount, top(lab), node)); err != nil {
			errs = append(errs, fmt.Errorf("empty the cgroup of node %s: %w", node, err))
		}
	}
	return errors.Join(errs...)
}

// removeTree retries until ctx ends: a killed process leaves its cgroup asynchronously.
func removeTree(ctx context.Context, dir string) error {
	t := time.NewTicker(10 * time.Millisecond)
	defer t.Stop()
	for {
		err := removeOnce(dir)
		if err == nil {
			return nil
		}
		select {
		case <-ctx.Done():
			return errors.Join(err, ctx.Err())
		case <-t.C:
		}
	}
}

func removeOnce(dir string) error {
	var dirs []string
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		if err == nil && d.IsDir() {
			dirs = append(dirs, path)
		}
		return err
	})
	if err != nil {
		return err
	}
	slices.Reverse(dirs) // children first
	for _, d := range dirs {
		if err := killAll(d); err != nil {
			return err
		}
		if err := unix.Rmdir(d); err != nil && !errors.Is(err, unix.ENOENT) {
			return &fs.PathError{Op: "rmdir", Path: d, Err: err}
		}
	}
	return nil
}

func killAll(dir string) error {
	pids, err := fields(filepath.Join(dir, "cgroup.procs"))
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	for _, s := range pids {
		pid, err := strconv.Atoi(s)
		if err != nil || pid <= 1 {
			continue // 0 is a process of another PID namespace
		}
		if err := syscall.Kill(pid, syscall.SIGKILL); err != nil && !errors.Is(err, syscall.ESRCH) {
			return err
		}
	}
	return nil
}
