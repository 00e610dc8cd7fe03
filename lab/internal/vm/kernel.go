package vm

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/tortie-net/tortie/lab/internal/deps"
	"github.com/tortie-net/tortie/lab/internal/proc"
)

// Kernel is an unpacked kernel: its image and the directory of its modules.
type Kernel struct {
	Version, Image, Modules string
}

// kernelMeta is Debian's metapackage of the current kernel for virtual machines, which has IPIP, nftables and
// everything else that Tortie needs.
const kernelMeta = "linux-image-cloud-"

// Source is where a kernel comes from.
type Source string

// The kernel of the machine's own release of Debian, and the newest one, of Debian's unstable.
const (
	Stable   Source = "stable"
	Unstable Source = "unstable"
)

// prefix begins the names of a source's directories in the cache.
func (s Source) prefix() string {
	if s == Unstable {
		return "newest-kernel-"
	}
	return "kernel-"
}

// FetchKernel returns the cached kernel of a source, or downloads Debian's package, which is unpacked and never
// installed.
func FetchKernel(ctx context.Context, cache string, from Source, log io.Writer) (*Kernel, error) {
	if k, err := findKernel(cache, from); k != nil || err != nil {
		return k, err
	}
	lock, err := lockCache(cache)
	if err != nil {
		return nil, err
	}
	defer lock.Close()
	if k, err := findKernel(cache, from); k != nil || err != nil {
		return k, err // fetched by another process meanwhile
	}
	if err := download(ctx, cache, from, log); err != nil {
		return nil, fmt.Errorf("fetch Debian's kernel for virtual machines: %w", deps.Explain(err))
	}
	k, err := findKernel(cache, from)
	if k == nil && err == nil {
		err = errors.New("the package that was downloaded holds no kernel")
	}
	return k, err
}

// lockCache keeps other processes from fetching the same until the file is closed.
func lockCache(cache string) (*os.File, error) {
	if err := os.MkdirAll(cache, 0o755); err != nil {
		return nil, err
	}
	lock, err := os.OpenFile(filepath.Join(cache, "kernel.lock"), os.O_CREATE|os.O_RDWR, 0o644)
	if err != nil {
		return nil, err
	}
	if err := unix.Flock(int(lock.Fd()), unix.LOCK_EX); err != nil {
		return nil, errors.Join(fmt.Errorf("lock the cache: %w", err), lock.Close())
	}
	return lock, nil
}

// findKernel returns the newest cached kernel, or nil.
func findKernel(cache string, from Source) (*Kernel, error) {
	roots, err := filepath.Glob(filepath.Join(cache, from.prefix()+"*"))
	if err != nil || len(roots) == 0 {
		return nil, err
	}
	root := roots[len(roots)-1]
	for _, lib := range []string{"lib", "usr/lib"} { // moved in Debian 13
		found, err := filepath.Glob(filepath.Join(root, lib, "modules", "*"))
		if err != nil {
			return nil, err
		}
		for _, modules := range found {
			version := filepath.Base(modules)
			// moved in Debian 14
			for _, image := range []string{filepath.Join(root, "boot", "vmlinuz-"+version), filepath.Join(modules, "vmlinuz")} {
				if _, err := os.Stat(image); err == nil {
					return &Kernel{Version: version, Image: image, Modules: modules}, nil
				}
			}
		}
	}
	return nil, fmt.Errorf("%s has no kernel with modules: remove it", root)
}

func download(ctx context.Context, cache string, from Source, log io.Writer) error {
	if runtime.GOARCH != "amd64" {
		return fmt.Errorf("the virtual machine is for amd64, this is %s", runtime.GOARCH)
	}
	if !deps.HaveApt() {
		return fmt.Errorf("this machine has no apt-get, as Debian and Ubuntu have: bring %s/%s* of one that has", cache, from.prefix())
	}
	apt, err := newApt(ctx, cache, from)
	if err != nil {
		return err
	}
	defer apt.close()
	return apt.fetchKernel(ctx, cache, from.prefix(), log)
}

// fetchKernel downloads the current kernel, after an update if the lists are missing or older than the archive, which
// keeps only the newest version of a package.
func (a *apt) fetchKernel(ctx context.Context, cache, prefix string, log io.Writer) error {
	fetch := func() error {
		name, err := a.kernelPackage(ctx)
		if err != nil {
			return err
		}
		fmt.Fprintf(log, "kernel: downloading %s\n", name)
		return a.unpack(ctx, cache, a.parts(ctx, name), prefix+name)
	}
	first := fetch()
	if first == nil || ctx.Err() != nil {
		return first
	}
	fmt.Fprintln(log, "kernel: apt-get update")
	if err := proc.RunIn(ctx, "", "apt-get", a.args("-qq", "update")...); err != nil {
		return errors.Join(first, err)
	}
	return fetch()
}

// unpack unpacks packages into a directory of the cache.
func (a *apt) unpack(ctx context.Context, cache string, packages []string, target string) error {
	tmp, err := os.MkdirTemp(cache, "fetching-kernel-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(tmp)
	if err := proc.RunIn(ctx, tmp, "apt-get", a.args(append([]string{"-qq", "download"}, packages...)...)...); err != nil {
		return err
	}
	debs, err := filepath.Glob(filepath.Join(tmp, "*.deb"))
	if err != nil || len(debs) != len(packages) {
		return errors.Join(err, fmt.Errorf("apt-get download %s left %d files", strings.Join(packages, " "), len(debs)))
	}
	root := filepath.Join(tmp, "root")
	for _, deb := range debs {
		if err := proc.RunIn(ctx, tmp, "dpkg-deb", "-x", deb, root); err != nil {
			return err
		}
	}
	if err := os.Chmod(root, 0o755); err != nil {
		return err
	}
	return os.Rename(root, filepath.Join(cache, target))
}

// apt is the machine's apt, or one with its own lists for another archive.
type apt struct {
	options []string
	dir     string // of its own lists; empty: the machine's
}

// newApt reads unstable from the mirror that the machine uses.
func newApt(ctx context.Context, cache string, from Source) (*apt, error) {
	if from != Unstable {
		return &apt{options: asRoot}, nil
	}
	mirror, err := exec.CommandContext(ctx, "apt-get", "indextargets", "--format", "$(REPO_URI)",
		"Created-By: Packages", "Origin: Debian", "Label: Debian").Output()
	uri, _, _ := strings.Cut(string(mirror), "\n")
	if err != nil || uri == "" {
		uri = "http://deb.debian.org/debian"
	}
	return ownApt(cache, "deb [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] "+uri+" sid main")
}

// asRoot avoids apt's sandbox user, which may not be able to read the cache.
var asRoot = []string{"-o", "APT::Sandbox::User=root"}

// ownApt reads only the archive that a line of sources.list names.
func ownApt(cache, source string) (_ *apt, err error) {
	a := &apt{options: slices.Clone(asRoot)}
	if a.dir, err = os.MkdirTemp(cache, "apt-"); err != nil {
		return nil, err
	}
	list := filepath.Join(a.dir, "sources.list")
	for name, value := range map[string]string{
		"Dir::Etc::sourcelist": list, "Dir::Etc::sourceparts": "/dev/null",
		"Dir::State::lists": filepath.Join(a.dir, "lists"), "Dir::Cache": filepath.Join(a.dir, "cache"),
		"Acquire::Languages": "none", "Acquire::IndexTargets::deb::DEP-11::DefaultEnabled": "false",
	} {
		a.options = append(a.options, "-o", name+"="+value)
	}
	err = errors.Join(os.MkdirAll(filepath.Join(a.dir, "lists", "partial"), 0o755),
		os.MkdirAll(filepath.Join(a.dir, "cache", "archives", "partial"), 0o755),
		os.WriteFile(list, []byte(source+"\n"), 0o644))
	if err != nil {
		a.close()
		return nil, err
	}
	return a, nil
}

func (a *apt) close() {
	if a.dir != "" {
		os.RemoveAll(a.dir)
	}
}

// args are the arguments of an apt program.
func (a *apt) args(more ...string) []string { return append(slices.Clone(a.options), more...) }

// parts returns the packages with an image package's content: from Debian 14 on it contains neither image nor modules.
func (a *apt) parts(ctx context.Context, name string) []string {
	all := []string{name}
	out, err := exec.CommandContext(ctx, "apt-cache", a.args("depends", name)...).Output()
	if err != nil {
		return all
	}
	for _, m := range partLine.FindAllSubmatch(out, -1) {
		all = append(all, string(m[1]))
	}
	return all
}

var partLine = regexp.MustCompile(`(?m)^\s*Depends: (linux-(?:binary|modules)-[0-9]\S+)$`)

var dependsLine = regexp.MustCompile(`(?m)^\s*Depends: (linux-image-[0-9]\S+)$`)

// kernelPackage returns the name of the package of the current kernel.
func (a *apt) kernelPackage(ctx context.Context) (string, error) {
	meta := kernelMeta + runtime.GOARCH
	out, err := exec.CommandContext(ctx, "apt-cache", a.args("depends", meta)...).Output()
	if m := dependsLine.FindSubmatch(out); m != nil {
		return string(m[1]), nil
	}
	return "", errors.Join(fmt.Errorf("apt knows no package that %s depends on", meta), err)
}
