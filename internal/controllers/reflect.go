package controllers

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/tortie-net/tortie/internal/api"
	"github.com/tortie-net/tortie/internal/app/config"
	"github.com/tortie-net/tortie/internal/app/progress"
	"github.com/tortie-net/tortie/internal/app/wait"
	"github.com/tortie-net/tortie/internal/datastore"
	"github.com/tortie-net/tortie/internal/datastore/kubernetes"
	"github.com/tortie-net/tortie/internal/ipam/inventory"
)

const (
	// reflectEvery is the longest pause between two looks at the reflectors; reflectTime bounds one look.
	reflectEvery = 10 * time.Second
	reflectTime  = 30 * time.Second
)

// Reasons of Events about reflectors.
const (
	reasonReflectors = "AutomaticReflectors"
	reasonReflection = "RouteReflection"
)

// reflectorKeeper carries out plans for route reflectors. It reads the BGPPeer and the BGPConfiguration at each look,
// and the Nodes again before it writes.
type reflectorKeeper struct {
	settings config.Reflectors
	store    *kubernetes.Store
	nodes    func() []inventory.Node
	// warn and note write Events.
	warn, note func(about api.ObjectReference, reason, text string)
	log        *slog.Logger
	few        time.Time
}

// reflect keeps the route reflectors until ctx, the context of this process's leadership, ends.
func (c *Controllers) reflect(ctx context.Context) {
	k := reflectorKeeper{settings: c.deps.Config.Reflectors, store: c.deps.Store, nodes: c.deps.Watch.Nodes,
		warn: c.deps.Events.Warn, note: c.deps.Events.Note, log: c.deps.Log}
	var reported progress.Changes
	for {
		names, problem, err := k.look(ctx, time.Now())
		if err != nil {
			problem = err.Error()
		}
		c.board.change(func(s *Status) { s.RouteReflectors, s.ReflectorProblem = names, problem })
		if reported.New(err) && ctx.Err() == nil {
			k.log.Warn("cannot keep the route reflectors; retrying", "err", err)
		}
		if !wait.Sleep(ctx, min(reflectEvery, k.settings.Pause)) {
			return
		}
	}
}

// look makes a plan and carries it out. It returns the reflectors, ordered by name, and the obstacle if there is one.
func (k *reflectorKeeper) look(ctx context.Context, now time.Time) (names []string, problem string, err error) {
	ctx, cancel := context.WithTimeout(ctx, reflectTime)
	defer cancel()
	r := reflection{Reflectors: k.settings, nodes: k.nodes(), now: now}
	if r.peer, err = stored(ctx, k.store, &api.BGPPeer{Meta: api.Meta{Name: api.ReflectorsPeer}}); err != nil {
		return nil, "", err
	}
	if r.config, err = stored(ctx, k.store, &api.BGPConfiguration{Meta: api.Meta{Name: api.DefaultName}}); err != nil {
		return nil, "", err
	}
	r.count()
	switch few := r.isFew(); {
	case !few:
		k.few = time.Time{}
	case k.few.IsZero():
		k.few = now
	}
	r.few = k.few
	plan := r.plan()
	if plan.act != "" {
		if err := k.confirm(ctx, &r); err != nil {
			return nil, "", err
		}
		plan = r.plan()
	}
	for _, n := range r.present() {
		names = append(names, n.Name)
	}
	if plan.problem != "" {
		k.warn(plan.about, reasonReflectors, plan.problem)
		problem = fmt.Sprintf("%s %s: %s", plan.about.Kind, plan.about.Name, plan.problem)
	}
	err = k.carryOut(ctx, &r, &plan)
	if datastore.Contended(err) { // the next look sees the other write
		err = nil
	}
	return names, problem, err
}

// stored reads an object; nil if there is none.
func stored[T api.Resource](ctx context.Context, store datastore.Store, obj T) (T, error) {
	err := store.Get(ctx, obj)
	if errors.Is(err, datastore.ErrNotFound) {
		var none T
		return none, nil
	}
	return obj, err
}

// nodeList is a list of Nodes.
type nodeList struct{ items []inventory.Node }

// ItemType implements api.ResourceList.
func (*nodeList) ItemType() api.Type { return (*inventory.Node)(nil).ResourceType() }

// NewItem implements api.ResourceList.
func (*nodeList) NewItem() api.Resource { return new(inventory.Node) }

// Add implements api.ResourceList.
func (l *nodeList) Add(item api.Resource) { l.items = append(l.items, *item.(*inventory.Node)) }

// confirm replaces the watched Nodes, which may be behind, by listed ones: else a second node could become reflector in
// place of an existing reflector.
func (k *reflectorKeeper) confirm(ctx context.Context, r *reflection) error {
	var list nodeList
	if err := k.store.List(ctx, &list, datastore.ListOptions{}); err != nil {
		return fmt.Errorf("read the Nodes before route reflectors are changed: %w", err)
	}
	r.nodes = list.items
	return nil
}

// carryOut writes a plan's change. A paced change is first recorded on the BGPPeer, by a write that fails if another
// leader has changed it: of two leaders one continues.
func (k *reflectorKeeper) carryOut(ctx context.Context, r *reflection, plan *reflectorPlan) (err error) {
	if plan.act.paced() {
		err = k.patch(ctx, r.peer, map[string]any{api.AnnotationReflectors: r.now.UTC().Format(time.RFC3339Nano)}, nil, nil)
	}
	if err == nil {
		err = k.write(ctx, r, plan)
	}
	node := ""
	if plan.node != nil {
		node = plan.node.Name
	}
	if err != nil {
		return fmt.Errorf("%s %s: %w", plan.act, node, err)
	}
	if plan.act != "" {
		k.log.Info("route reflectors: "+string(plan.act), "node", node, "why", plan.why)
	}
	return nil
}

func (k *reflectorKeeper) write(ctx context.Context, r *reflection, plan *reflectorPlan) error {
	switch plan.act {
	case createPeer:
		return k.store.Create(ctx, newReflectorsPeer(r))
	case copyMesh:
		annotations, spec := settingsOf(newReflectorsPeer(r))
		return k.patch(ctx, r.peer, annotations, nil, spec)
	case addNode:
		return k.mark(ctx, plan, "a route reflector", clusterIDOf(plan.node), "")
	case removeNode:
		return k.mark(ctx, plan, "no route reflector any more", nil, nil)
	case meshOff:
		return k.turnOff(ctx, r)
	case meshOn:
		return k.turnOn(ctx, r)
	case deletePeer:
		return k.store.Delete(ctx, r.peer)
	}
	return nil
}

// mark sets or removes a Node's annotation and label of a reflector.
func (k *reflectorKeeper) mark(ctx context.Context, plan *reflectorPlan, what string, id, label any) error {
	n := plan.node
	about := reference(n, &n.Meta) // before the patch, which replaces the Node
	err := k.patch(ctx, n, map[string]any{api.AnnotationReflector: id}, map[string]any{api.LabelReflector: label}, nil)
	if err == nil {
		k.note(about, reasonReflection, fmt.Sprintf("the node is %s now: %s", what, plan.why))
	}
	return err
}

// turnOff turns the mesh off. The BGPPeer has its settings: projectcalico.org/v3 refuses a password for a mesh that is
// off.
func (k *reflectorKeeper) turnOff(ctx context.Context, r *reflection) error {
	off := false
	if r.config == nil {
		return k.store.Create(ctx, &api.BGPConfiguration{
			Meta: api.Meta{Name: api.DefaultName, Annotations: map[string]string{api.AnnotationReflectors: "mesh"}},
			Spec: api.BGPConfigurationSpec{NodeToNodeMeshEnabled: &off},
		})
	}
	return k.patch(ctx, r.config, map[string]any{api.AnnotationReflectors: "mesh", api.AnnotationBFD: nil}, nil,
		map[string]any{"nodeToNodeMeshEnabled": off, "nodeMeshPassword": nil, "nodeMeshMaxRestartTime": nil})
}

// turnOn turns the mesh on, with the settings of the BGPPeer.
func (k *reflectorKeeper) turnOn(ctx context.Context, r *reflection) error {
	annotations, spec := settingsOf(r.peer)
	annotations[api.AnnotationReflectors] = nil
	return k.patch(ctx, r.config, annotations, nil, map[string]any{
		"nodeToNodeMeshEnabled": true, "nodeMeshPassword": spec["password"], "nodeMeshMaxRestartTime": spec["maxRestartTime"],
	})
}

// newReflectorsPeer returns the BGPPeer, with the mesh's settings.
func newReflectorsPeer(r *reflection) *api.BGPPeer {
	p := &api.BGPPeer{
		Meta: api.Meta{Name: api.ReflectorsPeer, Annotations: map[string]string{api.AnnotationReflectors: r.now.UTC().Format(time.RFC3339Nano)}},
		Spec: api.BGPPeerSpec{NodeSelector: "all()", PeerSelector: "has(" + api.LabelReflector + ")"},
	}
	if r.config != nil {
		p.Spec.Password, p.Spec.MaxRestartTime = r.config.Spec.NodeMeshPassword, r.config.Spec.NodeMeshMaxRestartTime
		if text := r.config.Annotations[api.AnnotationBFD]; text != "" {
			p.Annotations[api.AnnotationBFD] = text
		}
	}
	return p
}

// settingsOf returns the mesh's settings on a BGPPeer, as annotations and fields of a merge patch.
func settingsOf(p *api.BGPPeer) (annotations, spec map[string]any) {
	return map[string]any{api.AnnotationBFD: orNil(p.Annotations[api.AnnotationBFD])},
		map[string]any{"password": p.Spec.Password, "maxRestartTime": orNil(p.Spec.MaxRestartTime)}
}

// orNil returns nil, which removes a field, for an empty text.
func orNil(text string) any {
	if text == "" {
		return nil
	}
	return text
}

// patch changes annotations, labels and fields of an object. It returns ErrConflict if the object has changed. A Node,
// which its kubelet updates all the time, must only have the same UID.
func (k *reflectorKeeper) patch(ctx context.Context, obj api.Resource, annotations, labels, spec map[string]any) error {
	m := obj.GetMeta()
	metadata := map[string]any{"uid": m.UID, "annotations": annotations}
	if labels != nil {
		metadata["labels"] = labels
	} else {
		metadata["resourceVersion"] = m.ResourceVersion
	}
	body := map[string]any{"metadata": metadata}
	if spec != nil {
		body["spec"] = spec
	}
	return k.store.MergePatch(ctx, obj, body)
}
