package vm

import (
	"bufio"
	"bytes"
	"compress/gzip"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"strings"
)

// archive writes an initial file system: a gzip'd cpio archive in the "newc" format
// (https://docs.kernel.org/driver-api/early-userspace/buffer-format.html).
type archive struct {
	gz   *gzip.Writer
	w    *bufio.Writer
	size int
	ino  int
	dirs map[string]bool
	err  error // the first write error; later writes do nothing
}

// File types of the mode field.
const (
	modeDir  = 0o040000
	modeFile = 0o100000
	modeLink = 0o120000
)

func newArchive(w io.Writer) (*archive, error) {
	// Fast compression: the archive is read once, at once.
	gz, err := gzip.NewWriterLevel(w, gzip.BestSpeed)
	if err != nil {
		return nil, err
	}
	return &archive{gz: gz, w: bufio.NewWriterSize(gz, 1<<20), dirs: map[string]bool{"/": true, ".": true}}, nil
}

func (a *archive) write(b []byte) {
	if a.err == nil {
		_, a.err = a.w.Write(b)
		a.size += len(b)
	}
}

// pad aligns to four bytes, as the format requires after name and content.
func (a *archive) pad() {
	a.write(make([]byte, (4-a.size%4)%4))
}

func (a *archive) entry(name string, mode uint32, content []byte) {
	a.ino++
	links, size := 1, len(content)
	// magic, inode, mode, uid, gid, links, mtime, size, device (4 fields), length of the name, checksum
	a.write(fmt.Appendf(nil, "070701%08x%08x%08x%08x%08x%08x%08x%08x%08x%08x%08x%08x%08x",
		a.ino, mode, 0, 0, links, 0, size, 0, 0, 0, 0, len(name)+1, 0))
	a.write(append([]byte(name), 0))
	a.pad()
	a.write(content)
	a.pad()
}

// mkdir adds a directory and its parents, once each: the kernel does not create missing ones.
func (a *archive) mkdir(dir string) {
	if dir = path.Clean("/" + dir); a.dirs[dir] {
		return
	}
	a.mkdir(path.Dir(dir))
	a.dirs[dir] = true
	a.entry(strings.TrimPrefix(dir, "/"), modeDir|0o755, nil)
}

func (a *archive) file(name string, perm fs.FileMode, content []byte) {
	name = path.Clean("/" + name)
	a.mkdir(path.Dir(name))
	a.entry(strings.TrimPrefix(name, "/"), modeFile|uint32(perm.Perm()), content)
}

func (a *archive) link(name, target string) {
	name = path.Clean("/" + name)
	a.mkdir(path.Dir(name))
	a.entry(strings.TrimPrefix(name, "/"), modeLink|0o777, []byte(target))
}

// tree adds a directory of the machine with its content, under any name.
func (a *archive) tree(src, dst string) error {
	return filepath.WalkDir(src, func(p string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		rel, err := filepath.Rel(src, p)
		if err != nil {
			return err
		}
		name := path.Join(dst, filepath.ToSlash(rel))
		switch {
		case d.IsDir():
			a.mkdir(name)
			return nil
		case d.Type()&fs.ModeSymlink != 0:
			target, err := os.Readlink(p)
			a.link(name, target)
			return err
		case !d.Type().IsRegular():
			return nil
		}
		return a.copyFile(p, name)
	})
}

func (a *archive) copyFile(src, dst string) error {
	st, err := os.Stat(src)
	if err != nil {
		return err
	}
	b, err := os.ReadFile(src)
	a.file(dst, st.Mode(), b)
	return err
}

func (a *archive) close() error {
	a.entry("TRAILER!!!", 0, nil)
	if a.err != nil {
		return a.err
	}
	if err := a.w.Flush(); err != nil {
		return err
	}
	return a.gz.Close()
}

// modules adds kernel modules with their dependencies, and the load order.
func (a *archive) modules(dir string, names []string, k *Kernel) error {
	order, err := k.LoadOrder(names)
	if err != nil {
		return err
	}
	var list bytes.Buffer
	for _, m := range order {
		b, err := m.content()
		if err != nil {
			return err
		}
		a.file(path.Join(dir, m.name+".ko"), 0o644, b)
		fmt.Fprintf(&list, "%s.ko\n", m.name)
	}
	a.file(path.Join(dir, "order"), 0o644, list.Bytes())
	return nil
}
