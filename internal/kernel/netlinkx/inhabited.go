package netlinkx

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strconv"

	"golang.org/x/sys/unix"
)

// PeerProcess returns the ID of a process that runs in the namespace of the link's other end, or 0 if this process sees
// none there. An open file or a mount keeps a namespace without processes.
func (c *Conn) PeerProcess(link Link) (pid int, err error) {
	if link.Peer != PeerElsewhere {
		return 0, nil
	}
	entries, err := os.ReadDir("/proc")
	if err != nil {
		return 0, fmt.Errorf("look for processes: %w", err)
	}
	seen := map[uint64]bool{}
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if err != nil {
			continue
		}
		is, err := c.isPeerOf(link, fmt.Sprintf("/proc/%d/ns/net", pid), seen)
		if err != nil && !invisible(err) {
			return 0, err
		}
		if is {
			return pid, nil
		}
	}
	return 0, nil
}

// invisible reports whether err means that the process has ended, as it may at any moment, or is hidden from this one.
func invisible(err error) bool {
	return errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ESRCH) || errors.Is(err, fs.ErrPermission)
}

// isPeerOf reports whether the namespace at path holds the link's other end. It returns false for namespaces in seen.
func (c *Conn) isPeerOf(link Link, path string, seen map[uint64]bool) (bool, error) {
	var st unix.Stat_t
	if err := unix.Stat(path, &st); err != nil {
		return false, &fs.PathError{Op: "stat", Path: path, Err: err}
	}
	if seen[st.Ino] {
		return false, nil
	}
	seen[st.Ino] = true
	fd, err := openFile(path)
	if err != nil {
		return false, err
	}
	defer unix.Close(fd)
	id, err := c.requests.GetNetNsIdByFd(fd)
	if err != nil {
		return false, fmt.Errorf("ask for the id of %s: %w", path, err)
	}
	return id >= 0 && id == link.peerNSID, nil
}
