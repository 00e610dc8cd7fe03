// Package labtest gives tests a real etcd and kube-apiserver with this project's CustomResourceDefinitions, or an etcd alone.
//
// It owns the one API server of a test binary and never touches a cluster that it did not start.
package labtest

import (
	"bufio"
	"context"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/tortie-net/tortie/internal/testkit/logtest"
	"github.com/tortie-net/tortie/internal/testkit/needtest"
)

// startTimeout leaves room for a first start, in which the lab builds kube-apiserver (about 10 minutes on two cores).
const startTimeout = 30 * time.Minute

var begun = time.Now()

// Kubernetes is the minor release of the API servers that tests start, such as 1.31: one of those that the lab can build. Empty is the lab's
// own. It is set before the first one is started.
var Kubernetes string

// apiArgs are those of the lab's command for an API server.
func apiArgs(options ...string) []string {
	args := []string{"api"}
	if Kubernetes != "" {
		args = append(args, "-kubernetes", Kubernetes)
	}
	return append(args, options...)
}

// patience is startTimeout, or a little less than go test's -timeout leaves: a build that takes longer is to be told of.
func patience() time.Duration {
	if f := flag.Lookup("test.timeout"); f != nil {
		if limit, ok := f.Value.(flag.Getter).Get().(time.Duration); ok && limit > 0 {
			return min(startTimeout, time.Until(begun.Add(limit))-5*time.Second)
		}
	}
	return startTimeout
}

// API returns the path of an administrator's kubeconfig for an API server that has the definitions of charts/tortie/crds.
//
// The server is started at the first call, is the same for all tests of one test binary, and ends with it. Tests share its
// content: they use names of their own. A test fails where the server cannot run; only a short run leaves it out.
func API(t testing.TB) string {
	t.Helper()
	needtest.More(t, theLab)
	path, err := shared()
	if err != nil {
		t.Fatalf("a real API server is needed: %v", err)
	}
	return path
}

// RESTConfig returns client-go's configuration for the server of API.
func RESTConfig(t testing.TB) *rest.Config {
	t.Helper()
	cfg, err := clientcmd.BuildConfigFromFlags("", API(t))
	if err != nil {
		t.Fatalf("read the lab's kubeconfig: %v", err)
	}
	return cfg
}

// Root returns the root of the repository.
func Root() string {
	_, file, _, _ := runtime.Caller(0)
	return filepath.Join(filepath.Dir(file), "..", "..", "..")
}

var shared = sync.OnceValues(func() (string, error) {
	lab, err := program()
	if err != nil {
		return "", err
	}
	kubeconfig, err := start(lab)
	if err != nil {
		return "", err
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	if err := applyDefinitions(ctx, kubeconfig, filepath.Join(ChartDir(), "crds")); err != nil {
		return "", err
	}
	return kubeconfig, nil
})

// child is a command of the lab that was started.
type child struct {
	command string
	process *os.Process
	stdin   io.WriteCloser
	said    chan string // the lines of its standard output; closed once it has ended
	stderr  logtest.Buffer
}

// start runs `lab api` and returns the kubeconfig of its administrator.
func start(lab string) (kubeconfig string, err error) {
	c, err := launch(lab, apiArgs()...)
	if err != nil {
		return "", err
	}
	return c.ready()
}

// launch runs a command of the lab that serves. It stops when its standard input ends: the write end of that pipe is open as long as this process
// lives, however it dies.
func launch(lab string, args ...string) (*child, error) {
	cmd := exec.Command(lab, args...)
	c := &child{said: make(chan string), command: args[0]}
	cmd.Stderr = &c.stderr
	var err error
	if c.stdin, err = cmd.StdinPipe(); err != nil {
		return nil, fmt.Errorf("start %s: %w", lab, err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		return nil, fmt.Errorf("start %s: %w", lab, err)
	}
	if err := cmd.Start(); err != nil {
		return nil, fmt.Errorf("start %s: %w", lab, err)
	}
	c.process = cmd.Process
	go func() {
		for s := bufio.NewScanner(out); s.Scan(); {
			c.said <- s.Text()
		}
		_ = cmd.Wait() // whoever needs the server notices its end by his own requests
		// Only now is all that it said on standard error copied.
		close(c.said)
	}()
	return c, nil
}

// ready waits until the API server serves, and returns its kubeconfig.
func (c *child) ready() (string, error) { return c.await("ready KUBECONFIG=") }

// await returns what follows prefix on the first line that starts with it.
func (c *child) await(prefix string) (string, error) {
	limit := patience()
	timeout := time.NewTimer(limit)
	defer timeout.Stop()
	last := ""
	for {
		select {
		case line, ok := <-c.said:
			if !ok {
				return "", fmt.Errorf("`lab %s` ended before it printed %q: %s\n%s", c.command, prefix, last, c.stderr.Tail())
			}
			if rest, ok := strings.CutPrefix(line, prefix); ok {
				return rest, nil
			}
			last = line
		case <-timeout.C:
			_ = c.process.Kill()
			return "", fmt.Errorf("`lab %s` did not print %q within %v (a first start builds Kubernetes, about 10 minutes on two cores; what is built so far is kept: try again, or with -timeout=30m):\n%s",
				c.command, prefix, limit.Round(time.Second), c.stderr.Tail())
		}
	}
}
