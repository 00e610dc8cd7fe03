package proc

import (
	"bytes"
	"context"
	"fmt"
	"os/exec"
	"strings"
)

// RunIn runs a program of the machine in a directory and waits for it. Its output is only in the error.
func RunIn(ctx context.Context, dir, name string, args ...string) error {
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Dir = dir
	out, err := cmd.CombinedOutput()
	if err != nil {
		return fmt.Errorf("%s %s: %w: %s", name, strings.Join(args, " "), err, bytes.TrimSpace(out))
	}
	return nil
}
