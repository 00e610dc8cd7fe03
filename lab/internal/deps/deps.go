// Package deps knows which Debian packages a lab needs, and brings the missing ones without starting a service: it installs
// them, or unpacks into the lab's cache what would conflict with an installed one.
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

// Need is a package, and the files of which any one shows that it is there.
type Need struct {
	Package string
	Files   []string
	// Or is another name of the package: the one that has the files on another release of Debian.
	Or string
	// Service is what the package would start at the next boot of a machine with systemd; installed for a lab, it shall not.
	Service string
	// Unpack is a directory below the lab's cache that the package is unpacked into, instead of being installed, and that its
	// files are looked for in.
	Unpack string
	// Version, with wildcards, is the one to unpack.
	Version string
}

// Lab is what every lab needs, and the demo.
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

// Tests is what tests and benchmarks need besides.
var Tests = []Need{
	{Package: "iperf3", Files: []string{"/usr/bin/iperf3"}},
	// Other people's BGP speakers, which the tests put into a mesh with Tortie's. BIRD 1.6 is what Calico forked.
	{Package: "bird2", Files: []string{"/usr/sbin/bird"}, Service: "bird"},
	{Package: "frr", Files: []string{"/usr/lib/frr/bgpd"}, Service: "frr"},
	{Package: "gobgpd", Files: []string{"/usr/bin/gobgpd", "/usr/sbin/gobgpd"}, Service: "gobgpd"},
	{Package: "bird", Files: []string{"/usr/sbin/bird", "/usr/sbin/bird6"}, Unpack: "bird-1.6", Version: "1.6.*"},
}

// VM is what a virtual machine needs besides.
var VM = []Need{
	{Package: "qemu-system-x86", Files: []string{"/usr/bin/qemu-system-x86_64"}},
	{Package: "virtiofsd", Files: []string{"/usr/lib/qemu/virtiofsd", "/usr/libexec/virtiofsd", "/usr/bin/virtiofsd"}, Or: "qemu-system-common"},
}

// Places are where needs are looked for.
type Places struct {
	Root  string // "" but in tests
	Cache string // the lab's cache, in which packages are unpacked
}

// Missing returns the needs of which no file is there.
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

// split parts needs by the way in which they come.
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

// Command is what to type to get packages.
func Command(missing []Need) string {
	install, unpack := split(missing)
	if len(unpack) > 0 {
		return "make deps" // no one command of Debian's does it
	}
	names := make([]string, len(install))
	for i, n := range install {
		names[i] = n.Package
	}
	return "apt-get install --no-install-recommends " + strings.Join(names, " ")
}

// HaveApt says whether this machine can install Debian's packages.
func HaveApt() bool {
	_, err := exec.LookPath("apt-get")
	return err == nil
}

// Remedy is what to do about missing packages, with apt or without.
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
	sayDownload(ctx, log, args)
	if err := apt(ctx, log, args...); err != nil {
		return err
	}
	return disableServices(ctx, missing)
}

// configureRest finishes what a dpkg that was killed has begun: apt refuses to install anything before.
func configureRest(ctx context.Context, log io.Writer) error {
	out, err := exec.CommandContext(ctx, "dpkg", "--audit").Output()
	if err != nil || len(out) == 0 {
		return err
	}
	fmt.Fprintln(log, "deps: an installation was interrupted: dpkg --configure -a")
	return run(ctx, log, "dpkg", "--configure", "-a")
}

// disableServices keeps the next boot from starting what has just been installed. A machine without systemd has nothing to disable.
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

// available is the name under which this release of Debian has the package.
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

// denyAll answers every service with 101, "action forbidden by policy"
// (https://people.debian.org/~hmh/invokerc.d-policyrc.d-specification.txt).
const denyAll = "#!/bin/sh\n# Of Tortie's lab, while it installs packages.\nexit 101\n"

// forbidServices keeps packages from starting their services: a lab runs containerd itself, in its nodes. A policy that the
// machine has already is left alone, unless it is this one, of a process that was killed.
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
