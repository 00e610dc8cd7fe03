// The test binary is the program too, see asProgram.
//go:debug multipathtcp=0

package node

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"k8s.io/client-go/rest"

	"github.com/tortie-net/tortie/internal/agent/nodestatus"
	"github.com/tortie-net/tortie/internal/api"
	"github.com/tortie-net/tortie/internal/cluster/events"
	"github.com/tortie-net/tortie/internal/datastore/kubernetes"
	"github.com/tortie-net/tortie/internal/testkit/difftest"
	"github.com/tortie-net/tortie/internal/testkit/errtest"
	"github.com/tortie-net/tortie/internal/testkit/labstore"
	"github.com/tortie-net/tortie/internal/testkit/labtest"
	"github.com/tortie-net/tortie/internal/testkit/netnstest"
	"github.com/tortie-net/tortie/internal/testkit/waittest"
)

// asProgram in the environment makes the test binary the program itself.
const asProgram = "TORTIE_TEST_AS_PROGRAM=1"

func TestMain(m *testing.M) {
	if name, value, _ := strings.Cut(asProgram, "="); os.Getenv(name) == value {
		os.Exit(Main(os.Args[1:]))
	}
	os.Exit(m.Run())
}

// machine is a namespace that the program runs in, as the agent and as the command.
type machine struct {
	*netnstest.NS
	dir string
	env []string
}

// newMachine makes a machine that reaches the API server at its own loopback address.
func newMachine(t *testing.T, name, address string) *machine {
	t.Helper()
	dir := t.TempDir()
	m := &machine{NS: netnstest.New(t), dir: dir}
	errtest.Must(t, os.MkdirAll(filepath.Join(dir, "net/ipv4"), 0o755))
	errtest.Must(t, os.WriteFile(filepath.Join(dir, "net/ipv4/ip_forward"), []byte("0\n"), 0o644))
	m.env = []string{
		asProgram, "NODENAME=" + name, "IP=" + address,
		"KUBECONFIG=" + labtest.WriteKubeconfig(t, dir, labtest.Inside(t, m.NS, labtest.As(t, "tortie-node"))), "NO_DEFAULT_POOLS=true",
		"TORTIE_SYSCTL_ROOT=" + dir, "TORTIE_STATE_DIR=" + dir, "TORTIE_RUN_DIR=" + dir, os.Args[0],
	}
	return m
}

func (m *machine) node(t *testing.T, args ...string) string {
	t.Helper()
	return m.Run(t, "env", append(m.env[:len(m.env):len(m.env)], args...)...)
}

// create makes objects that go with the test; the API server is this test binary's own.
func create(t *testing.T, store *kubernetes.Store, objects ...api.Resource) {
	t.Helper()
	for _, obj := range objects {
		errtest.Must(t, store.Create(t.Context(), obj))
	}
}

func block(node, cidr, name string) *api.BlockAffinity {
	return &api.BlockAffinity{
		Meta: api.Meta{Name: node + "-" + name},
		Spec: api.BlockAffinitySpec{State: api.AffinityConfirmed, Node: node, CIDR: cidr, Type: api.AffinityHost},
	}
}

func aNode(name, address string) *api.Node {
	return &api.Node{Meta: api.Meta{Name: name, Annotations: map[string]string{api.AnnotationIPv4Address: address}}}
}

// Two agents and a node without one: the commands' output agrees with the sessions, the kernel and the API.
func TestCommandsOnARealNode(t *testing.T) {
	store := labstore.Store(t)
	// Of two nodes the one with the lesser address, as text, waits: "172.31.0.10" < "172.31.0.2".
	create(t, store,
		aNode("node1", "172.31.0.1/24"), aNode("node2", "172.31.0.2/24"), aNode("gone", "172.31.0.10/24"),
		&api.IPPool{Meta: api.Meta{Name: "pods"}, Spec: api.IPPoolSpec{CIDR: "10.90.0.0/16", NATOutgoing: true}},
		block("node1", "10.90.1.0/26", "10-90-1-0-26"), block("node2", "10.90.2.0/26", "10-90-2-0-26"),
		block("gone", "10.90.3.0/26", "10-90-3-0-26"))
	one, two := newMachine(t, "node1", "172.31.0.1"), newMachine(t, "node2", "172.31.0.2")
	netnstest.Cable(t, one.NS, "eth0", two.NS, "eth0")
	one.Addr(t, "eth0", "172.31.0.1/24")
	one.Addr(t, "eth0", "172.31.0.10/24") // a machine that is up, with nothing on port 179
	two.Addr(t, "eth0", "172.31.0.2/24")
	one.Start(t, "env", one.env...)
	agent := two.Start(t, "env", two.env...)

	refused := regexp.MustCompile(`(?m)^172\.31\.0\.10: TCP refused on port 179 since \d\d:\d\d:\d\d: no BGP speaker listens there`)
	learned := regexp.MustCompile(`(?m)^10\.90\.1\.0/26 +172\.31\.0\.1 +eth0 +- +node1 +BGP 172\.31\.0\.1$`)
	eventually(t, func() error {
		if peers := two.try("peers"); !refused.MatchString(peers) || !strings.Contains(peers, "Established") {
			return fmt.Errorf("peers:\n%s", peers)
		}
		if routes := two.try("routes"); !learned.MatchString(routes) || !strings.HasPrefix(routes, "3 desired, 3 programmed") {
			return fmt.Errorf("routes:\n%s", routes)
		}
		return nil
	})
	for _, command := range []string{"status", "peers", "routes"} {
		t.Logf("node %s\n%s", command, two.node(t, command))
	}
	diagnosed(t, two)
	toldOfBrokenPool(t, store)
	toldOfForeignRoute(t, two)
	remembers(t, two, agent)
	status := two.node(t, "status")
	difftest.Contains(t, status, "172.31.0.2/24 on eth0 (environment variable IP)", "10.90.2.0/26", "none: no pool encapsulates",
		"Sessions that are down:")
}

// remembers checks that the next agent knows how the sessions of the ended one ended.
func remembers(t *testing.T, m *machine, agent int) {
	t.Helper()
	failed := regexp.MustCompile(`not up, \d+ times since .*: TCP refused on port 179`)
	eventually(t, func() error {
		kept, err := os.ReadFile(filepath.Join(m.dir, "tortie/bgp-sessions.json"))
		if err != nil || !strings.Contains(string(kept), `"up":`) {
			return fmt.Errorf("%v: %s", err, kept)
		}
		return nil
	})
	errtest.Must(t, syscall.Kill(agent, syscall.SIGKILL))
	m.Start(t, "env", m.env...)
	eventually(t, func() error {
		if out := m.try("peers", "172.31.0.1"); !strings.Contains(out, "How sessions ended, the latest first:\n172.31.0.1: ") ||
			!strings.Contains(out, "this node's agent has ended") {
			return errors.New(out)
		}
		if out := m.try("peers", "172.31.0.10"); !failed.MatchString(out) {
			return errors.New(out)
		}
		var peers []nodestatus.Peer
		if err := json.Unmarshal([]byte(m.try("peers", "172.31.0.1", "-o", "json")), &peers); err != nil || len(peers[0].Ends) == 0 ||
			peers[0].Ends[0].By != "agent" {
			return fmt.Errorf("%v: %+v", err, peers)
		}
		return nil
	})
	t.Logf("node peers 172.31.0.10\n%s", m.node(t, "peers", "172.31.0.10"))
}

// diagnosed checks the findings of `node diagnose` on a node with one working peer and one that does not answer.
func diagnosed(t *testing.T, m *machine) {
	t.Helper()
	out := m.try("diagnose", "-o", "json")
	var d nodestatus.Diagnosis
	_, text, ok := strings.Cut(out, "...\n{")
	if err := json.NewDecoder(strings.NewReader("{" + text)).Decode(&d); err != nil || !ok {
		t.Fatalf("%v in\n%s", err, out)
	}
	for _, want := range []struct {
		check, about, seen string
		level              nodestatus.Level
	}{
		{"agent", "", "ready", nodestatus.OK},
		{"peer-bgp", "172.31.0.1 (node1)", "established", nodestatus.OK},
		{"peer-bgp", "172.31.0.10 (gone)", "TCP port 179 from 172.31.0.2: refused", nodestatus.Problem},
		{"peer-mtu", "172.31.0.1 (node1)", "1500 bytes arrive whole", nodestatus.OK},
		{"foreign-routes", "", "no routes into the pools", nodestatus.OK},
		{"kernel", "nf_tables", "there", nodestatus.OK},
	} {
		if !slices.ContainsFunc(d.Findings, func(f nodestatus.Finding) bool {
			return f.Check == want.check && f.About == want.about && f.Level == want.level && strings.Contains(f.Seen, want.seen)
		}) {
			t.Errorf("no finding %+v in\n%s", want, out)
		}
	}
	t.Logf("node diagnose\n%s", m.try("diagnose"))
}

// toldOfBrokenPool checks that a pool that cannot be used has one Event by its name, by the agents' own rights.
func toldOfBrokenPool(t *testing.T, store *kubernetes.Store) {
	t.Helper()
	broken := &api.IPPool{Meta: api.Meta{Name: "broken"}, Spec: api.IPPoolSpec{CIDR: "10.91.0.0/16", NodeSelector: "has("}}
	create(t, store, broken)
	defer func() {
		if err := store.Delete(t.Context(), broken); err != nil {
			t.Error(err)
		}
	}()
	waitForEvent(t, "InvalidPool", "IPPool", "broken", "spec.nodeSelector", "node1", "node2")
}

// toldOfForeignRoute puts another route in the place of one of the agent's.
func toldOfForeignRoute(t *testing.T, m *machine) {
	t.Helper()
	m.Run(t, "ip", "route", "replace", "10.90.3.0/26", "via", "172.31.0.1", "proto", "static")
	replaced := time.Now()
	waitForEvent(t, "ForeignRoute", "Node", "node2", "10.90.3.0/26", "node2")
	t.Logf("told of a foreign route after %s", time.Since(replaced).Round(time.Millisecond))
	if out := m.try("diagnose"); !strings.Contains(out, "PROBLEM  foreign-routes: 10.90.3.0/26 via 172.31.0.1 dev eth0") {
		t.Errorf("diagnose does not see it:\n%s", out)
	}
	m.Run(t, "ip", "route", "delete", "10.90.3.0/26", "proto", "static")
}

// waitForEvent waits until there is one event about an object, with a text in its message, and it is from one of these
// nodes.
func waitForEvent(t *testing.T, reason, kind, name, text string, from ...string) {
	t.Helper()
	admin := labtest.RESTConfig(t)
	client, err := rest.HTTPClientFor(admin)
	errtest.Must(t, err)
	eventually(t, func() error {
		response, err := client.Get(admin.Host + "/api/v1/namespaces/default/events?fieldSelector=involvedObject.name%3D" + name)
		if err != nil {
			return err
		}
		defer response.Body.Close()
		var list struct{ Items []events.Event }
		if err := json.NewDecoder(response.Body).Decode(&list); err != nil {
			return err
		}
		var hosts []string
		for _, e := range list.Items {
			if e.Reason == reason && e.InvolvedObject.Kind == kind && strings.Contains(e.Message, text) {
				hosts = append(hosts, e.Source.Host)
			}
		}
		if len(hosts) != 1 || !slices.Contains(from, hosts[0]) {
			return fmt.Errorf("not one event %s about %s %s of %s: %+v", reason, kind, name, from, list.Items)
		}
		return nil
	})
}

// try is node for while the agent may not answer yet.
func (m *machine) try(args ...string) string {
	var out strings.Builder
	_ = m.Do(func() error {
		cmd := exec.Command("env", append(m.env[:len(m.env):len(m.env)], args...)...)
		cmd.Stdout, cmd.Stderr = &out, &out
		return cmd.Run()
	})
	return out.String()
}

func eventually(t *testing.T, check func() error) {
	t.Helper()
	waittest.For(t, time.Minute, check)
}
