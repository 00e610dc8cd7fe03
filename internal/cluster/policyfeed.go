package cluster

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"sync"
	"sync/atomic"

	"k8s.io/client-go/rest"

	"github.com/tortie-net/tortie/internal/api"
	"github.com/tortie-net/tortie/internal/app/wait"
	"github.com/tortie-net/tortie/internal/cluster/state"
	"github.com/tortie-net/tortie/internal/policy"
)

// PolicyFeed keeps up to date what the policies of a node depend on. Of other nodes' pods it follows those that are wanted, as metadata if
// that is enough: in a large cluster pods are what changes most.
type PolicyFeed struct {
	feed
	self    string
	changed chan struct{}
	resync  chan struct{} // which watches are wanted has changed

	policies        *objectStore[api.NetworkPolicy]
	clusterPolicies *objectStore[api.ClusterNetworkPolicy]
	namespaces      *objectStore[api.Namespace]
	own             *objectStore[policyPod]

	failures atomic.Bool // Err has changed
	mu       sync.Mutex  // guards all below
	// stale are the parts of view that have changed, listed those that there has been a complete list of.
	stale, listed part
	table         *podTable
	watches       map[podScope]*tempWatch[policyPod]
	nodes         *tempWatch[policyNode] // nil: closed
	wanted        []podScope
	wantNodes     bool
	asked         bool // Want has been called for a view that was Listed
	view          PolicyView
}

// PolicyView is what is known of the cluster, for one reader. Its maps are the feed's: the next Take changes Pods, and replaces the others. What
// pointers and slices lead to is never changed, so the reader may keep it.
type PolicyView struct {
	// NetworkPolicies and ClusterNetworkPolicies are in no particular order, without labels and annotations.
	NetworkPolicies        []*api.NetworkPolicy
	ClusterNetworkPolicies []*api.ClusterNetworkPolicy
	// Pods have a network of their own and have not finished. Of other nodes' pods there are those that are wanted and have an address. Of several
	// pods that claim an address only the newest has it.
	Pods map[policy.PodKey]*policy.Pod
	// Local are the pods of this node among Pods, in order. They have all that policies depend on, with an address or without.
	Local      []policy.PodKey
	Namespaces map[string]map[string]string // their labels
	// Nodes is empty while no ClusterNetworkPolicy has a peer that selects nodes.
	Nodes map[string]policy.Node

	// Listed: policies, namespaces and this node's pods have been listed, so that an Interest can be made of them.
	Listed bool
	// Complete: since a view was Listed Want has been called, and then all that was wanted has been listed. It stays so: ask Knows about what
	// policies came to depend on later.
	Complete bool
	// NodesKnown is false while Nodes are wanted and have not been listed.
	NodesKnown bool
	known      []podScope

	// Changed are the pods of other nodes that came, went or changed since the last Take, in order.
	Changed []policy.PodKey
	// More: something else changed since the last Take.
	More bool

	// Problems are objects that cannot be read.
	Problems []state.Problem
	// Err says why the API server's word cannot be had; nil while it can. What was known stays.
	Err error
}

// part is a part of a PolicyView.
type part uint8

const (
	partPolicies part = 1 << iota
	partClusterPolicies
	partNamespaces
	partNodes
	partOwn
	partMore // what is made anew with each Take

	partsOfInterest = partPolicies | partClusterPolicies | partNamespaces | partOwn
)

// NewPolicyFeed prepares the watches of the node self; Run starts them. It makes no request.
func NewPolicyFeed(cfg *rest.Config, self string, log *slog.Logger) (*PolicyFeed, error) {
	feed, err := newFeed(cfg, log)
	if err != nil {
		return nil, err
	}
	f := &PolicyFeed{
		feed: feed, self: self, changed: make(chan struct{}, 1), resync: make(chan struct{}, 1), table: newPodTable(),
		watches: map[podScope]*tempWatch[policyPod]{},
		view:    PolicyView{Pods: map[policy.PodKey]*policy.Pod{}},
	}
	f.makeStores()
	err = errors.Join(
		add(&f.feed, source[api.NetworkPolicy]{doubtful: true, pages: podPage, trim: trimNetworkPolicy}, f.policies),
		add(&f.feed, source[api.ClusterNetworkPolicy]{doubtful: true, optional: true, trim: trimClusterNetworkPolicy}, f.clusterPolicies),
		add(&f.feed, source[api.Namespace]{partial: true, pages: podPage, trim: trimToLabels}, f.namespaces),
		add(&f.feed, source[policyPod]{name: "Pod on " + self, fields: "spec.nodeName=" + self}, f.own),
	)
	for _, by := range f.followers {
		by.failed = f.noteFailure
	}
	return f, err
}

func (f *PolicyFeed) makeStores() {
	f.policies = newObjectStore(sameNetworkPolicy, func(*api.NetworkPolicy) { f.note(partPolicies) })
	f.policies.listed = func() { f.noteList(partPolicies) }
	f.clusterPolicies = newObjectStore(sameClusterNetworkPolicy, func(*api.ClusterNetworkPolicy) { f.note(partClusterPolicies) })
	f.clusterPolicies.listed = func() { f.noteList(partClusterPolicies) }
	f.namespaces = newObjectStore(sameNamespace, func(*api.Namespace) { f.note(partNamespaces) })
	f.namespaces.listed = func() { f.noteList(partNamespaces) }
	f.own = newObjectStore(samePolicyPod, f.notePod)
	f.own.listed = func() { f.noteList(partOwn) }
}

// Run watches until ctx ends.
func (f *PolicyFeed) Run(ctx context.Context) error {
	f.run(ctx, f.keepWatches)
	return nil
}

// Changed wakes its one reader after there is something to Take. Wake-ups are coalesced and carry nothing.
func (f *PolicyFeed) Changed() <-chan struct{} { return f.changed }

// note marks parts of the view as changed.
func (f *PolicyFeed) note(what part) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.noteLocked(what)
}

func (f *PolicyFeed) noteLocked(what part) {
	f.stale |= what
	wait.Signal(f.changed)
	if what&partClusterPolicies != 0 {
		wait.Signal(f.resync) // they may need nodes
	}
}

// noteFailure is called by followers with their lock, which failure takes under that of the feed.
func (f *PolicyFeed) noteFailure() {
	f.failures.Store(true)
	wait.Signal(f.changed)
}

// noteList marks a part as listed.
func (f *PolicyFeed) noteList(what part) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.listed&what == 0 {
		f.listed |= what
		f.noteLocked(what)
	}
}

// notePod finds out what is known of a pod now: several watches may show it.
func (f *PolicyFeed) notePod(p *policyPod) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.merge(&p.meta)
}

// merge believes the watch of this node about its own pods, and of pods that follow each other under one name the newest. The caller holds
// the lock.
func (f *PolicyFeed) merge(m *api.Meta) {
	name := key(m)
	own := f.own.get(name)
	best := own
	for _, scope := range []podScope{{m.Namespace, true}, {"", true}, {m.Namespace, false}, {"", false}} {
		w := f.watches[scope]
		if w == nil {
			continue
		}
		if p := w.of.get(name); p != nil && (best == nil || p.meta.UID != best.meta.UID && p.created > best.created) {
			best = p
		}
	}
	if best != nil && best.pod == nil {
		best = nil
	}
	if f.table.set(policy.PodKey{Namespace: m.Namespace, Name: m.Name}, best, best != nil && best == own) {
		wait.Signal(f.changed)
	}
}

// Take returns what is known now, and what of it has changed since the last Take. It costs what has changed, however many pods there are.
func (f *PolicyFeed) Take() PolicyView {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.failures.Swap(false) {
		f.stale |= partMore
	}
	v := &f.view
	changed, local := f.table.take(v.Pods)
	v.Changed, v.More = changed, local || f.stale != 0
	if local {
		v.Local = f.table.local()
	}
	if v.More {
		f.refresh(v)
	}
	f.stale = 0
	return *v
}

// refresh makes the stale parts of the view anew. The caller holds the lock.
func (f *PolicyFeed) refresh(v *PolicyView) {
	if f.stale&partPolicies != 0 {
		v.NetworkPolicies = f.policies.each()
	}
	if f.stale&partClusterPolicies != 0 {
		v.ClusterNetworkPolicies = f.clusterPolicies.each()
		f.wantNodes = slices.ContainsFunc(v.ClusterNetworkPolicies, selectsNodes)
	}
	if f.stale&partNamespaces != 0 {
		v.Namespaces = namespaceLabels(f.namespaces.each())
	}
	if f.stale&partNodes != 0 {
		v.Nodes = f.knownNodes()
	}
	v.Problems = slices.Concat(f.policies.problems(), f.clusterPolicies.problems(), f.namespaces.problems(), f.own.problems())
	v.Err = f.failure()
	v.Listed = f.listed&partsOfInterest == partsOfInterest
	v.NodesKnown = !f.wantNodes || f.nodes != nil && f.nodes.listed
	v.known = f.knownPods()
	v.Complete = v.Complete || v.Listed && f.asked && v.NodesKnown && f.hasWanted()
}

// failure returns why the API server's word cannot be had. The caller holds the lock.
func (f *PolicyFeed) failure() error {
	var errs []error
	for _, by := range f.followers {
		errs = append(errs, by.failure())
	}
	for _, w := range f.watches {
		errs = append(errs, w.failure())
	}
	if f.nodes != nil {
		errs = append(errs, f.nodes.failure())
	}
	return errors.Join(errs...)
}
