package install

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"slices"

	"github.com/tortie-net/tortie/internal/app/config"
	"github.com/tortie-net/tortie/internal/app/hostfile"
	"github.com/tortie-net/tortie/internal/app/progress"
)

const (
	copiesDir = "replaced" // below the host's /var/lib/calico
	// ledgerName is in the runtime's directory, which ignores such names: restored files are executed as the host's root,
	// and the agent's container can write to /var/lib/calico but not there.
	ledgerName = ".tortie-ledger"
	// remembered bounds the digests of own contents per file: the present content, the next one, and contents of runs
	// that were killed in between.
	remembered = 4
	ownModule  = "github.com/tortie-net/tortie"
)

// ledger records which files of the host are the installer's own, and keeps copies of the files that they replaced. It
// is written before the files: an entry may announce a write that has not happened yet, but no write is missing. Copies
// are named by their digests: a changed copy is not restored.
//
// With an empty dir the ledger is not stored on the host, and has no entries of earlier runs.
type ledger struct {
	file  string
	dir   string            // of the copies
	files map[string]*entry // by path in this container
	// others is true if the plugin calico on the host is another project's: then present files are another network
	// plugin's, and kept even if an earlier installation has recorded their paths.
	others bool
	// adopted is true if it is this project's and there was no ledger: all files are an earlier version's.
	adopted bool
}

// entry is the record of one file.
type entry struct {
	Ours   []string `json:"ours"`             // digests of the installer's contents, the newest last
	Before *before  `json:"before,omitempty"` // the replaced file, if any
}

// before is a file or a link that was replaced. A file's copy is named by its digest.
type before struct {
	Digest string      `json:"digest,omitempty"`
	Mode   fs.FileMode `json:"mode,omitempty"`
	Link   string      `json:"link,omitempty"`
}

// file is the desired content of a file on the host.
type file struct {
	path    string
	content []byte
	mode    fs.FileMode
}

// locked calls do with the ledger, while no other installer works on this host.
func locked(ctx context.Context, cfg config.InstallHost, log *slog.Logger, do func(*ledger) error) (err error) {
	said := progress.Say(log, "waiting for another installer on this node")
	unlock, err := hostfile.Lock(ctx, cfg.HostNetDir)
	said()
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, unlock()) }()
	l, err := openLedger(cfg, log)
	if err != nil {
		return err
	}
	return do(l)
}

// openLedger reads the ledger. A damaged one is an error: without it the replaced files would be forgotten.
func openLedger(cfg config.InstallHost, log *slog.Logger) (*ledger, error) {
	l := &ledger{files: map[string]*entry{}}
	known := false
	if _, err := os.Stat(cfg.StateDir); err == nil {
		l.file, l.dir = filepath.Join(cfg.HostNetDir, ledgerName), filepath.Join(cfg.StateDir, copiesDir)
		if known, err = l.read(); err != nil {
			return nil, err
		}
	} else {
		log.Warn("cannot keep replaced files of the host: mount its /var/lib/calico to be able to roll back", "error", err)
	}
	return l, l.see(cfg.HostBinDirs, known)
}

// see sets others and adopted by the plugin calico in the host's directories of plugins.
func (l *ledger) see(dirs []string, known bool) error {
	l.others = false
	for _, dir := range dirs {
		path := filepath.Join(dir, mainPlugin)
		switch now, err := look(path); {
		case err != nil:
			return err
		case now == nil:
		case isOwnProgram(path):
			l.adopted = !known
		case !l.wrote(path, now.Digest):
			l.others = true
		}
	}
	return nil
}

func (l *ledger) read() (known bool, err error) {
	text, err := os.ReadFile(l.file)
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	if err == nil {
		err = json.Unmarshal(text, &l.files)
	}
	if err != nil {
		return false,
			fmt.Errorf("reading what earlier installations replaced, %s: %w (mend it, or remove it: then nothing can be rolled back)", l.file, err)
	}
	return true, nil
}

func (l *ledger) save() error {
	if l.dir == "" {
		return nil
	}
	text, err := json.MarshalIndent(l.files, "", " ")
	if err != nil {
		return fmt.Errorf("encoding what was replaced: %w", err)
	}
	_, err = hostfile.Replace(l.file, text, 0o600)
	return err
}

// put writes the desired files, and returns the paths of those that it wrote. It keeps copies of others' files first.
func (l *ledger) put(replace replaceFunc, files ...file) (written []string, err error) {
	files = slices.DeleteFunc(files, func(f file) bool { return hostfile.Same(f.path, f.content, f.mode) })
	if len(files) == 0 {
		return nil, nil
	}
	for _, f := range files {
		if err := l.note(f.path, digest(f.content)); err != nil {
			return nil, err
		}
	}
	if err := l.save(); err != nil {
		return nil, err
	}
	for _, f := range files {
		changed, err := replace(f.path, f.content, f.mode)
		if err != nil {
			return written, err
		}
		if changed {
			written = append(written, f.path)
		}
	}
	return written, nil
}

// remove removes a file of an earlier installation, and like put records it first.
func (l *ledger) remove(path string) (removed bool, err error) {
	now, err := look(path)
	if err != nil || now == nil {
		return false, err
	}
	if err := l.note(path, ""); err != nil {
		return false, err
	}
	if err := l.save(); err != nil {
		return false, err
	}
	return hostfile.Remove(path)
}

// note records that the installer is about to write the content with digest ours to a file, "" for its removal, and
// keeps a copy of another program's file.
func (l *ledger) note(path, ours string) error {
	e := l.files[path]
	first := e == nil
	if first {
		e = &entry{}
		l.files[path] = e
	}
	now, err := look(path)
	if err != nil {
		return err
	}
	if now != nil && !l.adopted && (first || l.others) && !slices.Contains(e.Ours, now.Digest) && !isOwnProgram(path) {
		if err := l.keep(path, *now); err != nil {
			return err
		}
		e.Before = now
	}
	if ours != "" {
		e.Ours = append(slices.DeleteFunc(e.Ours, func(d string) bool { return d == ours }), ours)
		e.Ours = e.Ours[max(0, len(e.Ours)-remembered):]
	}
	return nil
}

// keep copies a file for restore.
func (l *ledger) keep(path string, b before) error {
	if l.dir == "" || b.Link != "" {
		return nil
	}
	err := hostfile.MkdirAll(l.dir, 0o700)
	var content []byte
	if err == nil {
		content, err = os.ReadFile(path)
	}
	if err == nil {
		_, err = hostfile.Replace(filepath.Join(l.dir, b.Digest), content, 0o600)
	}
	if err != nil {
		return fmt.Errorf("keeping %s before it is replaced: %w", path, err)
	}
	return nil
}

// restore restores the file that was at path before, in one step.
func (l *ledger) restore(path string) error {
	b := l.files[path].Before
	if b.Link != "" {
		return relink(path, b.Link)
	}
	content, err := readCopy(filepath.Join(l.dir, b.Digest))
	if err != nil {
		return fmt.Errorf("restoring %s: %w", path, err)
	}
	if digest(content) != b.Digest {
		return fmt.Errorf("restoring %s: its copy %s is damaged", path, filepath.Join(l.dir, b.Digest))
	}
	_, err = hostfile.Replace(path, content, b.Mode)
	return err
}

// maxCopy bounds the bytes read of a copy: programs have some tens of megabytes.
const maxCopy = 512 << 20

// readCopy reads a file that the agent's container can replace with anything: a pipe, a link, an endless file. It
// returns no content for anything but a regular file.
func readCopy(path string) ([]byte, error) {
	f, err := hostfile.OpenFile(path, os.O_RDONLY, 0)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	if info, err := f.Stat(); err != nil || !info.Mode().IsRegular() {
		return nil, err
	}
	return io.ReadAll(io.LimitReader(f, maxCopy))
}

func relink(path, target string) error {
	temp := filepath.Join(filepath.Dir(path), ".tortie-link.tmp") // Sweep removes this form
	if err := os.Remove(temp); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("restoring %s: %w", path, err)
	}
	if err := errors.Join(os.Symlink(target, temp), os.Rename(temp, path)); err != nil {
		return fmt.Errorf("restoring %s: %w", path, err)
	}
	return nil
}

// wrote reports whether the installer has written that content to the file.
func (l *ledger) wrote(path, digest string) bool {
	e := l.files[path]
	return e != nil && slices.Contains(e.Ours, digest)
}

// isOurs reports whether the file at path has content that the installer wrote there.
func (l *ledger) isOurs(path string) bool {
	now, err := look(path)
	return err == nil && now != nil && l.wrote(path, now.Digest)
}

// drop removes the ledger and all its copies.
func (l *ledger) drop() error {
	if l.dir == "" {
		return nil
	}
	if err := os.RemoveAll(l.dir); err != nil {
		return fmt.Errorf("removing what was kept: %w", err)
	}
	_, err := hostfile.Remove(l.file)
	return err
}

// look describes the file or link at path; nil if there is none. A directory is an error: no program keeps one there.
func look(path string) (*before, error) {
	info, err := os.Lstat(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil, nil
	case err != nil:
		return nil, fmt.Errorf("looking at %s: %w", path, err)
	case info.Mode().Type() == fs.ModeSymlink:
		target, err := os.Readlink(path)
		if err != nil {
			return nil, fmt.Errorf("looking at %s: %w", path, err)
		}
		return &before{Link: target}, nil
	case !info.Mode().IsRegular():
		return nil, fmt.Errorf("%s is in the way: it is no file, but %s; remove it", path, info.Mode())
	}
	content, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("looking at %s: %w", path, err)
	}
	return &before{Digest: digest(content), Mode: info.Mode().Perm()}, nil
}

func digest(content []byte) string {
	sum := sha256.Sum256(content)
	return hex.EncodeToString(sum[:])
}

// isOwnProgram reports whether a file is a program of this project, of whatever version: Go writes a line with the
// module into it. It searches the file for that line: package debug/buildinfo would add parsers of all systems' program
// formats to the image, 600 kB.
func isOwnProgram(path string) bool {
	f, err := os.Open(path)
	if err != nil {
		return false
	}
	defer f.Close()
	return holds(f, []byte("\nmod\t"+ownModule+"\t"))
}

// holds reports whether r contains a text.
func holds(r io.Reader, text []byte) bool {
	buf, kept := make([]byte, 1<<20), 0
	for {
		n, err := r.Read(buf[kept:])
		have := buf[:kept+n]
		if bytes.Contains(have, text) {
			return true
		}
		if err != nil {
			return false
		}
		kept = copy(buf, have[max(0, len(have)-len(text)+1):])
	}
}
