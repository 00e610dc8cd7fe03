package vm

import (
	"errors"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// tempPrefix is the prefix of the runs' directories.
const tempPrefix = "tortie-vm-"

// tempDir creates a run's directory. It is locked during the run; directories of killed runs are removed.
func tempDir(base string) (dir string, remove func() error, err error) {
	if err := sweep(base); err != nil {
		return "", nil, err
	}
	dir, err = os.MkdirTemp(base, tempPrefix)
	if err != nil {
		return "", nil, err
	}
	lock, err := os.Open(dir)
	if err != nil {
		return "", nil, errors.Join(err, os.RemoveAll(dir))
	}
	if err := unix.Flock(int(lock.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		return "", nil, errors.Join(err, lock.Close(), os.RemoveAll(dir))
	}
	return dir, func() error { return errors.Join(os.RemoveAll(dir), lock.Close()) }, nil
}

func sweep(base string) error {
	dirs, err := filepath.Glob(filepath.Join(base, tempPrefix+"*"))
	for _, dir := range dirs {
		err = errors.Join(err, removeUnlocked(dir))
	}
	return err
}

// removeUnlocked ignores directories of other users, and empty ones, which may be new and not locked yet.
func removeUnlocked(dir string) error {
	f, err := os.Open(dir)
	if err != nil {
		return nil
	}
	defer f.Close()
	if unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB) != nil {
		return nil
	}
	if entries, err := f.ReadDir(1); err != nil || len(entries) == 0 {
		return nil
	}
	return os.RemoveAll(dir)
}
