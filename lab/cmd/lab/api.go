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

// apiTimeout is generous: a loaded machine takes 10 s. A virtual one without hardware help takes 60 s, and much longer if the
// machine around it is loaded: there the environment scales it.
const apiTimeout = 3 * time.Minute

// What etcd and kube-apiserver take in MB: of memory, and of disk for etcd's log.
const apiMemory, apiDisk = 400, 150

func runAPI(ctx context.Context, args []string) (err error) {
	f := flags("api")
	dir := f.String("dir", "", "directory for the state and admin.kubeconfig (default: a temporary one)")
	kcm := f.Bool("kcm", false, "run kube-controller-manager too")
	address := f.String("address", "127.0.0.1", "address that the API server listens on; it must be this host's")
	kubernetes := f.String("kubernetes", "", "minor release of the API server, such as 1.31, of those that lab/versions has (default: the lab's own)")
	audit := f.String("audit", "", "group of users, such as system:serviceaccounts:kube-system, whose requests are written to audit.log beside admin.kubeconfig")
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
		Address: listen, ControllerManager: *kcm, Audit: *audit, Timeout: time.Duration(slower * float64(apiTimeout)),
	})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, p.Stop(context.WithoutCancel(ctx))) }()
	ready := "ready KUBECONFIG=" + p.Kubeconfig("admin")
	fmt.Println(ready)
	return serve(ctx, p, ready, lines(os.Stdin))
}

// server is what a test may kill and start again.
type server interface {
	// Check returns an error when a component has ended that was not to.
	Check() error
	KillServer(ctx context.Context) error
	StartServer(ctx context.Context) error
}

// lines returns what is read, line by line; the channel is closed at the end and at an error, which is an end as well.
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

// serve obeys the lines of standard input. It returns when they end (whoever started this is gone), at a signal, or when a
// component ends that was not to.
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

// obey does what a test of failures asks for: "kill" ends the server as a crash would, "start" starts it again on the same port
// and data and answers with the ready line. Other lines mean nothing.
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

// serverFiles returns the program that has all servers, and a directory for their state with how to clean that.
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

// serverProgram returns the kube-apiserver of another release than the lab's; empty for that one.
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

// apiDir makes the directory and returns how to clean it: what was made goes, what was there before stays.
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
