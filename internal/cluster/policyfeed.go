package cluster

import (
	"context"
	"errors"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/tortie-net/tortie/internal/api"
	"github.com/tortie-net/tortie/internal/app/wait"
	"github.com/tortie-net/tortie/internal/cluster/state"
	"github.com/tortie-net/tortie/internal/policy"
)

// PolicyFeed watches the objects that a node's policies depend on: policies, namespaces, the node's own pods, and the
// pods of other nodes that Want selects. Pods are most of the events of a large cluster.
type PolicyFeed struct {
	feed
	self    string
	changed chan struct{}
	resync  chan struct{} // wakes keepWatches
	replain chan struct{} // see PlainPodsChanged

	policies        *objectStore[api.NetworkPolicy]
	clusterPolicies *objectStore[api.ClusterNetworkPolicy]
	namespaces      *objectStore[api.Namespace]
	own             *objectStore[policyPod]
	calico          calicoStores
	staged          stagedStores

	failures atomic.Bool // Err has changed
	mu       sync.Mutex  // guards all below
	// stale are the parts of view that have changed since Take, listed the parts that have been listed once.
	stale, listed part
	table         *podTable
	watches       map[PodScope]*tempWatch[policyPod]
	nodes         *tempWatch[policyNode] // nil: closed
	wanted        []PodScope
	wantNodes     bool
	calicoWatches calicoWatches
	asked         bool // Want was called after a view that was Listed
	view          PolicyView
	unread        unread            // annotations of this node's pods
	plain         map[string]string // UIDs of this node's plain pods, by key
}

// PolicyView is a PolicyFeed's state of the cluster, for one reader. The map Pods belongs to the feed: the reader must
// not write it, and the next Take updates it in place, so a goroutine that reads it later needs a copy. All other maps,
// all slices, and the objects behind pointers are immutable: the reader may keep them.
type PolicyView struct {
	// Node is the name of the feed's node.
	Node string
	// NetworkPolicies and ClusterNetworkPolicies are in no particular order, without labels and annotations.
	NetworkPolicies        []*api.NetworkPolicy
	ClusterNetworkPolicies []*api.ClusterNetworkPolicy
	// Pods have a network of their own and have not finished. Pods of other nodes are included if Want selects them and
	// they have an address. An address that several pods claim counts for one of them at most, see podTable.
	Pods map[policy.PodKey]*policy.Pod
	// Local are the keys of this node's pods in Pods, ascending: with ports, and including pods without an address yet.
	Local      []policy.PodKey
	Namespaces map[string]map[string]string // their labels
	// Nodes have labels, and addresses including the addresses of tunnel devices. Empty while no ClusterNetworkPolicy has
	// a peer that selects nodes.
	Nodes map[string]policy.Node
	// Strays are Nodes with addresses that do not count, in no particular order; one Node may occur several times.
	Strays []state.Problem
	// Calico has the objects that only Calico's policies read.
	Calico CalicoView
	// Staged are empty unless WatchStaged was called.
	Staged StagedView

	// Listed: policies, namespaces and this node's pods have been listed at least once, as State.Interest requires.
	Listed bool
	// Complete: Want was called after a view that was Listed, and all its selections have been listed. Complete stays
	// true: Knows reports whether the pods of a later Want have been listed.
	Complete bool
	// NodesKnown is false from the first policy that selects nodes until Nodes have been listed.
	NodesKnown bool
	// MissingServices are names of Services, in any namespace, which policies name and whose endpoints have not been
	// listed yet. AccountsMissing: policies select service accounts by labels, and service accounts have not been listed
	// yet.
	MissingServices map[string]bool
	AccountsMissing bool
	// Known are the scopes with listed pods, in no particular order, see Knows.
	Known []PodScope

	// Changed are the pods that were added, removed or changed since the last Take, ascending. OwnChanged: some are of
	// this node, now or before.
	Changed    []policy.PodKey
	OwnChanged bool
	// More: anything else changed since the last Take, such as a policy or Complete.
	More bool

	// Problems are objects that cannot be decoded, named NAMESPACE/NAME. Their last state that could be decoded stays.
	Problems []state.Problem
	// Err is why a watch fails; nil while all work. The last known state stays.
	Err error
}

// part is a part of a PolicyView.
type part uint16

const (
	partPolicies part = 1 << iota
	partClusterPolicies
	partNamespaces
	partNodes
	partOwn
	partCalicoPolicies
	partCalicoGlobalPolicies
	partTiers
	partNetworkSets
	partGlobalNetworkSets
	partHostEndpoints
	partCalicoMore // services and service accounts
	partStaged
	partMore // the fields that refresh always sets

	partsOfCalico = partCalicoPolicies | partCalicoGlobalPolicies | partTiers | partNetworkSets | partGlobalNetworkSets | partHostEndpoints
	// partsOfCalicoPolicies can refer to services and service accounts.
	partsOfCalicoPolicies = partCalicoPolicies | partCalicoGlobalPolicies
	partsOfInterest       = partPolicies | partClusterPolicies | partNamespaces | partOwn | partsOfCalico
)

// NewPolicyFeed prepares the watches of the node self; Run starts them. It makes no request.
func NewPolicyFeed(at Server, self string, log *slog.Logger) (*PolicyFeed, error) {
	feed, err := newFeed(at, log)
	if err != nil {
		return nil, err
	}
	f := &PolicyFeed{
		feed: feed, self: self, changed: make(chan struct{}, 1), resync: make(chan struct{}, 1),
		replain: make(chan struct{}, 1), table: newPodTable(),
		watches: map[PodScope]*tempWatch[policyPod]{},
		view:    PolicyView{Node: self, Pods: map[policy.PodKey]*policy.Pod{}}, plain: map[string]string{},
	}
	f.makeStores()
	err = errors.Join(
		add(&f.feed, source[api.NetworkPolicy]{doubtful: true, pages: podPage, trim: trimNetworkPolicy}, f.policies),
		add(&f.feed, source[api.ClusterNetworkPolicy]{doubtful: true, optional: true, trim: trimClusterNetworkPolicy}, f.clusterPolicies),
		add(&f.feed, source[api.Namespace]{doubtful: true, partial: true, pages: podPage, trim: trimToLabels}, f.namespaces),
		add(&f.feed, source[policyPod]{doubtful: true, proof: true, name: "Pod on " + self, fields: "spec.nodeName=" + self}, f.own),
		f.addCalico(),
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
	f.own = newObjectStore(samePolicyPod, func(p *policyPod) { f.notePod(p); f.notePlain(key(&p.meta)); f.noteUnread(key(&p.meta)) })
	f.own.listed = func() { f.noteList(partOwn) }
}

// Run watches until ctx ends.
func (f *PolicyFeed) Run(ctx context.Context) error {
	f.run(ctx, f.keepWatches)
	return nil
}

// Changed wakes its one reader when Take has news. Wake-ups are coalesced and carry no data.
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
	f.calicoWatches.found = f.calicoWatches.found && what&(partsOfCalicoPolicies|partStaged) == 0
	if what&(partClusterPolicies|partsOfCalicoPolicies|partStaged) != 0 {
		wait.Signal(f.resync) // they may need nodes, services or service accounts
	}
}

// noteFailure takes no lock: followers call it while they hold theirs, and failure takes theirs while it holds the
// feed's.
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

// notePod updates the table after a watch reported a pod.
func (f *PolicyFeed) notePod(p *policyPod) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.merge(&p.meta)
}

// notePlain updates plain after the watch of this node's pods reported one.
func (f *PolicyFeed) notePlain(name string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	before, uid := f.plain[name], ""
	if p := f.own.get(name); p != nil && p.plain {
		uid = p.meta.UID
	}
	switch {
	case uid == before:
		return
	case uid == "":
		delete(f.plain, name)
	default:
		f.plain[name] = uid
	}
	wait.Signal(f.replain)
}

// PlainPods returns the UIDs of this node's plain pods (api.PlainPod) with a network of their own that neither have
// finished nor are being deleted, in no particular order; none while their watch is interrupted.
func (f *PolicyFeed) PlainPods() []string {
	if !f.own.isFull() || !f.streams.allOpen() {
		return nil
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	return slices.Collect(maps.Values(f.plain))
}

// SetGround sets the owners of pool addresses, which decide for which pods and nodes addresses count. Before it is
// called annotations count, and the addresses in the status of nodes.
func (f *PolicyFeed) SetGround(g Ground) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.table.settle(g) {
		wait.Signal(f.changed)
	}
	nodes, strays := f.knownNodes()
	same := func(a, b policy.Node) bool {
		return maps.Equal(a.Labels, b.Labels) && slices.Equal(a.Addresses, b.Addresses)
	}
	if !maps.EqualFunc(nodes, f.view.Nodes, same) || len(strays) != len(f.view.Strays) {
		f.noteLocked(partNodes)
	}
}

// noteUnread updates unread after the watch of this node's pods reported one.
func (f *PolicyFeed) noteUnread(name string) {
	var keys []string
	if p := f.own.get(name); p != nil {
		keys = p.unread
	}
	f.unread.set(name, keys)
}

// UnreadAnnotations returns the annotations without effect of this node's pods, by NAMESPACE/NAME. Pods with
// api.AnnotationFloatingIPs are included if they have addresses: the kernel shows whether the annotation is in force.
func (f *PolicyFeed) UnreadAnnotations() map[string][]string { return f.unread.all() }

// PlainPodsChanged wakes its one reader after PlainPods changed, except for an interrupted watch.
func (f *PolicyFeed) PlainPodsChanged() <-chan struct{} { return f.replain }

// merge chooses between the watches that report a pod: for one UID the watch of this node's pods wins, then full
// objects; for several pods of one name, which exist one after the other, the newest. The caller holds the lock.
func (f *PolicyFeed) merge(m *api.Meta) {
	name := key(m)
	own := f.own.get(name)
	best := own
	for _, scope := range []PodScope{PodScope(m.Namespace), ""} {
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

// Take returns the current state, and its changes since the last Take. Its cost depends on the number of changes, not
// of pods.
func (f *PolicyFeed) Take() PolicyView {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.failures.Swap(false) {
		f.stale |= partMore
	}
	v := &f.view
	v.Changed, v.OwnChanged = f.table.take(v.Pods)
	v.More = f.stale != 0
	if v.OwnChanged {
		v.Local = f.table.local()
	}
	if v.More {
		f.refresh(v)
	}
	f.stale = 0
	return *v
}

// refresh rebuilds the stale parts of the view. The caller holds the lock.
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
		v.Nodes, v.Strays = f.knownNodes()
	}
	if f.stale&(partsOfCalico|partCalicoMore) != 0 {
		f.refreshCalico(&v.Calico)
	}
	f.refreshStaged(&v.Staged)
	v.Problems = slices.Concat(f.policies.problemsBy(key), f.clusterPolicies.problemsBy(key), f.namespaces.problemsBy(key),
		f.own.problemsBy(key), f.calico.problems(), f.staged.problems())
	v.Err = f.failure()
	v.Listed = f.listed&partsOfInterest == partsOfInterest
	v.NodesKnown = !f.wantNodes || f.nodes != nil && f.nodes.listed
	v.MissingServices, v.AccountsMissing = f.calicoWatches.missing()
	v.Known = f.knownPods()
	v.Complete = v.Complete || v.Listed && f.asked && v.NodesKnown && len(v.MissingServices) == 0 && !v.AccountsMissing && f.hasWanted()
}

// failure joins the errors of all watches. The caller holds the lock.
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
	return errors.Join(append(errs, f.calicoWatches.failures()...)...)
}
