package labtest

import (
	"path/filepath"
	"strings"
	"testing"
)

// Etcd is an etcd of a test's own, empty and without an API server, which the test may kill.
type Etcd struct {
	child *child
	// Endpoint is the URL for clients.
	Endpoint string
	// CAFile, CertFile and KeyFile are what a client needs if it is served over TLS, else empty.
	CAFile, CertFile, KeyFile string
}

// NewEtcd starts an etcd, which speaks TLS with clients that have a certificate, or in the clear. It ends with the test.
func NewEtcd(t testing.TB, tls bool) *Etcd {
	t.Helper()
	args := []string{"etcd"}
	if tls {
		args = append(args, "-tls")
	}
	e := &Etcd{child: launchFor(t, args...)}
	ready, err := e.child.await("ready ENDPOINT=")
	if err != nil {
		t.Fatalf("a real etcd is needed: %v", err)
	}
	endpoint, dir, _ := strings.Cut(ready, " DIR=")
	e.Endpoint = endpoint
	if tls {
		e.CAFile, e.CertFile, e.KeyFile = filepath.Join(dir, "ca.crt"), filepath.Join(dir, "client.crt"), filepath.Join(dir, "client.key")
	}
	return e
}

// Kill ends etcd with SIGKILL, and returns when it has ended. Its data stay.
func (e *Etcd) Kill() error {
	_, err := e.child.tell("kill", "killed")
	return err
}

// Start starts a killed etcd, with the same address and data, and returns when it is healthy.
func (e *Etcd) Start() error {
	_, err := e.child.tell("start", "ready ENDPOINT=")
	return err
}
