// Package preflight checks the requirements of a lab's command before it starts, and reports each missing one in a line
// with a remedy. It changes nothing.
package preflight

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"github.com/tortie-net/tortie/lab/internal/deps"
)

// MB is the unit of needs and facts.
const MB = 1 << 20

// Needs are the requirements of a command.
type Needs struct {
	// What is the subject of the report: "a lab of 3 nodes".
	What string
	// Root is the reason why root is required; "" if it is not.
	Root string
	// Packages are Debian packages.
	Packages []deps.Need
	// Memory is the required free memory in MB, and Less is how to need less.
	Memory int
	Less   string
	Space  []Space
}

// Space is a directory for writing, which may not exist yet.
type Space struct {
	Dir string
	MB  int
	// Elsewhere is how to select another directory.
	Elsewhere string
}

// Facts are the machine's properties by requirement.
type Facts struct {
	UID     int
	Missing []deps.Need
	Apt     bool
	Memory  Memory
	// Rooms are the free space by Needs.Space.
	Rooms []Room
}

// Room is the free space of a file system, or the reason why it is read-only.
type Room struct {
	MB       int
	ReadOnly error
}

// Check returns the missing requirements, nil if there are none.
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

// room returns the free space for a directory, or for its nearest existing parent.
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

// lacking compares needs and facts. Facts that only root can determine are not reported to others.
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
