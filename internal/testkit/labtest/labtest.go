// Package labtest gives tests a real etcd and kube-apiserver with this project's CustomResourceDefinitions, or an etcd
// alone.
//
// It never accesses a cluster that it did not start.
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
	"strings"
	"sync"
	"testing"
	"time"

	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/tortie-net/tortie/internal/app/config"
	"github.com/tortie-net/tortie/internal/testkit/logtest"
	"github.com/tortie-net/tortie/internal/testkit/needtest"
)

// startTimeout leaves room for a first start, in which the lab builds kube-apiserver (about 10 minutes on two cores).
const startTimeout = 30 * time.Minute

var begun = time.Now()

// Kubernetes is the minor release of the API servers that tests start, such as 1.31; the lab must be able to build it.
// Empty selects the lab's default. It must be set before the first server is started.
var Kubernetes string

// apiArgs returns the arguments of the lab's command for an API server.
func apiArgs(options ...string) []string {
	args := []string{"api"}
	if Kubernetes != "" {
		args = append(args, "-kubernetes", Kubernetes)
	}
	return append(args, options...)
}

// patience returns startTimeout, or slightly less than go test's -timeout leaves, so that a build that takes longer is
// reported.
func patience() time.Duration {
	if f := flag.Lookup("test.timeout"); f != nil {
		if limit, ok := f.Value.(flag.Getter).Get().(time.Duration); ok && limit > 0 {
			return min(startTimeout, time.Until(begun.Add(limit))-5*time.Second)
		}
	}
	return startTimeout
}

// API returns the path of an administrator's kubeconfig for an API server that has this project's definitions of the
// group that Group returns.
//
// The server is started by the first call, shared by all tests of a test binary, and ends with it. Tests use object
// names of their own. A test fails if the server cannot run; a short run skips it.
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
func Root() string { return root }

// root is found upwards from where the process begins: make builds without the paths of sources.
var root = func() string {
	dir, _ := os.Getwd()
	for ; dir != "/"; dir = filepath.Dir(dir) {
		if _, err := os.Stat(filepath.Join(dir, "charts", "tortie")); err == nil {
			break
		}
	}
	return dir
}()

var shared = sync.OnceValues(func() (string, error) {
	group, err := defaultGroup(config.OS())
	if err != nil {
		return "", err
	}
	lab, err := program()
	if err != nil {
		return "", err
	}
	kubeconfig, err := start(lab)
	if err != nil {
		return "", err
	}
	ctx, cancel := context.WithTimeout(context.Background(), definePatience)
	defer cancel()
	if err := defineGroup(ctx, kubeconfig, group); err != nil {
		return "", err
	}
	return kubeconfig, nil
})

// child is a running command of the lab.
type child struct {
	command string
	process *os.Process
	stdin   io.WriteCloser
	stdout  chan string // lines of standard output; closed once the command has ended
	stderr  logtest.Buffer
}

// start runs `lab api` and returns its administrator's kubeconfig.
func start(lab string) (kubeconfig string, err error) {
	c, err := launch(lab, apiArgs()...)
	if err != nil {
		return "", err
	}
	return c.ready()
}

// launch starts a long-running command of the lab. It stops when its standard input is closed: this process holds the
// write end of that pipe, so it also stops when this process is killed.
func launch(lab string, args ...string) (*child, error) {
	cmd := exec.Command(lab, args...)
	c := &child{stdout: make(chan string), command: args[0]}
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
			c.stdout <- s.Text()
		}
		_ = cmd.Wait() // clients of the server notice its end by failed requests
		// Wait has copied all of standard error.
		close(c.stdout)
	}()
	return c, nil
}

// ready waits until the API server is ready, and returns its kubeconfig.
func (c *child) ready() (string, error) { return c.await("ready KUBECONFIG=") }

// await returns the rest of the first line that starts with prefix.
func (c *child) await(prefix string) (string, error) {
	limit := patience()
	timeout := time.NewTimer(limit)
	defer timeout.Stop()
	last := ""
	for {
		select {
		case line, ok := <-c.stdout:
			if !ok {
				return "", fmt.Errorf("`lab %s` ended before it printed %q: %s\n%s", c.command, prefix, last, c.stderr.Tail())
			}
			if rest, ok := strings.CutPrefix(line, prefix); ok {
				return rest, nil
			}
			last = line
		case <-timeout.C:
			_ = c.process.Kill()
			return "", fmt.Errorf("`lab %s` did not print %q within %v (a first start builds Kubernetes, about 10 minutes on two cores; what is "+
				"built so far is kept: try again, or with -timeout=30m):\n%s", c.command, prefix, limit.Round(time.Second), c.stderr.Tail())
		}
	}
}
