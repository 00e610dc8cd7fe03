package cni_test

import (
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"testing"

	"github.com/tortie-net/tortie/internal/labtest"
)

// binDir is where the plugins of this test binary are built; empty until a test needs them.
var binDir string

func TestMain(m *testing.M) {
	// Most of a test is waiting, for the API server or for a deadline. -parallel overrides this.
	if err := flag.Set("test.parallel", "6"); err != nil {
		panic(err)
	}
	code := m.Run()
	if binDir != "" {
		os.RemoveAll(binDir)
	}
	os.Exit(code)
}

// hostLocalPackage is the CNI project's own host-local.
const hostLocalPackage = "github.com/containernetworking/plugins/plugins/ipam/host-local"

// plugins returns the directory with the programs calico and calico-ipam, built as for a release, the test's chained, and
// host-local.
func plugins(t testing.TB) string {
	t.Helper()
	if err := buildPlugins(); err != nil {
		t.Fatal(err)
	}
	return binDir
}

var buildPlugins = sync.OnceValue(func() (err error) {
	if binDir, err = os.MkdirTemp("", "tortie-cni-test-"); err != nil {
		return err
	}
	for _, pkg := range []string{"./cmd/calico", "./cmd/calico-ipam", "./internal/cni/testdata/chained", hostLocalPackage} {
		build := exec.Command("go", "build", "-o", filepath.Join(binDir, filepath.Base(pkg)), pkg)
		build.Dir = labtest.Root()
		build.Env = append(os.Environ(), "CGO_ENABLED=0")
		if out, err := build.CombinedOutput(); err != nil {
			return fmt.Errorf("build %s: %w\n%s", pkg, err, out)
		}
	}
	return nil
})
