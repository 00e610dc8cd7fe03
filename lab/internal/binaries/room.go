package binaries

import (
	"context"
	"fmt"
	"os/exec"
	"strings"

	"github.com/tortie-net/tortie/lab/internal/preflight"
)

// cacheMB is the minimum free space of Go's cache: on a full disk go reports its own packages as missing.
const cacheMB = 50

// packageMB is the average space of a compiled package, in go's temporary files and in its cache: 3086 of Kubernetes
// and helm take 3.3 GB.
const packageMB = 1

// weights are the needs of linking at its peak, in MB of memory, and of disk for the program twice. Others are small.
var weights = map[string]struct{ memory, disk int }{
	"hyperkube":  {2300, 260},
	"containerd": {1100, 220},

	"kube-apiserver-1.30": {1600, 240},
	"kube-apiserver-1.31": {1600, 240},
	"coredns":             {1100, 110},
	"helm":                {1100, 130},
	"kubectl":             {900, 120},
}

// fits returns an error if this machine lacks the memory or disk for a build of this number of packages.
func (c *Cache) fits(ctx context.Context, group []program, packages int) error {
	memory, disk := 300, 20
	for _, p := range group {
		w := weights[p.Name]
		memory, disk = max(memory, w.memory), disk+w.disk
	}
	out, err := exec.CommandContext(ctx, "go", "env", "GOCACHE").Output()
	if err != nil {
		return fmt.Errorf("go env GOCACHE: %w", err)
	}
	return preflight.Check(preflight.Needs{
		What: "the build", Memory: memory,
		Less: ", add swap, or bring " + c.Dir + " of a machine that has built from the same sources",
		Space: []preflight.Space{
			{Dir: c.Dir, MB: disk + packages*packageMB, Elsewhere: "set XDG_CACHE_HOME to a directory of a larger one"},
			{Dir: strings.TrimSpace(string(out)), MB: cacheMB + packages*packageMB, Elsewhere: "set GOCACHE to a directory of a larger one"},
		},
	})
}
