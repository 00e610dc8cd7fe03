package cluster

import (
	"context"
	"slices"
	"time"

	"github.com/tortie-net/tortie/internal/api"
	"github.com/tortie-net/tortie/internal/app/wait"
	"github.com/tortie-net/tortie/internal/cluster/state"
	"github.com/tortie-net/tortie/internal/policy"
)

const (
	// mostNamespaces is how many namespaces have their own watch; for more there is one watch of all pods.
	mostNamespaces = 20
	// linger is how long an unwanted watch stays open: the next pod of a Job may need it again, and opening it costs the
	// API server a list.
	linger = 2 * time.Minute
	// running excludes finished pods: they leave the watch when they finish.
	running = "status.phase!=Succeeded,status.phase!=Failed"
)

// PodScope is the namespace of the pods that a watch selects; empty: all. Pods are watched as full objects: all
// addresses in metadata may be written by users.
type PodScope string

// tempWatch is a watch that is open while it is wanted, and for linger after that.
type tempWatch[T any] struct {
	of     *objectStore[T]
	by     *follower
	err    error // why there is no follower
	stop   context.CancelFunc
	listed bool
	idle   time.Time // since when it is not wanted; zero: it is wanted
}

func (w *tempWatch[T]) failure() error {
	if w.by == nil {
		return w.err
	}
	return w.by.failure()
}

// Want sets which pods the view includes besides this node's. Unwanted pods stay in the view for about linger. A call
// with an equal interest does nothing.
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

// scopesOf returns the watches that an interest needs, sorted.
func scopesOf(i policy.Interest) []PodScope {
	names := slices.Compact(slices.Sorted(slices.Values(i.Namespaces)))
	if i.All || len(names) > mostNamespaces {
		return []PodScope{""}
	}
	var scopes []PodScope
	for _, name := range names {
		scopes = append(scopes, PodScope(name))
	}
	return scopes
}

// Knows reports whether all pods of an interest have been listed. A caller that must not program a policy before its
// peers are known passes the Interest of a State with this policy only.
func (v *PolicyView) Knows(i policy.Interest) bool {
	for _, s := range scopesOf(i) {
		if !slices.ContainsFunc(v.Known, s.within) {
			return false
		}
	}
	return true
}

// KnowsAll reports whether these pods and all other objects that policies refer to have been listed.
func (v *PolicyView) KnowsAll(i policy.Interest) bool {
	return v.NodesKnown && len(v.MissingServices) == 0 && !v.AccountsMissing && v.Knows(i)
}

// within reports whether other includes s.
func (s PodScope) within(other PodScope) bool {
	return other == "" || other == s
}

// keepWatches opens and closes temporary watches until ctx ends.
func (f *PolicyFeed) keepWatches(ctx context.Context) {
	tick := time.NewTicker(linger / 4)
	defer tick.Stop()
	for ctx.Err() == nil {
		f.mu.Lock()
		f.keepPods(ctx, time.Now())
		f.keepNodes(ctx, time.Now())
		f.keepCalico(ctx, time.Now())
		f.mu.Unlock()
		select {
		case <-ctx.Done():
		case <-f.resync:
		case <-tick.C:
		}
	}
}

// keepPods opens and closes watches of pods. It closes none before the wanted ones have been listed. The caller holds
// the lock.
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

// unused records whether the watch is idle, and reports whether it has been idle for linger.
func (w *tempWatch[T]) unused(idle bool, now time.Time) bool {
	switch {
	case !idle:
		w.idle = time.Time{}
	case w.idle.IsZero():
		w.idle = now
	}
	return idle && now.Sub(w.idle) >= linger
}

func (f *PolicyFeed) openPods(ctx context.Context, s PodScope) *tempWatch[policyPod] {
	return openTemp(ctx, f, podSource(s), newObjectStore(samePolicyPod, f.notePod), partMore)
}

// podSource is the source of pods of all nodes. It drops the fields that only this node's pods need, which own has.
func podSource(s PodScope) source[policyPod] {
	src := source[policyPod]{name: "Pod in " + string(s), namespace: string(s), fields: running, pages: podPage, doubtful: true}
	if s == "" {
		src.name = "Pod"
	}
	src.trim = func(p *policyPod) { p.unread = nil }
	return src
}

// openTemp starts a watch; its first list makes a part of the view stale.
func openTemp[T any](ctx context.Context, f *PolicyFeed, src source[T], of *objectStore[T], what part) *tempWatch[T] {
	ctx, stop := context.WithCancel(ctx)
	w := &tempWatch[T]{of: of, stop: stop}
	of.listed = func() {
		f.mu.Lock()
		defer f.mu.Unlock()
		if !w.listed {
			w.listed = true
			f.noteLocked(what)
			wait.Signal(f.resync) // replaced watches may be closed
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

// knownPods returns the scopes that have been listed. The caller holds the lock.
func (f *PolicyFeed) knownPods() []PodScope {
	var known []PodScope
	for s, w := range f.watches {
		if w.listed {
			known = append(known, s)
		}
	}
	return known
}

// hasWanted reports whether all wanted scopes have been listed. The caller holds the lock.
func (f *PolicyFeed) hasWanted() bool {
	known := f.knownPods()
	return !slices.ContainsFunc(f.wanted, func(s PodScope) bool { return !slices.ContainsFunc(known, s.within) })
}

// keepNodes opens and closes the watch of Nodes. The caller holds the lock.
func (f *PolicyFeed) keepNodes(ctx context.Context, now time.Time) {
	f.wantNodes = slices.ContainsFunc(f.clusterPolicies.each(), selectsNodes)
	f.nodes = keepOpen(f, f.nodes, f.wantNodes, now, partNodes, func() *tempWatch[policyNode] {
		of := newObjectStore(samePolicyNode, func(*policyNode) { f.note(partNodes) })
		return openTemp(ctx, f, source[policyNode]{name: "Node", pages: podPage, doubtful: true}, of, partNodes)
	})
}

// keepOpen opens a wanted watch, and closes one that has been unwanted for linger. The caller holds the lock.
func keepOpen[T any](f *PolicyFeed, w *tempWatch[T], wanted bool, now time.Time, what part, open func() *tempWatch[T]) *tempWatch[T] {
	switch {
	case w != nil && w.unused(!wanted, now):
		w.stop()
		w = nil
		f.noteLocked(what)
	case w == nil && wanted:
		w = open()
		f.noteLocked(what)
	}
	return w
}

// knownNodes returns the watched nodes with the addresses that count, and the problems of other addresses. The caller
// holds the lock.
func (f *PolicyFeed) knownNodes() (known map[string]policy.Node, stray []state.Problem) {
	if f.nodes == nil {
		return nil, nil
	}
	known = map[string]policy.Node{}
	for _, n := range f.nodes.of.each() {
		node, problems := n.on(f.table.ground)
		known[n.meta.Name] = node
		for _, err := range problems {
			stray = append(stray, state.Problem{Kind: n.ResourceType(), Name: n.meta.Name, Err: err})
		}
	}
	return known, stray
}
