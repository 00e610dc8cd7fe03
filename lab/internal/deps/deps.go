// Package deps knows which Debian packages a lab needs, and installs the missing ones without starting a service.
package deps

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"strings"
)

// Need is a package, and the files of which any one shows that it is there.
type Need struct {
	Package string
	Files   []string
	// Or is another name of the package: the one that has the files on another release of Debian.
	Or string
}

// Lab is what every lab needs.
var Lab = []Need{
	{Package: "containerd", Files: []string{"/usr/bin/containerd"}},
	{Package: "runc", Files: []string{"/usr/bin/runc", "/usr/sbin/runc"}},
	{Package: "busybox-static", Files: []string{"/bin/busybox", "/usr/bin/busybox"}},
	{Package: "iproute2", Files: []string{"/sbin/ip", "/usr/sbin/ip", "/bin/ip"}},
	{Package: "nftables", Files: []string{"/usr/sbin/nft", "/sbin/nft"}},
	{Package: "tcpdump", Files: []string{"/usr/bin/tcpdump", "/usr/sbin/tcpdump"}},
	{Package: "procps", Files: []string{"/usr/bin/ps", "/bin/ps"}},
	// A BGP peer for the tests, configured as Calico configures its own. Its service is not started.
	{Package: "bird2", Files: []string{"/usr/sbin/bird"}},
}

// VM is what a virtual machine needs besides.
var VM = []Need{
	{Package: "qemu-system-x86", Files: []string{"/usr/bin/qemu-system-x86_64"}},
	{Package: "virtiofsd", Files: []string{"/usr/lib/qemu/virtiofsd", "/usr/libexec/virtiofsd", "/usr/bin/virtiofsd"}, Or: "qemu-system-common"},
}

// Missing returns the needs of which no file is below root ("/" but in tests).
func Missing(root string, needs []Need) []Need {
	var missing []Need
	for _, n := range needs {
		if !n.present(root) {
			missing = append(missing, n)
		}
	}
	return missing
}

func (n Need) present(root string) bool {
	for _, f := range n.Files {
		if _, err := os.Stat(root + f); err == nil {
			return true
		}
	}
	return false
}

// Command is what to type to install packages.
func Command(missing []Need) string {
	names := make([]string, len(missing))
	for i, n := range missing {
		names[i] = n.Package
	}
	return "apt-get install --no-install-recommends " + strings.Join(names, " ")
}

// Install installs packages as root.
func Install(ctx context.Context, missing []Need, log io.Writer) (err error) {
	if err := apt(ctx, log, "update", "-qq"); err != nil {
		return err
	}
	restore, err := forbidServices("/usr/sbin/policy-rc.d")
	if err != nil {
		return fmt.Errorf("keep services from starting: %w", err)
	}
	defer func() { err = errors.Join(err, restore()) }()
	args := []string{"install", "-qq", "--yes", "--no-install-recommends"}
	for _, n := range missing {
		args = append(args, n.available(ctx))
	}
	return apt(ctx, log, args...)
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

func apt(ctx context.Context, log io.Writer, args ...string) error {
	cmd := exec.CommandContext(ctx, "apt-get", args...)
	cmd.Env = append(os.Environ(), "DEBIAN_FRONTEND=noninteractive")
	cmd.Stdout, cmd.Stderr = log, log
	if err := cmd.Run(); err != nil {
		return fmt.Errorf("apt-get %s: %w", strings.Join(args, " "), err)
	}
	return nil
}

// denyAll answers every service with 101, "action forbidden by policy"
// (https://people.debian.org/~hmh/invokerc.d-policyrc.d-specification.txt).
const denyAll = "#!/bin/sh\nexit 101\n"

// forbidServices keeps packages from starting their services: a lab runs containerd itself, in its nodes. A policy that the
// machine has already is left alone.
func forbidServices(policy string) (restore func() error, err error) {
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
