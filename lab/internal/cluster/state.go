package cluster

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"os"
	"path/filepath"
	"regexp"
	"sort"
	"time"

	"golang.org/x/sys/unix"
)

// RunDir holds a directory for each running lab, named like the lab.
const RunDir = "/run/tortie-lab"

// DataDir is where labs keep their files unless they are told another place.
const DataDir = "/var/lib/tortie-lab"

// SupervisorName is argv[0] of the process that owns a cluster.
const SupervisorName = "tortie-lab-supervise"

// A lab's name takes part in names of namespaces and cgroups, tortie-LAB-NODE: without a dash in it these stay unambiguous.
var (
	labName  = regexp.MustCompile(`^[a-z0-9]{1,20}$`)
	nodeName = regexp.MustCompile(`^[a-z0-9]([a-z0-9-]{0,13}[a-z0-9])?$`)
)

// Node is the name of a node and its addresses in the underlay.
type Node struct {
	Name string
	// Addrs are one of each family that the cluster has, IPv4 first.
	Addrs []netip.Addr
	// PID is the node's first process, as the machine sees it; 0 before it runs.
	PID int
}

// Spec says what a cluster consists of.
type Spec struct {
	Name  string
	Nodes []Node
	// Dir takes the cluster's files.
	Dir       string
	Hyperkube string
	// Pause is the program of the pods' sandboxes.
	Pause string
	// Containerd is the directory of containerd 2; "" for the machine's containerd.
	Containerd string
	// CoreDNS is the program of CoreDNSImage; "" for none.
	CoreDNS string
	// Images are archives for every node.
	Images []string
	// PodCIDRs are what pods have their addresses from: of IPv4, and of IPv6 too in a cluster of both families.
	PodCIDRs []netip.Prefix
	// TimeScale multiplies every deadline.
	TimeScale float64
}

// Validate checks what a user can get wrong.
func (s Spec) Validate() error {
	if !labName.MatchString(s.Name) {
		return fmt.Errorf("lab name %q: 1 to 20 of a-z and 0-9", s.Name)
	}
	if len(s.Nodes) == 0 || len(s.Nodes) > maxNodes {
		return fmt.Errorf("%d nodes: a lab has 1 to %d", len(s.Nodes), maxNodes)
	}
	for i, p := range s.PodCIDRs {
		if !p.IsValid() || p != p.Masked() || p.Addr().Is6() != underlays[i].Addr().Is6() {
			return fmt.Errorf("pod CIDR %s: want a range such as %s", p, DefaultPodCIDRs[i])
		}
	}
	seen := map[string]bool{ControlPlaneName: true}
	for _, n := range s.Nodes {
		if !nodeName.MatchString(n.Name) {
			return fmt.Errorf("node name %q: 1 to 15 of a-z, 0-9 and -, as an interface's name", n.Name)
		}
		if seen[n.Name] {
			return fmt.Errorf("node name %q is taken", n.Name)
		}
		seen[n.Name] = true
	}
	return nil
}

func (s Spec) scaled(d time.Duration) time.Duration {
	return time.Duration(float64(d) * max(s.TimeScale, 1))
}

// State is what is known of a running cluster to every process of the machine.
type State struct {
	Spec
	// Supervisor is the process that owns the cluster while it holds the lock.
	Supervisor int
	// Controllers are those that were enabled in the machine's root cgroup for this cluster.
	Controllers []string
	Kubeconfig  string
	// VM is the socket of the virtual machine that the cluster runs in; empty for one on this machine.
	VM string
	// Ready is set when everything has come up, Failure when something has ended since.
	Ready   bool
	Failure string
	Started time.Time
}

func stateDir(name string) string  { return filepath.Join(RunDir, name) }
func stateFile(name string) string { return filepath.Join(stateDir(name), "state.json") }

// write replaces the state file: a reader sees the old or the new one.
func (s State) write() error {
	b, err := json.MarshalIndent(s, "", "  ")
	if err != nil {
		return fmt.Errorf("encode the lab's state: %w", err)
	}
	tmp := stateFile(s.Name) + ".new"
	if err := os.WriteFile(tmp, b, 0o600); err != nil {
		return fmt.Errorf("write the lab's state: %w", err)
	}
	return os.Rename(tmp, stateFile(s.Name))
}

// ErrNotRunning is returned for a lab of which there is no trace.
var ErrNotRunning = errors.New("no such lab")

// ReadState reads the state of a cluster; ErrNotRunning when there is none.
func ReadState(name string) (State, error) {
	b, err := os.ReadFile(stateFile(name))
	if errors.Is(err, fs.ErrNotExist) {
		return State{}, fmt.Errorf("%w: %q (lab status lists them)", ErrNotRunning, name)
	}
	if err != nil {
		return State{}, err
	}
	var s State
	if err := json.Unmarshal(b, &s); err != nil {
		return State{}, fmt.Errorf("parse %s: %w", stateFile(name), err)
	}
	return s, nil
}

// List returns the names of all labs that have a trace in RunDir, sorted.
func List() ([]string, error) {
	entries, err := os.ReadDir(RunDir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	var names []string
	for _, e := range entries {
		if labName.MatchString(e.Name()) {
			names = append(names, e.Name())
		}
	}
	sort.Strings(names)
	return names, err
}

// errLocked says that a living supervisor owns the lab.
var errLocked = errors.New("the lab is running")

// lock takes a lab for this process, until the file is closed or the process ends. The directory is removed by whoever
// holds the lock; one that has got the lock of a removed file tries again.
func lock(name string) (*os.File, error) {
	for {
		if err := os.MkdirAll(stateDir(name), 0o700); err != nil {
			return nil, err
		}
		path := filepath.Join(stateDir(name), "lock")
		f, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR, 0o600)
		if errors.Is(err, fs.ErrNotExist) {
			continue // removed in between
		}
		if err != nil {
			return nil, err
		}
		if err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
			f.Close()
			return nil, errLocked
		}
		if current(f, path) {
			return f, nil
		}
		f.Close()
	}
}

func current(f *os.File, path string) bool {
	mine, err := f.Stat()
	if err != nil {
		return false
	}
	there, err := os.Stat(path)
	return err == nil && os.SameFile(mine, there)
}

// Alive says whether a supervisor owns the lab.
func Alive(name string) (bool, error) {
	f, err := os.Open(filepath.Join(stateDir(name), "lock"))
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	defer f.Close()
	// Shared, so that two who ask at once do not see each other.
	return unix.Flock(int(f.Fd()), unix.LOCK_SH|unix.LOCK_NB) != nil, nil
}
