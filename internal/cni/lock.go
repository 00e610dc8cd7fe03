package cni

import (
	"fmt"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// flock waits for the exclusive lock on a file, which it creates. Closing the file, also by dying, gives the lock back.
func flock(path string) (*os.File, error) {
	// The mode is Calico's: its plugin may share the directory.
	if err := os.MkdirAll(filepath.Dir(path), 0o777); err != nil {
		return nil, err
	}
	f, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR, 0o600)
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
