package chaos

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"sync/atomic"
	"time"

	"github.com/tortie-net/tortie/internal/api"
	"github.com/tortie-net/tortie/internal/api/names"
	"github.com/tortie-net/tortie/internal/cluster/duties"
	store "github.com/tortie-net/tortie/internal/datastore"
	"github.com/tortie-net/tortie/internal/testkit/cnitest"
)

// machine is a node on which pods start and end, and which crashes and comes back under the same name. The test acts as
// kubelet and runtime; the plugins are the real programs, as is the code that keeps the tunnel's address, or the whole
// agent.
type machine struct {
	*node
	soak    *soak
	kubelet *kubelet
	random  *rand.Rand
	most    int    // most pods at the same time
	server  string // address of the API server for the plugins

	agent  *duties.Tunnel
	daemon *process // the agent's process; nil: the agent's code runs in the test
	booted time.Time
	tunnel netip.Addr // last reported by the agent
	ticked time.Time
	ahead  atomic.Int64 // offset of its clock
	ended  []string     // finished pods whose objects still exist
}

// clockPath is the file with a machine's clock, outside the directories that are checked for leftovers.
const clockPath = "/opt/clock"

// tunnelHandle returns the handle of the tunnel's address.
func (m *machine) tunnelHandle() string { return names.VXLANHandle(m.name) }

// stepClock sets the offset of the machine's clock.
func (m *machine) stepClock(ahead time.Duration) error {
	m.ahead.Store(int64(ahead))
	return m.Try(func() error { return cnitest.StepClock(clockPath, ahead) })
}

func (m *machine) chance(p float64) bool { return m.random.Float64() < p }

// upTo returns a random duration up to d.
func (m *machine) upTo(d time.Duration) time.Duration {
	return time.Duration(m.random.Int64N(int64(d)))
}

// run acts until during ends, and finishes the last action with ctx.
func (m *machine) run(ctx, during context.Context) error {
	for during.Err() == nil {
		if err := m.tick(ctx); err != nil {
			return err
		}
		if err := m.act(ctx); err != nil {
			return fmt.Errorf("%s: %w", m.name, err)
		}
		sleep(during, m.upTo(m.soak.pace))
	}
	return nil
}

func sleep(ctx context.Context, d time.Duration) {
	select {
	case <-time.After(d):
	case <-ctx.Done():
	}
}

// act does the next random action.
func (m *machine) act(ctx context.Context) error {
	switch n := m.random.IntN(200); {
	case n < 2:
		return m.crash(ctx)
	case n < 4:
		return m.reboot(ctx)
	case n < 10:
		_ = m.collect() // the datastore may be down: the next GC repeats it
		return nil
	case n < 20 && len(m.pods) > 0:
		return m.again(ctx, m.pick())
	case m.daemon != nil && n < 50:
		return m.restartDaemon()
	case len(m.pods) == 0, len(m.pods) < m.most && n < 120:
		return m.startPod(ctx)
	}
	return m.endPod(ctx, m.pick())
}

func (m *machine) pick() *pod { return m.pods[m.random.IntN(len(m.pods))] }

// startPod starts a new pod, or one with a name that ran elsewhere before.
func (m *machine) startPod(ctx context.Context) error {
	p := &pod{node: m.node, name: m.soak.newName(m.chance(0.3)), made: 1000 * int(m.soak.serial.Add(1))}
	var err error
	if p.args, err = m.soak.createPod(ctx, p); err != nil {
		return err
	}
	m.pods = append(m.pods, p)
	return m.sandboxFor(ctx, p)
}

// sandboxFor creates a sandbox for a pod and, if that succeeds, reports it as a kubelet does.
func (m *machine) sandboxFor(ctx context.Context, p *pod) error {
	if err := m.kubelet.begin(ctx, p); err != nil || p.sandbox == nil {
		return err
	}
	return m.soak.reportPod(ctx, p)
}

// again repeats the ADD of a pod, or recreates a sandbox lost in a reboot, as a kubelet does.
func (m *machine) again(ctx context.Context, p *pod) error {
	if p.sandbox == nil {
		return m.sandboxFor(ctx, p)
	}
	return m.kubelet.addAgain(ctx, p.sandbox)
}

// endPod ends a pod in one of the ways in which that happens.
func (m *machine) endPod(ctx context.Context, p *pod) error {
	n := m.random.IntN(100)
	if p.sandbox == nil {
		return m.removePod(ctx, p)
	}
	switch {
	case n < 12: // the runtime loses its state
		m.soak.inc("lost DELs")
		if err := m.vanish(p); err != nil {
			return err
		}
	case n < 20: // a pod of a Job, whose DEL is lost
		m.soak.inc("finished pods without a DEL")
		if err := m.vanish(p); err != nil {
			return err
		}
		m.drop(p)
		m.ended = append(m.ended, p.name)
		return m.soak.finishPod(ctx, p)
	case n < 30: // its sandbox fails and is replaced
		m.soak.inc("sandboxes replaced")
		if err := m.vanish(p); err != nil {
			return err
		}
		return m.sandboxFor(ctx, p)
	case n < 38: // deleted by force, and its DEL is late
		m.drop(p)
		if err := m.soak.deletePod(ctx, p); err != nil {
			return err
		}
		err := m.kubelet.finish(ctx, p.sandbox)
		m.soak.freeName(p.name)
		return err
	default:
		if err := m.kubelet.finish(ctx, p.sandbox); err != nil {
			return err
		}
	}
	return m.removePod(ctx, p)
}

// removePod removes a pod without a sandbox.
func (m *machine) removePod(ctx context.Context, p *pod) error {
	m.drop(p)
	err := m.soak.deletePod(ctx, p)
	m.soak.freeName(p.name)
	return err
}

func (m *machine) drop(p *pod) {
	m.pods = slices.DeleteFunc(m.pods, func(o *pod) bool { return o == p })
}

// vanish ends a pod's sandbox without a DEL: garbage collection must release its addresses.
func (m *machine) vanish(p *pod) error {
	s := p.sandbox
	if s == nil {
		return nil
	}
	p.sandbox = nil
	m.soak.history.add(operation{kind: release, handle: s.handle(), unknown: true, called: m.soak.now(), completed: m.soak.now()})
	return s.end()
}

// reboot removes all sandboxes and the content of tmpfs. The pods stay, and get new sandboxes.
func (m *machine) reboot(ctx context.Context) error {
	m.soak.inc("reboots")
	if err := m.killDaemon(); err != nil {
		return err
	}
	for _, p := range m.pods {
		if err := m.vanish(p); err != nil {
			return err
		}
	}
	if err := m.Try(func() error { return os.RemoveAll("/run/calico") }); err != nil {
		return err
	}
	return m.startDaemon(ctx)
}

// crash ends the machine without a drain, often while it starts a pod. Others delete its pods and its Node in any
// order; then it comes back under the same name, with its disk or a new one, possibly before its failure was noticed.
func (m *machine) crash(ctx context.Context) error {
	m.soak.logEvent("%s crashes with %d pods", m.name, len(m.pods))
	if m.chance(0.5) {
		if err := m.startAndCrash(ctx); err != nil {
			return err
		}
	}
	if err := m.killDaemon(); err != nil {
		return err
	}
	died := m.soak.now()
	if m.daemon != nil && !m.tunnel.IsValid() { // it may have an address that it has not reported yet
		m.soak.history.add(operation{kind: assign, handle: m.tunnelHandle(), unknown: true, called: m.soak.history.at(m.booted), completed: died})
	}
	for _, p := range m.pods {
		if err := m.vanish(p); err != nil {
			return err
		}
	}
	m.soak.history.add(operation{kind: release, handle: m.tunnelHandle(), unknown: true, called: died, completed: died})
	if m.chance(0.5) {
		if err := m.Try(newDisk); err != nil {
			return err
		}
	}
	last := m.chance(0.5)
	if !last {
		if err := m.soak.deleteNode(ctx, m.name); err != nil {
			return err
		}
	}
	for len(m.pods) > 0 {
		sleep(ctx, m.upTo(200*time.Millisecond))
		if err := m.removePod(ctx, m.pods[0]); err != nil {
			return err
		}
	}
	if last {
		if err := m.soak.deleteNode(ctx, m.name); err != nil {
			return err
		}
	}
	sleep(ctx, m.upTo(2*nodeGrace))
	m.soak.logEvent("%s is back", m.name)
	return m.boot(ctx)
}

// startAndCrash starts a pod and kills the plugin. No DEL follows.
func (m *machine) startAndCrash(ctx context.Context) error {
	p := &pod{node: m.node, name: m.soak.newName(false), made: 1000 * int(m.soak.serial.Add(1))}
	var err error
	if p.args, err = m.soak.createPod(ctx, p); err != nil {
		return err
	}
	m.pods = append(m.pods, p)
	s, err := p.newSandbox()
	if err != nil {
		return err
	}
	k := kubelet{churn: m.soak.churn, random: m.random, always: true}
	if _, err = k.add(s); err != nil {
		return err
	}
	p.sandbox = s // in any case
	return nil
}

// newDisk removes the files that plugins persist.
func newDisk() error {
	for _, dir := range []string{"/run/calico", filepath.Dir(journalPath)} {
		if err := os.RemoveAll(dir); err != nil {
			return err
		}
	}
	return nil
}

// boot creates the Node, and starts the agent.
func (m *machine) boot(ctx context.Context) error {
	if err := m.soak.createNode(ctx, m.name); err != nil {
		return err
	}
	if err := m.install(ctx); err != nil {
		return err
	}
	m.agent = duties.NewTunnel(m.soak.agents, duties.VXLAN, m.name, time.Now)
	m.tunnel, m.ticked = netip.Addr{}, time.Now() // a kubelet starts other pods before the agent's
	m.booted = time.Now()
	return m.startDaemon(ctx)
}

var serverLine = regexp.MustCompile(`server: "https://([^"]+)"`)

// apiServer returns the server of the machine's kubeconfig.
func (m *machine) apiServer() (address string, err error) {
	err = m.Try(func() error {
		text, err := os.ReadFile(kubeconfigPath)
		if err != nil {
			return err
		}
		found := serverLine.FindSubmatch(text)
		if found == nil {
			return fmt.Errorf("no server in %s", text)
		}
		address = string(found[1])
		return nil
	})
	return address, err
}

// install gives the plugins a token that is bound to the Node, as the installer does.
func (m *machine) install(ctx context.Context) error {
	token, err := m.soak.newToken(ctx, m.name, "tortie-cni")
	if err != nil {
		return err
	}
	text := m.soak.kube.kubeconfig(m.server, m.soak.kube.admin.CAData, token)
	return m.Try(func() error { return os.WriteFile(kubeconfigPath, []byte(text), 0o600) })
}

// tickInterval is how often an agent reconciles its Node.
const tickInterval = time.Second

// tick keeps the tunnel's address and its annotation on the Node, as the agent does.
func (m *machine) tick(ctx context.Context) error {
	if time.Since(m.ticked) < tickInterval {
		return nil
	}
	m.ticked = time.Now()
	n := &api.Node{Meta: api.Meta{Name: m.name}}
	if err := m.soak.store.Get(ctx, n); err != nil {
		return unlessAway(err)
	}
	if m.daemon != nil {
		m.watchDaemon(n)
		return nil
	}
	in := duties.TunnelInput{Ranges: duties.Ranges{Assign: []netip.Prefix{soakPool}}, UID: n.UID,
		Noted: n.Annotations[api.AnnotationIPv4VXLANAddr]}
	op := operation{kind: assign, handle: m.tunnelHandle(), called: m.soak.now()}
	a, err := m.agent.Address(ctx, in)
	op.completed, op.unknown = m.soak.now(), err != nil
	if err != nil {
		m.soak.history.add(op)
		return unlessAway(err)
	}
	if a != m.tunnel {
		op.addrs = []netip.Addr{a}
		m.soak.history.add(op)
		m.tunnel = a
	}
	if in.Noted == a.String() {
		return nil
	}
	return unlessAway(m.soak.annotateNode(ctx, m.name, a))
}

// unlessAway returns nil for ErrUnavailable: outages are part of the test.
func unlessAway(err error) error {
	if errors.Is(err, store.ErrUnavailable) || store.Contended(err) {
		return nil
	}
	return err
}

// settle finishes the machine's work without disturbance: each pod gets a sandbox, the journal is processed, and the
// tunnel has its address.
func (m *machine) settle(ctx context.Context) error {
	m.kubelet.noKills = true
	if len(m.pods) == 0 {
		if err := m.startPod(ctx); err != nil {
			return err
		}
	}
	for _, p := range m.pods {
		if p.sandbox == nil {
			if err := m.sandboxFor(ctx, p); err != nil {
				return err
			}
		} else if err := m.soak.reportPod(ctx, p); err != nil {
			return err
		}
	}
	if m.daemon != nil {
		if err := m.settleDaemon(ctx); err != nil {
			return err
		}
		return m.collectAll(ctx)
	}
	m.ticked = time.Time{}
	if err := m.tick(ctx); err != nil {
		return err
	}
	return m.collectAll(ctx)
}

// collectAll repeats GC until it succeeds: an API server that has just started may not know the service accounts yet.
func (m *machine) collectAll(ctx context.Context) error {
	for {
		err := m.collect()
		if err == nil || ctx.Err() != nil {
			return err
		}
		sleep(ctx, time.Second)
	}
}

// leave ends all pods of the machine.
func (m *machine) leave(ctx context.Context) error {
	for len(m.pods) > 0 {
		p := m.pods[0]
		if p.sandbox != nil {
			if err := m.kubelet.finish(ctx, p.sandbox); err != nil {
				return err
			}
		}
		if err := m.removePod(ctx, p); err != nil {
			return err
		}
	}
	for _, name := range m.ended {
		if err := m.soak.deletePod(ctx, &pod{name: name}); err != nil {
			return err
		}
	}
	m.ended = nil
	return m.collectAll(ctx)
}
