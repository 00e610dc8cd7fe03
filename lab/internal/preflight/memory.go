package preflight

import (
	"bufio"
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/tortie-net/tortie/lab/internal/cgroup"
)

// Memory is the memory available to new processes.
type Memory struct {
	MB int
	// Of is the owner of the limit: this machine, or a cgroup.
	Of string
}

// freeMemory returns the machine's available memory, or less if a cgroup of this process has a limit.
func freeMemory() (Memory, error) {
	text, err := os.ReadFile("/proc/meminfo")
	if err != nil {
		return Memory{}, err
	}
	info := values(text)
	least := Memory{MB: int((info["MemAvailable"] + info["SwapFree"]) / 1024), Of: "this machine"}
	groups, err := memoryCgroups()
	for _, g := range groups {
		if free, limited := g.free(); limited && free/MB < uint64(least.MB) {
			least = Memory{MB: int(free / MB), Of: "the cgroup " + g.dir}
		}
	}
	return least, err
}

// memoryCgroup is a cgroup with the memory controller that applies to this process.
type memoryCgroup struct {
	dir string
	v2  bool
}

// memoryCgroups returns the process' own cgroup and its visible parents.
func memoryCgroups() ([]memoryCgroup, error) {
	layout, err := cgroup.Detect()
	if err != nil {
		return nil, nil // no cgroups, no limits
	}
	own, err := os.ReadFile("/proc/self/cgroup")
	if err != nil {
		return nil, err
	}
	for _, h := range layout.Hierarchies {
		if layout.V2 || slices.Contains(h.Options, "memory") {
			return above(h.Mount, ownPath(string(own), layout.V2), layout.V2), nil
		}
	}
	return nil, nil
}

// ownPath returns the process' cgroup from the lines of /proc/self/cgroup: ID:CONTROLLERS:PATH, without controllers in
// version 2.
func ownPath(lines string, v2 bool) string {
	for line := range strings.Lines(lines) {
		parts := strings.SplitN(strings.TrimSpace(line), ":", 3)
		if len(parts) == 3 && (v2 && parts[1] == "" || !v2 && slices.Contains(strings.Split(parts[1], ","), "memory")) {
			return parts[2]
		}
	}
	return "/"
}

// above returns a cgroup and its parents up to the mount point of the hierarchy. In a container the path may be
// relative to the host, and only the container's own cgroup exists.
func above(mount, path string, v2 bool) []memoryCgroup {
	dir := filepath.Join(mount, path)
	if _, err := os.Stat(dir); err != nil {
		dir = mount
	}
	all := []memoryCgroup{{dir, v2}}
	for dir != mount {
		dir = filepath.Dir(dir)
		all = append(all, memoryCgroup{dir, v2})
	}
	return all
}

// free returns the memory below the limit, including cached files, which the kernel drops first.
func (g memoryCgroup) free() (bytes uint64, limited bool) {
	limitFile, usageFile, cached := "memory.limit_in_bytes", "memory.usage_in_bytes", []string{"total_inactive_file", "total_active_file"}
	if g.v2 {
		limitFile, usageFile, cached = "memory.max", "memory.current", []string{"inactive_file", "active_file"}
	}
	limit, err := g.number(limitFile)
	if err != nil {
		return 0, false // "max", or a root that has no limit
	}
	used, err := g.number(usageFile)
	if err != nil {
		return 0, false
	}
	stat, _ := os.ReadFile(filepath.Join(g.dir, "memory.stat")) // without it, cached files count as used
	for _, name := range cached {
		used -= min(used, values(stat)[name])
	}
	return limit - min(limit, used), true
}

func (g memoryCgroup) number(file string) (uint64, error) {
	b, err := os.ReadFile(filepath.Join(g.dir, file))
	if err != nil {
		return 0, err
	}
	return strconv.ParseUint(strings.TrimSpace(string(b)), 10, 64)
}

// values parses lines of a name and a number, with or without a colon.
func values(text []byte) map[string]uint64 {
	all := map[string]uint64{}
	for s := bufio.NewScanner(bytes.NewReader(text)); s.Scan(); {
		var name string
		var value uint64
		if _, err := fmt.Sscan(s.Text(), &name, &value); err == nil {
			all[strings.TrimSuffix(name, ":")] = value
		}
	}
	return all
}
