package chaos

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/tortie-net/tortie/internal/controllers/migrate"
)

// killed is the exit code of a process that a signal has ended.
const killed = -1

// byTool moves the objects by `kube-controllers migrate`, as a process that is killed and started again, and sometimes
// aborts; without random it is not killed.
func (m *moving) byTool(ctx context.Context, random *rand.Rand) error {
	for {
		output, code, err := m.migrate(ctx, random, "start", "--to", path.Base(string(m.now.Other())))
		switch {
		case err != nil:
			return err
		case code == 0:
			return nil
		case code != killed:
			return fmt.Errorf("migrate start: exit code %d: %s", code, output)
		}
		if random.IntN(3) == 0 {
			if err := m.abort(ctx, random); err != nil {
				return err
			}
		}
	}
}

// abort undoes a move that may be under way.
func (m *moving) abort(ctx context.Context, random *rand.Rand) error {
	output, code, err := m.migrate(ctx, random, "abort")
	switch {
	case err != nil:
		return err
	case code == 0:
		m.inc("aborted moves")
		return errors.Join(m.followed(ctx), m.started(ctx))
	case code != killed && !strings.Contains(output, "no move is under way"):
		return fmt.Errorf("migrate abort: exit code %d: %s", code, output)
	}
	return nil
}

// toEnd repeats a command of the tool until it was not killed.
func (m *moving) toEnd(ctx context.Context, random *rand.Rand, args ...string) error {
	for {
		output, code, err := m.migrate(ctx, random, args...)
		if err != nil || code == 0 {
			return err
		}
		if code != killed {
			return fmt.Errorf("migrate %s: exit code %d: %s", args[0], code, output)
		}
	}
}

// migrate runs a command of the tool with the rights of an administrator, and kills every second one when it has
// printed some lines.
func (m *moving) migrate(ctx context.Context, random *rand.Rand, args ...string) (output string, code int, err error) {
	kill := 0
	if random != nil && random.IntN(2) == 0 {
		kill = 1 + random.IntN(12)
	}
	cmd := exec.CommandContext(ctx, m.controllers.bin, append([]string{migrate.Command}, args...)...)
	cmd.Env = append(os.Environ(), "KUBECONFIG="+m.kubeconfig)
	out, err := cmd.StdoutPipe()
	if err != nil {
		return "", 0, err
	}
	cmd.Stderr = cmd.Stdout
	if err := cmd.Start(); err != nil {
		return "", 0, err
	}
	lines := bufio.NewScanner(out)
	for n := 1; lines.Scan(); n++ {
		output += lines.Text() + "\n"
		if n == kill {
			_ = cmd.Process.Kill() // it may have ended
		}
	}
	_ = cmd.Wait() // the state has the result
	if code = cmd.ProcessState.ExitCode(); code == killed {
		m.inc("kills of migrate " + args[0])
		err = m.freeLease(ctx)
	}
	return output, code, errors.Join(err, context.Cause(ctx))
}

// freeLease deletes the Lease of a killed run, for which the next one would wait 15 s.
func (m *moving) freeLease(ctx context.Context) error {
	err := m.kube.core.CoordinationV1().Leases("kube-system").Delete(ctx, migrate.LeaseName, metav1.DeleteOptions{})
	if apierrors.IsNotFound(err) {
		return nil
	}
	return err
}
