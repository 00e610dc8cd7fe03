// Package binaries builds the programs that a lab runs, and caches them outside the clone.
//
// It owns only the cache directory. The path of a program contains a hash of all its inputs, so that a clone never runs
// a program of other sources, and a fresh clone on a machine with a filled cache builds nothing.
package binaries

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"sort"
	"strings"

	"golang.org/x/sys/unix"
)

// ModulePath is the path of the Go module that the lab's programs are built from.
const ModulePath = "github.com/tortie-net/tortie/lab"

// kept is the number of cached builds of one program: the current one and two of other branches or clones.
const kept = 3

// Target is one program: its name in the cache and the package that it is built from.
type Target struct {
	Name    string
	Package string
	// Sources are the directories of this module with the program's source files. The packages of other modules are
	// covered by go.sum.
	Sources []string
	// Module is the directory of a separate Go module, below the lab's module; "" is the lab's own.
	Module string
	// Tags are additional build tags.
	Tags []string
}

// like reports whether one go command can build both: the same module and tags.
func (t Target) like(o Target) bool { return t.Module == o.Module && slices.Equal(t.Tags, o.Tags) }

// Targets are the programs of a lab, slowest first.
var Targets = []Target{
	{Name: "hyperkube", Package: "./cmd/hyperkube", Sources: []string{"cmd/hyperkube", "internal/etcd"}},
	// Built together with its shim and ctr: all tools of its module.
	{Name: "containerd", Package: "tool", Module: "containerd", Tags: []string{"no_btrfs", "no_devmapper", "no_zfs"}},
	{Name: "coredns", Package: ".", Sources: []string{"coredns"}, Module: "coredns"},
	{Name: "kubectl", Package: "k8s.io/kubernetes/cmd/kubectl"},
	{Name: "helm", Package: "helm.sh/helm/v4/cmd/helm"},
	{Name: "pause", Package: "./cmd/pause", Sources: []string{"cmd/pause"}},
	{Name: "vminit", Package: "./cmd/vminit", Sources: []string{"cmd/vminit", "internal/vmproto"}},
}

// Others are programs that only some tests need.
var Others = []Target{
	// API servers of other releases, each in a module of its own: the oldest with everything that the chart's policies
	// use, and the one before.
	{Name: "kube-apiserver-1.30", Package: ".", Sources: []string{"versions/kube-apiserver-1.30"}, Module: "versions/kube-apiserver-1.30"},
	{Name: "kube-apiserver-1.31", Package: ".", Sources: []string{"versions/kube-apiserver-1.31"}, Module: "versions/kube-apiserver-1.31"},
	// The suites of others that a pod network must pass, and the program of their pods.
	{Name: "networkpolicy", Package: "./networkpolicy", Sources: []string{"conformance/networkpolicy"}, Module: "conformance"},
	{Name: "clusternetworkpolicy", Package: "./clusternetworkpolicy",
		Sources: []string{"conformance/clusternetworkpolicy"}, Module: "conformance"},
	{Name: "agnhost", Package: "./agnhost", Sources: []string{"conformance/agnhost"}, Module: "conformance"},
}

// Cache returns cached programs, and builds missing ones.
type Cache struct {
	// Dir is the cache's directory; it is created if necessary.
	Dir string
	// Module is the root of the lab's Go module.
	Module string
	// Log takes the progress of builds.
	Log io.Writer
	// ReadOnly returns an error for a missing program instead of building it.
	ReadOnly bool
}

// InVM is the environment variable that is set inside a lab's virtual machine, where the cache is read-only: there is
// no network, and builds would be lost.
const InVM = "TORTIE_LAB_VM"

// Open returns the user's cache for the clone of the working directory, or else of the running program.
func Open(log io.Writer) (*Cache, error) {
	dir, err := DefaultDir()
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
	module, err := FindModule(wd, filepath.Dir(self))
	if err != nil {
		return nil, err
	}
	return &Cache{Dir: dir, Module: module, Log: log, ReadOnly: os.Getenv(InVM) != ""}, nil
}

// DefaultDir returns the default directory: tortie in the user's cache directory.
func DefaultDir() (string, error) {
	base, err := os.UserCacheDir()
	if err != nil {
		return "", fmt.Errorf("find the cache directory (set XDG_CACHE_HOME or HOME): %w", err)
	}
	return filepath.Join(base, "tortie"), nil
}

// FindModule returns the root of the lab's module: the nearest one at or above a starting directory, which may also be
// a directory of the repository that contains it as lab/.
func FindModule(starts ...string) (string, error) {
	for _, start := range starts {
		start, err := filepath.Abs(start) // "." has no parent
		if err != nil {
			return "", fmt.Errorf("find module %s: %w", ModulePath, err)
		}
		for dir := start; ; dir = filepath.Dir(dir) {
			for _, candidate := range []string{dir, filepath.Join(dir, "lab")} {
				if isModule(candidate) {
					return candidate, nil
				}
			}
			if dir == filepath.Dir(dir) {
				break
			}
		}
	}
	return "", fmt.Errorf("no module %s at or above %s: run this inside a clone of tortie", ModulePath, strings.Join(starts, " or "))
}

func isModule(dir string) bool {
	b, err := os.ReadFile(filepath.Join(dir, "go.mod"))
	if err != nil {
		return false
	}
	line, _, _ := strings.Cut(string(b), "\n")
	return strings.TrimSpace(line) == "module "+ModulePath
}

// program is a target with its path in the cache.
type program struct {
	Target
	path string
}

// Path returns the path of a program of the current sources, and builds it if it is not cached.
func (c *Cache) Path(ctx context.Context, name string) (string, error) {
	paths, err := c.Paths(ctx, name)
	if err != nil {
		return "", err
	}
	return paths[0], nil
}

// Paths is Path for several programs. Missing ones are built by as few go commands as possible, so that common packages
// are compiled, and counted, once.
func (c *Cache) Paths(ctx context.Context, names ...string) ([]string, error) {
	paths := make([]string, len(names))
	var missing []program
	for i, name := range names {
		p, err := c.find(name)
		if err != nil {
			return nil, err
		}
		paths[i] = p.path
		if !p.built() {
			missing = append(missing, p)
		}
	}
	if len(missing) == 0 {
		return paths, nil
	}
	if c.ReadOnly {
		return nil, fmt.Errorf("%s: not in the cache %s, and nothing is built inside a virtual machine: run `bin/lab build %s` outside of it",
			namesOf(missing, ", "), c.Dir, namesOf(missing, " "))
	}
	return paths, c.buildAll(ctx, missing)
}

func (p program) built() bool {
	_, err := os.Stat(p.path)
	return err == nil
}

func namesOf(programs []program, separator string) string {
	var names []string
	for _, p := range programs {
		names = append(names, p.Name)
	}
	return strings.Join(names, separator)
}

// find returns a program's path in the cache, which may not exist.
func (c *Cache) find(name string) (program, error) {
	all := slices.Concat(Targets, Others)
	i := slices.IndexFunc(all, func(t Target) bool { return t.Name == name })
	if i < 0 {
		return program{}, fmt.Errorf("no program %q in the lab", name)
	}
	key, err := c.Key(all[i])
	return program{all[i], filepath.Join(c.Dir, name+"-"+key, name)}, err
}

// Key returns the hash of all inputs of a program: go.mod, go.sum, sources, flags and the Go release.
func (c *Cache) Key(t Target) (string, error) {
	files := []string{filepath.Join(t.Module, "go.mod"), filepath.Join(t.Module, "go.sum")}
	for _, dir := range t.Sources {
		more, err := sources(c.Module, dir)
		if err != nil {
			return "", fmt.Errorf("list the sources of %s: %w", t.Name, err)
		}
		files = append(files, more...)
	}
	h := sha256.New()
	flags, err := c.flags(t)
	if err != nil {
		return "", err
	}
	fmt.Fprintf(h, "%s %s %s %q %q\n", runtime.Version(), runtime.GOOS, runtime.GOARCH, t.Package, flags)
	for _, name := range files {
		b, err := os.ReadFile(filepath.Join(c.Module, name))
		if err != nil {
			return "", fmt.Errorf("hash the sources of %s: %w", t.Name, err)
		}
		fmt.Fprintf(h, "%s %d\n", name, len(b))
		h.Write(b)
	}
	return hex.EncodeToString(h.Sum(nil))[:16], nil
}

// sources returns the Go files of a directory that are part of a build, relative to the module, sorted.
func sources(module, dir string) ([]string, error) {
	var files []string
	err := filepath.WalkDir(filepath.Join(module, dir), func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() || !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") {
			return err
		}
		rel, err := filepath.Rel(module, path)
		files = append(files, rel)
		return err
	})
	return files, err
}

// lock locks one program, so that labs that start concurrently build it once.
func (c *Cache) lock(ctx context.Context, name string) (*os.File, error) {
	if err := os.MkdirAll(c.Dir, 0o755); err != nil {
		return nil, err
	}
	f, err := os.OpenFile(filepath.Join(c.Dir, name+".lock"), os.O_CREATE|os.O_RDWR, 0o644)
	if err != nil {
		return nil, err
	}
	if unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB) == nil {
		return f, nil
	}
	fmt.Fprintf(c.Log, "%s: another process is building it, waiting\n", name)
	done := make(chan error, 1)
	go func() { done <- flock(f) }()
	select {
	case err := <-done:
		if err != nil {
			f.Close()
			return nil, err
		}
		return f, nil
	case <-ctx.Done():
		f.Close()
		return nil, ctx.Err()
	}
}

func flock(f *os.File) error {
	for {
		err := unix.Flock(int(f.Fd()), unix.LOCK_EX)
		if !errors.Is(err, unix.EINTR) {
			return err
		}
	}
}

// prune removes the oldest builds of a program. A running one keeps running: its file is freed by its last process.
func (c *Cache) prune(t Target) error {
	dirs, err := filepath.Glob(filepath.Join(c.Dir, t.Name+"-*"))
	if err != nil || len(dirs) <= kept {
		return err
	}
	age := func(dir string) int64 {
		st, err := os.Stat(dir)
		if err != nil {
			return 0
		}
		return st.ModTime().UnixNano()
	}
	sort.Slice(dirs, func(i, j int) bool { return age(dirs[i]) > age(dirs[j]) })
	for _, dir := range dirs[kept:] {
		if err := os.RemoveAll(dir); err != nil {
			return err
		}
	}
	return nil
}

func removeGlob(pattern string) error {
	paths, err := filepath.Glob(pattern)
	for _, path := range paths {
		err = errors.Join(err, os.RemoveAll(path))
	}
	return err
}
