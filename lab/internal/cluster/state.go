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

// RunDir has a directory for each running lab, with the lab's name.
const RunDir = "/run/tortie-lab"

// DataDir is the default parent of the labs' directories.
const DataDir = "/var/lib/tortie-lab"

// SupervisorName is argv[0] of the process that owns a cluster.
const SupervisorName = "tortie-lab-supervise"

// A lab's name is part of names of namespaces and cgroups, tortie-LAB-NODE, which are unambiguous as it has no dash.
var (
	labName  = regexp.MustCompile(`^[a-z0-9]{1,20}$`)
	nodeName = regexp.MustCompile(`^[a-z0-9]([a-z0-9-]{0,13}[a-z0-9])?$`)
)

// Node is the name of a node with its addresses in the underlay.
type Node struct {
	Name string
	// Addrs are one address of each family of the cluster, IPv4 first.
	Addrs []netip.Addr
	// PID is the node's first process in the machine's PID namespace; 0 before it runs.
	PID int
}

// Spec is the specification of a cluster.
type Spec struct {
	Name  string
	Nodes []Node
	// Dir is the directory of the cluster's files.
	Dir       string
	Hyperkube string
	// Pause is the program of the pods' sandboxes.
	Pause string
	// Containerd is the directory of containerd 2; "" for the machine's containerd.
	Containerd string
	// CoreDNS is the program of CoreDNSImage; "" for none.
	CoreDNS string
	// Agnhost is the program of the image for pods of conformance suites; "" for none.
	Agnhost string
	// Images are archives for every node.
	Images []string
	// PodCIDRs are the ranges of pod addresses: of IPv4, and of IPv6 in a dual-stack cluster.
	PodCIDRs []netip.Prefix
	// TimeScale multiplies every deadline.
	TimeScale float64
}

// Validate checks the user's input.
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

// State is the shared state of a running cluster.
type State struct {
	Spec
	// Supervisor is the owner of the cluster while it holds the lock.
	Supervisor int
	// Controllers are the cgroup controllers that were enabled in the machine's root for this cluster.
	Controllers []string
	Kubeconfig  string
	// Ready is set when everything is up, Failure when something has exited since.
	Ready   bool
	Failure string
	Started time.Time
}

func stateDir(name string) string  { return filepath.Join(RunDir, name) }
func stateFile(name string) string { return filepath.Join(stateDir(name), "state.json") }

// write replaces the state file atomically.
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

// ErrNotRunning is returned for a lab that does not exist.
var ErrNotRunning = errors.New("no such lab")

// ReadState reads the state of a cluster, or returns ErrNotRunning.
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

// List returns the names of all labs with an entry in RunDir, sorted.
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

// errLocked is returned if a running supervisor owns the lab.
var errLocked = errors.New("the lab is running")

// lock locks a lab until the file is closed or the process exits. The holder removes the directory; a process that has
// locked a removed file tries again.
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

// Alive reports whether a supervisor owns the lab.
func Alive(name string) (bool, error) {
	f, err := os.Open(filepath.Join(stateDir(name), "lock"))
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	defer f.Close()
	// A shared lock, so that concurrent queries do not detect each other.
	return unix.Flock(int(f.Fd()), unix.LOCK_SH|unix.LOCK_NB) != nil, nil
}
