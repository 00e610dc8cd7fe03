// Package labtest gives tests a real etcd and kube-apiserver with this project's CustomResourceDefinitions.
//
// It owns the one API server of a test binary and never touches a cluster that it did not start.
package labtest

import (
	"bufio"
	"bytes"
	"context"
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

	"github.com/tortie-net/tortie/internal/config"
)

// startTimeout leaves room for a first start, in which the lab builds kube-apiserver (about 10 minutes on two cores).
const startTimeout = 30 * time.Minute

// API returns the path of an administrator's kubeconfig for an API server that has the definitions of charts/tortie/crds.
//
// The server is started at the first call, is the same for all tests of one test binary, and ends with it. Tests share its
// content: they use names of their own. A test fails where the server cannot run; it is never skipped.
func API(t testing.TB) string {
	t.Helper()
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
	return filepath.Join(filepath.Dir(file), "..", "..")
}

var shared = sync.OnceValues(func() (string, error) {
	lab, err := labBinary(config.OS())
	if err != nil {
		return "", err
	}
	kubeconfig, err := start(lab)
	if err != nil {
		return "", err
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	if err := applyDefinitions(ctx, kubeconfig, filepath.Join(Root(), "charts", "tortie", "crds")); err != nil {
		return "", err
	}
	return kubeconfig, nil
})

func labBinary(env config.Env) (string, error) {
	path, ok := env("TORTIE_LAB")
	if !ok {
		path = filepath.Join(Root(), "bin", "lab")
	}
	if _, err := os.Stat(path); err != nil {
		return "", fmt.Errorf("no lab program: %w (run `make bin/lab`, or set TORTIE_LAB)", err)
	}
	return path, nil
}

// start runs `lab api`. The server stops when its standard input ends: the write end of that pipe is open as long as this
// process lives, however it dies.
func start(lab string) (kubeconfig string, err error) {
	cmd := exec.Command(lab, "api")
	if _, err := cmd.StdinPipe(); err != nil {
		return "", fmt.Errorf("start %s: %w", lab, err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		return "", fmt.Errorf("start %s: %w", lab, err)
	}
	var stderr buffer
	cmd.Stderr = &stderr
	if err := cmd.Start(); err != nil {
		return "", fmt.Errorf("start %s: %w", lab, err)
	}
	ready := make(chan string, 1)
	go func() {
		line := firstLine(out)
		if strings.HasPrefix(line, "ready ") {
			ready <- line
		}
		_ = cmd.Wait() // the server outlives this function; whoever needs it notices its end by its own requests
		// Without being ready: only now is all that it said on standard error copied. Nobody may be waiting any more.
		select {
		case ready <- line:
		default:
		}
	}()
	select {
	case line := <-ready:
		if path, ok := strings.CutPrefix(line, "ready KUBECONFIG="); ok {
			return path, nil
		}
		return "", fmt.Errorf("`lab api` ended before it was ready: %s%s", line, stderr.tail())
	case <-time.After(startTimeout):
		_ = cmd.Process.Kill()
		return "", fmt.Errorf("`lab api` was not ready within %v: %s", startTimeout, stderr.tail())
	}
}

// firstLine returns the first line that says ready, or the last one if none does.
func firstLine(r io.Reader) string {
	line := ""
	for s := bufio.NewScanner(r); s.Scan(); {
		line = s.Text()
		if strings.HasPrefix(line, "ready ") {
			break
		}
	}
	return line
}

// buffer keeps what a child writes while another goroutine reads it.
type buffer struct {
	mu   sync.Mutex // guards text
	text bytes.Buffer
}

func (b *buffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.text.Write(p)
}

// tail returns the end of what was written, short enough for a test's output.
func (b *buffer) tail() string {
	const limit = 2000
	b.mu.Lock()
	defer b.mu.Unlock()
	text := b.text.Bytes()
	return "\n" + string(text[max(0, len(text)-limit):])
}
