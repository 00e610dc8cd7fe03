// Package deps lists the Debian packages that a lab needs, and installs missing ones without starting a service. A
// package that would conflict with an installed one is unpacked into the lab's cache instead.
package deps

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
)

// Need is a package with files, any one of which shows that it is installed.
type Need struct {
	Package string
	Files   []string
	// Or is the name of the package in another release of Debian.
	Or string
	// Service is the unit that the package would start at the next boot, and that is disabled after an installation.
	Service string
	// Unpack is the directory below the lab's cache for a package that is unpacked instead of installed.
	Unpack string
	// Version, with wildcards, is the one to unpack.
	Version string
}

// Lab is the needs of every lab, and of the demo.
var Lab = []Need{
	{Package: "containerd", Files: []string{"/usr/bin/containerd"}},
	{Package: "runc", Files: []string{"/usr/bin/runc", "/usr/sbin/runc"}},
	{Package: "busybox-static", Files: []string{"/bin/busybox", "/usr/bin/busybox"}},
	{Package: "iproute2", Files: []string{"/sbin/ip", "/usr/sbin/ip", "/bin/ip"}},
	{Package: "nftables", Files: []string{"/usr/sbin/nft", "/sbin/nft"}},
	{Package: "tcpdump", Files: []string{"/usr/bin/tcpdump", "/usr/sbin/tcpdump"}},
	{Package: "procps", Files: []string{"/usr/bin/ps", "/bin/ps"}},
	// kube-proxy's other mode.
	{Package: "iptables", Files: []string{"/usr/sbin/iptables", "/sbin/iptables"}},
}

// Tests is the additional needs of tests and benchmarks.
var Tests = []Need{
	{Package: "iperf3", Files: []string{"/usr/bin/iperf3"}},
	// Other BGP implementations, which the tests put into a mesh with Tortie's. Calico's BIRD is a fork of BIRD 1.6.
	{Package: "bird2", Files: []string{"/usr/sbin/bird"}, Service: "bird"},
	{Package: "frr", Files: []string{"/usr/lib/frr/bgpd"}, Service: "frr"},
	{Package: "bird", Files: []string{"/usr/sbin/bird", "/usr/sbin/bird6"}, Unpack: "bird-1.6", Version: "1.6.*"},
}

// VM is the additional needs of a virtual machine.
var VM = []Need{
	{Package: "qemu-system-x86", Files: []string{"/usr/bin/qemu-system-x86_64"}},
	{Package: "virtiofsd", Files: []string{"/usr/lib/qemu/virtiofsd", "/usr/libexec/virtiofsd", "/usr/bin/virtiofsd"},
		Or: "qemu-system-common"},
}

// Places are the directories in which needs are searched.
type Places struct {
	Root  string // "" but in tests
	Cache string // the lab's cache, in which packages are unpacked
}

// Missing returns the needs without any of their files.
func (p Places) Missing(needs []Need) []Need {
	var missing []Need
	for _, n := range needs {
		if !p.have(n) {
			missing = append(missing, n)
		}
	}
	return missing
}

func (p Places) have(n Need) bool {
	root := p.Root
	if n.Unpack != "" {
		root = filepath.Join(p.Cache, n.Unpack)
	}
	for _, f := range n.Files {
		if _, err := os.Stat(root + f); err == nil {
			return true
		}
	}
	return false
}

// split separates packages to install from packages to unpack.
func split(needs []Need) (install, unpack []Need) {
	for _, n := range needs {
		if n.Unpack != "" {
			unpack = append(unpack, n)
		} else {
			install = append(install, n)
		}
	}
	return install, unpack
}

// Command returns the command line that installs packages.
func Command(missing []Need) string {
	install, unpack := split(missing)
	if len(unpack) > 0 {
		return "make deps" // not possible with one command of Debian
	}
	names := make([]string, len(install))
	for i, n := range install {
		names[i] = n.Package
	}
	return "apt-get install --no-install-recommends " + strings.Join(names, " ")
}

// HaveApt reports whether this machine can install Debian packages.
func HaveApt() bool {
	_, err := exec.LookPath("apt-get")
	return err == nil
}

// Remedy returns the advice about missing packages, with apt or without.
func Remedy(missing []Need, apt bool) string {
	if apt {
		return "missing Debian packages, type (as root): " + Command(missing)
	}
	var files []string
	for _, n := range missing {
		files = append(files, fmt.Sprintf("%s (Debian's %s)", n.Files[0], n.Package))
	}
	return "this machine has no apt-get, as Debian and Ubuntu have: install by its own means what gives it " + strings.Join(files, ", ")
}

// Bring installs or unpacks packages, as root.
func (p Places) Bring(ctx context.Context, missing []Need, log io.Writer) error {
	if !HaveApt() {
		return errors.New(Remedy(missing, false))
	}
	fmt.Fprintln(log, "deps: apt-get update")
	if err := apt(ctx, log, "update"); err != nil {
		return err
	}
	install, unpack := split(missing)
	if len(install) > 0 {
		if err := installAll(ctx, install, log); err != nil {
			return err
		}
	}
	for _, n := range unpack {
		if err := n.unpack(ctx, p.Cache, log); err != nil {
			return fmt.Errorf("unpack %s %s: %w", n.Package, n.Version, Explain(err))
		}
	}
	return nil
}

func installAll(ctx context.Context, missing []Need, log io.Writer) (err error) {
	if err := configureRest(ctx, log); err != nil {
		return err
	}
	restore, err := forbidServices("/usr/sbin/policy-rc.d")
	if err != nil {
		return fmt.Errorf("keep services from starting: %w", err)
	}
	defer func() { err = errors.Join(err, restore()) }()
	args := []string{"install", "--yes", "--no-install-recommends"}
	for _, n := range missing {
		args = append(args, n.available(ctx))
	}
	fmt.Fprintf(log, "deps: downloading and installing %d Debian packages and what they need\n", len(missing))
	if err := apt(ctx, log, args...); err != nil {
		return err
	}
	return disableServices(ctx, missing)
}

// configureRest completes the work of a killed dpkg, before which apt refuses to install anything.
func configureRest(ctx context.Context, log io.Writer) error {
	out, err := exec.CommandContext(ctx, "dpkg", "--audit").Output()
	if err != nil || len(out) == 0 {
		return err
	}
	fmt.Fprintln(log, "deps: an installation was interrupted: dpkg --configure -a")
	return run(ctx, log, "dpkg", "--configure", "-a")
}

// disableServices disables the services of installed packages at boot. Without systemd there is nothing to disable.
func disableServices(ctx context.Context, installed []Need) error {
	if _, err := exec.LookPath("systemctl"); err != nil {
		return nil
	}
	for _, n := range installed {
		if n.Service == "" {
			continue
		}
		if out, err := exec.CommandContext(ctx, "systemctl", "disable", "--quiet", n.Service).CombinedOutput(); err != nil {
			return fmt.Errorf("systemctl disable %s: %w: %s", n.Service, err, out)
		}
	}
	return nil
}

// available returns the package's name in this release of Debian.
func (n Need) available(ctx context.Context) string {
	if n.Or == "" {
		return n.Package
	}
	out, err := exec.CommandContext(ctx, "apt-cache", "policy", n.Package).Output()
	if err != nil || !strings.Contains(string(out), "Candidate:") || strings.Contains(string(out), "Candidate: (none)") {
		return n.Or
	}
	return n.Package
}

// denyAll returns 101, "action forbidden by policy", for every service
// (https://people.debian.org/~hmh/invokerc.d-policyrc.d-specification.txt).
const denyAll = "#!/bin/sh\n# Of Tortie's lab, while it installs packages.\nexit 101\n"

// forbidServices prevents packages from starting their services: a lab runs containerd itself, in its nodes. An
// existing policy of the machine is kept, unless it is this one, of a killed process.
func forbidServices(policy string) (restore func() error, err error) {
	if b, err := os.ReadFile(policy); err == nil && string(b) == denyAll {
		return func() error { return os.Remove(policy) }, nil
	}
	f, err := os.OpenFile(policy, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o755)
	if errors.Is(err, fs.ErrExist) {
		return func() error { return nil }, nil
	}
	if err != nil {
		return nil, err
	}
	_, err = f.WriteString(denyAll)
	if err := errors.Join(err, f.Close()); err != nil {
		return nil, errors.Join(err, os.Remove(policy))
	}
	return func() error { return os.Remove(policy) }, nil
}
