package agent

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"time"

	"github.com/tortie-net/tortie/internal/agent/desired"
	"github.com/tortie-net/tortie/internal/api"
	"github.com/tortie-net/tortie/internal/app/config"
	"github.com/tortie-net/tortie/internal/app/nodeaddr"
	"github.com/tortie-net/tortie/internal/bgp"
	"github.com/tortie-net/tortie/internal/bgp/peering"
	"github.com/tortie-net/tortie/internal/bgp/reflectors"
	"github.com/tortie-net/tortie/internal/datastore"
)

const (
	// missTime bounds the request that reads the Node of a reflector without a session; missPause is the pause between two
	// for one Node.
	missTime  = 2 * time.Second
	missPause = 10 * time.Second
)

// leaving are the taints of nodes that are about to be removed.
var leaving = []string{
	"ToBeDeletedByClusterAutoscaler", "DeletionCandidateOfClusterAutoscaler", "karpenter.sh/disrupted", "node.kubernetes.io/out-of-service",
	"node.cloudprovider.kubernetes.io/shutdown",
}

// reflecting is the state of automatic route reflection on this node.
type reflecting struct {
	state reflectors.State
	plan  reflectors.Plan
	roll  *reflectors.Roll
	build uint64 // of the view that roll was made of

	sessions map[string]reflectors.Session // those with reflectors, as of the last pass
	shown    map[netip.Addr]bool           // next hops that reflectors have announced
	verdicts map[string]reflectors.Verdict
	asked    map[string]time.Time

	agreed *peering.Automatic
	shape  reflectors.Shape
	id     netip.Addr
	// stirred: an input of the plan has changed since it was made.
	stirred bool
}

// agree decides the role of this node in route reflection and puts it into the snapshot. The sessions are those of an
// earlier pass.
func (a *Agent) agree(ctx context.Context, s *desired.Snapshot) []error {
	r := &a.reflecting
	if !a.Config.Reflectors.Automatic || a.Config.NoBGP {
		return nil
	}
	if r.roll == nil || r.build != a.view.Builds {
		r.roll, r.build = s.Roll(a.view.Cluster.Nodes), a.view.Builds
	}
	before := r.plan
	r.plan = r.state.Decide(settingsOf(a.Config.Reflectors), r.view(s, a.node), time.Now())
	r.stirred = false
	a.checkReflectors(ctx)
	r.publish(s)
	a.reportRole(before)
	if refused := s.Refusal(); refused != "" {
		return inReflection(fmt.Errorf("automatic route reflectors are on, and %s: change that, or switch them off", refused))
	}
	return inReflection(r.plan.Problem)
}

func settingsOf(c config.Reflectors) reflectors.Settings {
	return reflectors.Settings{Above: c.Above, Count: c.Count}
}

// inReflection returns the problem that operators get as an Event.
func inReflection(err error) []error {
	return desired.ProblemsOf(desired.InSelf("AutomaticReflectors", err))
}

// view returns the inputs of the decision.
func (r *reflecting) view(s *desired.Snapshot, own *api.Node) reflectors.View {
	v := reflectors.View{
		Self: s.Self.Name, Roll: r.roll, Refusal: s.Refusal(), Unwilling: unwilling(own),
		Sessions: r.sessions, Verdicts: r.verdicts,
		Shown: func(name string) bool {
			m, ok := s.Member(name)
			return ok && r.shows(m)
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

// unwilling returns why this node should not be a reflector; empty if it may be one.
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

// shows reports whether reflectors have announced paths with a node as next hop, in each family in which the node has
// blocks.
func (r *reflecting) shows(m *desired.Member) bool {
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

// publish passes the plan to package peering. The value changes only if sessions may change.
func (r *reflecting) publish(s *desired.Snapshot) {
	id, _ := nodeaddr.RouterID(s.Self.RouterID, s.Self.Name, s.Self.Addr.Addr()) // an error is reported where BGP starts
	if shape := r.plan.Shape(); r.agreed == nil || shape != r.shape || id != r.id {
		r.shape, r.id = shape, id
		r.agreed = automatic(r.plan, s.Self.Name, id)
	}
	shown := r.plan // a copy: status reads it later
	s.Automatic, s.Plan = r.agreed, &shown
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

// updateReflectors reads the sessions with reflectors and, while sessions of the mesh are kept until reflectors have
// taken over, the next hops of what reflectors have announced.
func (a *Agent) updateReflectors(ctx context.Context, s *desired.Snapshot, peers []bgp.PeerStatus) error {
	r := &a.reflecting
	if r.agreed == nil {
		return nil
	}
	sessions, complete := s.ReflectorSessions(r.plan.Reflectors, peers)
	r.stirred = r.stirred || !maps.Equal(sessions, r.sessions)
	r.sessions = sessions
	if r.plan.Kept() == 0 || len(complete) == 0 {
		r.shown = nil
		return nil
	}
	shown, err := a.Speaker.NextHops(ctx, complete)
	if err != nil {
		return fmt.Errorf("list the next hops that route reflectors have announced: %w", err)
	}
	r.stirred = r.stirred || !maps.Equal(shown, r.shown)
	r.shown = shown
	return nil
}

// checkReflectors reads the Nodes of reflectors without a session, which this node would replace: the watch has no
// conditions.
func (a *Agent) checkReflectors(ctx context.Context) {
	r := &a.reflecting
	if a.gone || a.offline != nil {
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
		dead, err := a.nodeDown(ctx, name)
		if err != nil {
			a.Log.Warn("no session with a route reflector, and its Node cannot be read", "node", name, "err", err)
			continue
		}
		a.Log.Info("no session with a route reflector", "node", name, "dead", dead)
		r.verdicts[name], r.stirred = reflectors.Verdict{Dead: dead, At: now}, true
	}
}

// nodeDown reports whether a Node does not exist or is not Ready.
func (a *Agent) nodeDown(ctx context.Context, name string) (bool, error) {
	ctx, cancel := context.WithTimeout(ctx, missTime)
	defer cancel()
	n := &api.Node{Meta: api.Meta{Name: name}}
	if err := a.Store.Get(ctx, n); err != nil {
		if errors.Is(err, datastore.ErrNotFound) {
			return true, nil
		}
		return false, err
	}
	return !slices.ContainsFunc(n.Status.Conditions,
		func(c api.NodeCondition) bool { return c.Type == api.NodeReady && c.Status == "True" }), nil
}

// again shortens the pause before the next pass to the time at which the plan may change. It returns 0 once per cause,
// so that a pass that fails before it plans is not repeated at once.
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

// reportRole logs a change of the role and writes an Event about it.
func (a *Agent) reportRole(before reflectors.Plan) {
	plan := &a.reflecting.plan
	if plan.Role == before.Role || before.Role == reflectors.NoRole && plan.Role == reflectors.AsClient {
		return
	}
	text := fmt.Sprintf("it is %s for BGP routes now: %s", cmp.Or(string(plan.Role), "neither client nor reflector"), plan.Why)
	a.Log.Info("route reflector role changed", "role", plan.Role, "before", before.Role, "why", plan.Why)
	if a.Events != nil {
		a.Events.Note(desired.NodeObject(a.Config.Nodename), "RouteReflection", text)
	}
}
