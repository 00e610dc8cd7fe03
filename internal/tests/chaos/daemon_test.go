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

// agentAccount is the chart's service account of the agent.
const agentAccount = "tortie-node"

// agentKubeconfig is the path of a machine's agent's kubeconfig, outside the directories that are checked for
// leftovers.
const agentKubeconfig = "/opt/agent-kubeconfig"

// agentFiles are the files that an agent persists, in addition to a node's own.
var agentFiles = []string{"/var/lib/calico/mtu", "/var/lib/calico/tortie/node-uid", "/var/lib/calico/tortie/paths.json",
	"/run/calico/tortie/world.json"}

// daemons returns the machines whose agent is a process. There the agent writes the plugins' facts, completes the
// entries of their journal, and assigns the tunnel's address. On all others the agent's code assigns the address in the
// test's process: one process per machine would use too much CPU.
func daemons() []int {
	if *soakTime < time.Minute {
		return []int{5}
	}
	return []int{5, 13, 26}
}

// newDaemon creates the agent process of a machine.
func (m *machine) newDaemon(t *testing.T, number int) {
	labtest.AsOn(t, m.soak.kube.admin, agentAccount) // creates the account and the chart's roles
	address := netip.AddrFrom4([4]byte{10, 250, 10, byte(number)})
	m.Addr(t, "eth0", address.String()+"/16")
	m.daemon = &process{name: "node of " + m.name, bin: filepath.Join(cnitest.BinDir, "node"), within: m.Try, env: []string{
		"NODENAME=" + m.name, "KUBECONFIG=" + agentKubeconfig, "NAMESPACE=kube-system", "NO_DEFAULT_POOLS=true",
		"CALICO_NETWORKING_BACKEND=vxlan",
		"IP=" + address.String(), "IP6=none", "LOG_LEVEL=warn", cnitest.ClockSetting(clockPath),
	}}
	m.ours = agentFiles
	m.daemon.endWith(t)
}

// startDaemon starts the agent process of a machine, if it has one, with a token bound to its Node.
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

// killDaemon kills the agent process, if the machine has one.
func (m *machine) killDaemon() error {
	if m.daemon == nil {
		return nil
	}
	m.soak.inc("kills of agents")
	return m.daemon.kill()
}

// restartDaemon kills the agent and starts another.
func (m *machine) restartDaemon() error {
	m.soak.logEvent("kill -9 %s", m.daemon.name)
	if err := m.killDaemon(); err != nil {
		return err
	}
	return m.daemon.start()
}

// watchDaemon records the address in the Node's annotation: it was assigned at some time since the machine booted.
func (m *machine) watchDaemon(n *api.Node) {
	a, err := netip.ParseAddr(n.Annotations[api.AnnotationIPv4VXLANAddr])
	if err != nil || a == m.tunnel {
		return
	}
	m.soak.history.add(operation{kind: assign, handle: m.tunnelHandle(), addrs: []netip.Addr{a}, called: m.soak.history.at(m.booted),
		completed: m.soak.now()})
	m.tunnel = a
}

// settleDaemon waits until the agent has its tunnel's address, and its facts are current.
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
	var have, want []string
	for _, a := range f.Affinities {
		have = append(have, a.Spec.CIDR+" "+string(a.Spec.State))
	}
	for _, a := range claims.Items {
		want = append(want, a.Spec.CIDR+" "+string(a.Spec.State))
	}
	slices.Sort(have)
	slices.Sort(want)
	if !f.AgentReady || !f.DatastoreReady || !slices.Equal(have, want) {
		return fmt.Errorf("facts: ready %t, datastore %t, blocks %s, want %s", f.AgentReady, f.DatastoreReady, strings.Join(have, ", "),
			strings.Join(want, ", "))
	}
	return nil
}
