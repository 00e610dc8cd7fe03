package labtest

import (
	"context"
	"errors"
	"os/exec"
	"strings"
	"testing"

	"github.com/tortie-net/tortie/internal/config"
)

// Program returns the path of one of the lab's programs, such as hyperkube, which is all of Kubernetes' components. It is built
// if it is missing.
func Program(t testing.TB, name string) string {
	t.Helper()
	lab, err := labBinary(config.OS())
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), startTimeout)
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
