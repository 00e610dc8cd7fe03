package journal

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/tortie-net/tortie/internal/app/hostfile"
)

// DefaultDir is the journal of the plugins and the agent. It is on the disk: addresses stay assigned through a reboot.
const DefaultDir = Dir("/var/lib/calico/tortie/journal")

const (
	// MaxEntries bounds the directory: days without an API server on a busy node. A file takes one block of the disk.
	MaxEntries = 4096
	// maxSize bounds one file.
	maxSize = 16 << 10
	// maxReason bounds Reason, the one text in an entry of unlimited length.
	maxReason = 1 << 10
)

var (
	// ErrFull means that there are MaxEntries already. The DEL should fail: its runtime repeats it later, so that nothing
	// is lost.
	ErrFull = errors.New("the journal is full")
	// ErrStop ends Each early when the function's error wraps it: the next entry would fail alike.
	ErrStop = errors.New("no entry can be finished now")
	// ErrKeep keeps an entry for another reader when the function's error wraps it. It is not reported.
	ErrKeep = errors.New("not for this reader")
)

// Entry is a container with addresses that must still be released.
type Entry struct {
	// Handle is the handle ID, and the entry's identity: a second entry of the same handle replaces the first.
	Handle string `json:"handle"`
	// Datastore is the type of datastore that has the handle, kubernetes or etcdv3.
	Datastore string `json:"datastore"`
	// Network is the name of the CNI network.
	Network string `json:"network"`
	// Namespace and Pod are empty for a container without a pod.
	Namespace   string `json:"namespace,omitempty"`
	Pod         string `json:"pod,omitempty"`
	ContainerID string `json:"containerID"`
	IfName      string `json:"ifName"`
	// Time is when the DEL gave up.
	Time time.Time `json:"time"`
	// Reason is why, for people. It is cut if it is long.
	Reason string `json:"reason"`
}

// Dir is the directory of a journal. It need not exist: an absent one is empty, and Add makes it.
type Dir string

// Add stores an entry: when it returns nil, the entry is on the disk.
func (d Dir) Add(ctx context.Context, e Entry) error {
	data, err := encode(e)
	if err != nil {
		return fmt.Errorf("journal: %w", err)
	}
	if err := hostfile.MkdirAll(string(d), 0o700); err != nil {
		return fmt.Errorf("journal: %w", err)
	}
	err = d.locked(ctx, func() error {
		path := d.path(e.Handle)
		if err := d.room(path); err != nil {
			return err
		}
		_, err := hostfile.Replace(path, data, 0o600)
		return err
	})
	if err != nil {
		return fmt.Errorf("journal: note that handle %s is still to be released: %w", e.Handle, err)
	}
	return nil
}

func encode(e Entry) ([]byte, error) {
	if e.Handle == "" || !utf8.ValidString(e.Handle) {
		return nil, fmt.Errorf("handle %.64q: an entry needs one, in UTF-8, which all names in the datastore are", e.Handle)
	}
	if len(e.Reason) > maxReason {
		e.Reason = strings.ToValidUTF8(e.Reason[:maxReason], "")
	}
	data, err := json.Marshal(e)
	if err != nil {
		return nil, err
	}
	if len(data) > maxSize {
		return nil, fmt.Errorf("the entry of handle %.64q has %d bytes, more than %d: names this long are no Kubernetes names",
			e.Handle, len(data), maxSize)
	}
	return data, nil
}

// decode reads an entry and checks that it belongs in a file of that name.
func decode(name string, data []byte) (Entry, error) {
	var e Entry
	if len(data) > maxSize {
		return e, fmt.Errorf("it has more than %d bytes", maxSize)
	}
	if err := json.Unmarshal(data, &e); err != nil {
		return e, err
	}
	if e.Handle == "" || fileName(e.Handle) != name {
		return e, fmt.Errorf("its handle is %.64q", e.Handle)
	}
	return e, nil
}

// room refuses a new file in a full directory. The caller holds the directory's lock.
func (d Dir) room(path string) error {
	if _, err := hostfile.Lstat(path); err == nil {
		return nil // it is replaced
	}
	all, err := hostfile.ReadDir(string(d))
	if err != nil {
		return err
	}
	if len(all) >= MaxEntries {
		return fmt.Errorf("%w: %s has %d entries, which tortie-node on this node releases once it reaches the API server", ErrFull, d, len(all))
	}
	return nil
}

// Len returns how many entries there are.
func (d Dir) Len() (int, error) {
	names, err := d.names()
	return len(names), err
}

// names returns the sorted file names of entries.
func (d Dir) names() ([]string, error) {
	all, err := hostfile.ReadDir(string(d))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("journal: %w", err)
	}
	var names []string
	for _, f := range all {
		if strings.HasSuffix(f.Name(), extension) && !strings.HasPrefix(f.Name(), ".") {
			names = append(names, f.Name())
		}
	}
	slices.Sort(names)
	return names, nil
}

// Each calls finish for every entry and removes those for which it returns nil. It skips entries that another process
// works on. An entry that cannot be finished or read stops no other; the error joins all failures. A damaged file gets
// another name, so that it is reported once.
//
// While finish runs, its entry is locked: no ADD takes the entry back, and no other reader sees it.
func (d Dir) Each(ctx context.Context, finish func(Entry) error) error {
	names, err := d.names()
	if err != nil || len(names) == 0 {
		return err
	}
	// Remove temporary files of killed processes. Writers hold the lock.
	errs := []error{d.locked(ctx, func() error { return hostfile.Sweep(string(d)) })}
	for _, name := range names {
		if ctx.Err() != nil {
			errs = append(errs, fmt.Errorf("journal: %w", context.Cause(ctx)))
			break
		}
		err := d.one(ctx, name, finish)
		if errors.Is(err, ErrKeep) {
			continue
		}
		errs = append(errs, err)
		if errors.Is(err, ErrStop) {
			break
		}
	}
	return errors.Join(errs...)
}

// one finishes one entry, unless it is gone or another process has its lock.
func (d Dir) one(ctx context.Context, name string, finish func(Entry) error) error {
	f, err := tryLockFile(filepath.Join(string(d), name))
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, hostfile.ErrLocked) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("journal: %w", err)
	}
	defer f.Close()
	e, err := read(f, name)
	if err != nil {
		aside := d.locked(ctx, func() error { return f.rename(strings.TrimSuffix(name, extension) + damaged) })
		return errors.Join(fmt.Errorf("journal: %s is damaged and set aside as *%s: its address may stay assigned: %w", f.path, damaged, err),
			aside)
	}
	if err := finish(e); err != nil {
		return fmt.Errorf("journal: handle %s, left by pod %s/%s: %w", e.Handle, e.Namespace, e.Pod, err)
	}
	return d.locked(ctx, f.remove)
}

// Withdraw removes a handle's entry, since the container gets addresses again. It waits for a process that is finishing
// the entry; when it returns nil, no process releases the handle for it. Without an entry it costs one system call.
func (d Dir) Withdraw(ctx context.Context, handle string) error {
	path := d.path(handle)
	for {
		f, err := lockFile(ctx, path)
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		if err != nil {
			return fmt.Errorf("journal: take back handle %s: %w", handle, err)
		}
		err = d.locked(ctx, f.remove)
		if err := errors.Join(err, f.Close()); err != nil {
			return fmt.Errorf("journal: take back handle %s: %w", handle, err)
		}
		// A DEL may have put a new entry in its place meanwhile.
	}
}

// path returns the file of a handle's entry.
func (d Dir) path(handle string) string { return filepath.Join(string(d), fileName(handle)) }

// readable reports whether a handle can be the name of a file: it fits, and has no character with a meaning for paths,
// shells or terminals.
func readable(handle string) bool {
	plain := func(r rune) bool {
		return r < utf8.RuneSelf && (r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || slices.Contains([]rune("._-"), r))
	}
	return len(handle) <= 200 && !strings.HasPrefix(handle, ".") && !strings.ContainsFunc(handle, func(r rune) bool { return !plain(r) })
}
