package binaries

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// stopTime is the limit for the exit of an interrupted go command.
const stopTime = 30 * time.Second

var kubernetesVersion = regexp.MustCompile(`(?m)^\s*(?:require\s+)?k8s\.io/kubernetes (v1\.([0-9]+)\.[0-9]+)$`)

// flags are the build flags: static, without paths of this machine.
func (c *Cache) flags(t Target) ([]string, error) {
	ld, err := c.stamps("-s -w", t.Module)
	tags := strings.Join(append([]string{"osusergo", "netgo"}, t.Tags...), ",")
	return []string{"-trimpath", "-buildvcs=false", "-tags", tags, "-ldflags", ld}, err
}

// stamps adds Kubernetes' release to the linker's flags: otherwise a server reports v0.0.0-master in /version, and
// Helm's kubeVersion checks fail.
func (c *Cache) stamps(ld, module string) (string, error) {
	mod, err := os.ReadFile(filepath.Join(c.Module, module, "go.mod"))
	if err != nil {
		return "", fmt.Errorf("read go.mod of a program of the lab: %w", err)
	}
	m := kubernetesVersion.FindSubmatch(mod)
	if m == nil && module != "" {
		return ld, nil
	}
	if m == nil {
		return "", fmt.Errorf("%s/go.mod requires no k8s.io/kubernetes v1.x.y", c.Module)
	}
	for _, pkg := range []string{"k8s.io/component-base/version", "k8s.io/client-go/pkg/version"} {
		ld += fmt.Sprintf(" -X %[1]s.gitVersion=%[2]s -X %[1]s.gitMajor=1 -X %[1]s.gitMinor=%[3]s -X %[1]s.gitTreeState=clean", pkg, m[1], m[2])
	}
	return ld, nil
}

// buildAll builds programs, with one go command where possible.
func (c *Cache) buildAll(ctx context.Context, missing []program) error {
	for len(missing) > 0 {
		first := missing[0].Target
		group := slices.DeleteFunc(slices.Clone(missing), func(p program) bool { return !p.like(first) })
		missing = slices.DeleteFunc(missing, func(p program) bool { return p.like(first) })
		if err := c.build(ctx, group); err != nil {
			return fmt.Errorf("build %s: %w", namesOf(group, ", "), err)
		}
	}
	return nil
}

// build builds programs of one go command, unless another process has built them while this one waited for the lock.
func (c *Cache) build(ctx context.Context, group []program) error {
	// All processes lock in the same order.
	slices.SortFunc(group, func(a, b program) int { return strings.Compare(a.Name, b.Name) })
	for _, p := range group {
		lock, err := c.lock(ctx, p.Name)
		if err != nil {
			return fmt.Errorf("lock the cache %s (XDG_CACHE_HOME is where another one can be): %w", c.Dir, err)
		}
		defer lock.Close()
	}
	group = slices.DeleteFunc(group, program.built)
	if len(group) == 0 {
		return nil
	}
	// Only the holder of the lock builds: existing files are from a killed builder.
	work := "building-" + group[0].Name + "-"
	if err := removeGlob(filepath.Join(c.Dir, work+"*")); err != nil {
		return err
	}
	tmp, err := os.MkdirTemp(c.Dir, work)
	if err != nil {
		return err
	}
	defer os.RemoveAll(tmp)
	if err := c.compile(ctx, group, tmp); err != nil {
		return err
	}
	for _, p := range group {
		if err := c.keep(p, tmp); err != nil {
			return fmt.Errorf("put %s into the cache: %w", p.Name, err)
		}
	}
	return nil
}

// keep moves a program from dir to its path atomically. The tools of a module are built alone, and stay in one
// directory.
func (c *Cache) keep(p program, dir string) error {
	if p.Package != "tool" {
		own := filepath.Join(dir, "of-"+p.Name)
		if err := os.Mkdir(own, 0o755); err != nil {
			return err
		}
		if err := os.Rename(filepath.Join(dir, p.Name), filepath.Join(own, p.Name)); err != nil {
			return err
		}
		dir = own
	}
	if err := os.Chmod(dir, 0o755); err != nil {
		return err
	}
	if err := os.Rename(dir, filepath.Dir(p.path)); err != nil {
		return err
	}
	return c.prune(p.Target)
}

// compile builds into a directory: each program under the name of its package's directory.
func (c *Cache) compile(ctx context.Context, group []program, dir string) error {
	flags, err := c.flags(group[0].Target)
	if err != nil {
		return err
	}
	var packages []string
	for _, p := range group {
		packages = append(packages, p.Package)
	}
	temp := filepath.Join(dir, "temp")
	if err := os.Mkdir(temp, 0o700); err != nil {
		return err
	}
	if err := c.fits(ctx, group, 0); err != nil {
		return err
	}
	start := time.Now()
	p := newProgress(c.Log, namesOf(group, ", "))
	defer p.end()
	goCommand := func(args ...string) *exec.Cmd { return c.command(ctx, group[0].Target, temp, args...) }
	stale, err := p.plan(ctx,
		goCommand(slices.Concat([]string{"list", "-deps", "-f", "{{if .Stale}}{{.ImportPath}}{{end}}"}, flags, packages)...))
	if err != nil {
		return err
	}
	if err := c.fits(ctx, group, stale); err != nil {
		return err
	}
	build := []string{"build", "-v", "-p", strconv.Itoa(parallel()), "-o", dir + "/"}
	if err := p.run(ctx, goCommand(slices.Concat(build, flags, packages)...)); err != nil {
		return err
	}
	p.end()
	if err := os.RemoveAll(temp); err != nil {
		return err
	}
	for _, b := range group {
		st, err := os.Stat(filepath.Join(dir, b.Name))
		if err != nil {
			return err
		}
		fmt.Fprintf(c.Log, "%s: built (%d MB)\n", b.Name, st.Size()>>20)
	}
	fmt.Fprintf(c.Log, "%s: %s\n", namesOf(group, ", "), time.Since(start).Round(time.Second))
	return nil
}

// command returns a go command in a target's module, with temporary files in a directory that the caller removes, as an
// interrupted go does not always do so. Ctrl-C on a terminal reaches it, and its compilers, only when ctx ends.
func (c *Cache) command(ctx context.Context, t Target, temp string, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, "go", args...)
	cmd.Dir = filepath.Join(c.Module, t.Module)
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0", "GOFLAGS=", "GOWORK=off", "GOTMPDIR="+temp)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGINT) }
	cmd.WaitDelay = stopTime
	return cmd
}

// compilerMemory is the memory of a compiler of one of Kubernetes' large packages, or of a linker.
const compilerMemory = 1500 << 20

// parallel returns the number of concurrent compilers: one per processor, if they fit into memory.
func parallel() int {
	var info unix.Sysinfo_t
	n := runtime.NumCPU()
	if unix.Sysinfo(&info) != nil {
		return n
	}
	return max(1, min(n, int(info.Totalram*uint64(info.Unit)/compilerMemory)))
}
