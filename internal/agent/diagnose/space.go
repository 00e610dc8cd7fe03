package diagnose

import (
	"fmt"
	"os"
	"slices"

	"golang.org/x/sys/unix"
)

// Space is what is left of the file system of a directory.
type Space struct {
	Dir                string
	Bytes, FreeBytes   uint64
	Inodes, FreeInodes uint64
	filesystem         unix.Fsid
}

// spacious are the directories that runtime, plugins and agent write to.
var spacious = []string{"/var/lib/cni", "/var/lib/calico", "/run", "/var/run/calico/tortie", "/var/log/calico", "/var/log/calico/cni"}

// space asks for each file system once. A directory that is not there is not looked at: in the agent's pod these are the mounted ones.
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

const (
	// leastBytes and leastInodes are what an ADD may need; of a file system with less than a fiftieth left one should know.
	leastBytes, leastInodes = 1 << 20, 16
	littleOf                = 50
)

func (o *Observations) space() (findings []Finding) {
	const check = "space"
	for _, s := range o.Space {
		f := Finding{Check: check, About: s.Dir, Level: OK, Seen: fmt.Sprintf("%d MB and %d inodes are free", s.FreeBytes>>20, s.FreeInodes)}
		inodes := s.Inodes > 0 // some file systems do not count them
		switch {
		case s.FreeBytes < leastBytes, inodes && s.FreeInodes < leastInodes:
			f.Level, f.Seen = Problem, "its file system is full: "+f.Seen
		case s.FreeBytes < s.Bytes/littleOf, inodes && s.FreeInodes < s.Inodes/littleOf:
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
