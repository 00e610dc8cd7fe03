package main

import (
	"bytes"
	"context"
	"fmt"
	"net/http"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/tortie-net/tortie/internal/testkit/labtest"
	"github.com/tortie-net/tortie/internal/testkit/thread"
)

// Parameters of the part routes: the cost of 10,000 routes from a peer's UPDATEs into the kernel.

const (
	nameBird  = "BIRD 2"
	nameAgent = "the agent"

	// learnedCIDR is the pool of the blocks that the peer announces.
	learnedCIDR = "10.160.0.0/12"
	// routesTimeout is the limit of one step; an agent that has just started retains stale routes for some seconds.
	routesTimeout = time.Minute

	birdProtocol, ownProtocol = 12, 84
)

// learner is a BGP speaker that programs learned routes into the kernel, and its peer.
type learner struct {
	name     string
	peer     *thread.Thread
	sender   *bird
	observer *observer
	pid      int
	end      func()

	start, update, gone durations // until the last route is programmed, from the first and from the last UPDATE; until all are removed
	cpu                 time.Duration
	rounds              int
	rss                 int64 // kB
}

// runRoutes lets a BIRD announce blocks to another BIRD and to the agent, alternately.
func runRoutes(ctx context.Context, c *cluster, dir string, size sizes) (_ []*learner, err error) {
	var all []*learner
	defer func() {
		for _, l := range all {
			l.close()
		}
	}()
	for i, add := range []func(context.Context, *cluster, *learner, string) error{addBird, addAgent} {
		l, err := newLearner(i, filepath.Join(dir, fmt.Sprint("routes", i)), size.routes)
		if err != nil {
			return nil, err
		}
		all = append(all, l)
		if err := add(ctx, c, l, dir); err != nil {
			return nil, err
		}
		if err := l.sender.established(ctx, "session"); err != nil {
			return nil, fmt.Errorf("%s: %w", l.name, err)
		}
		// A warm-up round: programs are read from disk, and the agent removes the stale routes of its start.
		if err := l.round(size.routes); err != nil {
			return nil, fmt.Errorf("%s: %w", l.name, err)
		}
		l.forget()
	}
	for range size.routeRounds {
		for _, l := range all {
			if ctx.Err() != nil {
				return nil, context.Cause(ctx)
			}
			if err := l.round(size.routes); err != nil {
				return nil, fmt.Errorf("%s: %w", l.name, err)
			}
		}
	}
	return all, nil
}

// newLearner starts the peer.
func newLearner(i int, dir string, routes int) (*learner, error) {
	t, err := thread.New(thread.OwnNetwork)
	if err != nil {
		return nil, err
	}
	l := &learner{peer: t, end: func() {}}
	blocks := strings.Builder{}
	for block := range blocksOf(netip.MustParsePrefix(learnedCIDR), 26, routes) {
		fmt.Fprintf(&blocks, "  route %s blackhole;\n", block)
	}
	l.sender, err = startBird(t, dir, fmt.Sprintf(`router id 10.251.%[1]d.1;
protocol device {}
protocol static blocks {
  disabled;
  ipv4;
%[2]s}
protocol bgp session {
  local 10.251.%[1]d.1 as 64512;
  neighbor 10.251.%[1]d.2 as 64512;
  passive on;
  ipv4 { import none; export where source = RTS_STATIC; next hop self; };
}
`, i, blocks.String()))
	if err != nil {
		t.Close()
		return nil, err
	}
	return l, nil
}

// connect connects the peer with the receiver in the namespaces of t.
func (l *learner) connect(i int, t *thread.Thread, protocol uint8) (err error) {
	err = l.peer.Do(func() error {
		return ip(fmt.Sprintf("link set lo up\nlink add bgp0 type veth peer name bgp0 netns %s\naddr add 10.251.%d.1/24 dev bgp0\nlink set bgp0 up\n", t.NetNS(), i))
	})
	if err == nil {
		err = t.Do(func() error {
			return ip(fmt.Sprintf("link set lo up\naddr add 10.251.%d.2/24 dev bgp0\nlink set bgp0 up\n", i))
		})
	}
	if err == nil {
		l.observer, err = newObserver(t, "bgp0", protocol)
	}
	return err
}

func addBird(_ context.Context, _ *cluster, l *learner, dir string) error {
	l.name = nameBird
	t, err := thread.New(thread.OwnNetwork)
	if err != nil {
		return err
	}
	l.end = t.Close
	if err := l.connect(0, t, birdProtocol); err != nil {
		return err
	}
	b, err := startBird(t, filepath.Join(dir, "receiver"), `router id 10.251.0.2;
protocol device {}
protocol kernel { ipv4 { import none; export all; }; }
protocol bgp session {
  local 10.251.0.2 as 64512;
  neighbor 10.251.0.1 as 64512;
  direct;
  connect delay time 1;
  ipv4 { import all; export none; };
}
`)
	if err != nil {
		return err
	}
	l.end = func() { b.end(); t.Close() }
	l.pid = b.cmd.Process.Pid
	return nil
}

// routesNode is the index of the agent's node, apart from those of other parts.
const routesNode = 240

// addAgent runs the real agent on a node of its own, with the peer as the only other node of the mesh.
func addAgent(ctx context.Context, c *cluster, l *learner, dir string) error {
	l.name = nameAgent
	n, err := newNode(c.underlay, routesNode, dir, 0)
	if err != nil {
		return err
	}
	l.end = n.end
	if err := l.connect(1, n.Thread, ownProtocol); err != nil {
		return err
	}
	if err := learnedObjects(c, n.name); err != nil {
		return err
	}
	log, err := l.startAgent(c, n)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeoutCause(ctx, routesTimeout, fmt.Errorf("no session in %v", routesTimeout))
	defer cancel()
	if err := l.sender.established(ctx, "session"); err != nil {
		return fmt.Errorf("%w\nthe agent's log:\n%s", err, log)
	}
	return nil
}

// learnedObjects creates the two nodes and the pool.
func learnedObjects(c *cluster, node string) error {
	objects := map[string][]object{
		"/api/v1/nodes": {
			{"metadata": object{"name": node}},
			{"metadata": object{"name": "bench-peer", "annotations": object{"projectcalico.org/IPv4Address": "10.251.1.1/24"}}},
		},
		crdPath + "ippools": {{
			"apiVersion": "crd.projectcalico.org/v1", "kind": "IPPool", "metadata": object{"name": "learned"},
			"spec": object{"cidr": learnedCIDR, "blockSize": 26, "ipipMode": "Never", "disabled": true},
		}},
	}
	for path, list := range objects {
		for _, obj := range list {
			if err := c.do(http.MethodPost, path, obj, nil); err != nil {
				return err
			}
		}
	}
	return nil
}

// startAgent runs the agent on a node until the learner's end, and returns its output.
func (l *learner) startAgent(c *cluster, n *node) (fmt.Stringer, error) {
	const kubeconfig = "/etc/agent-kubeconfig"
	if err := n.write(kubeconfig, labtest.PluginKubeconfig(c.client.server, c.ca, c.client.token)); err != nil {
		return nil, err
	}
	log := new(bytes.Buffer)
	cmd := exec.Command(cniBin + "/node")
	cmd.Env = []string{"NODENAME=" + n.name, "IP=10.251.1.2/24", "KUBECONFIG=" + kubeconfig, "PATH=" + os.Getenv("PATH")}
	cmd.Stdout, cmd.Stderr = log, log
	if err := n.Do(cmd.Start); err != nil {
		return nil, fmt.Errorf("start the agent: %w", err)
	}
	exited := make(chan error, 1)
	go func() { exited <- cmd.Wait() }()
	l.pid = cmd.Process.Pid
	l.end = func() {
		_ = cmd.Process.Signal(syscall.SIGKILL)
		<-exited
		n.end()
	}
	return log, nil
}

// round makes the peer announce and withdraw its blocks.
func (l *learner) round(routes int) error {
	before, err := processorTime(l.pid)
	if err != nil {
		return err
	}
	l.observer.begin()
	start := time.Now()
	if _, err := l.sender.ask("enable blocks"); err != nil {
		return err
	}
	last, update, err := l.observer.await(added, routes, routesTimeout)
	if err != nil {
		return fmt.Errorf("announced: %w", err)
	}
	l.start, l.update = append(l.start, last.Sub(start)), append(l.update, last.Sub(update))
	m, _ := memoryOf(l.pid)
	l.rss = max(l.rss, m.rss)
	time.Sleep(settleRoutes)
	l.observer.begin()
	start = time.Now()
	if _, err := l.sender.ask("disable blocks"); err != nil {
		return err
	}
	if last, _, err = l.observer.await(deleted, routes, routesTimeout); err != nil {
		return fmt.Errorf("withdrawn: %w", err)
	}
	l.gone = append(l.gone, last.Sub(start))
	time.Sleep(settleRoutes)
	after, err := processorTime(l.pid)
	l.cpu += after - before
	l.rounds++
	return err
}

// settleRoutes is the time for a receiver's work after its last route, which counts, too.
const settleRoutes = 300 * time.Millisecond

func (l *learner) forget() { l.start, l.update, l.gone, l.cpu, l.rounds = nil, nil, nil, 0, 0 }

func (l *learner) close() {
	if l.observer != nil {
		l.observer.close()
	}
	l.end()
	l.sender.end()
	l.peer.Close()
}

// blocksOf returns the first blocks of a pool.
func blocksOf(pool netip.Prefix, bits, count int) func(func(netip.Prefix) bool) {
	return func(yield func(netip.Prefix) bool) {
		a := pool.Addr().As4()
		base := uint32(a[0])<<24 | uint32(a[1])<<16 | uint32(a[2])<<8 | uint32(a[3])
		for i := range count {
			v := base + uint32(i)<<(32-bits)
			if !yield(netip.PrefixFrom(netip.AddrFrom4([4]byte{byte(v >> 24), byte(v >> 16), byte(v >> 8), byte(v)}), bits)) {
				return
			}
		}
	}
}

// learnerNamed returns the learner with a name.
func (r *results) learnerNamed(name string) *learner {
	for _, l := range r.routes {
		if l.name == name {
			return l
		}
	}
	return nil
}

// maxRoutesOfBird is the agent's maximum time from the first UPDATE on, relative to BIRD 2.
const maxRoutesOfBird = 1.2

func (r *results) judgeRoutes() []verdict {
	bird, agent := r.learnerNamed(nameBird), r.learnerNamed(nameAgent)
	if bird == nil || agent == nil {
		return nil
	}
	times := ratio(float64(agent.start.median()), float64(bird.start.median()))
	return []verdict{atMost(fmt.Sprintf("%d learned routes in the kernel, time", r.routeCount), times, maxRoutesOfBird, nameBird)}
}

func (r *results) writeRoutes(w *bytes.Buffer) {
	if len(r.routes) == 0 {
		return
	}
	fmt.Fprintf(w, "### %d learned routes\n\n", r.routeCount)
	fmt.Fprintf(w, "A BIRD 2 announces %d blocks to one receiver and takes them back, then to the other; medians of %d rounds, in brackets the smallest and the "+
		"largest. Routes are counted by the kernel's events, UPDATEs by packets; CPU of both steps, memory with all routes.\n\n",
		r.routeCount, r.routes[0].rounds)
	t := table{{"receiver", "ms until the last route, from the first UPDATE", "from the last UPDATE", "ms until all are gone", "CPU ms", "MiB"}}
	for _, l := range r.routes {
		spread := func(d durations) string {
			return fmt.Sprintf("%s (%s–%s)", ms(d.median()), ms(d.quantile(0)), ms(d.quantile(1)))
		}
		t.row(l.name, spread(l.start), spread(l.update), spread(l.gone), ms(l.cpu/time.Duration(max(l.rounds, 1))), mebibytes(l.rss))
	}
	t.write(w)
}
