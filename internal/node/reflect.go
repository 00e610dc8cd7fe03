package node

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"time"

	"github.com/tortie-net/tortie/internal/api"
	"github.com/tortie-net/tortie/internal/bgp"
	"github.com/tortie-net/tortie/internal/config"
	"github.com/tortie-net/tortie/internal/datastore"
	"github.com/tortie-net/tortie/internal/nodeaddr"
	"github.com/tortie-net/tortie/internal/peering"
	"github.com/tortie-net/tortie/internal/reflectors"
)

const (
	// missTime bounds the one request by which a node finds out whether a reflector that it misses still lives; missPause is between
	// two about the same Node.
	missTime  = 2 * time.Second
	missPause = 10 * time.Second
)

// leaving are the taints by which others say that a node is about to go.
var leaving = []string{
	"ToBeDeletedByClusterAutoscaler", "DeletionCandidateOfClusterAutoscaler", "karpenter.sh/disrupted", "node.kubernetes.io/out-of-service",
	"node.cloudprovider.kubernetes.io/shutdown",
}

// reflecting is this node's part in the nodes' agreement on route reflectors.
type reflecting struct {
	state reflectors.State
	plan  reflectors.Plan
	roll  *reflectors.Roll
	build uint64 // of the view that roll was made of

	sessions map[string]reflectors.Session // what BGP has said of those with reflectors
	shown    map[netip.Addr]bool           // next hops that reflectors have announced
	verdicts map[string]reflectors.Verdict
	asked    map[string]time.Time

	agreed *peering.Automatic
	shape  reflectors.Shape
	id     netip.Addr
	// stirred: what a plan follows from has changed since the last one.
	stirred bool
}

// agree puts into a snapshot what this node is among its reflectors. It needs what BGP has said in an earlier pass.
func (a *Agent) agree(ctx context.Context, s *Snapshot) []error {
	r := &a.reflecting
	if !a.Config.Reflectors.Automatic || a.Config.NoBGP {
		return nil
	}
	if r.roll == nil || r.build != a.view.builds {
		r.roll, r.build = s.roll(a.view.world.Nodes), a.view.builds
	}
	before := r.plan
	r.plan = r.state.Decide(settingsOf(a.Config.Reflectors), r.view(s, a.node), time.Now())
	r.stirred = false
	a.ask(ctx)
	r.publish(s)
	a.tellRole(before)
	if refused := s.refusal(); refused != "" {
		return inReflection(fmt.Errorf("automatic route reflectors are on, and %s: change that, or switch them off", refused))
	}
	return inReflection(r.plan.Problem)
}

func settingsOf(c config.Reflectors) reflectors.Settings {
	return reflectors.Settings{Above: c.Above, Count: c.Count}
}

// inReflection marks what an operator must act on.
func inReflection(err error) []error { return problemsOf(inSelf("AutomaticReflectors", err)) }

// view is what this node knows now.
func (r *reflecting) view(s *Snapshot, own *api.Node) reflectors.View {
	v := reflectors.View{
		Self: s.Self.Name, Roll: r.roll, Refusal: s.refusal(), Unwilling: unwilling(own),
		Sessions: r.sessions, Verdicts: r.verdicts,
		Shown: func(name string) bool {
			m, ok := s.member(name)
			return ok && r.shows(s, m)
		},
	}
	for _, m := range s.Others {
		if m.Reflector {
			v.Manual = m.Name
			break
		}
	}
	return v
}

// refusal says why this node can have no part in the agreement; empty if it can.
func (s *Snapshot) refusal() string {
	switch {
	case !s.Mesh:
		return "the mesh is off (BGPConfiguration default, nodeToNodeMeshEnabled), so that there is nothing that reflectors could stand in for"
	case s.Self.Reflector:
		return "annotation " + api.AnnotationReflector + " makes this node a route reflector"
	case s.asn(s.Self.ASN) != s.ASN:
		return fmt.Sprintf("this node is in AS %d and the cluster in AS %d: routes are reflected inside of one AS", s.Self.ASN, s.ASN)
	}
	return ""
}

// unwilling says why this node should not reflect; empty if it may.
func unwilling(own *api.Node) string {
	if own.Spec.Unschedulable {
		return "the node is cordoned"
	}
	for _, t := range own.Spec.Taints {
		if slices.Contains(leaving, t.Key) {
			return "the node has taint " + t.Key
		}
	}
	return ""
}

// roll lists the nodes that can take part, this one among them.
func (s *Snapshot) roll(nodes []api.Node) *reflectors.Roll {
	announces := s.announcing()
	all := make([]reflectors.Node, 0, len(nodes))
	for _, n := range nodes {
		m, ok := s.member(n.Name)
		if n.Name == s.Self.Name {
			m, ok = &Member{Name: n.Name, Addr: announcedAddr(n, api.AnnotationIPv4Address), Addr6: announcedAddr(n, api.AnnotationIPv6Address)}, true
		}
		if !ok {
			continue // its agent has not come up yet
		}
		entry := reflectors.Node{
			Name: n.Name, Zone: n.Labels[api.LabelZone], Says: reflectors.Word(n.Annotations[api.AnnotationReflection]),
			Barred: barred(&n), Families: m.families(), Announces: announces[n.Name],
		}
		if m.Reflector || s.asn(m.ASN) != s.ASN {
			entry.Says = reflectors.Nothing // it may have said something before
		}
		all = append(all, entry)
	}
	return reflectors.NewRoll(all)
}

func barred(n *api.Node) bool {
	_, label := n.Labels[api.NoReflector]
	_, annotation := n.Annotations[api.NoReflector]
	return label || annotation
}

// announcedAddr is invalid for what is no address: it is complained of elsewhere.
func announcedAddr(n api.Node, key string) netip.Addr {
	p, _ := netip.ParsePrefix(n.Annotations[key])
	return p.Addr()
}

func (m *Member) families() (f reflectors.Families) {
	if m.Addr.IsValid() {
		f |= reflectors.IPv4
	}
	if m.Addr6.IsValid() {
		f |= reflectors.IPv6
	}
	return f
}

// announcing tells in which families other nodes have blocks that BGP shows.
func (s *Snapshot) announcing() map[string]reflectors.Families {
	all := map[string]reflectors.Families{}
	for block, owner := range s.Owners {
		if pool, ok := s.poolOf(block); !ok || pool.NoExport {
			continue
		}
		if block.Addr().Is4() {
			all[owner.Node] |= reflectors.IPv4
		} else {
			all[owner.Node] |= reflectors.IPv6
		}
	}
	return all
}

// shows reports whether reflectors have announced paths to a node, in each family in which it has blocks.
func (r *reflecting) shows(s *Snapshot, m *Member) bool {
	n, ok := r.roll.Get(m.Name)
	for _, family := range []struct {
		is   reflectors.Families
		addr netip.Addr
	}{{reflectors.IPv4, m.Addr}, {reflectors.IPv6, m.Addr6}} {
		if n.Announces&family.is != 0 && family.addr.IsValid() && !r.shown[family.addr] {
			return false
		}
	}
	return ok
}

// publish says in the words of the peering what the plan is; a new value only if sessions may follow from it.
func (r *reflecting) publish(s *Snapshot) {
	id, _ := nodeaddr.RouterID(s.Self.RouterID, s.Self.Name, s.Self.Addr.Addr()) // what is wrong with it is said where BGP starts
	if shape := r.plan.Shape(); r.agreed == nil || shape != r.shape || id != r.id {
		r.shape, r.id = shape, id
		r.agreed = automatic(r.plan, s.Self.Name, id)
	}
	shown := r.plan // what is shown does not change any more
	s.Automatic, s.plan = r.agreed, &shown
}

func automatic(plan reflectors.Plan, self string, id netip.Addr) *peering.Automatic {
	agreed := &peering.Automatic{
		Role: peering.Role(plan.Role), ClusterID: id, Reflectors: map[string]bool{}, Clients: map[string]bool{}, KeepMesh: plan.KeepMesh,
	}
	for _, name := range plan.Reflectors {
		agreed.Reflectors[name] = true
	}
	for _, name := range plan.Roll.Names() {
		if name != self && !agreed.Reflectors[name] {
			agreed.Clients[name] = true
		}
	}
	return agreed
}

// hear takes what BGP says of the sessions with reflectors, and of what these have announced, if anything waits for that.
func (a *Agent) hear(ctx context.Context, s *Snapshot, peers []bgp.PeerStatus) error {
	r := &a.reflecting
	if r.agreed == nil {
		return nil
	}
	sessions, complete := s.reflectorSessions(r.plan.Reflectors, peers)
	r.stirred = r.stirred || !maps.Equal(sessions, r.sessions)
	r.sessions = sessions
	if r.plan.Kept() == 0 || len(complete) == 0 {
		r.shown = nil
		return nil
	}
	shown, err := a.Speaker.NextHops(ctx, complete)
	if err != nil {
		return fmt.Errorf("what route reflectors have announced: %w", err)
	}
	r.stirred = r.stirred || !maps.Equal(shown, r.shown)
	r.shown = shown
	return nil
}

// reflectorSessions returns how it stands with reflectors, and the addresses of those that have told all.
func (s *Snapshot) reflectorSessions(names []string, peers []bgp.PeerStatus) (sessions map[string]reflectors.Session, complete []netip.Addr) {
	sessions = map[string]reflectors.Session{}
	ends := map[netip.Addr]string{}
	for _, name := range names {
		for _, self := range s.Self.addrs() {
			if m, ok := s.member(name); ok && m.in(self).IsValid() {
				ends[m.in(self)] = name
				sessions[name] = reflectors.Session{Established: true, Complete: true}
			}
		}
	}
	for _, p := range peers {
		name, ok := ends[p.Addr]
		if !ok {
			continue
		}
		delete(ends, p.Addr)
		was, up := sessions[name], p.State == bgp.Established
		sessions[name] = reflectors.Session{Established: was.Established && up, Complete: was.Complete && up && p.EndOfTable}
		if up && p.EndOfTable {
			complete = append(complete, p.Addr)
		}
	}
	for _, name := range ends { // not configured yet
		sessions[name] = reflectors.Session{}
	}
	return sessions, complete
}

// ask reads the Nodes of reflectors that this node misses and would stand in for: the watch does not say whether they are ready.
func (a *Agent) ask(ctx context.Context) {
	r := &a.reflecting
	if a.gone || a.alone != nil {
		return
	}
	for _, name := range r.plan.Ask {
		now := time.Now()
		if now.Sub(r.asked[name]) < missPause {
			continue
		}
		if r.asked == nil {
			r.asked, r.verdicts = map[string]time.Time{}, map[string]reflectors.Verdict{}
		}
		r.asked[name] = now
		dead, err := a.dead(ctx, name)
		if err != nil {
			a.Log.Warn("a route reflector is missed, and its Node cannot be read", "node", name, "err", err)
			continue
		}
		a.Log.Info("a route reflector is missed", "node", name, "dead", dead)
		r.verdicts[name], r.stirred = reflectors.Verdict{Dead: dead, At: now}, true
	}
}

// dead reports whether a Node is gone, or its kubelet is not heard of.
func (a *Agent) dead(ctx context.Context, name string) (bool, error) {
	ctx, cancel := context.WithTimeout(ctx, missTime)
	defer cancel()
	n := &api.Node{Meta: api.Meta{Name: name}}
	if err := a.Store.Get(ctx, n); err != nil {
		if errors.Is(err, datastore.ErrNotFound) {
			return true, nil
		}
		return false, err
	}
	return !slices.ContainsFunc(n.Status.Conditions, func(c api.NodeCondition) bool { return c.Type == api.NodeReady && c.Status == "True" }), nil
}

// again shortens the pause before the next pass to when the plan is another. What it returns 0 for it does once: a pass that comes to no
// plan must not be followed by the next one at once.
func (r *reflecting) again(now time.Time, next time.Duration) time.Duration {
	if r.stirred {
		r.stirred = false
		return 0
	}
	if len(r.plan.Ask) > 0 {
		next = min(next, missPause)
	}
	if at := r.plan.Again; !at.IsZero() {
		if !at.After(now) {
			r.plan.Again = time.Time{}
		}
		next = min(next, max(0, at.Sub(now)))
	}
	return next
}

// tellRole tells people when this node begins to reflect, or ceases to.
func (a *Agent) tellRole(before reflectors.Plan) {
	plan := &a.reflecting.plan
	if plan.Role == before.Role || before.Role == reflectors.NoRole && plan.Role == reflectors.AsClient {
		return
	}
	text := fmt.Sprintf("it is %s for BGP routes now: %s", cmp.Or(string(plan.Role), "neither client nor reflector"), plan.Why)
	a.Log.Info("another part in route reflection", "role", plan.Role, "before", before.Role, "why", plan.Why)
	if a.Events != nil {
		a.Events.Note(nodeObject(a.Config.Nodename), "RouteReflection", text)
	}
}

// unreflected reports whether no reflector that serves an address's family has been heard of for a while: then BGP's silence about
// a node with which there is no session means nothing.
func (s *Snapshot) unreflected(of netip.Addr, silent map[netip.Addr]bool) bool {
	if s.Automatic == nil || s.Automatic.Role != peering.Client {
		return false
	}
	for name := range s.Automatic.Reflectors {
		if m, ok := s.member(name); ok {
			if quiet, known := silent[m.in(of)]; known && !quiet {
				return false
			}
		}
	}
	return true
}
