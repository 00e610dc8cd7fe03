package agent

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"net/netip"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"k8s.io/client-go/rest"

	"github.com/tortie-net/tortie/internal/api"
	"github.com/tortie-net/tortie/internal/api/groups"
	"github.com/tortie-net/tortie/internal/api/names"
	"github.com/tortie-net/tortie/internal/app/config"
	"github.com/tortie-net/tortie/internal/app/nodeaddr"
	"github.com/tortie-net/tortie/internal/bgp"
	"github.com/tortie-net/tortie/internal/cluster"
	"github.com/tortie-net/tortie/internal/datastore/kubernetes"
	"github.com/tortie-net/tortie/internal/kernel/flowtable"
	"github.com/tortie-net/tortie/internal/kernel/guard"
	"github.com/tortie-net/tortie/internal/kernel/ipip"
	"github.com/tortie-net/tortie/internal/kernel/nat"
	"github.com/tortie-net/tortie/internal/kernel/nft"
	"github.com/tortie-net/tortie/internal/kernel/routes"
	"github.com/tortie-net/tortie/internal/kernel/vxlan"
	"github.com/tortie-net/tortie/internal/kernel/wireguard"
	"github.com/tortie-net/tortie/internal/testkit/errtest"
	"github.com/tortie-net/tortie/internal/testkit/labstore"
	"github.com/tortie-net/tortie/internal/testkit/labtest"
	"github.com/tortie-net/tortie/internal/testkit/netnstest"
	"github.com/tortie-net/tortie/internal/testkit/waittest"
)

// peers replaces the BGP speaker: it records what the agent sets, and returns the paths that the test sets with tell.
// The speaker itself has tests with real sessions, in internal/bgp.
type peers struct {
	mu         sync.Mutex
	local      bgp.Local
	sessions   []bgp.Peer
	originated []bgp.Path
	learned    []bgp.Path
	down       bool
	stopped    bgp.Mode
	dirty      chan struct{}
	asked      time.Time // when the agent first read the peers after tell; zero: not yet
	judge      bgp.Judge // the last one
	judges     int       // how often it differed from the one before
	ends       *bgp.Ends
}

func newPeers() *peers {
	return &peers{dirty: make(chan struct{}, 1), stopped: -1, ends: bgp.NewEnds(time.Now)}
}

func (p *peers) Ends() *bgp.Ends { return p.ends }

func (p *peers) tell(down bool, learned ...bgp.Path) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.down, p.learned, p.asked = down, learned, time.Time{}
	select {
	case p.dirty <- struct{}{}:
	default:
	}
}

func (p *peers) Start(_ context.Context, l bgp.Local) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.local = l
	return nil
}

func (p *peers) SetPeers(_ context.Context, s []bgp.Peer) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.sessions = s
	return nil
}

func (p *peers) SetOriginated(_ context.Context, paths []bgp.Path) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.originated = paths
	return nil
}

func (p *peers) Snapshot(_ context.Context, judge bgp.Judge) (paths []bgp.Path, refused []bgp.Objection, err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !reflect.DeepEqual(judge, p.judge) {
		p.judge = judge
		p.judges++
	}
	for _, path := range p.learned {
		if o := judge.Objection(path); o.Why != "" {
			refused = append(refused, o)
		} else {
			paths = append(paths, path)
		}
	}
	return paths, refused, nil
}

func (p *peers) SetLocal(context.Context, bgp.Local) error { return nil }

func (p *peers) SetPolicy(context.Context, bgp.Policy) error { return nil }

func (p *peers) Traffic() map[netip.Addr]bgp.Traffic { return nil }

func (p *peers) Totals() bgp.Totals { return bgp.Totals{} }

func (p *peers) Told() []netip.Prefix { return nil }

func (p *peers) Peers(context.Context) ([]bgp.PeerStatus, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.asked.IsZero() {
		p.asked = time.Now()
	}
	var all []bgp.PeerStatus
	for _, s := range p.sessions {
		state := bgp.Established
		if p.down {
			state = bgp.Active
		}
		all = append(all, bgp.PeerStatus{Addr: s.Addr, ASN: s.ASN, State: state})
	}
	return all, nil
}

// heard reports whether a pass that read the last tell has ended.
func (p *peers) heard(s *Status) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return !p.asked.IsZero() && s.Report().LastPass.After(p.asked)
}

// otherJudges returns how often the agent's judge differed from the one before.
func (p *peers) otherJudges() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.judges
}

func (p *peers) Dirty() <-chan struct{}        { return p.dirty }
func (p *peers) Healthy(context.Context) error { return nil }

func (p *peers) Stop(_ context.Context, mode bgp.Mode) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.stopped = mode
	return nil
}

// rig is a node: a real kernel namespace and a real API server around an agent.
type rig struct {
	store    *kubernetes.Store
	ns, far  *netnstest.NS // far is at the other end of eth0
	stateDir string
	runDir   string
	sysctls  string
	// api is the agent's connection to the API server, with the rights from the chart.
	api *rest.Config
	// group is the agent's API group; nil: labtest.Current.
	group *groups.Current
	// pods is Deps.Pods.
	pods *cluster.PolicyFeed
	// configure changes the agent's configuration; nil leaves it.
	configure func(*config.Node)
}

const (
	rigNode  = "rig-node"
	rigOther = "rig-other"
)

func newRig(t *testing.T) *rig {
	return newRigAt(t, labstore.Store(t), labtest.As(t, "tortie-node"))
}

// newRigAt is newRig with another API server than the shared one.
func newRigAt(t *testing.T, store *kubernetes.Store, agent *rest.Config) *rig {
	r := &rig{
		store: store, ns: netnstest.New(t), far: netnstest.New(t), stateDir: t.TempDir(), runDir: t.TempDir(), sysctls: t.TempDir(),
		api: agent,
	}
	netnstest.Cable(t, r.ns, "eth0", r.far, "eth0")
	r.ns.Addr(t, "eth0", "172.31.0.1/24")
	// The parameters of the namespace belong to the thread that writes them, and the agent's threads are not in it.
	errtest.Must(t, os.MkdirAll(filepath.Join(r.sysctls, "net/ipv4"), 0o755))
	errtest.Must(t, os.WriteFile(filepath.Join(r.sysctls, "net/ipv4/ip_forward"), []byte("0\n"), 0o644))
	r.node(t, rigNode, "172.31.0.1", nil)
	r.node(t, rigOther, "172.31.0.2", map[string]string{api.AnnotationIPv4Address: "172.31.0.2/24"})
	labstore.Make(t, r.store, &api.IPPool{Meta: api.Meta{Name: "rig"}, Spec: api.IPPoolSpec{CIDR: "10.90.0.0/16", NATOutgoing: true}})
	labstore.Forget(t, r.store, &api.ClusterInformation{Meta: api.Meta{Name: api.DefaultName}})
	labstore.Forget(t, r.store, &api.IPAMConfig{Meta: api.Meta{Name: api.DefaultName}})
	return r
}

func (r *rig) node(t *testing.T, name, ip string, annotations map[string]string) {
	t.Helper()
	n := &api.Node{Meta: api.Meta{Name: name, Annotations: annotations}}
	labstore.Make(t, r.store, n)
	patch := kubernetes.Patch{Status: map[string]any{"addresses": []api.NodeAddress{{Type: "InternalIP", Address: ip}}}}
	errtest.Must(t, r.store.PatchStatus(t.Context(), n, patch, false))
}

func (r *rig) affinity(t *testing.T, node, cidr, name string) *api.BlockAffinity {
	t.Helper()
	a := &api.BlockAffinity{
		// With its labels, or the agent writes them.
		Meta: api.Meta{Name: name, Labels: names.AffinityLabels(node, api.AffinityHost, netip.MustParsePrefix(cidr))},
		Spec: api.BlockAffinitySpec{State: api.AffinityConfirmed, Node: node, CIDR: cidr, Type: api.AffinityHost},
	}
	labstore.Make(t, r.store, a)
	return a
}

// lent makes the record of block 10.90.7.0/26, which assigns 10.90.7.7 to a pod of a node.
func (r *rig) lent(t *testing.T, node string) {
	t.Helper()
	first := 0
	spec := api.IPAMBlockSpec{
		CIDR: "10.90.7.0/26", Allocations: make([]*int, 64), Unallocated: []int{},
		Attributes: []api.AllocationAttribute{{Secondary: map[string]string{"node": node}}},
	}
	spec.Allocations[7] = &first
	labstore.Make(t, r.store, &api.IPAMBlock{Meta: api.Meta{Name: "10-90-7-0-26"}, Spec: spec})
}

// agent runs an agent until the returned function is called.
func (r *rig) agent(t *testing.T, speaker bgp.Speaker) (status *Status, stop func()) {
	t.Helper()
	log := slog.New(slog.NewTextHandler(t.Output(), nil))
	server := cluster.Server{Config: r.api, Group: cmp.Or(r.group, labtest.Current(t))}
	watch, err := cluster.NewWatch(server, rigNode, "kube-system", log)
	errtest.Must(t, err)
	store, err := cluster.OpenStore(server)
	errtest.Must(t, err)
	status = NewStatus(rigNode, time.Now(), speaker.Healthy)
	table := nft.New(r.ns.Conn.Namespace())
	cfg := config.Node{
		Nodename: rigNode, Addresses: config.Addresses{V4: config.Address{Setting: nodeaddr.Setting{Mode: nodeaddr.Detect}}},
		ClusterType: []string{"k8s"}, SysctlRoot: r.sysctls, StateDir: r.stateDir, RunDir: r.runDir, RouteProtocol: int(routes.DefaultProtocol),
	}
	if r.configure != nil {
		r.configure(&cfg)
	}
	a := NewAgent(Deps{
		Config: cfg,
		Log:    log, Store: store, Watch: watch, Speaker: speaker, Status: status, Pods: r.pods,
		Dataplane: Dataplane{
			Kernel: r.ns.Conn, FIB: routes.New(r.ns.Conn, routes.Options{}), Encap: ipip.New(r.ns.Conn), VXLAN: vxlan.New(r.ns.Conn),
			WireGuard: wireguard.New(r.ns.Conn, routes.DefaultProtocol, nil), NFT: table, NAT: nat.New(table), Guard: guard.New(table),
			Flowtable: flowtable.New(r.ns.Conn.Namespace()),
		},
	})
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- a.Run(ctx) }()
	stop = sync.OnceFunc(func() {
		cancel()
		if err := <-ended; err != nil {
			t.Errorf("the agent ended with %v", err)
		}
	})
	t.Cleanup(stop)
	return status, stop
}

// watched returns the parts of an agent, once everything has been listed: a test has it do at once what the agent's own
// does in time.
func (r *rig) watched(t *testing.T) (*cluster.Watch, *kubernetes.Store, *slog.Logger) {
	t.Helper()
	log := slog.New(slog.NewTextHandler(t.Output(), nil))
	watch, err := cluster.NewWatch(cluster.Server{Config: r.api, Group: labtest.Current(t)}, rigNode, "kube-system", log)
	errtest.Must(t, err)
	store, err := cluster.OpenStore(cluster.Server{Config: r.api, Group: labtest.Current(t)})
	errtest.Must(t, err)
	ctx, cancel := context.WithCancel(t.Context())
	var watching sync.WaitGroup
	watching.Go(func() { _ = watch.Run(ctx) })
	t.Cleanup(func() { cancel(); watching.Wait() })
	errtest.Must(t, watch.WaitForSync(ctx, log))
	return watch, store, log
}

func (r *rig) routes(t *testing.T) string {
	return strings.Join(strings.Fields(r.ns.Run(t, "ip", "route", "show", "proto", "84")), " ")
}

func (r *rig) has(t *testing.T, route string) func() bool {
	return func() bool { return strings.Contains(r.routes(t), route) }
}

const toOther = "10.90.2.0/26 via 172.31.0.2 dev eth0"

func TestAgentBringsUpANode(t *testing.T) {
	r := newRig(t)
	r.affinity(t, rigNode, "10.90.1.0/26", "rig-node-10-90-1-0-26")
	r.affinity(t, rigOther, "10.90.2.0/26", "rig-other-10-90-2-0-26")
	speaker := newPeers()
	status, stop := r.agent(t, speaker)
	waittest.Until(t, 20*time.Second, "ready", func() bool { return status.Report().Ready })
	waittest.Until(t, time.Second, "routes", r.has(t, toOther))
	if !r.has(t, "unreachable 10.90.1.0/26")() {
		t.Errorf("routes: %s", r.routes(t))
	}

	node := &api.Node{Meta: api.Meta{Name: rigNode}}
	errtest.Must(t, r.store.Get(t.Context(), node))
	if got := node.Annotations[api.AnnotationIPv4Address]; got != "172.31.0.1/24" {
		t.Errorf("announced address %q", got)
	}
	if !slices.ContainsFunc(node.Status.Conditions,
		func(c api.NodeCondition) bool { return c.Type == api.NetworkUnavailable && c.Status == "False" }) {
		t.Errorf("conditions %+v", node.Status.Conditions)
	}
	for name, want := range map[string]string{"nodename": rigNode, "mtu": "1500"} {
		if got, err := os.ReadFile(filepath.Join(r.stateDir, name)); err != nil || string(got) != want {
			t.Errorf("file %s holds %q, %v; want %q", name, got, err, want)
		}
	}
	if got, _ := os.ReadFile(filepath.Join(r.sysctls, "net/ipv4/ip_forward")); string(got) != "1" && string(got) != "1\n" {
		t.Errorf("ip_forward is %q", got)
	}
	if table := r.ns.Run(t, "nft", "list", "table", "inet", "tortie"); !strings.Contains(table, "10.90.0.0/16") ||
		!strings.Contains(table, "masquerade") {
		t.Errorf("table: %s", table)
	}
	speaker.mu.Lock()
	if len(speaker.sessions) != 1 || speaker.sessions[0].Addr != netip.MustParseAddr("172.31.0.2") || speaker.local.Restarting {
		t.Errorf("BGP: %+v, sessions %+v", speaker.local, speaker.sessions)
	}
	if want := []bgp.Path{{Prefix: prefix("10.90.1.0/26")}}; !slices.Equal(speaker.originated, want) {
		t.Errorf("originated %v, want %v", speaker.originated, want)
	}
	speaker.mu.Unlock()

	before := r.routes(t)
	stop()
	if after := r.routes(t); after != before || speaker.stopped != bgp.Exit {
		t.Errorf("the agent took something with it: BGP mode %v, routes before %q, after %q", speaker.stopped, before, after)
	}
}

func TestAgentRepairsFollowsAndKeeps(t *testing.T) {
	r := newRig(t)
	other := r.affinity(t, rigOther, "10.90.2.0/26", "rig-other-10-90-2-0-26")
	speaker := newPeers()
	status, _ := r.agent(t, speaker)
	waittest.Until(t, 20*time.Second, "ready", func() bool { return status.Report().Ready })
	waittest.Until(t, time.Second, "the route", r.has(t, toOther))

	r.ns.Run(t, "ip", "route", "delete", "10.90.2.0/26")
	waittest.Until(t, time.Second, "a route that was removed by hand is back", r.has(t, toOther))

	// An address that the other node borrowed comes by BGP alone, and goes with it.
	r.lent(t, rigOther)
	borrowed := bgp.Path{Prefix: prefix("10.90.7.7/32"), NextHop: addr("172.31.0.2")}
	speaker.tell(false, borrowed)
	waittest.Until(t, soon, "the borrowed address", r.has(t, "10.90.7.7 via 172.31.0.2"))

	// A path that BGP no longer has goes, once a starting agent has waited for the tables.
	speaker.tell(false)
	waittest.Until(t, 3*settleTime, "the borrowed address is gone", func() bool { return !r.has(t, "10.90.7.7")() })

	speaker.tell(false, borrowed)
	waittest.Until(t, soon, "the borrowed address again", r.has(t, "10.90.7.7 via 172.31.0.2"))

	// With more paths the judge is equal, so the speaker has only the new ones judged.
	judges := speaker.otherJudges()
	speaker.tell(false, borrowed, bgp.Path{Prefix: prefix("10.90.2.0/26"), NextHop: addr("172.31.0.2")})
	waittest.Until(t, soon, "a pass that read another path", func() bool { return speaker.heard(status) })
	if n := speaker.otherJudges(); n != judges {
		t.Errorf("%d other judges, although nothing has changed by which paths are judged", n-judges)
	}

	// The start is over, so a pass without an event of BGP uses the paths of the last one. A pod of this node gets the
	// address, and loses it again.
	r.ns.Run(t, "ip", "link", "add", "cali1", "type", "veth", "peer", "name", "pod1")
	r.ns.Run(t, "ip", "link", "set", "cali1", "addrgenmode", "none", "up") // for another subnet the agent reads the paths again
	r.ns.Run(t, "ip", "link", "set", "pod1", "addrgenmode", "none", "up")
	r.ns.Run(t, "ip", "route", "add", "10.90.7.7/32", "dev", "cali1", "proto", "boot", "scope", "link", "metric", "7")
	waittest.Until(t, soon, "the path to a pod's address is refused", func() bool { return !r.has(t, "10.90.7.7 via 172.31.0.2")() })
	waittest.Until(t, soon, "the reason is shown", func() bool {
		return slices.ContainsFunc(status.Report().Problems,
			func(p string) bool { return strings.Contains(p, "a pod on this node has the address") })
	})
	r.ns.Run(t, "ip", "link", "delete", "cali1")
	waittest.Until(t, soon, "the borrowed address is back", r.has(t, "10.90.7.7 via 172.31.0.2"))
	speaker.tell(false)
	waittest.Until(t, soon, "the borrowed address is gone again", func() bool { return !r.has(t, "10.90.7.7")() })

	// The session is lost: the affinity's route stays.
	speaker.tell(true)
	waittest.Until(t, soon, "a pass that read the loss", func() bool { return speaker.heard(status) })
	if !r.has(t, toOther)() {
		t.Errorf("the lost session took the owner's route: %s", r.routes(t))
	}
	if !status.Report().Ready {
		t.Error("a dead peer made the node unready")
	}

	// A broken pool is named, and everything else goes on. No definition rejects an invalid selector.
	labstore.Make(t, r.store,
		&api.IPPool{Meta: api.Meta{Name: "rig-broken"}, Spec: api.IPPoolSpec{CIDR: "10.91.0.0/16", NodeSelector: "has("}})
	waittest.Until(t, soon, "the problem is shown", func() bool {
		return slices.ContainsFunc(status.Report().Problems, func(p string) bool { return strings.Contains(p, "rig-broken") })
	})
	if !r.has(t, toOther)() || !status.Report().Ready {
		t.Errorf("a broken pool did harm: %s", r.routes(t))
	}

	errtest.Must(t, r.store.Delete(t.Context(), other))
	waittest.Until(t, soon, "the route goes with the affinity", func() bool { return !r.has(t, toOther)() })
}

// lentRig has an agent that knows another node's block, and an address of that node in a third block.
func lentRig(t *testing.T) (r *rig, speaker *peers, status *Status, stop func()) {
	t.Helper()
	r = newRig(t)
	r.affinity(t, rigOther, "10.90.2.0/26", "rig-other-10-90-2-0-26")
	r.lent(t, rigOther)
	speaker = newPeers()
	speaker.tell(false, bgp.Path{Prefix: prefix("10.90.7.7/32"), NextHop: addr("172.31.0.2")})
	status, stop = r.agent(t, speaker)
	waittest.Until(t, 20*time.Second, "ready", func() bool { return status.Report().Ready })
	waittest.Until(t, soon, "both routes", func() bool { return r.has(t, toOther)() && r.has(t, "10.90.7.7")() })
	return r, speaker, status, stop
}

// settles starts BGP again without the borrowed address of lentRig: its route goes, and no other.
func (r *rig) settles(t *testing.T, speaker *peers) {
	t.Helper()
	speaker.tell(false)
	waittest.Until(t, 3*settleTime, "what nobody announces any more goes", func() bool { return !r.has(t, "10.90.7.7")() })
	if !r.has(t, toOther)() {
		t.Errorf("routes: %s", r.routes(t))
	}
}

func TestAgentRestartChangesNothing(t *testing.T) {
	r, _, _, stop := lentRig(t)
	stop()

	changes := r.ns.Changes(t)
	second := newPeers()
	second.tell(true) // no session yet: BGP knows nothing
	status, _ := r.agent(t, second)
	waittest.Until(t, 20*time.Second, "ready again", func() bool { return status.Report().Ready })
	passes := status.Report().LastPass
	second.tell(true)
	waittest.Until(t, soon, "another pass", func() bool { return status.Report().LastPass.After(passes) })
	if n := changes(); n > 0 {
		t.Errorf("the next agent made %d changes; now %s", n, r.routes(t))
	}
	if !r.has(t, "10.90.7.7")() || !second.local.Restarting {
		t.Errorf("routes %s, BGP told of a restart: %v", r.routes(t), second.local.Restarting)
	}
	r.settles(t, second)
}

// Routes through routers that an earlier agent has left are not replaced by routes to the blocks' owners until BGP has
// had time to announce them.
func TestAgentRestartKeepsRouters(t *testing.T) {
	r := newRig(t)
	r.affinity(t, rigOther, "10.90.2.0/26", "rig-other-10-90-2-0-26")
	r.affinity(t, rigOther, "10.90.3.0/26", "rig-other-10-90-3-0-26")
	labstore.Make(t, r.store, &api.BGPPeer{Meta: api.Meta{Name: "rig-router"}, Spec: api.BGPPeerSpec{PeerIP: "172.31.0.9", ASNumber: 65000}})
	const numbered, unnumbered = "10.90.2.0/26 via 172.31.0.9", "10.90.3.0/26 via inet6 fe80::9"
	for _, route := range []string{numbered, unnumbered} {
		r.ns.Run(t, "ip", append([]string{"route", "add", "proto", "84", "dev", "eth0"}, strings.Fields(route)...)...)
	}
	speaker := newPeers()
	speaker.tell(true) // no session yet
	status, _ := r.agent(t, speaker)
	waittest.Until(t, 20*time.Second, "ready", func() bool { return status.Report().Ready })
	if !r.has(t, numbered)() || !r.has(t, unnumbered)() {
		t.Errorf("the agent replaced routes by routers: %s", r.routes(t))
	}
	speaker.tell(false)
	waittest.Until(t, 3*settleTime, "what BGP does not announce leads to the owner", func() bool {
		return r.has(t, toOther)() && r.has(t, "10.90.3.0/26 via 172.31.0.2")()
	})
}

// With another AS number the agent starts BGP anew. Routes stay until the peers have sent their tables, as at the start
// of an agent.
func TestAnotherASNumberKeepsRoutes(t *testing.T) {
	r, speaker, status, _ := lentRig(t)

	changes := r.ns.Changes(t)
	node := &api.Node{Meta: api.Meta{Name: rigNode}}
	for _, asn := range []uint32{64999, 64513} {
		speaker.tell(true) // no session: BGP knows nothing
		text := fmt.Sprint(asn)
		patch := kubernetes.Patch{Metadata: kubernetes.PatchMeta{Annotations: map[string]*string{api.AnnotationASNumber: &text}}}
		errtest.Must(t, r.store.PatchStatus(t.Context(), node, patch, false))
		waittest.Until(t, soon, "BGP has the AS number", func() bool {
			speaker.mu.Lock()
			defer speaker.mu.Unlock()
			return speaker.local.ASN == asn && speaker.local.Restarting
		})
		speaker.tell(true)
		waittest.Until(t, soon, "a pass that read that there is no session", func() bool { return speaker.heard(status) })
	}
	if n := changes(); n > 0 {
		t.Errorf("another AS number made %d changes; now %s", n, r.routes(t))
	}
	r.settles(t, speaker)
}
