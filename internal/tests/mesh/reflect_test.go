package mesh

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/tortie-net/tortie/internal/api"
	"github.com/tortie-net/tortie/internal/testkit/errtest"
	. "github.com/tortie-net/tortie/internal/testkit/meshtest"
	"github.com/tortie-net/tortie/internal/testkit/tier"
)

// reflected is a cluster with automatic route reflectors from eight nodes on.
type reflected struct {
	*Cluster
	nodes []*Node
	pods  map[*Node]*Pod
	next  int
}

func newReflected(t testing.TB, dual bool) *reflected {
	t.Helper()
	r := &reflected{Cluster: NewCluster(t), pods: map[*Node]*Pod{}, next: 10}
	r.Env = []string{"TORTIE_AUTOMATIC_REFLECTORS=true", "TORTIE_REFLECTORS_ABOVE=8"}
	r.Dual = dual
	r.Create(t, NewPool("pods", "10.90.0.0/16", api.EncapNever))
	if dual {
		r.Create(t, NewPool("pods6", "fd90::/64", api.EncapNever))
	}
	return r
}

// add creates nodes with a pod each, in three zones, and starts their agents.
func (r *reflected) add(t testing.TB, count int) (added []*Node) {
	t.Helper()
	for range count {
		r.Labels = map[string]string{api.LabelZone: fmt.Sprintf("zone-%d", r.next%3)}
		n, pod := r.NewNodeWithPod(t, 0, r.next)
		r.next++
		r.pods[n] = pod
		added = append(added, n)
	}
	r.nodes = append(r.nodes, added...)
	Start(t, added...)
	return added
}

// reports returns the reflection annotation of each node.
func (r *reflected) reports(t testing.TB) map[string]string {
	t.Helper()
	words := map[string]string{}
	for _, n := range r.nodes {
		obj := &api.Node{Meta: api.Meta{Name: n.Name}}
		errtest.Must(t, r.Store.Get(t.Context(), obj))
		words[n.Name] = obj.Annotations[api.AnnotationReflection]
	}
	return words
}

// reflectors returns the nodes that are annotated as reflectors.
func (r *reflected) reflectors(t testing.TB) (all []*Node) {
	t.Helper()
	words := r.reports(t)
	for _, n := range r.nodes {
		if words[n.Name] == "reflector" || words[n.Name] == "retiring" {
			all = append(all, n)
		}
	}
	return all
}

// agreed returns nil once count nodes are reflectors, in a zone each, and all nodes have sessions with these and no
// others, except nodes without a running agent.
func (r *reflected) agreed(t testing.TB, count int) error {
	t.Helper()
	reflecting := r.reflectors(t)
	var running []*Node
	zones := map[int]bool{}
	standing := 0
	for _, n := range r.nodes {
		if n.Cmd != nil {
			running = append(running, n)
		}
	}
	for _, n := range reflecting {
		if n.Cmd != nil {
			standing++
			zones[int(n.Prefix.Addr().As4()[3])%3] = true
		}
	}
	if standing != count || len(zones) != min(count, 3) {
		return fmt.Errorf("%d reflectors in %d zones, want %d: %v", standing, len(zones), count, r.reports(t))
	}
	var errs []error
	for _, n := range running {
		want := standing
		if slices.Contains(reflecting, n) {
			want = len(running) // and is not its own peer
		}
		errs = append(errs, r.sessions(n, want-btoi(slices.Contains(reflecting, n))))
	}
	return errors.Join(errs...)
}

func btoi(b bool) int {
	if b {
		return 1
	}
	return 0
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

// traffic starts streams between neighbours in the list of nodes, and to a pod with a borrowed address, whose route is
// known by BGP only.
func (r *reflected) traffic(t testing.TB, of ...*Node) (packets Traffic) {
	t.Helper()
	for i, n := range of[1:] {
		packets = append(packets, StartTraffic(t, r.pods[of[i]], r.pods[n])...)
	}
	return packets
}

// borrow creates a pod on one node with an address of another node's block.
func (r *reflected) borrow(t testing.TB, owner, by *Node) *Pod {
	t.Helper()
	host := owner.Prefix.Addr().As4()[3]
	r.AssignBorrowed(t, fmt.Sprintf("10.90.%d.0/26", host), owner, 9, by)
	return by.NewPod(t, fmt.Sprintf("10.90.%d.9", host))
}

// ready sets the Ready condition of a Node, as its kubelet does.
func (r *reflected) ready(t testing.TB, n *Node, status string) {
	t.Helper()
	n.Condition(t, api.NodeReady, status)
}

// A mesh grows until its nodes elect reflectors; one of these is restarted, another one fails and comes back, without
// packet loss.
func TestReflectors(t *testing.T) {
	tier.All(t)
	t.Parallel()
	r := newReflected(t, true)
	nodes := r.add(t, 7)
	for _, n := range nodes {
		r.ready(t, n, "True")
	}
	Settle(t, nodes...)
	if words := r.reports(t); len(r.reflectors(t)) > 0 {
		t.Fatalf("seven nodes have reflectors: %v", words)
	}
	borrower := r.borrow(t, nodes[1], nodes[0])
	packets := append(r.traffic(t, nodes[:4]...), StartTraffic(t, r.pods[nodes[2]], borrower)...)
	begun := time.Now()
	for _, n := range r.add(t, 2) {
		r.ready(t, n, "True")
	}
	Within(t, 3*Patience, func() error { return r.agreed(t, 3) })
	Timed(t, "from a mesh to reflectors, the ninth agent ready: no session of the mesh is left", begun)
	packets.Onward(t, time.Second)
	packets.Intact(t)
	writes := r.Requests(t)

	restarted := r.reflectors(t)[0]
	packets = append(r.traffic(t, nodes[:4]...), StartTraffic(t, r.pods[nodes[2]], borrower)...)
	restarted.Signal(t, syscall.SIGTERM)
	packets.Onward(t, 500*time.Millisecond)
	restarted.Start(t, Build)
	Within(t, 2*Patience, func() error { return r.agreed(t, 3) })
	packets.Onward(t, 6*time.Second) // it has removed stale routes by now
	packets.Intact(t)
	const write = "PATCH nodes/status"
	if now := r.Requests(t); now[write] > writes[write] || writes[write] < len(r.nodes) {
		t.Errorf("a restart has written Nodes (writes before it: %d): %v", writes[write], Writes(writes, now))
	}

	// The agent and the kubelet of the node fail; its kernel keeps forwarding.
	dead := r.reflectors(t)[1]
	packets = append(r.traffic(t, nodes[:4]...), StartTraffic(t, r.pods[nodes[2]], borrower)...)
	dead.Signal(t, syscall.SIGKILL)
	r.ready(t, dead, "Unknown")
	begun = time.Now()
	Within(t, 2*Patience, func() error { return r.agreed(t, 3) })
	Timed(t, "a reflector is killed: another stands in, and all have sessions with it", begun)
	packets.Intact(t)
	for _, n := range r.nodes {
		if n.Cmd != nil {
			n.Running(t)
		}
	}
}

// The Nodes of all reflectors are deleted at once; then nodes leave until the full mesh is used again.
func TestReflectorsLeave(t *testing.T) {
	tier.All(t)
	t.Parallel()
	r := newReflected(t, false)
	r.add(t, 12)
	Within(t, 3*Patience, func() error { return r.agreed(t, 3) })
	gone := r.reflectors(t)
	r.remove(t, gone...)
	packets := r.traffic(t, r.nodes[:4]...)
	begun := time.Now()
	Within(t, 2*Patience, func() error { return r.agreed(t, 3) })
	Timed(t, "all three reflectors' Nodes are deleted: three others stand, and all have sessions with them", begun)
	packets.Intact(t)

	reflecting := r.reflectors(t)
	var clients []*Node
	for _, n := range r.nodes {
		if !slices.Contains(reflecting, n) {
			clients = append(clients, n)
		}
	}
	r.remove(t, clients[:3]...)
	packets = r.traffic(t, r.nodes[:4]...)
	begun = time.Now()
	Within(t, 2*Patience, func() error {
		var errs []error
		for _, n := range r.nodes {
			errs = append(errs, r.sessions(n, len(r.nodes)-1))
		}
		return errors.Join(errs...)
	})
	Timed(t, "too few nodes are left for reflectors: all have sessions with all", begun)
	Within(t, 3*Patience, func() error {
		if left := r.reflectors(t); len(left) > 0 {
			return fmt.Errorf("reflectors of a mesh: %v", r.reports(t))
		}
		return nil
	})
	Settle(t, r.nodes...)
	packets.Intact(t)
	if text := r.nodes[0].Tail(1 << 20); strings.Contains(text, "panic") {
		t.Error("an agent has panicked")
	}
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

// A node is annotated as a fourth reflector. It steps down, and keeps no session that the others have closed.
func TestReflectorsTooMany(t *testing.T) {
	tier.All(t)
	t.Parallel()
	r := newReflected(t, false)
	nodes := r.add(t, 9)
	Within(t, 3*Patience, func() error { return r.agreed(t, 3) })
	reflecting := r.reflectors(t)
	extra := nodes[slices.IndexFunc(nodes, func(n *Node) bool { return !slices.Contains(reflecting, n) })]
	extra.Signal(t, syscall.SIGKILL)
	word := "reflector"
	extra.Annotate(t, api.AnnotationReflection, &word)
	begun := time.Now()
	extra.Start(t, Build)
	Within(t, 3*Patience, func() error { return r.agreed(t, 3) })
	Timed(t, "a reflector too many: it is a client, and all have sessions with three", begun)
}
