package flows

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// File is a file with a line of JSON for each record. When it reaches Size bytes it is renamed to PATH.1, the former
// PATH.1 to PATH.2, and so on; Old of these are kept.
type File struct {
	Path string
	Size int64
	Old  int
}

// Append adds the values that write encodes. It opens the file each time, so that programs may move or delete the file
// without a signal.
func (f *File) Append(write func(encode func(any) error) error) error {
	if err := os.MkdirAll(filepath.Dir(f.Path), 0o700); err != nil {
		return fmt.Errorf("make the directory of flow records: %w", err)
	}
	if err := f.rotate(); err != nil {
		return fmt.Errorf("rotate flow records: %w", err)
	}
	out, err := os.OpenFile(f.Path, os.O_APPEND|os.O_CREATE|os.O_WRONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0o600)
	if err != nil {
		return fmt.Errorf("open the file of flow records: %w", err)
	}
	if err := regular(out); err != nil {
		return errors.Join(err, out.Close())
	}
	buffered := bufio.NewWriter(out)
	err = write(json.NewEncoder(buffered).Encode)
	return errors.Join(err, buffered.Flush(), out.Close())
}

func regular(f *os.File) error {
	info, err := f.Stat()
	if err == nil && !info.Mode().IsRegular() {
		return fmt.Errorf("%s is no regular file, but %s: name another one", f.Name(), info.Mode().Type())
	}
	return err
}

// rotate renames the files if the newest is full.
func (f *File) rotate() error {
	info, err := os.Lstat(f.Path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil || info.Size() < f.Size {
		return err
	}
	for n := f.Old; n > 0; n-- {
		if err := os.Rename(f.old(n-1), f.old(n)); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	if f.Old == 0 {
		return os.Remove(f.Path)
	}
	return nil
}

// old returns the name of the nth file before the newest.
func (f *File) old(n int) string {
	if n == 0 {
		return f.Path
	}
	return fmt.Sprintf("%s.%d", f.Path, n)
}
