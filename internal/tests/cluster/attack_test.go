package cluster

import (
	"context"
	"encoding/json"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	utiljson "k8s.io/apimachinery/pkg/util/json"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/tortie-net/tortie/internal/agent/nodestatus"
	objectnames "github.com/tortie-net/tortie/internal/api/names"
	"github.com/tortie-net/tortie/internal/ipam/audit"
	"github.com/tortie-net/tortie/internal/ipam/inventory"
	"github.com/tortie-net/tortie/internal/testkit/errtest"
	"github.com/tortie-net/tortie/internal/testkit/labtest"
	"github.com/tortie-net/tortie/internal/testkit/meshtest"
	"github.com/tortie-net/tortie/internal/testkit/netnstest"
	"github.com/tortie-net/tortie/internal/testkit/tier"
)

// The attacker's node is the middle one of the three by name and by creation time.
const thief, victim, witness = "node1", "node2", "master"

var honest = []string{witness, victim}

// siege is a cluster in which the attacker is root on one node and has its tokens, and runs pods on another, while pods
// of the other nodes exchange traffic.
type siege struct {
	*world
	by     map[string]rest.Interface // clients: admin, and agent, plugins and kubelet with the thief's tokens
	hosts  map[string]*netnstest.NS
	pod    map[string]*meshtest.Pod // the pods with traffic, by node
	talker map[string]string        // their names
	is     map[string]*machine
	web    corev1.Pod
	// tenants are the pods of two other namespaces, by name.
	tenants map[string]*corev1.Pod

	packets meshtest.Traffic
	prober  *prober
	before  map[string][]string // routes of the honest nodes
	own     map[string]bool     // blocks and addresses to which routes may lead to the thief
	record  record
	effects string // packet loss of the pods with traffic
}

// machine is the legitimate state of a node.
type machine struct {
	address, address6, end, mac string
	blocks                      []netip.Prefix
}

// TestAttack runs all known attacks on a cluster under traffic. Each is denied by the API server or reported by a node
// other than the attacker's, no packet of others is lost, and no address changes its holder.
func TestAttack(t *testing.T) {
	tier.All(t)
	s := newSiege(t)
	for _, part := range []struct {
		name string
		run  func(*siege, *testing.T)
	}{
		{"by the API", (*siege).requests},
		{"by pods", (*siege).hostilePods},
		{"by a tenant's objects", (*siege).tenantsObjects},
		{"by annotations of its Node", (*siege).annotations},
		{"by BGP", (*siege).speaker},
	} {
		t.Run(part.name, func(t *testing.T) { part.run(s, t) })
	}
	s.verdict(t)
	s.record.write(t, s)
	s.explain(t)
}

func newSiege(t *testing.T) *siege {
	t.Helper()
	w := newWorld(t, "-ipv6", "-image", labtest.BuildImage(t, labtest.Root(), "dev"))
	w.Kubectl(t, "apply", "-f", labtest.ClusterNetworkPolicyDefinition(t))
	w.Release(t, "install", "dev",
		append(slices.Clone(dualStack), "--set", `ipPool.vxlanMode=Always,controllers.nodeSelector.kubernetes\.io/hostname=`+witness)...)
	w.rolledOut(t, "daemonset/tortie-node", "-n", "kube-system")
	w.Kubectl(t, "wait", "--for=condition=Ready", "node", "--all", "--timeout="+patience.String())
	w.exclusive(t)
	w.apply(t, "traffic.yaml")
	w.apply(t, "attack.yaml")
	w.apply(t, "tenants.yaml")
	w.ends = map[string]*meshtest.Pod{}
	s := &siege{world: w, by: map[string]rest.Interface{}, hosts: map[string]*netnstest.NS{}, pod: map[string]*meshtest.Pod{},
		talker: map[string]string{}, is: map[string]*machine{}, tenants: map[string]*corev1.Pod{}}
	w.rolledOut(t, "daemonset/traffic")
	s.web = w.readyPods(t, "attacked", 1)[0]
	w.readyPods(t, "hostile", 2)
	for _, namespace := range []string{"team", "tenant"} {
		w.Kubectl(t, "wait", "pod", "--all", "--namespace", namespace, "--for=condition=Ready", "--timeout="+patience.String())
		for _, p := range w.podsOf(t, namespace, "") {
			s.tenants[p.Name] = &p
			s.inside(t, &p) // for all parts
		}
	}
	for _, p := range w.readyPods(t, "traffic", len(nodes)) {
		s.pod[p.Spec.NodeName], s.talker[p.Spec.NodeName] = s.both(t, &p), p.Name
	}
	for _, node := range nodes {
		s.hosts[node] = w.Node(t, node)
	}
	s.steal(t)
	s.learn(t)
	s.settled(t)
	s.before = s.allRoutes(t)
	s.packets = meshtest.StartTraffic(t, s.pod[witness], s.pod[victim])
	s.prober = s.ask(t)
	return s
}

// both opens a pod's network namespace, with its addresses of both families.
func (s *siege) both(t *testing.T, p *corev1.Pod) *meshtest.Pod {
	t.Helper()
	end := s.inside(t, p)
	end.V6 = netip.MustParseAddr(p.Status.PodIPs[1].IP)
	return end
}

// steal reads the tokens from the files of the thief's node.
func (s *siege) steal(t *testing.T) {
	t.Helper()
	agent := s.agents(t)[thief]
	cfg := s.RESTConfig(t)
	kubeconfig := func(path string) string {
		c, err := clientcmd.Load([]byte(s.On(t, thief, "cat "+path)))
		errtest.Must(t, err)
		for _, info := range c.AuthInfos {
			return info.Token
		}
		return ""
	}
	for who, token := range map[string]string{
		"admin":   cfg.BearerToken,
		"agent":   s.On(t, thief, fmt.Sprintf("cat /var/lib/kubelet/pods/%s/volumes/kubernetes.io~projected/*/token", agent.UID)),
		"plugins": kubeconfig("/etc/cni/net.d/calico-kubeconfig"),
		"kubelet": kubeconfig("/lab/state/kubeconfig"),
	} {
		s.by[who] = client(t, cfg, token)
	}
}

// learn reads the state of each node before the attacks.
func (s *siege) learn(t *testing.T) {
	t.Helper()
	for _, node := range nodes {
		n := s.get(t, "/api/v1/nodes/"+node)
		notes := field[map[string]any](n, "metadata", "annotations")
		text := func(key string) string { v, _ := notes["projectcalico.org/"+key].(string); return v }
		address, _, _ := strings.Cut(text("IPv4Address"), "/")
		address6, _, _ := strings.Cut(text("IPv6Address"), "/")
		s.is[node] = &machine{address: address, address6: address6, end: text("IPv4VXLANTunnelAddr")}
		s.is[node].mac = strings.Fields(s.hosts[node].Run(t, "ip", "-o", "link", "show", "vxlan.calico"))[16]
	}
	for _, item := range field[[]any](s.get(t, crd+"blockaffinities"), "items") {
		spec := item.(map[string]any)["spec"].(map[string]any)
		if m := s.is[spec["node"].(string)]; m != nil {
			m.blocks = append(m.blocks, netip.MustParsePrefix(spec["cidr"].(string)))
		}
	}
	s.own = map[string]bool{}
	at := s.is[thief]
	for _, what := range append([]string{at.end, at.mac}, texts(at.blocks)...) {
		s.own[what] = true
	}
}

func texts[T fmt.Stringer](values []T) (all []string) {
	for _, v := range values {
		all = append(all, v.String())
	}
	return all
}

// block returns a node's first IPv4 block.
func (s *siege) block(node string) netip.Prefix {
	i := slices.IndexFunc(s.is[node].blocks, func(b netip.Prefix) bool { return b.Addr().Is4() })
	return s.is[node].blocks[i]
}

// settled waits until the honest nodes have a session with every other node, and routes to all blocks and nothing else:
// an address is announced by itself until the announcing node has seen that the block is its own.
func (s *siege) settled(t *testing.T) {
	t.Helper()
	meshtest.Within(t, time.Minute, func() error {
		for _, node := range honest {
			status, err := s.status(node)
			if err != nil {
				return err
			}
			for _, p := range status.Peers {
				if p.State != "Established" || !p.EndOfTable {
					return fmt.Errorf("session of %s with %s is %s", node, p.Node, p.State)
				}
			}
			if len(status.Peers) < 4 || status.Routes.Desired != status.Routes.Programmed {
				return fmt.Errorf("%s is not settled: %d peers, %q", node, len(status.Peers), status.Problems)
			}
		}
		for node, routes := range s.allRoutes(t) {
			for _, route := range routes {
				to, rest, _ := strings.Cut(route, " ")
				if _, err := netip.ParseAddr(to); err == nil && strings.HasPrefix(rest, "via ") {
					return fmt.Errorf("%s still has the route %s", node, route)
				}
			}
		}
		return nil
	})
}

// allRoutes returns routes, neighbour entries of tunnels and forwarding database entries of the honest nodes.
func (s *siege) allRoutes(t *testing.T) map[string][]string {
	t.Helper()
	all := map[string][]string{}
	for _, node := range honest {
		for _, args := range [][]string{
			{"ip", "-4", "route"}, {"ip", "-6", "route", "show", "proto", "84"}, {"ip", "neigh", "show", "dev", "vxlan.calico"},
			{"bridge", "fdb", "show", "dev", "vxlan.calico"},
		} {
			for line := range strings.Lines(s.hosts[node].Run(t, args[0], args[1:]...)) {
				if what := strings.Fields(line); len(what) > 0 && !s.own[what[0]] && !strings.Contains(line, " dev cali") {
					all[node] = append(all[node], strings.Join(what, " "))
				}
			}
		}
		slices.Sort(all[node])
	}
	return all
}

// inVain fails the test unless the honest nodes have their original routes, and their sessions with each other.
func (s *siege) inVain(t *testing.T) {
	t.Helper()
	now := s.allRoutes(t)
	for _, node := range honest {
		if !slices.Equal(now[node], s.before[node]) {
			t.Errorf("routes of %s are now\n%s\nwere\n%s", node, strings.Join(now[node], "\n"), strings.Join(s.before[node], "\n"))
		}
		status, err := s.status(node)
		if err != nil {
			t.Error(err)
		}
		for _, p := range status.Peers {
			if slices.Contains(honest, p.Node) && p.State != "Established" {
				t.Errorf("session of %s with %s is %s: %s", node, p.Node, p.State, p.LastError)
			}
		}
	}
}

// status returns an agent's status report.
func (s *siege) status(node string) (r nodestatus.Report, err error) {
	body, err := s.ofAgent(node, "/status")
	if err == nil {
		err = json.Unmarshal([]byte(body), &r)
	}
	return r, err
}

func (s *siege) ofAgent(node, path string) (string, error) {
	return page(context.Background(), s.hosts[node], "127.0.0.1:9099", path)
}

// metric returns the value of a metric of an agent, 0 if it is missing.
func (s *siege) metric(t *testing.T, node, name string) (value float64) {
	t.Helper()
	body, err := s.ofAgent(node, "/metrics")
	errtest.Must(t, err)
	for line := range strings.Lines(body) {
		if rest, ok := strings.CutPrefix(line, name+" "); ok {
			fmt.Sscan(rest, &value)
		}
	}
	return value
}

// dropped returns the name of the guard's drop counter for a reason.
func dropped(reason string) string {
	return `tortie_guard_dropped_packets_total{reason="` + reason + `"}`
}

// counted runs do and waits until a metric of a node has increased.
func (s *siege) counted(t *testing.T, node, metric string, do func()) string {
	t.Helper()
	was := s.metric(t, node, metric)
	do()
	meshtest.Eventually(t, func() error {
		if now := s.metric(t, node, metric); now <= was {
			return fmt.Errorf("%s of %s is %v", metric, node, now)
		}
		return nil
	})
	return fmt.Sprintf("%s: `%s`", node, metric)
}

// reported waits until the witness reports a problem that contains words, and an honest node an Event.
func (s *siege) reported(t *testing.T, words string) (problem, seen string) {
	t.Helper()
	meshtest.Within(t, time.Minute, func() error {
		status, err := s.status(witness)
		if err != nil {
			return err
		}
		i := slices.IndexFunc(status.Problems, func(p string) bool { return strings.Contains(p, words) })
		if i < 0 {
			return fmt.Errorf("%s reports %q, want a problem with %q", witness, status.Problems, words)
		}
		problem = status.Problems[i]
		return nil
	})
	return problem, fmt.Sprintf("%s: `node status`; Event %s", witness, s.event(t, "", words))
}

// event waits for an Event from an honest node with this reason, if one is given, that contains words or is about the
// Node with this name.
func (s *siege) event(t *testing.T, want, words string) (reason string) {
	t.Helper()
	meshtest.Within(t, time.Minute, func() error {
		list, err := s.client.CoreV1().Events(metav1.NamespaceDefault).List(t.Context(), metav1.ListOptions{})
		if err != nil {
			return err
		}
		for _, e := range list.Items {
			said := strings.Contains(e.Message, words) || e.InvolvedObject.Name == words
			if e.ReportingController == "tortie-node" && slices.Contains(honest, e.ReportingInstance) && said && strings.Contains(e.Reason, want) {
				reason = e.Reason
				return nil
			}
		}
		return fmt.Errorf("no Event %s contains %q", want, words)
	})
	return reason
}

// prober requests a page of a Service from a pod of the witness, repeatedly.
type prober struct {
	stop         context.CancelFunc
	done         sync.WaitGroup
	sent, failed int
	last         error
}

func (s *siege) ask(t *testing.T) *prober {
	t.Helper()
	service, err := s.client.CoreV1().Services(namespace).Get(t.Context(), "attacked", metav1.GetOptions{})
	errtest.Must(t, err)
	address := service.Spec.ClusterIP + ":80"
	serves(t, s.pod[witness].NS, address, "web")
	ctx, cancel := context.WithCancel(context.Background())
	t.Cleanup(cancel)
	a := &prober{stop: cancel}
	a.done.Go(func() {
		for tick := time.Tick(50 * time.Millisecond); ctx.Err() == nil; <-tick {
			page, err := get(context.WithoutCancel(ctx), s.pod[witness].NS, address)
			if a.sent++; err != nil || page != "web" {
				a.failed++
				a.last = fmt.Errorf("%q, %w", page, err)
			}
		}
	})
	return a
}

// verdict ends the traffic and checks for packet loss, findings of the audit, and the owners of the blocks.
func (s *siege) verdict(t *testing.T) {
	t.Helper()
	for _, c := range s.packets.Intact(t) {
		said, _, _ := strings.Cut(c.String(), ", 0 dropped")
		s.effects += fmt.Sprintf("- %s\n", s.named(said))
	}
	s.prober.stop()
	s.prober.done.Wait()
	s.effects += fmt.Sprintf("- Connections from master to the Service of a pod on node2: %d, %d failed\n", s.prober.sent, s.prober.failed)
	if s.prober.failed > 0 || s.prober.sent < 100 {
		t.Errorf("of %d connections to the Service %d failed: %v", s.prober.sent, s.prober.failed, s.prober.last)
	}
	for _, f := range s.findings(t) {
		if f.Grade > audit.Note && f.Node != thief && !strings.Contains(f.Object, thief) {
			t.Errorf("%s %s: %s", f.Kind, f.Object, f.Detail)
		}
	}
	for _, node := range []string{witness, victim} {
		b := s.ofBlock(t, s.block(node))
		if got := field[string](b, "spec", "affinity"); got != objectnames.HostAffinity(node) {
			t.Errorf("the block of %s belongs to %q", node, got)
		}
	}
}

// findings returns the findings of `ipam check`.
func (s *siege) findings(t *testing.T) []audit.Finding {
	t.Helper()
	view, err := inventory.Read(t.Context(), inventory.Source{IPAM: s.store, Cluster: s.store}, time.Now)
	errtest.Must(t, err)
	return audit.Check(&view)
}

// ofBlock returns the IPAMBlock of a CIDR.
func (s *siege) ofBlock(t *testing.T, b netip.Prefix) map[string]any {
	t.Helper()
	return s.get(t, crd+"ipamblocks/"+objectnames.Block(b))
}

// field returns a nested value of an object, or zero.
func field[T any](obj map[string]any, path ...string) (value T) {
	var at any = obj
	for _, p := range path {
		m, _ := at.(map[string]any)
		at = m[p]
	}
	value, _ = at.(T)
	return value
}

// get reads an object with administrator rights.
func (s *siege) get(t *testing.T, path string) (obj map[string]any) {
	t.Helper()
	body, err := s.by["admin"].Get().AbsPath(labtest.InGroupText(t, path)).Do(t.Context()).Raw()
	if err == nil {
		err = utiljson.Unmarshal(body, &obj) // keeps integers exact: sequence numbers have 19 digits
	}
	errtest.Must(t, err)
	return obj
}
