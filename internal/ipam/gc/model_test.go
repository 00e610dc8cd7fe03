package gc

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"math/rand/v2"
	"net/http"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/tortie-net/tortie/internal/api"
	"github.com/tortie-net/tortie/internal/api/names"
	"github.com/tortie-net/tortie/internal/cluster/duties"
	"github.com/tortie-net/tortie/internal/ipam"
	"github.com/tortie-net/tortie/internal/ipam/inventory"
	"github.com/tortie-net/tortie/internal/testkit/datastoretest"
	"github.com/tortie-net/tortie/internal/testkit/tier"
	"github.com/tortie-net/tortie/internal/testkit/waittest"
)

// TestHistories runs random histories of a cluster: pods come and go on nodes that come and go, containers start anew
// in their pods, processes die between two writes, DELs are lost, tunnels have addresses. Two collectors look at it,
// through views that are old, that went back in time, or that are dated now and are not; they carry out what they
// have decided late, while everything goes on between any two of their requests, and are killed on the way. After each
// step every container that lives holds what it was given, and so does every tunnel that an agent has looked after
// since its Node is there. In the end, when the cluster is quiet and has been seen as it is three times, nothing is
// left that nobody uses.
//
// A history is a function of its seed: a failure names it, and -model.seed replays it.
func TestHistories(t *testing.T) {
	datastoretest.Histories(t, tier.Size(50, 150), func(t *testing.T, seed uint64) { newHistory(t, seed).run() })
}

// defaultRules are Calico's, and for nodes that are gone the time in which a Node can be deleted and registered again
// by hand.
var defaultRules = Rules{Grace: 15 * time.Minute, NodeGrace: 10 * time.Second}

// container is a sandbox that got addresses.
type container struct {
	node, pod string // pod is empty for a tunnel
	handle    string
	addresses []netip.Addr
	// narrow: its status and annotations name only its first address.
	narrow bool
}

// history is one run of the model.
type history struct {
	t     *testing.T
	seed  uint64
	store *datastoretest.Fake
	rules Rules
	ctx   context.Context

	mu     mutex // guards the rest: a sweep's requests run side by side
	rng    *rand.Rand
	count  int
	live   map[string]*container // by handle
	agents map[string]*agent     // by node, also by one that is gone
	bare   []bareAddress
	states [2]State           // of the two collectors
	views  []inventory.View   // some that were taken
	stuck  [2]*inventory.View // what a collector's cache shows for ever
	log    []string
}

// mutex is a lock for which a bubble's clock does not wait: its holder may sleep.
type mutex chan struct{}

func (m mutex) Lock()   { m <- struct{}{} }
func (m mutex) Unlock() { <-m }

// agent is a node's agent.
type agent struct {
	keeper *duties.Tunnel // nil: none runs
	known  string         // on its disk: of which Node it has made sure
	noted  string         // the address on the last Node
}

// bareAddress was assigned before there were handles, for a pod that is gone.
type bareAddress struct {
	address netip.Addr
	at      ipam.Assigned
}

var clock = time.Date(2026, 11, 22, 0, 0, 0, 0, time.UTC)

func newHistory(t *testing.T, seed uint64) *history {
	h := &history{
		t: t, seed: seed, store: datastoretest.NewFake(), rng: rand.New(rand.NewPCG(seed, 0)), ctx: t.Context(),
		rules: defaultRules, live: map[string]*container{}, agents: map[string]*agent{}, mu: make(mutex, 1),
	}
	yes := true
	h.create(&api.ClusterInformation{Meta: api.Meta{Name: api.DefaultName}, Spec: api.ClusterInformationSpec{DatastoreReady: &yes}})
	h.create(&api.IPPool{Meta: api.Meta{Name: "v4"}, Spec: api.IPPoolSpec{CIDR: "10.0.0.0/25", BlockSize: 29}})
	h.create(&api.IPPool{Meta: api.Meta{Name: "v6"}, Spec: api.IPPoolSpec{CIDR: "fd00::/121", BlockSize: 125}})
	if seed%4 == 0 {
		h.create(&api.IPAMConfig{Meta: api.Meta{Name: api.DefaultName},
			Spec: api.IPAMConfigSpec{AutoAllocateBlocks: true, IPCooldownSeconds: 60}})
	}
	return h
}

func (h *history) now() time.Time { return clock.Add(time.Since(began)) }

// began is when the bubble's clock starts.
var began = time.Date(2000, 1, 1, 0, 0, 0, 0, time.UTC)

func (h *history) client() *ipam.Client { return ipam.NewClient(h.store, h.now) }

func (h *history) create(obj api.Resource) {
	if err := h.store.Create(h.ctx, obj); err != nil {
		h.fail("create: %v", err)
	}
}

func (h *history) fail(format string, args ...any) {
	h.t.Helper()
	h.t.Fatalf("seed %d: %s\n%s", h.seed, fmt.Sprintf(format, args...), strings.Join(h.log, "\n"))
}

func (h *history) note(format string, args ...any) {
	h.log = append(h.log, h.now().Format("15:04:05 ")+fmt.Sprintf(format, args...))
}

func (h *history) run() {
	for range 120 {
		h.mu.Lock()
		h.happen()
		h.mu.Unlock()
		switch h.rng.IntN(6) {
		case 0:
			h.takeView()
		case 1:
			h.collect()
		case 2:
			h.rest(time.Duration(h.rng.Int64N(int64(16 * time.Minute))))
		}
		h.check()
	}
	h.quiesce()
}

// rest lets time pass. The agents that run look after their tunnels first: they do so all the time.
func (h *history) rest(d time.Duration) {
	const pause = 20 * time.Second
	waittest.Advance(min(d, pause))
	for _, node := range slices.Sorted(maps.Keys(h.agents)) {
		h.tick(node, h.agents[node])
	}
	waittest.Advance(max(d-pause, 0))
}

// happen is one random event of the cluster.
func (h *history) happen() {
	node := fmt.Sprintf("n%d", h.rng.IntN(4))
	pod := fmt.Sprintf("p%d", h.rng.IntN(12))
	switch h.rng.IntN(15) {
	case 0, 1, 2:
		h.startPod(node, pod, nil)
	case 3:
		h.restart(pod)
	case 4, 5:
		h.endPod(pod)
	case 6:
		h.finishPod(pod)
	case 7:
		h.dieNode(node)
	case 8:
		h.comeNode(node)
	case 9, 12:
		h.tunnel(node)
	case 10:
		h.crashedADD(node)
	case 11:
		h.lostHandle()
	case 13:
		h.beforeHandles(node)
	case 14:
		h.takeBare(node, pod)
	}
}

// disturb puts a bare address or a node that is gone to use again, between the last look at a block and the write.
func (h *history) disturb() {
	if h.rng.IntN(3) == 0 {
		h.takeBare(fmt.Sprintf("n%d", h.rng.IntN(4)), fmt.Sprintf("p%d", h.rng.IntN(12)))
		return
	}
	for n := range 4 {
		if node := fmt.Sprintf("n%d", n); !h.nodeExists(node) && h.rng.IntN(2) == 0 {
			h.comeNode(node)
			h.tunnel(node)
		}
	}
}

func (h *history) nodeExists(name string) bool {
	return h.store.Get(h.ctx, &inventory.Node{Meta: api.Meta{Name: name}}) == nil
}

func (h *history) getPod(name string) *api.Pod {
	p := &api.Pod{Meta: api.Meta{Namespace: "d", Name: name}}
	if h.store.Get(h.ctx, p) != nil {
		return nil
	}
	return p
}

func (h *history) comeNode(name string) {
	if h.nodeExists(name) {
		return
	}
	h.note("node %s comes", name)
	n := &api.Node{Meta: api.Meta{Name: name}}
	if a := h.agents[name]; a != nil && a.noted != "" && h.rng.IntN(3) == 0 { // somebody has saved it
		n.Annotations = map[string]string{api.AnnotationIPv4TunnelAddr: a.noted}
	}
	h.create(n)
}

// dieNode removes a node without drain. Its pods go from the API at once, or stay until they are deleted.
func (h *history) dieNode(name string) {
	n := &api.Node{Meta: api.Meta{Name: name}}
	if h.store.Get(h.ctx, n) != nil {
		return
	}
	h.note("node %s dies", name)
	if err := h.store.Delete(h.ctx, n); err != nil {
		h.fail("%v", err)
	}
	if a := h.agents[name]; a != nil && h.rng.IntN(2) == 0 {
		a.keeper = nil
	}
	for handle, c := range h.live {
		if c.node != name {
			continue
		}
		delete(h.live, handle)
		if p := h.getPod(c.pod); p != nil && c.pod != "" && h.rng.IntN(3) > 0 {
			_ = h.store.Delete(h.ctx, p)
		}
	}
}

func (h *history) startPod(node, name string, wants []netip.Addr) {
	if !h.nodeExists(node) || h.getPod(name) != nil {
		return
	}
	h.create(&api.Pod{Meta: api.Meta{Namespace: "d", Name: name}, Spec: api.PodSpec{NodeName: node}})
	h.add(node, name, wants)
}

// add is an ADD that succeeds: the plugin writes the addresses on the pod. The kubelet does so later, or is cut off.
// Kubelets and plugins of one family name the first address only.
func (h *history) add(node, name string, wants []netip.Addr) {
	h.count++
	c := &container{node: node, pod: name, handle: fmt.Sprintf("k8s-pod-network.C%d", h.count), narrow: h.rng.IntN(6) == 0}
	if !h.assign(c, map[string]string{"node": node, "pod": name, "namespace": "d", "timestamp": h.now().UTC().String()}, wants) {
		return
	}
	p := h.getPod(name)
	p.Annotations = map[string]string{api.AnnotationPodIP: c.addresses[0].String() + "/32"}
	if !c.narrow {
		p.Annotations[api.AnnotationPodIPs] = c.text()
	}
	if h.rng.IntN(5) > 0 {
		p.Status = c.status()
	}
	if err := h.store.Update(h.ctx, p); err != nil {
		h.fail("%v", err)
	}
}

func (h *history) assign(c *container, attrs map[string]string, wants []netip.Addr) bool {
	req := ipam.Request{Owner: ipam.Owner{Handle: c.handle, Attrs: attrs}, Host: c.node, V4: true, V6: h.rng.IntN(2) == 0,
		Use: api.UseWorkload, Addresses: wants}
	got, err := h.client().Assign(h.ctx, req)
	if err != nil {
		h.note("%s got nothing: %v", c.handle, err)
		return false
	}
	for _, a := range got {
		c.addresses = append(c.addresses, a.Address)
	}
	h.live[c.handle] = c
	h.note("%s of %s on %s has %s", c.handle, c.pod, c.node, c.addresses)
	return true
}

// text returns the addresses as the plugin writes them.
func (c *container) text() string {
	var texts []string
	for _, a := range c.addresses {
		texts = append(texts, netip.PrefixFrom(a, a.BitLen()).String())
	}
	return strings.Join(texts, ",")
}

// status returns a pod's status as the kubelet writes it, IPv6 in a notation of its own.
func (c *container) status() api.PodStatus {
	s := api.PodStatus{Phase: "Running"}
	for _, a := range c.addresses {
		s.PodIPs = append(s.PodIPs, api.PodIP{IP: strings.ToUpper(a.StringExpanded())})
		if c.narrow {
			break
		}
	}
	s.PodIP = s.PodIPs[0].IP
	return s
}

func (h *history) of(pod string) *container {
	for _, c := range h.live {
		if c.pod == pod {
			return c
		}
	}
	return nil
}

// restart gives a pod a new container. The old one's DEL may be lost.
func (h *history) restart(pod string) {
	c := h.of(pod)
	if c == nil || h.getPod(pod) == nil {
		return
	}
	h.end(c)
	h.add(c.node, pod, nil)
}

// end ends a container, with a DEL or without.
func (h *history) end(c *container) {
	delete(h.live, c.handle)
	if h.rng.IntN(2) == 0 {
		h.note("%s ends, and its DEL is lost", c.handle)
		return
	}
	h.note("%s ends", c.handle)
	if _, err := h.client().Release(h.ctx, c.handle); err != nil {
		h.fail("release %s: %v", c.handle, err)
	}
}

func (h *history) endPod(name string) {
	p := h.getPod(name)
	if p == nil {
		return
	}
	if c := h.of(name); c != nil {
		h.end(c)
	}
	h.note("pod %s is deleted", name)
	_ = h.store.Delete(h.ctx, p)
}

// finishPod completes a Job's pod. Its object stays.
func (h *history) finishPod(name string) {
	p, c := h.getPod(name), h.of(name)
	if p == nil || c == nil {
		return
	}
	h.end(c)
	p.Status.Phase = "Succeeded"
	h.note("pod %s has finished", name)
	_ = h.store.Update(h.ctx, p)
}

// tunnel has a node's agent look after its tunnel's address. It may have been started just now, on a disk that may be
// new.
func (h *history) tunnel(node string) {
	a := h.agents[node]
	if a == nil {
		a = new(agent)
		h.agents[node] = a
	}
	if a.keeper == nil || h.rng.IntN(3) == 0 {
		a.keeper = duties.NewTunnel(h.client(), duties.IPIP, node, h.now)
		if h.rng.IntN(4) == 0 {
			a.known = ""
		}
	}
	h.tick(node, a)
}

// tick runs an agent's work on its tunnel, if it runs and has a Node.
func (h *history) tick(node string, a *agent) {
	n := &api.Node{Meta: api.Meta{Name: node}}
	if a.keeper == nil || h.store.Get(h.ctx, n) != nil {
		return
	}
	handle := names.TunnelHandle(node)
	in := duties.TunnelInput{Ranges: duties.Ranges{Assign: []netip.Prefix{netip.MustParsePrefix("10.0.0.0/25")}},
		UID: n.UID, Known: a.known == n.UID,
		Noted: n.Annotations[api.AnnotationIPv4TunnelAddr]}
	addr, err := a.keeper.Address(h.ctx, in)
	if err != nil {
		h.note("the tunnel of %s has no address: %v", node, err)
		return
	}
	if was := h.live[handle]; was == nil || was.addresses[0] != addr {
		h.note("the tunnel of %s has %s", node, addr)
	}
	h.live[handle] = &container{node: node, handle: handle, addresses: []netip.Addr{addr}}
	a.known, a.noted = n.UID, addr.String()
	if in.Noted != a.noted {
		n.Annotations = map[string]string{api.AnnotationIPv4TunnelAddr: a.noted}
		if err := h.store.Update(h.ctx, n); err != nil {
			h.fail("%v", err)
		}
	}
}

// beforeHandles makes an address as it was assigned before there were handles, for a pod that is gone.
func (h *history) beforeHandles(node string) {
	if !h.nodeExists(node) {
		return
	}
	h.count++
	handle := fmt.Sprintf("before-%d", h.count)
	attrs := map[string]string{"node": node, "pod": handle, "namespace": "d"}
	got, err := h.client().Assign(h.ctx,
		ipam.Request{Owner: ipam.Owner{Handle: handle, Attrs: attrs}, Host: node, V4: true, Use: api.UseWorkload})
	if err != nil {
		return
	}
	b := &api.IPAMBlock{Meta: api.Meta{Name: names.Block(got[0].Block)}}
	held := &api.IPAMHandle{Meta: api.Meta{Name: names.Handle(handle)}, Spec: api.IPAMHandleSpec{HandleID: handle}}
	if err := errors.Join(h.store.Get(h.ctx, b), h.store.Get(h.ctx, held), h.store.Delete(h.ctx, held)); err != nil {
		h.fail("%v", err)
	}
	for i := range b.Spec.Attributes {
		if id := b.Spec.Attributes[i].HandleID; id != nil && *id == handle {
			b.Spec.Attributes[i].HandleID = nil
		}
	}
	if err := h.store.Update(h.ctx, b); err != nil {
		h.fail("%v", err)
	}
	ordinal := strconv.Itoa(int(got[0].Address.As4()[3] % 8))
	at := ipam.Assigned{Block: got[0].Block, Sequence: b.Spec.SequenceNumberForAllocation[ordinal]}
	h.bare = append(h.bare, bareAddress{got[0].Address, at})
	h.note("%s is of %s, which has no handle", got[0].Address, handle)
}

// takeBare frees a bare address, as a person would, and assigns it to a new pod that asks for it.
func (h *history) takeBare(node, pod string) {
	if len(h.bare) == 0 || !h.nodeExists(node) || h.getPod(pod) != nil {
		return
	}
	b := h.bare[0]
	h.bare = h.bare[1:]
	freed, err := h.client().Expire(h.ctx, api.IPAMConfigSpec{}, []ipam.Expired{{Addresses: map[netip.Addr]ipam.Assigned{b.address: b.at}}})
	if err != nil {
		h.fail("%v", err)
	}
	if len(freed) > 0 {
		h.note("%s is freed by hand", b.address)
		h.startPod(node, pod, []netip.Addr{b.address})
	}
}

// crashedADD is a process that dies at one of its requests, of a pod that does not appear again.
func (h *history) crashedADD(node string) {
	if !h.nodeExists(node) {
		return
	}
	h.count++
	at := 1 + h.rng.IntN(12)
	session := h.store.Session(func(_ context.Context, r datastoretest.Request) datastoretest.Fault {
		if r.N == at {
			return datastoretest.CrashAfter
		}
		return datastoretest.None
	})
	handle := fmt.Sprintf("k8s-pod-network.c%d", h.count)
	h.note("the ADD of %s on %s dies at request %d", handle, node, at)
	req := ipam.Request{Owner: ipam.Owner{Handle: handle, Attrs: map[string]string{"node": node, "pod": "never", "namespace": "d"}},
		Host: node, V4: true, V6: true, Use: api.UseWorkload}
	_, _ = ipam.NewClient(session, h.now).Assign(h.ctx, req)
}

// lostHandle deletes a handle, as a person or a bug may, while its addresses stay.
func (h *history) lostHandle() {
	v := h.read()
	for _, handle := range v.Handles {
		if h.live[handle.ID] == nil && h.rng.IntN(3) == 0 {
			h.note("the handle %s is lost", handle.ID)
			_ = h.store.Delete(h.ctx, &api.IPAMHandle{Meta: handle.Meta, Spec: api.IPAMHandleSpec{HandleID: handle.ID}})
			return
		}
	}
}

func (h *history) read() inventory.View {
	v, err := inventory.Read(h.ctx, inventory.Source{IPAM: h.store, Cluster: h.store}, h.now)
	if err != nil {
		h.fail("%v", err)
	}
	return v
}

func (h *history) takeView() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.views = append(h.views, h.read())
}

// view returns a collector's view: the cluster as it is, as it was, or, while its cache is stuck, always the same with
// the current time.
func (h *history) view(who int) inventory.View {
	h.mu.Lock()
	defer h.mu.Unlock()
	switch {
	case h.stuck[who] != nil && h.rng.IntN(6) == 0:
		h.stuck[who] = nil
	case h.stuck[who] == nil && len(h.views) > 0 && h.rng.IntN(3) == 0:
		h.stuck[who] = &h.views[len(h.views)-1-h.rng.IntN(min(3, len(h.views)))]
	}
	if h.stuck[who] == nil {
		return h.read()
	}
	v := *h.stuck[who]
	if h.seed%3 > 0 { // each kind has a watch of its own: only nodes' and pods' are stuck
		v = h.read()
		v.Nodes, v.Pods = h.stuck[who].Nodes, h.stuck[who].Pods
	}
	if h.rng.IntN(8) > 0 {
		v.Taken = h.now()
	}
	return v
}

// collect is one pass of one collector. Between any two requests of it something else may happen, and it may be killed.
func (h *history) collect() {
	who := h.rng.IntN(2)
	v := h.view(who)
	next, d := Pass(h.states[who], &v, h.rules)
	h.states[who] = next
	if len(d.Due) == 0 {
		return
	}
	dies := -1
	if h.rng.IntN(4) == 0 {
		dies = h.rng.IntN(30)
	}
	session := h.store.Session(func(_ context.Context, r datastoretest.Request) datastoretest.Fault {
		h.mu.Lock()
		defer h.mu.Unlock()
		switch {
		case r.Verb == http.MethodPut && r.Kind == "IPAMBlock" && h.rng.IntN(3) == 0:
			h.disturb()
		case h.rng.IntN(4) == 0:
			h.happen()
		}
		switch {
		case r.N == dies:
			h.states[who] = State{}
			return datastoretest.CrashAfter
		case h.rng.IntN(20) == 0:
			return datastoretest.Lost
		}
		return datastoretest.None
	})
	h.mu.Lock()
	h.note("collector %d puts %d candidates right", who, len(d.Due))
	h.mu.Unlock()
	s := Sweeper{IPAM: session, Cluster: session, Client: ipam.NewClient(session, h.now), Log: slog.New(slog.DiscardHandler)}
	_, _ = s.Sweep(h.ctx, &v, &d)
}

// check checks the invariants.
func (h *history) check() {
	h.mu.Lock()
	defer h.mu.Unlock()
	v := h.read()
	holder := map[netip.Addr]string{}
	for i := range v.Blocks {
		if err := v.Blocks[i].Damage; err != nil {
			h.fail("%v", err)
		}
		for _, a := range v.Blocks[i].Allocations {
			if holder[a.Address] != "" {
				h.fail("%s is in two blocks", a.Address)
			}
			holder[a.Address] = a.Handle
		}
	}
	for handle, c := range h.live {
		for _, a := range c.addresses {
			if holder[a] == handle {
				continue
			}
			h.fail("%s lives on %s and does not hold %s, which is of %q", handle, c.node, a, holder[a])
		}
		if c.pod != "" && !slices.ContainsFunc(v.Handles, func(x inventory.Handle) bool { return x.ID == handle }) {
			h.fail("%s lives and has no handle", handle)
		}
	}
}

// quiesce runs only Kubernetes, which deletes pods of nodes that died and reports the addresses of the others, and
// looks some times.
func (h *history) quiesce() {
	for i := range 12 {
		name := fmt.Sprintf("p%d", i)
		p, c := h.getPod(name), h.of(name)
		switch {
		case p != nil && c != nil:
			p.Status = c.status()
			_ = h.store.Update(h.ctx, p)
		case p != nil && p.Status.Phase != "Succeeded":
			_ = h.store.Delete(h.ctx, p)
		}
	}
	h.rest(time.Minute)
	for range 5 {
		waittest.Advance(h.rules.Grace + time.Second)
		v := h.read()
		next, d := Pass(h.states[0], &v, h.rules)
		h.states[0] = next
		s := Sweeper{IPAM: h.store, Cluster: h.store, Client: h.client(), Log: slog.New(slog.DiscardHandler)}
		if _, err := s.Sweep(h.ctx, &v, &d); err != nil {
			h.fail("sweep: %v", err)
		}
		h.check()
	}
	h.audit()
}

// audit finds leftovers without a user.
func (h *history) audit() {
	v := h.read()
	index := inventory.NewIndex(v.Nodes, v.Pods)
	holding := map[string]bool{}
	empty := map[string]int{}
	for i := range v.Blocks {
		b := &v.Blocks[i]
		for j := range b.Allocations {
			a := &b.Allocations[j]
			holding[inventory.HandleName(a.Handle)] = true
			if c := h.live[a.Handle]; c != nil && c.narrow {
				continue // only the first address shows it
			}
			if verdict, why := index.Judge(a); verdict != inventory.Live {
				h.fail("%s is left: %s", a, why)
			}
			if p := h.getPod(a.Pod); a.Class == inventory.OfPod && !a.Cooling() && h.live[a.Handle] == nil && p != nil && p.Status.PodIP != "" {
				h.fail("%s is left, of handle %s", a, a.Handle)
			}
		}
		node, hosted := b.Owner()
		if hosted && len(b.Allocations) == 0 {
			empty[node+names.IPVersion(b.CIDR.Addr())]++
		}
		if !hosted || h.store.Get(h.ctx, &inventory.Node{Meta: api.Meta{Name: node}}) != nil && len(b.Allocations) == 0 {
			h.fail("block %s of %q is left", b.CIDR, b.Affinity)
		}
	}
	for handle, c := range h.live {
		if !slices.ContainsFunc(v.Handles, func(x inventory.Handle) bool { return x.ID == handle }) {
			h.fail("%s of %s has no handle", handle, c.node)
		}
	}
	for of, n := range empty {
		if n > 1 {
			h.fail("%d empty blocks of %s are left", n, of)
		}
	}
	for _, handle := range v.Handles {
		if !holding[handle.Name] {
			if _, node, tunnel := strings.Cut(handle.ID, "tunnel-addr-"); tunnel && index.Node(node) != nil {
				continue
			}
			h.fail("handle %s is left", handle.ID)
		}
	}
	for _, a := range v.Affinities {
		if !a.Confirmed() {
			h.fail("affinity %s is left %s", a.Name, a.Spec.State)
		}
	}
}
