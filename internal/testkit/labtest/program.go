package labtest

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/tortie-net/tortie/internal/app/config"
	"github.com/tortie-net/tortie/internal/testkit/errtest"
	"github.com/tortie-net/tortie/internal/testkit/needtest"
)

// theLab is the dependency that a short run is without.
const theLab = "the lab"

// Binary returns the path of the lab's program. It is built unless TORTIE_LAB names one.
func Binary(t testing.TB) string {
	t.Helper()
	needtest.More(t, theLab)
	path, err := program()
	errtest.Must(t, err)
	return path
}

// program finds or builds the lab's program once.
var program = sync.OnceValues(func() (string, error) { return findProgram(config.OS(), Root()) })

// findProgram returns the program that TORTIE_LAB names, or builds the clone's program. Go's build cache makes that
// fast when the sources are unchanged.
func findProgram(env config.Env, root string) (string, error) {
	path, ok := env("TORTIE_LAB")
	if !ok {
		path = filepath.Join(root, "bin", "lab")
		return path, buildProgram(root, path)
	}
	if _, err := os.Stat(path); err != nil {
		return "", fmt.Errorf("no lab program: %w (unset TORTIE_LAB, or let it name one)", err)
	}
	return path, nil
}

// buildProgram does the same as `make bin/lab`, in one test binary at a time.
func buildProgram(root, path string) error {
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return fmt.Errorf("build the lab: %w", err)
	}
	lock, err := os.OpenFile(path+".lock", os.O_CREATE|os.O_RDWR, 0o644)
	if err != nil {
		return fmt.Errorf("build the lab: %w", err)
	}
	defer lock.Close()
	if err := syscall.Flock(int(lock.Fd()), syscall.LOCK_EX); err != nil {
		return fmt.Errorf("build the lab: lock %s: %w", lock.Name(), err)
	}
	if _, err := os.Stat(path); err != nil {
		fmt.Fprintf(os.Stderr, "labtest: no %s: building it\n", path)
	}
	cmd := exec.Command("go", "build", "-trimpath", "-buildvcs=false", "-o", path, "./cmd/lab")
	cmd.Dir, cmd.Env = filepath.Join(root, "lab"), append(cmd.Environ(), "CGO_ENABLED=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("build the lab: %w\n%s", err, out)
	}
	return nil
}

// Program returns the path of one of the lab's programs, such as hyperkube, which contains all of Kubernetes'
// components. It is built if it is missing.
func Program(t testing.TB, name string) string {
	t.Helper()
	lab := Binary(t)
	ctx, cancel := context.WithTimeout(t.Context(), patience())
	defer cancel()
	out, err := exec.CommandContext(ctx, lab, "build", name).Output()
	if err != nil {
		var exit *exec.ExitError
		if errors.As(err, &exit) {
			t.Fatalf("`lab build %s`: %v: %s", name, err, exit.Stderr)
		}
		t.Fatalf("`lab build %s`: %v", name, err)
	}
	return strings.TrimSpace(string(out))
}
