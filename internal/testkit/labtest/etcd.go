package labtest

import (
	"path/filepath"
	"strings"
	"testing"
)

// Etcd is an empty etcd without an API server, used by one test, which may kill it.
type Etcd struct {
	child *child
	// Endpoint is the URL for clients.
	Endpoint string
	// CAFile, CertFile and KeyFile are the client's TLS files, empty without TLS.
	CAFile, CertFile, KeyFile string
}

// NewEtcd starts an etcd that ends with the test. With tls it requires client certificates.
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

// Kill ends etcd with SIGKILL, and returns when it has exited. Its data stay.
func (e *Etcd) Kill() error {
	err := e.child.send("kill", "killed")
	return err
}

// Start restarts a killed etcd with the same address and data, and returns when it is healthy.
func (e *Etcd) Start() error {
	err := e.child.send("start", "ready ENDPOINT=")
	return err
}
