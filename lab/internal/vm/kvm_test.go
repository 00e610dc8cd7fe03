package vm

import (
	"bytes"
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// emulated simulates a machine with a working KVM: the same boot, without the device. Any accessible file replaces the
// device.
func emulated(t *testing.T) (kvm, Machine) {
	t.Helper()
	m, _ := machine(t, "")
	m.KVM = false
	dir := t.TempDir()
	k := kvm{device: filepath.Join(dir, "device"), memory: filepath.Join(dir, "memory"), key: "one"}
	if err := os.WriteFile(k.device, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	return k, m
}

// finds asks for the answer and returns what was logged.
func (k kvm) finds(t *testing.T, m Machine, want bool) string {
	t.Helper()
	log := new(bytes.Buffer)
	if got, err := k.find(t.Context(), m, log); err != nil || got != want {
		t.Fatalf("KVM: %t, %v, want %t; log: %s", got, err, want, log)
	}
	return log.String()
}

func TestKVMThatIsNotThere(t *testing.T) {
	k, m := emulated(t)
	k.device += "-missing"
	k.finds(t, m, false)
	if _, err := os.Stat(k.memory); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("remembered without a boot: %v", err)
	}
}

func TestKVMThatBoots(t *testing.T) {
	k, m := emulated(t)
	k.finds(t, m, true)
	m.Kernel = &Kernel{Image: m.Init, Modules: m.Kernel.Modules} // would not boot
	k.finds(t, m, true)
	k.key = "another boot of this machine"
	k.finds(t, m, false)
}

// The kernel runs, and its first process never reports.
func TestKVMThatHangs(t *testing.T) {
	k, m := emulated(t)
	works := m
	m.Init = m.Files["/bin/busybox"]
	m.Timeout = 2 * time.Second
	if log := k.finds(t, m, false); !strings.Contains(log, "longer than 2s") {
		t.Errorf("log: %s", log)
	}
	k.finds(t, works, false)
}

// As where qemu cannot set a register of the processor.
func TestKVMWithoutQEMU(t *testing.T) {
	k, m := emulated(t)
	m.Kernel = &Kernel{Image: m.Init, Modules: m.Kernel.Modules}
	if log := k.finds(t, m, false); !strings.Contains(log, "without a result") {
		t.Errorf("log: %s", log)
	}
}

// What is wrong with the launcher, or ends it, is no answer.
func TestKVMUnanswered(t *testing.T) {
	k, m := emulated(t)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := k.find(ctx, m, t.Output()); !errors.Is(err, context.Canceled) {
		t.Errorf("cancelled: %v", err)
	}
	m.Init += "-missing"
	if _, err := k.find(t.Context(), m, t.Output()); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("without vminit: %v", err)
	}
	if _, err := os.Stat(k.memory); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("remembered: %v", err)
	}
}
