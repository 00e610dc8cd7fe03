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
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/tortie-net/tortie/lab/internal/deps"
	"github.com/tortie-net/tortie/lab/internal/proc"
)

// Kernel is an unpacked kernel: its image and the directory of its modules.
type Kernel struct {
	Version, Image, Modules string
}

// kernelMeta is Debian's metapackage of the current kernel for virtual machines, which has IPIP, nftables and everything else that Tortie
// needs.
const kernelMeta = "linux-image-cloud-"

// FetchKernel returns the cached kernel, or downloads Debian's package, which is unpacked and never installed.
func FetchKernel(ctx context.Context, cache string, log io.Writer) (*Kernel, error) {
	if k, err := findKernel(cache); k != nil || err != nil {
		return k, err
	}
	if err := os.MkdirAll(cache, 0o755); err != nil {
		return nil, err
	}
	lock, err := os.OpenFile(filepath.Join(cache, "kernel.lock"), os.O_CREATE|os.O_RDWR, 0o644)
	if err != nil {
		return nil, err
	}
	defer lock.Close()
	if err := unix.Flock(int(lock.Fd()), unix.LOCK_EX); err != nil {
		return nil, fmt.Errorf("lock the cache: %w", err)
	}
	if k, err := findKernel(cache); k != nil || err != nil {
		return k, err // fetched by another process meanwhile
	}
	if err := download(ctx, cache, log); err != nil {
		return nil, fmt.Errorf("fetch Debian's kernel for virtual machines: %w", deps.Explain(err))
	}
	k, err := findKernel(cache)
	if k == nil && err == nil {
		err = errors.New("the package that was downloaded holds no kernel")
	}
	return k, err
}

// findKernel returns the newest cached kernel, or nil.
func findKernel(cache string) (*Kernel, error) {
	images, err := filepath.Glob(filepath.Join(cache, "kernel-*", "boot", "vmlinuz-*"))
	if err != nil || len(images) == 0 {
		return nil, err
	}
	image := images[len(images)-1]
	root := filepath.Dir(filepath.Dir(image))
	version := strings.TrimPrefix(filepath.Base(image), "vmlinuz-")
	for _, lib := range []string{"lib", "usr/lib"} { // moved in Debian 13
		modules := filepath.Join(root, lib, "modules", version)
		if _, err := os.Stat(modules); err == nil {
			return &Kernel{Version: version, Image: image, Modules: modules}, nil
		}
	}
	return nil, fmt.Errorf("%s has no modules: remove it", root)
}

func download(ctx context.Context, cache string, log io.Writer) error {
	if !deps.HaveApt() {
		return fmt.Errorf("this machine has no apt-get, as Debian and Ubuntu have: bring %s/kernel-* of one that has", cache)
	}
	name, err := kernelPackage(ctx, log)
	if err != nil {
		return err
	}
	fmt.Fprintf(log, "kernel: downloading %s%s\n", name, size(ctx, name))
	tmp, err := os.MkdirTemp(cache, "fetching-kernel-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(tmp)
	// Without apt's sandbox user, which may not be able to read the cache.
	if err := proc.RunIn(ctx, tmp, "apt-get", "-qq", "-o", "APT::Sandbox::User=root", "download", name); err != nil {
		return err
	}
	debs, err := filepath.Glob(filepath.Join(tmp, "*.deb"))
	if err != nil || len(debs) != 1 {
		return errors.Join(err, fmt.Errorf("apt-get download %s left %d files", name, len(debs)))
	}
	root := filepath.Join(tmp, "root")
	if err := proc.RunIn(ctx, tmp, "dpkg-deb", "-x", debs[0], root); err != nil {
		return err
	}
	if err := os.Chmod(root, 0o755); err != nil {
		return err
	}
	return os.Rename(root, filepath.Join(cache, "kernel-"+name))
}

// size returns a package's size as text, if apt knows it.
func size(ctx context.Context, name string) string {
	out, err := exec.CommandContext(ctx, "apt-cache", "show", "--no-all-versions", name).Output()
	m := sizeLine.FindSubmatch(out)
	if err != nil || m == nil {
		return ""
	}
	n, err := strconv.ParseInt(string(m[1]), 10, 64)
	if err != nil {
		return ""
	}
	return fmt.Sprintf(", %.1f MB", float64(n)/(1<<20))
}

var sizeLine = regexp.MustCompile(`(?m)^Size: ([0-9]+)$`)

var dependsLine = regexp.MustCompile(`(?m)^\s*Depends: (linux-image-[0-9]\S+)$`)

// kernelPackage returns the kernel's package from apt, after an update if apt has no lists yet.
func kernelPackage(ctx context.Context, log io.Writer) (string, error) {
	if runtime.GOARCH != "amd64" {
		return "", fmt.Errorf("the virtual machine is for amd64, this is %s", runtime.GOARCH)
	}
	meta := kernelMeta + runtime.GOARCH
	for attempt := 0; ; attempt++ {
		out, err := exec.CommandContext(ctx, "apt-cache", "depends", meta).Output()
		if m := dependsLine.FindSubmatch(out); m != nil {
			return string(m[1]), nil
		}
		if attempt > 0 {
			return "", errors.Join(fmt.Errorf("apt knows no package that %s depends on", meta), err)
		}
		fmt.Fprintln(log, "kernel: apt-get update")
		if err := proc.RunIn(ctx, "", "apt-get", "-qq", "update"); err != nil {
			return "", err
		}
	}
}
