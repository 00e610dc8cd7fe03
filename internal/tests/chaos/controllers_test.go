package chaos

import (
	"context"
	"encoding/json"
	"errors"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/tortie-net/tortie/internal/testkit/cnitest"
	"github.com/tortie-net/tortie/internal/testkit/errtest"
	"github.com/tortie-net/tortie/internal/testkit/labtest"
)

const (
	// leakGrace and nodeGrace are the controllers' grace periods, minutes in a real cluster. leakGrace must exceed the
	// time from an ADD's first write, of the handle, to the update of the pod's status, on a machine that other tests keep
	// busy.
	leakGrace = 30 * time.Second
	nodeGrace = 2 * time.Second
)

// controllers is one process of kube-controllers.
type controllers struct {
	*process
	clock, address string
}

// newControllers prepares a process with the permissions from the chart. It ends with the test.
func newControllers(t testing.TB, name string, k *kube, of *cnitest.Programs) *controllers {
	t.Helper()
	kubeconfig := filepath.Join(t.TempDir(), "kubeconfig")
	token := labtest.AsOn(t, k.admin, "tortie-kube-controllers").BearerToken
	errtest.Must(t, os.WriteFile(kubeconfig, []byte(k.kubeconfig(strings.TrimPrefix(k.admin.Host, "https://"), k.admin.CAData, token)), 0o600))
	c := &controllers{process: &process{name: name, bin: filepath.Join(of.Dir(t), "kube-controllers")},
		clock: filepath.Join(t.TempDir(), "clock"), address: freePort(t)}
	errtest.Must(t, cnitest.StepClock(c.clock, 0))
	c.env = []string{
		"KUBECONFIG=" + kubeconfig, "DATASTORE_TYPE=kubernetes", "NO_DEFAULT_POOLS=true", "TORTIE_LEAK_GRACE_PERIOD=" + leakGrace.String(),
		"TORTIE_NODE_GRACE_PERIOD=" + nodeGrace.String(),
		"RECONCILER_PERIOD=5s", "TORTIE_CONTROLLERS_ADDRESS=" + c.address, "LOG_LEVEL=info", "POD_NAMESPACE=kube-system",
		cnitest.ClockSetting(c.clock),
	}
	c.endWith(t)
	return c
}

func freePort(t testing.TB) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	errtest.Must(t, err)
	defer l.Close()
	return l.Addr().String()
}

// synced reports whether the process has listed everything once.
func (c *controllers) synced() (bool, error) {
	answer, err := http.Get("http://" + c.address + "/status")
	if err != nil {
		return false, nil // it does not listen yet
	}
	defer answer.Body.Close()
	var status struct{ Synced bool }
	err = json.NewDecoder(answer.Body).Decode(&status)
	return status.Synced, err
}

// tool runs kube-controllers ipam with the controllers' kubeconfig, and returns its output and exit code.
func (c *controllers) tool(ctx context.Context, args ...string) (output string, code int, err error) {
	cmd := exec.CommandContext(ctx, c.bin, append([]string{"ipam"}, args...)...)
	cmd.Env = append(os.Environ(), c.env...)
	out, err := cmd.CombinedOutput()
	var exit *exec.ExitError
	if errors.As(err, &exit) {
		return string(out), exit.ExitCode(), nil
	}
	return string(out), 0, err
}
