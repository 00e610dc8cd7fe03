package cluster

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"sync"
	"time"

	"k8s.io/client-go/rest"

	"github.com/tortie-net/tortie/internal/api"
	"github.com/tortie-net/tortie/internal/api/groups"
	"github.com/tortie-net/tortie/internal/app/progress"
	"github.com/tortie-net/tortie/internal/cluster/state"
)

// feed fills stores from one API server, and knows until when they are known to be complete.
type feed struct {
	server    Server
	http      *http.Client // shared: one connection for all watches
	log       *slog.Logger
	streams   *streams
	prober    *clients
	move      *mover // nil: another feed moves the group
	followers []*follower
}

func newFeed(at Server, log *slog.Logger) (feed, error) {
	shared, err := rest.HTTPClientFor(at.Config)
	if err != nil {
		return feed{}, fmt.Errorf("connection to the API server: %w", err)
	}
	prober, err := newClients(at, shared, (*api.ClusterInformation)(nil).ResourceType(), formOf[api.ClusterInformation]())
	return feed{server: at, http: shared, log: log, streams: newStreams(at.Group), prober: prober}, err
}

func add[T any](w *feed, src source[T], into *objectStore[T]) error {
	src.of = any(new(T)).(api.Resource).ResourceType()
	if src.name == "" {
		src.name = src.of.Kind
	}
	f, err := follow(w, src, into)
	w.followers = append(w.followers, f)
	return err
}

// movesBy makes the feed move to the other API group by ClusterInformation; told is called when writes are held or
// allowed.
func (w *feed) movesBy(information *objectStore[api.ClusterInformation], told func()) error {
	store, err := OpenStore(w.server)
	w.move = &mover{group: w.server.Group, store: store, information: information, confirmed: w.Confirmed, log: w.log,
		changed: make(chan struct{}, 1), told: told, began: make(chan struct{})}
	return err
}

// mayWrite reports whether the datastore is set up, and Calico's objects may be written.
func (w *feed) mayWrite() bool {
	return state.Ready(w.move.information.get(api.DefaultName)) && !w.server.Group.Held()
}

// Datastore returns the API group of Calico's objects, and whether nothing may be written there. The group is empty until
// both are known.
func (w *feed) Datastore() (in groups.Group, locked bool) {
	select {
	case <-w.move.began:
		return w.server.Group.Known(), !w.mayWrite()
	default:
		return "", false
	}
}

// endTime bounds the wait for watches to end: client-go does not interrupt its waits for an absent API server.
const endTime = time.Second

// run watches, and runs the functions beside, until ctx ends.
func (w *feed) run(ctx context.Context, beside ...func(context.Context)) {
	var running sync.WaitGroup
	for _, do := range beside {
		running.Go(func() { do(ctx) })
	}
	for _, f := range w.followers {
		running.Go(func() { f.run(ctx) })
	}
	if w.move != nil {
		running.Go(func() { w.move.run(ctx) })
	}
	<-ctx.Done()
	ended := make(chan struct{})
	go func() { running.Wait(); close(ended) }()
	select {
	case <-ended:
	case <-time.After(endTime):
	}
}

// Confirmed returns the last time at which the stores were known to be complete, except for changes under way; zero:
// never.
func (w *feed) Confirmed() time.Time { return w.streams.Confirmed() }

// WaitForSync blocks until everything is complete for the first time, and it is known whether Calico's objects may be
// written.
func (w *feed) WaitForSync(ctx context.Context, log *slog.Logger) error {
	start, pause := time.Now(), progress.First
	words := time.NewTimer(pause)
	defer words.Stop()
	for _, f := range w.followers {
		for !f.full() {
			select {
			case <-f.await:
			case <-ctx.Done():
				return fmt.Errorf("first complete list of the cluster: %w", errors.Join(context.Cause(ctx), f.failure()))
			case <-words.C:
				pause = progress.Next(pause)
				words.Reset(pause)
				log.Info("waiting for the first complete list from the API server", "kind", f.name,
					"waited", time.Since(start).Round(time.Second), "err", f.failure())
			}
		}
	}
	if w.move == nil {
		return nil
	}
	select {
	case <-w.move.began:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("first look at the API group of Calico's objects: %w", context.Cause(ctx))
	}
}

// probe reads ClusterInformation default and compares it with the watched one.
func (w *feed) probe(ctx context.Context, information *objectStore[api.ClusterInformation]) error {
	if !w.streams.allOpen() {
		return fmt.Errorf("not all watches of the API server are open")
	}
	sent := time.Now()
	t := (*api.ClusterInformation)(nil).ResourceType()
	answer, err := w.prober.get("").Name(api.DefaultName).Do(ctx).Get()
	revision, seen := "", ""
	switch {
	case missing(err):
	case err != nil:
		return fmt.Errorf("probe of the API server: %w", err)
	default:
		revision = answer.(*object[api.ClusterInformation]).meta().ResourceVersion
	}
	if info := information.get(api.DefaultName); info != nil {
		seen = info.ResourceVersion
	}
	if seen != revision {
		return fmt.Errorf("%s %s has revision %q, and its watch says %q: the watch lags", t.Kind, api.DefaultName, revision, seen)
	}
	w.streams.confirm(sent)
	return nil
}
