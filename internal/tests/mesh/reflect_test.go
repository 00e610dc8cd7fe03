package mesh

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/tortie-net/tortie/internal/api"
	"github.com/tortie-net/tortie/internal/datastore"
	"github.com/tortie-net/tortie/internal/testkit/errtest"
	"github.com/tortie-net/tortie/internal/testkit/labtest"
	"github.com/tortie-net/tortie/internal/testkit/logtest"
	. "github.com/tortie-net/tortie/internal/testkit/meshtest"
	"github.com/tortie-net/tortie/internal/testkit/tier"
)

// reflected is a cluster with kube-controllers that make route reflectors from eight nodes on.
type reflected struct {
	*Cluster
	nodes      []*Node
	pods       map[*Node]*Pod
	next       int
	kubeconfig string
	leader     *exec.Cmd
}

func newReflected(t testing.TB, dual bool) *reflected {
	t.Helper()
	r := &reflected{Cluster: NewCluster(t), pods: map[*Node]*Pod{}, next: 10}
	r.Dual = dual
	r.Create(t, NewPool("pods", "10.90.0.0/16", api.EncapNever))
	if dual {
		r.Create(t, NewPool("pods6", "fd90::/64", api.EncapNever))
	}
	r.kubeconfig = labtest.WriteKubeconfig(t, t.TempDir(), labtest.AsOn(t, r.Admin, "tortie-kube-controllers"))
	labtest.GrantAll(t, r.Admin, labtest.Chart(t, "--set", "bgp.automaticReflectors=true")) // in place of the default rights
	return r
}

// lead starts kube-controllers, with a pause between two changes that is short for people and long for agents.
func (r *reflected) lead(t testing.TB) {
	t.Helper()
	l, err := new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0")
	errtest.Must(t, err)
	address := l.Addr().String()
	l.Close()
	var log logtest.Buffer
	r.leader = exec.CommandContext(context.WithoutCancel(t.Context()), os.Args[0])
	r.leader.Env = append(os.Environ(), asControllers+"=1", "KUBECONFIG="+r.kubeconfig, "TORTIE_CONTROLLERS_ADDRESS="+address,
		"TORTIE_LEAK_GRACE_PERIOD=0", "NO_DEFAULT_POOLS=true", "TORTIE_AUTOMATIC_REFLECTORS=true", "TORTIE_REFLECTORS_ABOVE=8",
		"TORTIE_REFLECTORS_PAUSE=4s")
	r.leader.Stdout, r.leader.Stderr = &log, &log
	errtest.Must(t, r.leader.Start())
	leader := r.leader
	t.Cleanup(func() {
		_ = leader.Process.Kill()
		_ = leader.Wait()
		if t.Failed() {
			text := log.String()
			t.Logf("kube-controllers:\n%s", text[max(0, len(text)-6000):])
		}
	})
}

// follow kills the leader with SIGKILL, and starts another.
func (r *reflected) follow(t testing.TB) {
	t.Helper()
	errtest.Must(t, r.leader.Process.Kill())
	_ = r.leader.Wait()
	r.lead(t)
}

// add creates Ready nodes with a pod each, in three zones, and starts their agents.
func (r *reflected) add(t testing.TB, count int) (added []*Node) {
	t.Helper()
	for range count {
		r.Labels = map[string]string{api.LabelZone: fmt.Sprintf("zone-%d", r.next%3)}
		n, pod := r.NewNodeWithPod(t, 0, r.next)
		r.next++
		r.pods[n] = pod
		added = append(added, n)
		n.Condition(t, api.NodeReady, "True")
	}
	r.nodes = append(r.nodes, added...)
	Start(t, added...)
	return added
}

// reflectors returns the nodes that are reflectors by their Nodes.
func (r *reflected) reflectors(t testing.TB) (all []*Node) {
	t.Helper()
	for _, n := range r.nodes {
		obj := &api.Node{Meta: api.Meta{Name: n.Name}}
		errtest.Must(t, r.Store.Get(t.Context(), obj))
		if _, ok := obj.Labels[api.LabelReflector]; ok && obj.Annotations[api.AnnotationReflector] == n.Prefix.Addr().String() {
			all = append(all, n)
		}
	}
	return all
}

// mesh reports whether the mesh is on.
func (r *reflected) mesh(t testing.TB) bool {
	t.Helper()
	c := &api.BGPConfiguration{Meta: api.Meta{Name: api.DefaultName}}
	err := r.Store.Get(t.Context(), c)
	if errors.Is(err, datastore.ErrNotFound) {
		return true
	}
	errtest.Must(t, err)
	return c.Spec.NodeToNodeMeshEnabled == nil || *c.Spec.NodeToNodeMeshEnabled
}

// stand returns nil once there are three reflectors, in a zone each, and all nodes have sessions with these and no
// others. Nodes without a running agent are left out.
func (r *reflected) stand(t testing.TB) error {
	t.Helper()
	reflecting := r.reflectors(t)
	zones := map[int]bool{}
	for _, n := range reflecting {
		zones[int(n.Prefix.Addr().As4()[3])%3] = true
	}
	if len(reflecting) != 3 || len(zones) != 3 || r.mesh(t) {
		return fmt.Errorf("%d reflectors in %d zones; the mesh is on: %t", len(reflecting), len(zones), r.mesh(t))
	}
	var errs []error
	running := r.running()
	for _, n := range running {
		want := 3
		if slices.Contains(reflecting, n) {
			want = len(running) - 1
		}
		errs = append(errs, r.sessions(n, want))
	}
	return errors.Join(errs...)
}

func (r *reflected) running() (all []*Node) {
	for _, n := range r.nodes {
		if n.Cmd != nil {
			all = append(all, n)
		}
	}
	return all
}

// sessions returns nil if a node has this number of established sessions in each family, and all others are with nodes
// without a running agent.
func (r *reflected) sessions(n *Node, count int) error {
	report, err := n.Status()
	if err != nil {
		return err
	}
	if r.Dual {
		count *= 2
	}
	up := 0
	for _, p := range report.Peers {
		dead := slices.ContainsFunc(r.nodes, func(o *Node) bool { return o.Name == p.Node && o.Cmd == nil })
		switch {
		case p.State == "Established":
			up++
		case !dead:
			return fmt.Errorf("%s: the session with %s is %s: %s", n.Name, p.Node, p.State, p.LastError)
		}
	}
	if up != count {
		return fmt.Errorf("%s has %d sessions, want %d", n.Name, up, count)
	}
	return nil
}

// traffic starts streams between neighbours in the list of nodes, and from the last to a pod with a borrowed address,
// whose route is known by BGP only.
func (r *reflected) traffic(t testing.TB, borrower *Pod, of ...*Node) (packets Traffic) {
	t.Helper()
	for i, n := range of[1:] {
		packets = append(packets, StartTraffic(t, r.pods[of[i]], r.pods[n])...)
	}
	return append(packets, StartTraffic(t, r.pods[of[len(of)-1]], borrower)...)
}

// borrow creates a pod on one node with an address of another node's block.
func (r *reflected) borrow(t testing.TB, owner, by *Node) *Pod {
	t.Helper()
	host := owner.Prefix.Addr().As4()[3]
	r.AssignBorrowed(t, fmt.Sprintf("10.90.%d.0/26", host), owner, 9, by)
	return by.NewPod(t, fmt.Sprintf("10.90.%d.9", host))
}

// remove removes nodes for good.
func (r *reflected) remove(t testing.TB, nodes ...*Node) {
	t.Helper()
	for _, n := range nodes {
		n.Signal(t, syscall.SIGKILL)
		r.Remove(t, &api.Node{Meta: api.Meta{Name: n.Name}})
		r.nodes = slices.DeleteFunc(r.nodes, func(o *Node) bool { return o == n })
	}
}

// nodeWrites is how many requests have changed Nodes or the objects of BGP.
func nodeWrites(requests map[string]int) (n int) {
	for what, count := range requests {
		if strings.HasPrefix(what, "PATCH nodes") || strings.HasPrefix(what, "PATCH bgp") || strings.HasPrefix(what, "POST bgp") {
			n += count
		}
	}
	return n
}

// A mesh grows until it gets reflectors. One of these is restarted, the leader is replaced, a reflector's Node is
// deleted with its agent. No packet is lost, and only changes of reflectors are written.
func TestReflectors(t *testing.T) {
	tier.All(t)
	t.Parallel()
	r := newReflected(t, true)
	nodes := r.add(t, 7)
	r.lead(t)
	Settle(t, nodes...)
	borrower := r.borrow(t, nodes[1], nodes[0])
	packets := r.traffic(t, borrower, nodes[:4]...)
	begun := time.Now()
	r.add(t, 2)
	Within(t, 4*Patience, func() error { return r.stand(t) })
	Timed(t, "from a mesh to reflectors: no session of the mesh is left", begun)
	packets.Onward(t, time.Second)
	packets.Intact(t)

	writes := nodeWrites(r.Requests(t))
	restarted := r.reflectors(t)[0]
	packets = r.traffic(t, borrower, nodes[:4]...)
	restarted.Signal(t, syscall.SIGTERM)
	packets.Onward(t, 500*time.Millisecond)
	restarted.Start(t, Build)
	r.follow(t)
	Within(t, 2*Patience, func() error { return r.stand(t) })
	packets.Onward(t, 6*time.Second) // time to remove stale routes
	packets.Intact(t)
	if now := nodeWrites(r.Requests(t)); now != writes {
		t.Errorf("a restart of a reflector and of the leader: %d writes, %d before", now, writes)
	}

	reflecting := r.reflectors(t)
	others := slices.DeleteFunc(slices.Clone(nodes), func(n *Node) bool { return n == reflecting[1] })
	guest := r.borrow(t, others[2], others[1])
	packets = r.traffic(t, guest, others[:4]...)
	r.remove(t, reflecting[1])
	begun = time.Now()
	Within(t, 4*Patience, func() error { return r.stand(t) })
	Timed(t, "a reflector's Node is deleted: another stands in, and all have sessions with it", begun)
	packets.Onward(t, time.Second)
	packets.Intact(t)
	for _, n := range r.running() {
		n.Running(t)
	}
}

// The Nodes of all reflectors are deleted at once; then nodes leave until the mesh is used again.
func TestReflectorsLeave(t *testing.T) {
	tier.All(t)
	t.Parallel()
	r := newReflected(t, false)
	r.add(t, 12)
	r.lead(t)
	Within(t, 4*Patience, func() error { return r.stand(t) })
	gone := r.reflectors(t)
	left := slices.DeleteFunc(slices.Clone(r.nodes), func(n *Node) bool { return slices.Contains(gone, n) })
	borrower := r.borrow(t, left[1], left[0])
	packets := r.traffic(t, borrower, left[:4]...)
	r.remove(t, gone...)
	begun := time.Now()
	Within(t, 4*Patience, func() error { return r.stand(t) })
	Timed(t, "all three reflectors' Nodes are deleted: three others stand, and all have sessions with them", begun)
	packets.Onward(t, time.Second)
	packets.Intact(t)

	packets = r.traffic(t, borrower, left[:4]...)
	r.remove(t, left[5:]...)
	begun = time.Now()
	Within(t, 6*Patience, func() error {
		errs := []error{}
		for _, n := range r.nodes {
			errs = append(errs, r.sessions(n, len(r.nodes)-1))
		}
		if left := r.reflectors(t); len(left) > 0 || !r.mesh(t) {
			errs = append(errs, fmt.Errorf("%d reflectors; the mesh is on: %t", len(left), r.mesh(t)))
		}
		return errors.Join(errs...)
	})
	Timed(t, "too few nodes are left for reflectors: all have sessions with all", begun)
	Settle(t, r.nodes...)
	packets.Intact(t)
	err := r.Store.Get(t.Context(), &api.BGPPeer{Meta: api.Meta{Name: api.ReflectorsPeer}})
	if err != nil && !errors.Is(err, datastore.ErrNotFound) {
		t.Error(err)
	}
}

// lastElection is the last revision whose agents agreed on reflectors by an annotation.
const lastElection = "57619b1109b4882810d388e0f9bb6f199dd442a5"

// Agents that have agreed on reflectors by themselves are replaced one by one, beside a leader. No packet is lost.
func TestReflectorsOfAgents(t *testing.T) {
	tier.All(t)
	t.Parallel()
	before := buildOf(t, lastElection)
	r := newReflected(t, false)
	r.Env = []string{"TORTIE_AUTOMATIC_REFLECTORS=true", "TORTIE_REFLECTORS_ABOVE=8"}
	r.Launcher = []string{"sh", "-c", "exec " + before}
	nodes := r.add(t, 9)
	Within(t, 4*Patience, func() error {
		errs := []error{}
		for _, n := range nodes {
			if s, err := n.Status(); err != nil || s.Reflection == nil || len(s.Peers) == 8 && s.Reflection.Role == "client" {
				errs = append(errs, fmt.Errorf("%s: %+v, %w", n.Name, s.Reflection, err))
			}
		}
		return errors.Join(errs...)
	})
	borrower := r.borrow(t, nodes[1], nodes[0])
	packets := r.traffic(t, borrower, nodes[:4]...)
	r.lead(t)
	for _, n := range nodes {
		n.Launcher = nil
		n.Signal(t, syscall.SIGTERM)
		n.Start(t, Build)
		Within(t, 2*Patience, func() error { return n.Probe("/readyz") })
		packets.Onward(t, time.Second)
	}
	Within(t, 4*Patience, func() error { return r.stand(t) })
	packets.Onward(t, 6*time.Second)
	packets.Intact(t)
	for _, n := range nodes {
		errtest.Must(t, n.Annotated(t, api.AnnotationReflection, ""))
	}
}

// buildOf builds the agent of a revision of this repository, and returns its path.
func buildOf(t testing.TB, revision string) string {
	t.Helper()
	dir := t.TempDir()
	out, err := exec.CommandContext(t.Context(), "sh", "-c",
		`git -C "$1" archive "$2" | tar -x -C "$3" && cd "$3" && CGO_ENABLED=0 go build -o "$3/node-before" ./cmd/node`,
		"sh", labtest.Root(), revision, dir).CombinedOutput()
	if err != nil {
		t.Fatalf("build the agent of %s: %v\n%s", revision, err, out)
	}
	return filepath.Join(dir, "node-before")
}
