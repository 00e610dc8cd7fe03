package labtest

import (
	"context"
	"fmt"
	"io"
	"path/filepath"
	"testing"
	"time"
)

// Server is an API server of a test's own, with this project's definitions, which the test may kill.
type Server struct {
	child      *child
	kubeconfig string
}

// NewBareServer starts a server that has no definitions but Kubernetes' own. It ends with the test.
func NewBareServer(t testing.TB) *Server {
	t.Helper()
	return newServer(t)
}

// newServer starts a server with options of `lab api`.
func newServer(t testing.TB, options ...string) *Server {
	t.Helper()
	s := &Server{child: launchFor(t, apiArgs(options...)...)}
	var err error
	if s.kubeconfig, err = s.child.ready(); err != nil {
		t.Fatal(err)
	}
	return s
}

// NewServer starts a server. It ends with the test.
func NewServer(t testing.TB) *Server {
	t.Helper()
	return define(t, NewBareServer(t))
}

// define gives a server this project's definitions.
func define(t testing.TB, s *Server) *Server {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	if err := applyDefinitions(ctx, s.kubeconfig, filepath.Join(ChartDir(), "crds")); err != nil {
		t.Fatal(err)
	}
	return s
}

// Kubeconfig returns the path of an administrator's kubeconfig.
func (s *Server) Kubeconfig() string { return s.kubeconfig }

// Kill ends kube-apiserver with SIGKILL, and returns when it has ended. Its data stay.
func (s *Server) Kill() error {
	_, err := s.child.tell("kill", "killed")
	return err
}

// Start starts a killed kube-apiserver, with the same address, data and credentials, and returns when it is ready.
func (s *Server) Start() error {
	_, err := s.child.tell("start", "ready KUBECONFIG=")
	return err
}

// launchFor runs a command of the lab that ends with the test.
func launchFor(t testing.TB, args ...string) *child {
	t.Helper()
	c, err := launch(Binary(t), args...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		c.stdin.Close()
		for range c.said { // until it has ended, and removed its files
		}
	})
	return c
}

// tell gives a command and returns what follows the answer's beginning.
func (c *child) tell(command, answer string) (string, error) {
	if _, err := io.WriteString(c.stdin, command+"\n"); err != nil {
		return "", fmt.Errorf("tell `lab %s` to %s: %w", c.command, command, err)
	}
	return c.await(answer)
}
