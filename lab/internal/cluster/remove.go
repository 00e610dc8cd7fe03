package cluster

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/tortie-net/tortie/lab/internal/cgroup"
	"github.com/tortie-net/tortie/lab/internal/netns"
	"github.com/tortie-net/tortie/lab/internal/node"
)

// Stop stops a lab of another process, and removes the remains of a killed one. It returns ErrNotRunning if there are
// none.
func Stop(ctx context.Context, name string) error {
	state, err := ReadState(name)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, 2*state.scaled(cleanupTimeout))
	defer cancel()
	held, err := lock(name)
	if errors.Is(err, errLocked) {
		if err := terminate(state); err != nil {
			return fmt.Errorf("stop lab %q: %w", name, err)
		}
		held, err = lockWhenFree(ctx, name)
	}
	if err != nil {
		return fmt.Errorf("stop lab %q: %w", name, err)
	}
	return errors.Join(sweep(ctx, name), removeRunDir(name), held.Close())
}

// terminate sends SIGTERM to the supervisor. A held lock indicates a supervisor, but another process may have held it
// for a query: the name of the process is checked, too, before it is signalled.
func terminate(s State) error {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", s.Supervisor))
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	if name, _, _ := bytes.Cut(b, []byte{0}); string(name) != SupervisorName {
		return nil
	}
	if err := syscall.Kill(s.Supervisor, syscall.SIGTERM); err != nil && !errors.Is(err, syscall.ESRCH) {
		return err
	}
	return nil
}

func lockWhenFree(ctx context.Context, name string) (*os.File, error) {
	t := time.NewTicker(20 * time.Millisecond)
	defer t.Stop()
	for {
		held, err := lock(name)
		if !errors.Is(err, errLocked) {
			return held, err
		}
		select {
		case <-ctx.Done():
			return nil, fmt.Errorf("its supervisor does not end: %w", ctx.Err())
		case <-t.C:
		}
	}
}

// takeLock locks a lab and removes the remains of an earlier one.
func takeLock(ctx context.Context, name string) (*os.File, error) {
	held, err := lock(name)
	if errors.Is(err, errLocked) {
		return nil, fmt.Errorf("lab %q runs already: lab down -name %s stops it", name, name)
	}
	if err != nil {
		return nil, fmt.Errorf("take the lab %q: %w", name, err)
	}
	if err := sweep(ctx, name); err != nil {
		return nil, errors.Join(fmt.Errorf("remove what was left of an earlier lab %q: %w", name, err), held.Close())
	}
	return held, nil
}

// sweep removes the remains of a lab without an owner. The caller holds the lock.
func sweep(ctx context.Context, name string) error {
	state, err := ReadState(name)
	if errors.Is(err, ErrNotRunning) {
		// It may have been killed before it wrote its state: then it has no directory, and the rest is found by name.
		state = State{Spec: Spec{Name: name}}
	} else if err != nil {
		return err
	}
	return state.removeParts(ctx)
}

// remove removes everything, the entry in RunDir last.
func (s State) remove(ctx context.Context) error {
	if err := s.removeParts(ctx); err != nil {
		return err
	}
	return removeRunDir(s.Name)
}

func (s State) removeParts(ctx context.Context) error {
	var errs []error
	// First processes that may still run: killing those in the cgroups frees namespaces and directories.
	layout, err := cgroup.Detect()
	if err == nil {
		err = layout.Remove(ctx, s.Name, s.Controllers)
	}
	errs = append(errs, err)
	errs = append(errs, netns.DeleteAll(nsDir(s.Name)))
	if s.Dir != "" {
		for _, n := range s.Nodes {
			// Mounted if the lab's directory lies on an overlay file system.
			if err := unix.Unmount(node.DiskDir(filepath.Join(s.Dir, n.Name)), unix.MNT_DETACH); err != nil && !errors.Is(err, unix.EINVAL) &&
				!errors.Is(err, unix.ENOENT) {
				errs = append(errs, fmt.Errorf("unmount the disk of node %s: %w", n.Name, err))
			}
		}
		errs = append(errs, removeDir(ctx, s.Dir))
	}
	return errors.Join(errs...)
}

// removeDir removes a lab's directory, and its parent if that is the common one and empty. A node's mounts are removed
// with its last process; until then its directories are busy.
func removeDir(ctx context.Context, dir string) error {
	t := time.NewTicker(20 * time.Millisecond)
	defer t.Stop()
	for {
		err := os.RemoveAll(dir)
		if err == nil {
			break
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("remove the lab's directory: %w", err)
		case <-t.C:
		}
	}
	if filepath.Dir(dir) == DataDir {
		return removeEmpty(DataDir)
	}
	return nil
}

func removeRunDir(name string) error {
	if err := os.RemoveAll(stateDir(name)); err != nil {
		return err
	}
	return removeEmpty(RunDir)
}

// removeEmpty removes a directory unless it contains another lab.
func removeEmpty(dir string) error {
	err := os.Remove(dir)
	if errors.Is(err, syscall.ENOTEMPTY) || errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}
