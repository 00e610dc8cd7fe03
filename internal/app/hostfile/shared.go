package hostfile

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"
)

// shared are directories of the host in which both the plugins, as root of the host, and the agent's container write.
// An attacker in the container can put symbolic links anywhere below them, but cannot replace the directories
// themselves.
var shared = []string{"/var/lib/calico", "/var/run/calico"}

// in opens the shared directory of a path, and calls do with the rest of the path: no link below a shared directory
// leads out of it. For other paths it opens the parent directory.
func in[T any](path string, do func(root *os.Root, name string) (T, error)) (result T, err error) {
	dir, name := split(path)
	root, err := os.OpenRoot(dir)
	if err != nil {
		return result, err
	}
	defer root.Close()
	result, err = do(root, name)
	if failed := (*fs.PathError)(nil); errors.As(err, &failed) {
		failed.Path = path // the whole, not the rest
	}
	return result, err
}

func split(path string) (dir, name string) {
	path = filepath.Clean(path)
	for _, dir := range shared {
		if path == dir {
			return dir, "."
		}
		if name, below := strings.CutPrefix(path, dir+"/"); below {
			return dir, name
		}
	}
	return filepath.Dir(path), filepath.Base(path)
}

func in0(path string, do func(root *os.Root, name string) error) error {
	_, err := in(path, func(root *os.Root, name string) (struct{}, error) { return struct{}{}, do(root, name) })
	return err
}

// MkdirAll makes a directory and its parents.
func MkdirAll(dir string, mode fs.FileMode) error {
	base, name := split(dir)
	if err := os.MkdirAll(base, mode); err != nil || name == "." {
		return err
	}
	return in0(dir, func(root *os.Root, name string) error { return root.MkdirAll(name, mode) })
}

// OpenFile opens a file. A pipe in its place does not block it. Outside of the shared directories it may be a link to
// anywhere.
func OpenFile(path string, flag int, mode fs.FileMode) (*os.File, error) {
	if dir, _ := split(path); !slices.Contains(shared, dir) {
		return os.OpenFile(path, flag|syscall.O_NONBLOCK, mode)
	}
	return in(path, func(root *os.Root, name string) (*os.File, error) {
		return root.OpenFile(name, flag|syscall.O_NONBLOCK, mode)
	})
}

// Lstat is os.Lstat, confined to a shared directory.
func Lstat(path string) (fs.FileInfo, error) {
	return in(path, func(root *os.Root, name string) (fs.FileInfo, error) { return root.Lstat(name) })
}

// Rename changes a file's name in its directory. It does not wait for the disk.
func Rename(path, name string) error {
	return in0(path, func(root *os.Root, old string) error { return root.Rename(old, filepath.Join(filepath.Dir(old), name)) })
}

// Unlink removes a file. It does not wait for the disk.
func Unlink(path string) error {
	return in0(path, func(root *os.Root, name string) error { return root.Remove(name) })
}

// ReadDir lists a directory.
func ReadDir(dir string) ([]fs.DirEntry, error) {
	f, err := OpenFile(dir, os.O_RDONLY|syscall.O_DIRECTORY, 0)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return f.ReadDir(-1)
}

// maxRead bounds what ReadFile reads: the largest file, the agent's facts, has some megabytes in the largest clusters.
const maxRead = 64 << 20

// ReadFile reads a regular file.
func ReadFile(path string) ([]byte, error) {
	f, err := OpenFile(path, os.O_RDONLY, 0)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	info, err := f.Stat()
	switch {
	case err != nil:
		return nil, err
	case !info.Mode().IsRegular():
		return nil, fmt.Errorf("read %s: it is no regular file (%s): remove it", path, info.Mode())
	case info.Size() > maxRead:
		return nil, fmt.Errorf("read %s: it has %d bytes, more than %d: remove it", path, info.Size(), maxRead)
	}
	b := make([]byte, 0, info.Size()+1)
	return readInto(b, io.LimitReader(f, maxRead))
}

// readInto is io.ReadAll with a first buffer of the right size.
func readInto(b []byte, r io.Reader) ([]byte, error) {
	for {
		n, err := r.Read(b[len(b):cap(b)])
		b = b[:len(b)+n]
		if errors.Is(err, io.EOF) {
			return b, nil
		}
		if err != nil {
			return nil, err
		}
		if len(b) == cap(b) {
			b = append(b, 0)[:len(b)]
		}
	}
}

// Touch sets a file's times. It makes a missing file, empty, and its directory.
func Touch(path string, at time.Time) error {
	if err := MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return err
	}
	return in0(path, func(root *os.Root, name string) error {
		f, err := root.OpenFile(name, os.O_CREATE|os.O_WRONLY|syscall.O_NONBLOCK, 0o600)
		if err != nil {
			return err
		}
		return errors.Join(f.Close(), root.Chtimes(name, at, at))
	})
}
