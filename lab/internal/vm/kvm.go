package vm

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"github.com/tortie-net/tortie/lab/internal/vmproto"
)

// kvmBound is the limit for a boot on KVM: the kernel boots in about a second, on a busy machine in a few.
const kvmBound = 10 * time.Second

// FindKVM reports whether the kernel boots on this machine's KVM. It boots a virtual machine that runs nothing, and
// caches the result until this machine boots again or has another qemu. An accessible /dev/kvm is not enough: on some
// machines, most of them virtual themselves, qemu then aborts, or the kernel never reaches its first process.
func FindKVM(ctx context.Context, cache string, kernel *Kernel, init string, log io.Writer) (bool, error) {
	qemu, err := findQEMU()
	if err != nil {
		return false, err
	}
	key, err := kvmKey(qemu)
	if err != nil {
		return false, err
	}
	m := Machine{Kernel: kernel, Init: init, MemoryMB: 512, Timeout: kvmBound, Console: io.Discard, KVM: true}
	return kvm{device: "/dev/kvm", memory: filepath.Join(cache, "kvm-"+kernel.Version), key: key}.find(ctx, m, log)
}

// kvmKey returns the key of a result besides the kernel: the run of this machine's kernel, and qemu.
func kvmKey(qemu string) (string, error) {
	boot, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return "", err
	}
	info, err := os.Stat(qemu)
	if err != nil {
		return "", err
	}
	return fmt.Sprintf("boot %s, %s of %d", strings.TrimSpace(string(boot)), qemu, info.ModTime().Unix()), nil
}

// kvm is the source of a result.
type kvm struct {
	device string
	// memory is the file of the last result, and key its required key.
	memory, key string
}

// find boots m, unless the device cannot be opened or the result is cached.
func (k kvm) find(ctx context.Context, m Machine, log io.Writer) (bool, error) {
	f, err := os.OpenFile(k.device, os.O_RDWR, 0)
	if err != nil {
		return false, nil // not cached: another user may be able to
	}
	f.Close()
	yes, no := k.key+": yes\n", k.key+": no\n"
	last, err := os.ReadFile(k.memory)
	if err == nil && (string(last) == yes || string(last) == no) {
		return string(last) == yes, nil
	}
	m.Config = vmproto.Config{}
	_, bootErr := m.Run(ctx)
	if ctx.Err() != nil || bootErr != nil && !errors.Is(bootErr, errNoResult) && !errors.Is(bootErr, errTooLong) {
		return false, fmt.Errorf("try KVM: %w", bootErr)
	}
	answer := yes
	if bootErr != nil {
		answer = no
		fmt.Fprintf(log, "kvm: not used, the processors are emulated: %v\n", bootErr)
	}
	if err := os.WriteFile(k.memory, []byte(answer), 0o644); err != nil {
		fmt.Fprintf(log, "kvm: tried again in the next run: %v\n", err)
	}
	return bootErr == nil, nil
}

func findQEMU() (string, error) {
	path, err := exec.LookPath("qemu-system-x86_64")
	if err != nil {
		return "", fmt.Errorf("%w: lab deps -install", err)
	}
	return path, nil
}
