// Package preflight says what a machine lacks for a command of the lab, and what to do about it, before the command has begun: in a line
// for each lack. It changes nothing.
package preflight

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"github.com/tortie-net/tortie/lab/internal/deps"
)

// MB is what needs and facts are counted in.
const MB = 1 << 20

// Needs are what a command cannot do without.
type Needs struct {
	// What needs all this, as the subject of a sentence: "a lab of 3 nodes".
	What string
	// Root is why it must be run as root; "" if not.
	Root string
	// Packages are Debian's.
	Packages []deps.Need
	// Memory is how many MB must be free, and Less how to need less of it.
	Memory int
	Less   string
	Space  []Space
}

// Space is a directory that is written to, which need not be there yet.
type Space struct {
	Dir string
	MB  int
	// Elsewhere is how to name another directory.
	Elsewhere string
}

// Facts are what a machine has of what is needed.
type Facts struct {
	UID     int
	Missing []deps.Need
	Apt     bool
	Memory  Memory
	// Rooms are of Needs.Space, in its order.
	Rooms []Room
}

// Room is what a file system has left, and why nobody can write to it.
type Room struct {
	MB       int
	ReadOnly error
}

// Check returns what this machine lacks: nil if nothing.
func Check(n Needs) error {
	f, err := gather(n)
	if err != nil {
		return fmt.Errorf("look at this machine: %w", err)
	}
	return n.lacking(f)
}

func gather(n Needs) (Facts, error) {
	f := Facts{UID: os.Geteuid(), Missing: deps.Places{}.Missing(n.Packages), Apt: deps.HaveApt()}
	var err error
	if f.Memory, err = freeMemory(); err != nil {
		return f, err
	}
	for _, s := range n.Space {
		r, err := room(s.Dir)
		if err != nil {
			return f, err
		}
		f.Rooms = append(f.Rooms, r)
	}
	return f, nil
}

// room looks at a directory or, while it is not there, at the one that it will be made in.
func room(dir string) (Room, error) {
	for {
		var st unix.Statfs_t
		err := unix.Statfs(dir, &st)
		if err == nil {
			return Room{MB: int(st.Bavail * uint64(st.Bsize) / MB), ReadOnly: unix.Access(dir, unix.W_OK)}, nil
		}
		if !errors.Is(err, unix.ENOENT) || dir == filepath.Dir(dir) {
			return Room{}, fmt.Errorf("statfs %s: %w", dir, err)
		}
		dir = filepath.Dir(dir)
	}
}

// lacking compares. What only root can find out of is not said to others.
func (n Needs) lacking(f Facts) error {
	if n.Root != "" && f.UID != 0 {
		return fmt.Errorf("%s %s, so it must be run as root, and this is uid %d: put sudo before the command", n.What, n.Root, f.UID)
	}
	var lacks []error
	if len(f.Missing) > 0 {
		lacks = append(lacks, errors.New(deps.Remedy(f.Missing, f.Apt)))
	}
	if f.Memory.MB < n.Memory {
		lacks = append(lacks, fmt.Errorf("%s needs %d MB of memory, and %s has %d MB free: end other programs, give it more%s",
			n.What, n.Memory, f.Memory.Of, f.Memory.MB, n.Less))
	}
	for i, s := range n.Space {
		switch r := f.Rooms[i]; {
		case r.ReadOnly != nil:
			lacks = append(lacks, fmt.Errorf("%s cannot write to %s (%w): %s", n.What, s.Dir, r.ReadOnly, s.Elsewhere))
		case r.MB < s.MB:
			lacks = append(lacks, fmt.Errorf("%s needs %d MB in %s, whose file system has %d MB free: remove files there, or %s",
				n.What, s.MB, s.Dir, r.MB, s.Elsewhere))
		}
	}
	return errors.Join(lacks...)
}
