package kube

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	"k8s.io/client-go/rest"

	"github.com/tortie-net/tortie/internal/api"
)

// Watch keeps a World and an Assignment up to date.
type Watch struct {
	self, namespace string
	config          *rest.Config
	http            *http.Client // shared: one connection for all watches
	log             *slog.Logger
	streams         *streams
	probe           rest.Interface

	nodes        *shelf[api.Node] // metadata only
	own          *shelf[api.Node] // this one, with its status
	namespaces   *shelf[api.Namespace]
	pools        *shelf[api.IPPool]
	affinities   *shelf[api.BlockAffinity]
	bgp          *shelf[api.BGPConfiguration]
	peers        *shelf[api.BGPPeer]
	filters      *shelf[api.BGPFilter]
	felix        *shelf[api.FelixConfiguration]
	configs      *shelf[api.IPAMConfig]
	reservations *shelf[api.IPReservation]
	information  *shelf[api.ClusterInformation]
	followers    []*follower

	revision            atomic.Uint64
	changed, assignment chan struct{}
	configured          chan struct{} // what may name a Secret changed

	mu      sync.Mutex // guards secrets
	secrets map[string]*secretWatch

	services  serviceWatches
	questions *questions
}

// NewWatch prepares the watches of the node self, whose agent runs in a namespace; Run starts them.
func NewWatch(cfg *rest.Config, self, namespace string, log *slog.Logger) (*Watch, error) {
	shared, err := rest.HTTPClientFor(cfg)
	if err != nil {
		return nil, fmt.Errorf("connection to the API server: %w", err)
	}
	w := &Watch{
		self:       self,
		namespace:  namespace,
		config:     cfg,
		http:       shared,
		log:        log,
		streams:    &streams{now: time.Now, open: map[string]*stream{}},
		changed:    make(chan struct{}, 1),
		assignment: make(chan struct{}, 1),
		configured: make(chan struct{}, 1),
		secrets:    map[string]*secretWatch{},
		services:   serviceWatches{wanted: make(chan struct{}, 1)},
	}
	if w.probe, err = newClient[api.ClusterInformation](cfg, shared, (*api.ClusterInformation)(nil).ResourceType()); err != nil {
		return nil, err
	}
	w.makeShelves()
	if w.questions, err = w.followQuestions(); err != nil {
		return nil, err
	}
	return w, w.followAll()
}

// makeShelves decides who is woken by what.
func (w *Watch) makeShelves() {
	both := func() { w.worldChanged(); w.assignmentChanged() }
	w.nodes = newShelf(sameNode, func(n *api.Node) { w.either(n.Name, both) })
	w.own = newShelf(sameNode, func(*api.Node) { w.worldChanged() })
	w.affinities = newShelf(sameRevision, func(a *api.BlockAffinity) { w.either(a.Spec.Node, both) })
	w.pools = newShelf(sameRevision, func(*api.IPPool) { both() })
	w.bgp = newShelf(sameRevision, func(*api.BGPConfiguration) { w.worldChanged(); wake(w.configured) })
	w.peers = newShelf(sameRevision, func(*api.BGPPeer) { w.worldChanged(); wake(w.configured) })
	w.filters = newShelf(sameRevision, func(*api.BGPFilter) { w.worldChanged() })
	w.felix = newShelf(sameRevision, func(*api.FelixConfiguration) { w.worldChanged() })
	w.namespaces = newShelf(sameNamespace, func(*api.Namespace) { w.assignmentChanged() })
	w.configs = newShelf(sameRevision, func(*api.IPAMConfig) { w.assignmentChanged() })
	w.reservations = newShelf(sameRevision, func(*api.IPReservation) { w.assignmentChanged() })
	w.information = newShelf(sameRevision, func(*api.ClusterInformation) { w.assignmentChanged() })
}

// followAll fills the shelves. What Assignment shows, and the older half of World, is proof: see streams.
func (w *Watch) followAll() error {
	return errors.Join(
		add(w, source[api.Node]{partial: true, proof: true, trim: trimNode}, w.nodes),
		add(w, source[api.Node]{name: "Node " + w.self, object: w.self, trim: trimOwnNode}, w.own),
		add(w, source[api.Namespace]{partial: true, proof: true, trim: trimNamespace}, w.namespaces),
		add(w, source[api.IPPool]{proof: true}, w.pools),
		add(w, source[api.BlockAffinity]{proof: true, trim: w.trimAffinity}, w.affinities),
		add(w, source[api.BGPConfiguration]{proof: true}, w.bgp),
		add(w, source[api.BGPPeer]{optional: true}, w.peers),
		add(w, source[api.BGPFilter]{optional: true}, w.filters),
		add(w, source[api.FelixConfiguration]{optional: true}, w.felix),
		add(w, source[api.IPAMConfig]{proof: true}, w.configs),
		add(w, source[api.IPReservation]{proof: true}, w.reservations),
		add(w, source[api.ClusterInformation]{proof: true}, w.information),
	)
}

func add[T any](w *Watch, src source[T], into *shelf[T]) error {
	src.of = any(new(T)).(api.Resource).ResourceType()
	if src.name == "" {
		src.name = src.of.Kind
	}
	f, err := follow(w, src, into)
	w.followers = append(w.followers, f)
	return err
}

// either wakes the reader of World for what belongs to another node, and the second function's for what belongs to this one.
func (w *Watch) either(node string, own func()) {
	if node == w.self {
		own()
		return
	}
	w.worldChanged()
}

func (w *Watch) worldChanged() {
	w.revision.Add(1)
	wake(w.changed)
}

func (w *Watch) assignmentChanged() { wake(w.assignment) }

func wake(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

// Changed wakes its one reader after the World changed. Wake-ups are coalesced and carry nothing.
func (w *Watch) Changed() <-chan struct{} { return w.changed }

// AssignmentChanged wakes its one reader after the Assignment changed.
func (w *Watch) AssignmentChanged() <-chan struct{} { return w.assignment }

// endTime bounds the wait for watches to end: client-go does not interrupt its waits for an API server that is away.
const endTime = time.Second

// Run watches until ctx ends.
func (w *Watch) Run(ctx context.Context) error {
	var running sync.WaitGroup
	running.Go(func() { w.mindSecrets(ctx) })
	running.Go(func() { w.mindServices(ctx) })
	running.Go(func() { w.questions.by.run(ctx) })
	for _, f := range w.followers {
		running.Go(func() { f.run(ctx) })
	}
	<-ctx.Done()
	ended := make(chan struct{})
	go func() { running.Wait(); close(ended) }()
	select {
	case <-ended:
	case <-time.After(endTime):
	}
	return nil
}

// WaitForSync blocks until World and Assignment are complete for the first time.
func (w *Watch) WaitForSync(ctx context.Context, log *slog.Logger) error {
	start := time.Now()
	tick := time.NewTicker(10 * time.Second)
	defer tick.Stop()
	for _, f := range w.followers {
		for !f.full() {
			select {
			case <-f.await:
			case <-ctx.Done():
				return fmt.Errorf("first complete list of the cluster: %w", errors.Join(context.Cause(ctx), f.failure()))
			case <-tick.C:
				log.Info("waiting for the first complete list from the API server", "kind", f.name, "waited", time.Since(start).Round(time.Second), "err", f.failure())
			}
		}
	}
	return nil
}

// Confirmed returns when World and Assignment were last known to miss nothing but what was under way: all watches were open,
// and the API server said something on one of them, or answered a Probe. Zero: not yet. What only the agent's own settings
// depend on is not part of it: FelixConfiguration, BGPPeers, BGPFilters, Secrets, and this node's status.
func (w *Watch) Confirmed() time.Time { return w.streams.Confirmed() }

// Probe asks the API server for one object, past all caches, and compares it with what the watches say. If it is the same and
// all watches are open, this confirms the time at which it asked.
func (w *Watch) Probe(ctx context.Context) error {
	if !w.streams.allOpen() {
		return fmt.Errorf("not all watches of the API server are open")
	}
	sent := time.Now()
	t := (*api.ClusterInformation)(nil).ResourceType()
	answer, err := w.probe.Get().Resource(t.Plural).Name(api.DefaultName).Do(ctx).Get()
	revision := ""
	switch {
	case missing(err):
	case err != nil:
		return fmt.Errorf("probe of the API server: %w", err)
	default:
		revision = answer.(*object[api.ClusterInformation]).meta().ResourceVersion
	}
	if seen := w.seenInformation(); seen != revision {
		return fmt.Errorf("%s %s has revision %q, and its watch says %q: the watch lags", t.Kind, api.DefaultName, revision, seen)
	}
	w.streams.confirm(sent)
	return nil
}

// seenInformation returns the revision of ClusterInformation default that the watch has, empty if there is none.
func (w *Watch) seenInformation() string {
	if info := w.information.get(api.DefaultName); info != nil {
		return info.ResourceVersion
	}
	return ""
}
