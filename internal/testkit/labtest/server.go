package labtest

import (
	"context"
	"fmt"
	"io"
	"testing"
	"time"

	"github.com/tortie-net/tortie/internal/api/groups"
	"github.com/tortie-net/tortie/internal/testkit/errtest"
)

// Server is an API server of one test, with this project's definitions. The test may kill it.
type Server struct {
	child      *child
	kubeconfig string
	since      time.Time // when the test took it, for a server of TakeServer
	read       int       // length of the audit log that tests before have read
	killed     bool
	own        *baseline // for a server of TakeServer
}

// NewBareServer starts a server with only Kubernetes' own API. It ends with the test.
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

// NewServer starts a server with this project's definitions of the group that Group returns. It ends with the test.
func NewServer(t testing.TB) *Server {
	t.Helper()
	return define(t, NewBareServer(t))
}

// NewServerOf starts a server with this project's definitions of an API group. It ends with the test.
func NewServerOf(t testing.TB, g groups.Group) *Server {
	t.Helper()
	s := NewBareServer(t)
	s.Define(t, g)
	return s
}

// define creates this project's definitions on a server.
func define(t testing.TB, s *Server) *Server {
	t.Helper()
	s.Define(t, Group(t))
	return s
}

// Define creates this project's definitions of an API group on the server, beside its existing ones.
func (s *Server) Define(t testing.TB, g groups.Group) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), definePatience)
	defer cancel()
	errtest.Must(t, defineGroup(ctx, s.kubeconfig, g))
}

// Kubeconfig returns the path of an administrator's kubeconfig.
func (s *Server) Kubeconfig() string { return s.kubeconfig }

// Kill ends kube-apiserver with SIGKILL, and returns when it has exited. Its data stay.
func (s *Server) Kill() error {
	s.killed = true
	err := s.child.send("kill", "killed")
	return err
}

// Start restarts a killed kube-apiserver with the same address, data and credentials, and returns when it is ready.
func (s *Server) Start() error {
	err := s.child.send("start", "ready KUBECONFIG=")
	return err
}

// launchFor starts a command of the lab that ends with the test.
func launchFor(t testing.TB, args ...string) *child {
	t.Helper()
	c, err := launch(Binary(t), args...)
	errtest.Must(t, err)
	t.Cleanup(c.end)
	return c
}

// end ends the command, and returns when it has exited and removed its files.
func (c *child) end() {
	c.stdin.Close()
	for range c.stdout {
	}
}

// send writes a command to standard input and waits for the reply with the prefix answer.
func (c *child) send(command, answer string) error {
	if _, err := io.WriteString(c.stdin, command+"\n"); err != nil {
		return fmt.Errorf("send `lab %s` the command %s: %w", c.command, command, err)
	}
	_, err := c.await(answer)
	return err
}
