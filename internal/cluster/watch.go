package cluster

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/tortie-net/tortie/internal/api"
	"github.com/tortie-net/tortie/internal/app/wait"
)

// Watch keeps a state.Cluster and a state.Assignment up to date.
type Watch struct {
	feed
	self, namespace string

	nodes        *objectStore[api.Node] // metadata only
	own          *objectStore[api.Node] // this one, with its status
	namespaces   *objectStore[api.Namespace]
	pools        *objectStore[api.IPPool]
	affinities   *objectStore[api.BlockAffinity]
	bgp          *objectStore[api.BGPConfiguration]
	peers        *objectStore[api.BGPPeer]
	filters      *objectStore[api.BGPFilter]
	felix        *objectStore[api.FelixConfiguration]
	configs      *objectStore[api.IPAMConfig]
	reservations *objectStore[api.IPReservation]
	information  *objectStore[api.ClusterInformation]

	revision            atomic.Uint64
	changed, assignment chan struct{}
	configured          chan struct{} // signals a change that may refer to a Secret

	mu      sync.Mutex // guards secrets
	secrets map[string]*secretWatch

	unread       unread // annotations of namespaces
	services     serviceWatches
	nodeStatuses *nodeStatuses
}

// NewWatch prepares the watches of the node self with its agent in a namespace; Run starts them.
func NewWatch(at Server, self, namespace string, log *slog.Logger) (*Watch, error) {
	feed, err := newFeed(at, log)
	if err != nil {
		return nil, err
	}
	w := &Watch{
		feed:       feed,
		self:       self,
		namespace:  namespace,
		changed:    make(chan struct{}, 1),
		assignment: make(chan struct{}, 1),
		configured: make(chan struct{}, 1),
		secrets:    map[string]*secretWatch{},
		services:   serviceWatches{wanted: make(chan struct{}, 1)},
	}
	w.makeStores(log)
	if w.nodeStatuses, err = w.followNodeStatuses(); err != nil {
		return nil, err
	}
	return w, errors.Join(w.followAll(), w.movesBy(w.information, w.assignmentChanged))
}

// makeStores connects changes with the channels that they signal.
func (w *Watch) makeStores(log *slog.Logger) {
	both := func() { w.clusterChanged(); w.assignmentChanged() }
	told := func(obj api.Keyed) { tellUnacted(log, obj) }
	w.nodes = newObjectStore(sameNode, func(n *api.Node) { w.either(n.Name, both) })
	w.own = newObjectStore(sameNode, func(*api.Node) { w.clusterChanged() })
	w.affinities = newObjectStore(sameRevision, func(a *api.BlockAffinity) { w.either(a.Spec.Node, both) })
	w.pools = newObjectStore(sameRevision, func(*api.IPPool) { both() })
	w.bgp = newObjectStore(sameRevision, func(c *api.BGPConfiguration) { told(c); w.clusterChanged(); wait.Signal(w.configured) })
	w.peers = newObjectStore(sameRevision, func(*api.BGPPeer) { w.clusterChanged(); wait.Signal(w.configured) })
	w.filters = newObjectStore(sameRevision, func(*api.BGPFilter) { w.clusterChanged() })
	w.felix = newObjectStore(sameRevision, func(f *api.FelixConfiguration) { told(f); w.clusterChanged() })
	w.namespaces = newObjectStore(sameNamespace, func(n *api.Namespace) { w.noteUnread(n.Name); w.assignmentChanged() })
	w.configs = newObjectStore(sameRevision, func(*api.IPAMConfig) { w.assignmentChanged() })
	w.reservations = newObjectStore(sameRevision, func(*api.IPReservation) { w.assignmentChanged() })
	w.information = newObjectStore(sameRevision, func(*api.ClusterInformation) { w.assignmentChanged(); wait.Signal(w.move.changed) })
}

// noteUnread records the annotations of a namespace that have no effect.
func (w *Watch) noteUnread(namespace string) {
	var keys []string
	if n := w.namespaces.get(namespace); n != nil {
		keys = api.UnreadOf("Namespace", n.Annotations)
	}
	if w.unread.set(namespace, keys) {
		w.clusterChanged()
	}
}

// UnreadAnnotations returns the annotations without effect of namespaces, by their names.
func (w *Watch) UnreadAnnotations() map[string][]string { return w.unread.all() }

// followAll fills the stores. The objects of Assignment, and the older half of Cluster, are proof: see streams.
func (w *Watch) followAll() error {
	return errors.Join(
		add(&w.feed, source[api.Node]{partial: true, proof: true, trim: trimNode}, w.nodes),
		add(&w.feed, source[api.Node]{name: "Node " + w.self, object: w.self, trim: trimOwnNode}, w.own),
		add(&w.feed, source[api.Namespace]{partial: true, proof: true, trim: trimNamespace}, w.namespaces),
		add(&w.feed, source[api.IPPool]{proof: true}, w.pools),
		add(&w.feed, source[api.BlockAffinity]{proof: true, trim: w.trimAffinity}, w.affinities),
		add(&w.feed, source[api.BGPConfiguration]{proof: true}, w.bgp),
		add(&w.feed, source[api.BGPPeer]{optional: true}, w.peers),
		add(&w.feed, source[api.BGPFilter]{optional: true}, w.filters),
		add(&w.feed, source[api.FelixConfiguration]{optional: true}, w.felix),
		add(&w.feed, source[api.IPAMConfig]{proof: true}, w.configs),
		add(&w.feed, source[api.IPReservation]{proof: true}, w.reservations),
		add(&w.feed, source[api.ClusterInformation]{proof: true}, w.information),
	)
}

// either wakes the reader of Cluster for an object of another node, and calls own for an object of this one.
func (w *Watch) either(node string, own func()) {
	if node == w.self {
		own()
		return
	}
	w.clusterChanged()
}

func (w *Watch) clusterChanged() {
	w.revision.Add(1)
	wait.Signal(w.changed)
}

func (w *Watch) assignmentChanged() { wait.Signal(w.assignment) }

// Changed wakes its one reader after the Cluster changed. Wake-ups are coalesced and carry nothing.
func (w *Watch) Changed() <-chan struct{} { return w.changed }

// AssignmentChanged wakes its one reader after the Assignment changed.
func (w *Watch) AssignmentChanged() <-chan struct{} { return w.assignment }

// Run watches until ctx ends.
func (w *Watch) Run(ctx context.Context) error {
	w.run(ctx, w.watchSecrets, w.watchServices, w.nodeStatuses.by.run)
	return nil
}

// Confirmed returns the last time at which Cluster and Assignment were complete, except for changes under way: all
// watches were open, and the API server sent a message on one, or answered a Probe. Zero: not yet. Objects that only
// the agent's own settings depend on are excluded: FelixConfiguration, BGPPeers, BGPFilters, Secrets, and this node's
// status.
func (w *Watch) Confirmed() time.Time { return w.feed.Confirmed() }

// Probe reads one object from the API server, past all caches, and compares it with the watched one. If they are equal
// and all watches are open, this confirms the time of the request.
func (w *Watch) Probe(ctx context.Context) error { return w.probe(ctx, w.information) }
