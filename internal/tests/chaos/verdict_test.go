package chaos

import (
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/tortie-net/tortie/internal/ipam/audit"
)

// verdict is the result of a run of TestCluster.
type verdict struct {
	started     time.Time
	events      map[string]int // by kind, during the disturbance
	left        int            // findings at the end of the disturbance
	resting     time.Duration
	live        int
	withPods    audit.Usage
	emptying    time.Duration
	withoutPods audit.Usage
	vacating    time.Duration
	operations  int
	addresses   int
	twice       int
	proving     time.Duration
}

func (v *verdict) String() string {
	return fmt.Sprintf("%d operations on %d addresses: %d addresses in two hands (checked in %v)\n"+
		"%d findings when the disturbance ended, none %v after the machines had settled; %d addresses in use by pods and tunnels, %d by "+
		"the pool, %d free of %d\n"+
		"without pods: none after %v, %d in use; without nodes: nothing left after %v",
		v.operations, v.addresses, v.twice, v.proving.Round(time.Millisecond),
		v.left, v.resting.Round(100*time.Millisecond), v.live, v.withPods.InUse, v.withPods.Free, v.withPods.Size,
		v.emptying.Round(100*time.Millisecond), v.withoutPods.InUse, v.vacating.Round(100*time.Millisecond))
}

// write writes the report to path, if it is not empty.
func (s *soak) write(path string, v *verdict) error {
	if path == "" {
		return nil
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	result := "**passed**: no address was ever in two hands, nothing is left of what has gone, and the numbers of the pool are exact."
	if len(s.wrong) > 0 {
		result = fmt.Sprintf("**failed**, with %d faults:\n\n```\n%s\n```", len(s.wrong), strings.Join(s.wrong[:min(len(s.wrong), 20)], "\n"))
	}
	var b strings.Builder
	fmt.Fprintf(&b, `# Soak

<!-- Written by make soak; what it does is in internal/tests/chaos/soak_test.go. -->

The verdict of the run of %s, disturbed for %v, seed %d: %s

| Checked | Result |
|---|---|
| Operations on addresses (ADD, DEL, lost ends, looks at all blocks) | %d, on %d addresses |
| Addresses for which no order of these gives one holder at a time | %d |
| Findings of internal/ipam/audit when the disturbance ended | %d |
| Time until there was none, once each pod had its sandbox (grace %v, of a node %v) | %v |
| Addresses that pods and tunnels use; that the pool reports in use; free, of | %d; %d; %d, %d |
| Time until there was none after all pods had ended | %v, %d in use by tunnels |
| Time until no block, claim or handle was left after all Nodes had been deleted | %v |

## What was done to it

%d machines with their own network and file system executed the real plugins, with up to %d at once,
on a real etcd and kube-apiserver, with two processes of kube-controllers, of which one leads. On %d machines the
agent was the real process, also killed, with its facts for the plugins; on the others its keeper of the tunnel's address ran in the test.
Clocks were stepped by up to %v, in plugins, agents and controllers.

`, v.started.UTC().Format("2006-01-02 15:04 MST"), *soakTime, *seed, result,
		v.operations, v.addresses, v.twice, v.left, leakGrace, nodeGrace, v.resting.Round(100*time.Millisecond),
		v.live, v.withPods.InUse, v.withPods.Free, v.withPods.Size, v.emptying.Round(100*time.Millisecond), v.withoutPods.InUse,
		v.vacating.Round(100*time.Millisecond),
		machines, concurrency, len(daemons()), maxStep)
	for _, what := range slices.Sorted(maps.Keys(v.events)) {
		fmt.Fprintf(&b, "- %s: %d\n", what, v.events[what])
	}
	return os.WriteFile(path, []byte(b.String()), 0o644)
}
