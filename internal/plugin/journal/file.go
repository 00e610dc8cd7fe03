package journal

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"syscall"
	"time"

	"github.com/tortie-net/tortie/internal/app/hostfile"
	"github.com/tortie-net/tortie/internal/app/wait"
)

const (
	extension = ".json"
	damaged   = ".damaged"
	// lockPause is how long a waiter for a lock sleeps. The kernel's own wait could not be given up when ctx ends.
	lockPause = 4 * time.Millisecond
)

// fileName returns the name of a handle's file. A handle consists of a network's name and a container ID, from
// configuration and arguments: an unsafe one is hashed, with a prefix that no safe name has.
func fileName(handle string) string {
	if readable(handle) {
		return handle + extension
	}
	sum := sha256.Sum256([]byte(handle))
	return "%" + hex.EncodeToString(sum[:]) + extension
}

// file is a locked entry.
type file struct {
	*os.File
	path string
}

// lockFile waits for the lock on the entry at path. It fails with fs.ErrNotExist if there is none.
func lockFile(ctx context.Context, path string) (*file, error) {
	for {
		f, err := tryLockFile(path)
		if !errors.Is(err, hostfile.ErrLocked) {
			return f, err
		}
		if !wait.Sleep(ctx, wait.Jitter(lockPause)) {
			return nil, fmt.Errorf("%s is %w: %w", path, hostfile.ErrLocked, context.Cause(ctx))
		}
	}
}

// tryLockFile locks the entry at path, or fails with hostfile.ErrLocked or fs.ErrNotExist. It follows no link and waits
// for no pipe.
func tryLockFile(path string) (*file, error) {
	for {
		f, err := hostfile.OpenFile(path, os.O_RDONLY|syscall.O_NOFOLLOW, 0)
		if errors.Is(err, syscall.ELOOP) {
			return nil, fmt.Errorf("%s is a symbolic link, which no entry is: remove it", path)
		}
		if err != nil {
			return nil, err
		}
		locked := &file{File: f, path: path}
		if err := hostfile.TryFlock(f); err != nil {
			f.Close()
			return nil, err
		}
		current, err := locked.current()
		if current {
			return locked, nil
		}
		f.Close()
		if err != nil {
			return nil, err
		}
		// It was replaced or removed between opening and locking: look again.
	}
}

// current reports whether the path still names the file that was opened.
func (f *file) current() (bool, error) {
	own, err := f.Stat()
	if err != nil {
		return false, err
	}
	now, err := hostfile.Lstat(f.path)
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	return os.SameFile(own, now), nil
}

// remove removes the entry, unless a newer one has taken its place. The caller holds the directory's lock.
func (f *file) remove() error {
	return f.unlessReplaced(func() error { return hostfile.Unlink(f.path) })
}

// rename gives the entry another name in its directory, unless a newer one has taken its place. The caller holds the
// directory's lock.
func (f *file) rename(to string) error {
	return f.unlessReplaced(func() error { return hostfile.Rename(f.path, to) })
}

func (f *file) unlessReplaced(do func() error) error {
	if current, err := f.current(); err != nil || !current {
		return err
	}
	return do()
}

// read reads an entry.
func read(f *file, name string) (Entry, error) {
	info, err := f.Stat()
	if err != nil {
		return Entry{}, err
	}
	if !info.Mode().IsRegular() {
		return Entry{}, fmt.Errorf("it is no regular file: %s", info.Mode())
	}
	data, err := io.ReadAll(io.LimitReader(f, maxSize+1))
	if err != nil {
		return Entry{}, err
	}
	return decode(name, data)
}

// locked runs change while no other process changes names in the directory. Without the directory it does nothing.
func (d Dir) locked(ctx context.Context, change func() error) error {
	f, err := hostfile.OpenFile(string(d), os.O_RDONLY|syscall.O_DIRECTORY, 0)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	defer f.Close() // releases the lock
	if err := hostfile.Flock(ctx, f, lockPause); err != nil {
		return err
	}
	return change()
}
