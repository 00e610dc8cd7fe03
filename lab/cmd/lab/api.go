package main

import (
	"bufio"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"os"
	"path/filepath"
	"time"

	"github.com/tortie-net/tortie/lab/internal/binaries"
	"github.com/tortie-net/tortie/lab/internal/plane"
	"github.com/tortie-net/tortie/lab/internal/preflight"
	"github.com/tortie-net/tortie/lab/internal/proc"
)

// apiTimeout has a reserve: a loaded machine takes 10 s, a virtual machine without hardware virtualization 60 s, and
// much longer on a loaded host, where the environment multiplies it.
const apiTimeout = 3 * time.Minute

// Needs of etcd and kube-apiserver in MB: memory, and disk for etcd's log.
const apiMemory, apiDisk = 600, 150

// apiGCPercent is GOGC of both. Until the definitions of a test are served, the garbage collector takes a third of the
// processor time by Go's default, and half of that by this value, which costs 100 MB.
const apiGCPercent = 300

func runAPI(ctx context.Context, args []string) (err error) {
	f := flags("api")
	dir := f.String("dir", "", "directory for the state and admin.kubeconfig (default: a temporary one)")
	kcm := f.Bool("kcm", false, "run kube-controller-manager too")
	address := f.String("address", "127.0.0.1", "address that the API server listens on; it must be this host's")
	kubernetes := f.String("kubernetes", "",
		"minor release of the API server, such as 1.31, of those that lab/versions has (default: the lab's own)")
	audit := f.String("audit", "",
		"group of users, such as system:serviceaccounts:kube-system, whose requests are written to audit.log beside admin.kubeconfig")
	if err := parse(f, args, false); err != nil {
		return err
	}
	listen, err := netip.ParseAddr(*address)
	if err != nil {
		return usageError{fmt.Sprintf("-address: %v", err)}
	}
	slower, err := scale()
	if err != nil {
		return err
	}
	needs := preflight.Needs{What: "lab api", Memory: apiMemory, Space: []preflight.Space{
		{Dir: cmp.Or(*dir, os.TempDir()), MB: apiDisk, Elsewhere: "name a directory of another one with -dir"}}}
	if err := preflight.Check(needs); err != nil {
		return err
	}
	hyperkube, state, clean, err := serverFiles(ctx, *dir)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, clean()) }()
	server, err := serverProgram(ctx, *kubernetes)
	if err != nil {
		return err
	}
	p, err := plane.Start(ctx, plane.Config{
		Dir: state, Hyperkube: hyperkube, Server: server, Spawner: proc.NewSpawner(),
		Address: listen, IPv6Services: true, ControllerManager: *kcm, Audit: *audit, GCPercent: apiGCPercent,
		Timeout: time.Duration(slower * float64(apiTimeout)),
	})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, p.Stop(context.WithoutCancel(ctx))) }()
	ready := "ready KUBECONFIG=" + p.Kubeconfig("admin")
	fmt.Println(ready)
	return serve(ctx, p, ready, lines(os.Stdin))
}

// server is a server that a test may kill and restart.
type server interface {
	// Check returns an error when a component has exited unexpectedly.
	Check() error
	KillServer(ctx context.Context) error
	StartServer(ctx context.Context) error
}

// lines returns the lines of a reader; the channel is closed at the end, and at an error.
func lines(r io.Reader) <-chan string {
	read := make(chan string)
	go func() {
		defer close(read)
		for s := bufio.NewScanner(r); s.Scan(); {
			read <- s.Text()
		}
	}()
	return read
}

// serve executes the commands on standard input. It returns when that is closed (the launcher has exited), at a signal,
// or when a component exits unexpectedly.
func serve(ctx context.Context, s server, ready string, input <-chan string) error {
	t := time.NewTicker(200 * time.Millisecond)
	defer t.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case line, ok := <-input:
			if !ok {
				return nil
			}
			if err := obey(ctx, s, ready, line); err != nil {
				return err
			}
		case <-t.C:
			if err := s.Check(); err != nil {
				return err
			}
		}
	}
}

// obey executes a command of a test: "kill" kills the server, "start" restarts it with the same port and data and
// prints the ready line. Other lines are ignored.
func obey(ctx context.Context, s server, ready, line string) error {
	switch line {
	case "kill":
		if err := s.KillServer(ctx); err != nil {
			return err
		}
		fmt.Println("killed")
	case "start":
		if err := s.StartServer(ctx); err != nil {
			return err
		}
		fmt.Println(ready)
	}
	return nil
}

// serverFiles returns the program with all servers, and a directory for their state with its cleanup function.
func serverFiles(ctx context.Context, dir string) (hyperkube, state string, clean func() error, err error) {
	c, err := binaries.Open(os.Stderr)
	if err != nil {
		return "", "", nil, err
	}
	if hyperkube, err = c.Path(ctx, "hyperkube"); err != nil {
		return "", "", nil, err
	}
	if state, clean, err = apiDir(dir); err != nil {
		return "", "", nil, fmt.Errorf("-dir %q: %w", dir, err)
	}
	return hyperkube, state, clean, nil
}

// serverProgram returns the kube-apiserver of another release, empty for the lab's own.
func serverProgram(ctx context.Context, release string) (string, error) {
	if release == "" {
		return "", nil
	}
	c, err := binaries.Open(os.Stderr)
	if err != nil {
		return "", err
	}
	return c.Path(ctx, "kube-apiserver-"+release)
}

// apiDir creates the directory and returns its cleanup function, which keeps existing files.
func apiDir(dir string) (string, func() error, error) {
	if dir == "" {
		made, err := os.MkdirTemp("", "tortie-api-")
		return made, func() error { return os.RemoveAll(made) }, err
	}
	abs, err := filepath.Abs(dir)
	if err != nil {
		return "", nil, err
	}
	if err := os.Mkdir(abs, 0o755); err == nil {
		return abs, func() error { return os.RemoveAll(abs) }, nil
	}
	entries, err := os.ReadDir(abs)
	if err != nil {
		return "", nil, err
	}
	if len(entries) > 0 {
		return "", nil, fmt.Errorf("directory is not empty: name a new or an empty one")
	}
	return abs, func() error { return removeContents(abs) }, nil
}

func removeContents(dir string) error {
	entries, err := os.ReadDir(dir)
	for _, e := range entries {
		err = errors.Join(err, os.RemoveAll(filepath.Join(dir, e.Name())))
	}
	return err
}
