package plugin

import (
	"cmp"
	"context"
	"fmt"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"github.com/tortie-net/tortie/internal/app/hostfile"
)

// lockHost waits for the lock of this host's plugins. Without it they would be as correct, but race for the same block
// and try more often. So a failure to lock is only logged, as by Calico.
func (s *session) lockHost(ctx context.Context) (unlock func(), err error) {
	path := cmp.Or(s.conf.IPAMLockFile, defaultLockFile)
	locked := make(chan error, 1)
	var f *os.File
	go func() {
		var err error
		f, err = flock(path)
		locked <- err
	}()
	select {
	case err := <-locked:
		if err != nil {
			s.log.Warn("IPAM continues without the host's lock", "err", err)
			return func() {}, nil
		}
		return func() { _ = f.Close() }, nil
	case <-ctx.Done():
		// The goroutine waits on; the lock ends with the process, which is about to end.
		return nil, fmt.Errorf("wait for the other plugins of this node (%s): %w", path, context.Cause(ctx))
	}
}

// flock waits for the exclusive lock on a file, which it creates. The lock ends when the file is closed or the process
// dies.
func flock(path string) (*os.File, error) {
	// The mode is Calico's: its plugin may share the directory.
	if err := hostfile.MkdirAll(filepath.Dir(path), 0o777); err != nil {
		return nil, err
	}
	f, err := hostfile.OpenFile(path, os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, err
	}
	for {
		err := unix.Flock(int(f.Fd()), unix.LOCK_EX)
		if err == nil {
			return f, nil
		}
		if err != unix.EINTR {
			f.Close()
			return nil, fmt.Errorf("lock %s: %w", path, err)
		}
	}
}
