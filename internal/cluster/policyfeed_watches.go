package cluster

import (
	"context"
	"slices"
	"time"

	"github.com/tortie-net/tortie/internal/api"
	"github.com/tortie-net/tortie/internal/app/wait"
	"github.com/tortie-net/tortie/internal/policy"
)

const (
	// mostNamespaces are watched one by one; of more the pods of all namespaces are watched at once.
	mostNamespaces = 20
	// linger is how long a watch stays open that nobody wants any more: the next pod of a job may want it again, and each time it is opened costs
	// the API server a list.
	linger = 2 * time.Minute
	// running leaves out pods that have finished: they leave the watch at that moment.
	running = "status.phase!=Succeeded,status.phase!=Failed"
)

// podScope is which pods a watch shows, and how much of them.
type podScope struct {
	namespace string // empty: all
	ports     bool   // whole objects; else metadata
}

// tempWatch is a watch that is open while it is wanted, and a little longer.
type tempWatch[T any] struct {
	of     *objectStore[T]
	by     *follower
	err    error // why there is no follower
	stop   context.CancelFunc
	listed bool
	idle   time.Time // since when nobody wants it; zero: somebody does
}

func (w *tempWatch[T]) failure() error {
	if w.by == nil {
		return w.err
	}
	return w.by.failure()
}

// Want says whose pods matter from now on, beside this node's. Pods that are not wanted any more may stay in the view for some minutes. To say
// again what is so already costs nothing.
func (f *PolicyFeed) Want(i policy.Interest) {
	wanted := scopesOf(i)
	f.mu.Lock()
	defer f.mu.Unlock()
	first := f.view.Listed && !f.asked
	f.asked = f.asked || first
	if first || !slices.Equal(wanted, f.wanted) {
		f.wanted = wanted
		wait.Signal(f.resync)
		f.noteLocked(partMore) // it may be complete now
	}
}

// scopesOf returns the watches for an interest, in order.
func scopesOf(i policy.Interest) []podScope {
	names := slices.Compact(slices.Sorted(slices.Values(i.Namespaces)))
	if i.All || len(names) > mostNamespaces {
		return []podScope{{ports: i.Ports}}
	}
	var scopes []podScope
	for _, name := range names {
		scopes = append(scopes, podScope{name, i.Ports})
	}
	return scopes
}

// Knows reports that the pods that an interest is about have been listed.
func (v *PolicyView) Knows(i policy.Interest) bool {
	for _, s := range scopesOf(i) {
		if !slices.ContainsFunc(v.known, s.within) {
			return false
		}
	}
	return true
}

// within reports that another scope shows all that this one does.
func (s podScope) within(other podScope) bool {
	return (other.namespace == "" || other.namespace == s.namespace) && (other.ports || !s.ports)
}

// keepWatches opens and closes watches as they are wanted, until ctx ends.
func (f *PolicyFeed) keepWatches(ctx context.Context) {
	tick := time.NewTicker(linger / 4)
	defer tick.Stop()
	for ctx.Err() == nil {
		f.mu.Lock()
		f.keepPods(ctx, time.Now())
		f.keepNodes(ctx, time.Now())
		f.mu.Unlock()
		select {
		case <-ctx.Done():
		case <-f.resync:
		case <-tick.C:
		}
	}
}

// keepPods is keepWatches for pods, once. The caller holds the lock. No watch is closed before what is wanted instead has been listed.
func (f *PolicyFeed) keepPods(ctx context.Context, now time.Time) {
	for _, s := range f.wanted {
		if f.watches[s] == nil {
			f.watches[s] = f.openPods(ctx, s)
		}
	}
	complete := f.hasWanted()
	for s, w := range f.watches {
		if w.unused(!slices.Contains(f.wanted, s), now) && complete {
			w.stop()
			delete(f.watches, s)
			for _, p := range w.of.each() {
				f.merge(&p.meta)
			}
			f.noteLocked(partMore)
		}
	}
}

// unused notes whether somebody wants the watch, and reports that nobody has for long enough.
func (w *tempWatch[T]) unused(idle bool, now time.Time) bool {
	switch {
	case !idle:
		w.idle = time.Time{}
	case w.idle.IsZero():
		w.idle = now
	}
	return idle && now.Sub(w.idle) >= linger
}

func (f *PolicyFeed) openPods(ctx context.Context, s podScope) *tempWatch[policyPod] {
	src := source[policyPod]{name: "Pod in " + s.namespace, namespace: s.namespace, fields: running, partial: !s.ports, pages: podPage}
	if s.namespace == "" {
		src.name = "Pod"
	}
	return openTemp(ctx, f, src, newObjectStore(samePolicyPod, f.notePod), partMore)
}

// openTemp opens a watch; its first list changes a part of the view.
func openTemp[T any](ctx context.Context, f *PolicyFeed, src source[T], of *objectStore[T], what part) *tempWatch[T] {
	ctx, stop := context.WithCancel(ctx)
	w := &tempWatch[T]{of: of, stop: stop}
	of.listed = func() {
		f.mu.Lock()
		defer f.mu.Unlock()
		if !w.listed {
			w.listed = true
			f.noteLocked(what)
			wait.Signal(f.resync) // others may be closed
		}
	}
	src.of = any(new(T)).(api.Resource).ResourceType()
	if w.by, w.err = follow(&f.feed, src, of); w.err != nil {
		return w
	}
	w.by.failed = f.noteFailure
	go w.by.run(ctx)
	return w
}

// knownPods returns what has been listed. The caller holds the lock.
func (f *PolicyFeed) knownPods() []podScope {
	var known []podScope
	for s, w := range f.watches {
		if w.listed {
			known = append(known, s)
		}
	}
	return known
}

// hasWanted reports that all that is wanted has been listed. The caller holds the lock.
func (f *PolicyFeed) hasWanted() bool {
	known := f.knownPods()
	return !slices.ContainsFunc(f.wanted, func(s podScope) bool { return !slices.ContainsFunc(known, s.within) })
}

// keepNodes is keepWatches for nodes, once. The caller holds the lock.
func (f *PolicyFeed) keepNodes(ctx context.Context, now time.Time) {
	f.wantNodes = slices.ContainsFunc(f.clusterPolicies.each(), selectsNodes)
	switch {
	case f.nodes != nil && f.nodes.unused(!f.wantNodes, now):
		f.nodes.stop()
		f.nodes = nil
		f.noteLocked(partNodes)
	case f.nodes == nil && f.wantNodes:
		of := newObjectStore(samePolicyNode, func(*policyNode) { f.note(partNodes) })
		f.nodes = openTemp(ctx, f, source[policyNode]{name: "Node", pages: podPage}, of, partNodes)
		f.noteLocked(partNodes)
	}
}

// knownNodes returns the nodes that are followed. The caller holds the lock.
func (f *PolicyFeed) knownNodes() map[string]policy.Node {
	if f.nodes == nil {
		return nil
	}
	known := map[string]policy.Node{}
	for _, n := range f.nodes.of.each() {
		known[n.meta.Name] = n.Node
	}
	return known
}
