package chaos

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/tortie-net/tortie/internal/api"
	store "github.com/tortie-net/tortie/internal/datastore"
	"github.com/tortie-net/tortie/internal/plugin/facts"
	"github.com/tortie-net/tortie/internal/testkit/cnitest"
	"github.com/tortie-net/tortie/internal/testkit/labtest"
)

// agentAccount is the agent's, in the chart.
const agentAccount = "tortie-node"

// agentKubeconfig is where a machine's agent has its credentials, in no directory that is looked at for leftovers.
const agentKubeconfig = "/opt/agent-kubeconfig"

// agentFiles are what an agent keeps, beside what a node has anyway.
var agentFiles = []string{"/var/lib/calico/mtu", "/var/lib/calico/tortie/node-uid", "/run/calico/tortie/world.json"}

// daemons are the machines whose agent is a process of the real program. There the plugins find its facts, it finishes the entries of
// their journal, and the tunnel's address is its own doing. On all others it is the agent's code that keeps the address, in the test's
// process: a process for each would leave the machine of the test no time for anything else.
func daemons() []int {
	if *soakTime < time.Minute {
		return []int{5}
	}
	return []int{5, 13, 26}
}

// newDaemon gives a machine an agent of its own.
func (m *machine) newDaemon(t *testing.T, number int) {
	labtest.AsOn(t, m.soak.kube.admin, agentAccount) // it has the chart's rights from now on
	address := netip.AddrFrom4([4]byte{10, 250, 10, byte(number)})
	m.Addr(t, "eth0", address.String()+"/16")
	m.daemon = &process{name: "node of " + m.name, bin: filepath.Join(cnitest.BinDir, "node"), within: m.Try, env: []string{
		"NODENAME=" + m.name, "KUBECONFIG=" + agentKubeconfig, "NAMESPACE=kube-system", "NO_DEFAULT_POOLS=true", "CALICO_NETWORKING_BACKEND=vxlan",
		"IP=" + address.String(), "IP6=none", "LOG_LEVEL=warn", cnitest.ClockSetting(clockPath),
	}}
	m.ours = agentFiles
	m.daemon.endWith(t)
}

// startDaemon starts the agent of a machine that has one, with a token that ends with its Node.
func (m *machine) startDaemon(ctx context.Context) error {
	if m.daemon == nil {
		return nil
	}
	token, err := m.soak.newToken(ctx, m.name, agentAccount)
	if err != nil {
		return err
	}
	text := m.soak.kube.kubeconfig(m.server, m.soak.kube.admin.CAData, token)
	if err := m.Try(func() error { return os.WriteFile(agentKubeconfig, []byte(text), 0o600) }); err != nil {
		return err
	}
	return m.daemon.start()
}

// killDaemon ends the agent, if the machine has one, in the middle of whatever it does.
func (m *machine) killDaemon() error {
	if m.daemon == nil {
		return nil
	}
	m.soak.note("kills of agents")
	return m.daemon.kill()
}

// restartDaemon kills the agent and starts another.
func (m *machine) restartDaemon() error {
	m.soak.tell("kill -9 %s", m.daemon.name)
	if err := m.killDaemon(); err != nil {
		return err
	}
	return m.daemon.start()
}

// watchDaemon notes the address that the agent has told the Node: it was assigned some time since the machine has it.
func (m *machine) watchDaemon(n *api.Node) {
	a, err := netip.ParseAddr(n.Annotations[api.AnnotationIPv4VXLANAddr])
	if err != nil || a == m.tunnel {
		return
	}
	m.soak.history.add(operation{kind: assign, handle: m.tunnelHandle(), addrs: []netip.Addr{a}, called: m.soak.history.at(m.booted), completed: m.soak.now()})
	m.tunnel = a
}

// settleDaemon waits until the agent has its tunnel's address, and tells the plugins what is true.
func (m *machine) settleDaemon(ctx context.Context) error {
	for deadline := time.Now().Add(restTime); ; sleep(ctx, 300*time.Millisecond) {
		m.ticked = time.Time{}
		err := m.tick(ctx)
		if err == nil {
			err = m.settledDaemon(ctx)
		}
		if err == nil || time.Now().After(deadline) || ctx.Err() != nil {
			return err
		}
	}
}

func (m *machine) settledDaemon(ctx context.Context) error {
	if !m.tunnel.IsValid() {
		return errors.New("the agent has no address for its tunnel")
	}
	var claims api.BlockAffinityList
	if err := m.soak.store.List(ctx, &claims, store.ListOptions{Host: m.name}); err != nil {
		return err
	}
	var f *facts.Facts
	err := m.Try(func() (err error) {
		f, err = facts.Read(facts.DefaultFile, m.name, time.Now().Add(time.Duration(m.ahead.Load())))
		return err
	})
	if err != nil {
		return err
	}
	var said, want []string
	for _, a := range f.Affinities {
		said = append(said, a.Spec.CIDR+" "+string(a.Spec.State))
	}
	for _, a := range claims.Items {
		want = append(want, a.Spec.CIDR+" "+string(a.Spec.State))
	}
	slices.Sort(said)
	slices.Sort(want)
	if !f.AgentReady || !f.DatastoreReady || !slices.Equal(said, want) {
		return fmt.Errorf("the agent's facts: ready %t, datastore %t, blocks %s, which are %s", f.AgentReady, f.DatastoreReady, strings.Join(said, ", "), strings.Join(want, ", "))
	}
	return nil
}
