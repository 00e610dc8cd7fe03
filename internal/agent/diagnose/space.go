package diagnose

import (
	"fmt"
	"os"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
)

// Space is the free space of the file system of a directory.
type Space struct {
	Dir                string
	Bytes, FreeBytes   uint64
	Inodes, FreeInodes uint64
	filesystem         unix.Fsid
}

// spacious are the directories that runtime, plugins and agent write to.
var spacious = []string{"/var/lib/cni", "/var/lib/calico", "/run", "/var/run/calico/tortie", "/var/log/calico", "/var/log/calico/cni"}

// space looks at each file system once. Directories that do not exist are skipped: in the agent's pod only the mounted
// ones exist.
func (h host) space() (all []Space) {
	for _, dir := range spacious {
		var s unix.Statfs_t
		if _, err := os.Stat(h.path(dir)); err != nil || unix.Statfs(h.path(dir), &s) != nil {
			continue
		}
		if slices.ContainsFunc(all, func(o Space) bool { return o.filesystem == s.Fsid && s.Fsid != unix.Fsid{} }) {
			continue
		}
		all = append(all, Space{dir, s.Blocks * uint64(s.Bsize), s.Bfree * uint64(s.Bsize), s.Files, s.Ffree, s.Fsid})
	}
	return all
}

// FullText describes the full file systems of the host at root to which runtime, plugins and agent write; empty if none
// is full.
func FullText(root string) string {
	var dirs []string
	for _, s := range (host{root: root}).space() {
		if s.full() {
			dirs = append(dirs, s.Dir)
		}
	}
	if len(dirs) == 0 {
		return ""
	}
	all := strings.Join(dirs, " ")
	return fmt.Sprintf("the file system of %s is full: pods do not start, nor end, until there is room: on the node df -h %s; df -i %s",
		all, all, all)
}

const (
	// leastBytes and leastInodes are what an ADD may need. With less than 1/littleOf free there is a warning.
	leastBytes, leastInodes = 1 << 20, 16
	littleOf                = 50
)

// countsInodes is false for file systems without a count.
func (s *Space) countsInodes() bool { return s.Inodes > 0 }

func (s *Space) full() bool {
	return s.FreeBytes < leastBytes || s.countsInodes() && s.FreeInodes < leastInodes
}

func (o *Observations) space() (findings []Finding) {
	const check = "space"
	for _, s := range o.Space {
		f := Finding{Check: check, About: s.Dir, Level: OK, Seen: fmt.Sprintf("%d MB and %d inodes are free", s.FreeBytes>>20, s.FreeInodes)}
		switch {
		case s.full():
			f.Level, f.Seen = Problem, "its file system is full: "+f.Seen
		case s.FreeBytes < s.Bytes/littleOf, s.countsInodes() && s.FreeInodes < s.Inodes/littleOf:
			f.Level, f.Seen = Warning, "its file system is nearly full: "+f.Seen
		}
		if f.Level != OK {
			f.Why = "runtime, plugins and agent keep there what they must remember of pods: new pods do not start, and removed ones do not end"
			f.Do = "make room (df -h and df -i " + s.Dir + " on the node; du -xsh finds what is large)"
		}
		findings = append(findings, f)
	}
	return findings
}
