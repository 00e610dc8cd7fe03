package install

import (
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/tortie-net/tortie/internal/testkit/difftest"
)

// The whole process is in a mount namespace of its own, as any thread may execute plugins.
func TestNoexecIsFoundBeforeARuntimeFindsIt(t *testing.T) {
	h := newHost(t)
	cmd := exec.Command("/proc/self/exe", "-test.run=^TestHelperWorks$")
	cmd.Env = append(os.Environ(), helperRoot+"="+filepath.Dir(h.cfg.SourceDir), helperDoes+"=install on noexec")
	cmd.SysProcAttr = &syscall.SysProcAttr{Unshareflags: syscall.CLONE_NEWNS}
	out, err := cmd.CombinedOutput()
	if err == nil {
		t.Fatalf("installed: %s", out)
	}
	difftest.Contains(t, string(out), h.cfg.HostBinDirs[0], "does not run on this node", "permission denied", "mounted noexec")
	if _, err := os.Stat(h.net("10-calico.conflist")); err == nil {
		t.Error("there is a conflist")
	}
}
