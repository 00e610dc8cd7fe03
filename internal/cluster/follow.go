package cluster

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	kwait "k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"
	"k8s.io/klog/v2"

	"github.com/tortie-net/tortie/internal/api"
	"github.com/tortie-net/tortie/internal/api/groups"
	"github.com/tortie-net/tortie/internal/app/wait"
	"github.com/tortie-net/tortie/internal/datastore"
)

const (
	// minPause and maxPause bound the wait before a request that follows requests without a result: it doubles with each,
	// and is jittered by half. A thousand agents with ten watches each that lost their API server make 1,000 requests per
	// second.
	minPause, maxPause = 100 * time.Millisecond, 10 * time.Second
	// atOnce is how many requests are made without a wait: a streamed list, a plain list where streams are not known, and
	// a watch.
	atOnce = 3
	// quiet is how long after a request the next one is no repetition: watches of unchanged kinds end without a result.
	quiet = time.Minute
	// absentFirst and absentPause bound the pause between checks for a definition that is not installed, or serves no
	// version that this program knows; it doubles. A definition that was installed is checked every absentRetry first, and
	// counts as removed after absentDoubt.
	absentFirst, absentPause = 15 * time.Second, 2 * time.Minute
	absentDoubt              = time.Minute
	absentRetry              = 2 * time.Second
)

// source describes the objects of one kind: their origin and the parts that are kept.
type source[T any] struct {
	name string   // in logs, and among the streams
	of   api.Type // its version does not matter if the kind is Versioned
	// partial requests metadata only.
	partial bool
	// namespace and object, if not empty, narrow the source to one object.
	namespace, object string
	// labels and fields, if not empty, are selectors that narrow it.
	labels, fields string
	// pages, if not 0, is the most objects in one response to a list.
	pages int64
	// optional: the kind's definition may be missing. Then there are no objects.
	optional bool
	// proof: without this stream nothing is confirmed.
	proof bool
	// doubtful: a list that lacks most known objects is believed only if a second list lacks them too.
	doubtful bool
	trim     func(*T) // may be nil
}

// follower keeps an object store up to date.
type follower struct {
	name         string
	log          *slog.Logger
	group        *groups.Current // nil: the kind is not Calico's
	full         func() bool
	ctx          context.Context // of run, for stores
	await        <-chan struct{}
	listAndWatch func(context.Context) error
	absent       func() error // nil: the kind's definition must be installed
	without      bool         // the definition counts as not installed
	absence      wait.Backoff // between checks for it
	failed       func()       // called when err comes or goes; may be nil

	mu    sync.Mutex
	err   error     // why the API server does not respond; nil while it does
	since time.Time // start of err
	tries int       // requests since the last that had a result
	asked time.Time // the last request
}

// follow prepares to fill an object store from a source.
func follow[T any](w *feed, src source[T], into *objectStore[T]) (*follower, error) {
	asked, err := newVersions(w, src.name, typesOf(&src), formOf[T]())
	if err != nil {
		return nil, err
	}
	if src.proof {
		w.streams.want(src.name)
	}
	f := &follower{name: src.name, log: w.log, full: into.isFull, await: into.full,
		absence: wait.Backoff{First: absentFirst, Most: absentPause}}
	// The reflector waits only in some cases: see pace, which waits in all.
	backoff := &kwait.Backoff{Duration: minPause, Cap: minPause, Factor: 1, Jitter: 0.5, Steps: 1}
	var store cache.ReflectorStore = into
	if src.doubtful {
		store = &doubtfulStore[T]{objectStore: into, by: f, again: listAgain(src.request, src.optional, asked),
			pause: wait.Backoff{First: firstDoubt, Most: mostDoubt}}
	}
	r := cache.NewReflectorWithOptions(listWatch(w, src.name, src.request, asked, f, src.arrive(f)), nil, store,
		cache.ReflectorOptions{Name: src.name, TypeDescription: src.name, Backoff: backoff})
	r.WatchListPageSize = src.pages
	f.listAndWatch = func(ctx context.Context) error {
		asked.begin()
		return r.ListAndWatchWithContext(ctx)
	}
	if src.of.Group == api.Group {
		f.group = w.server.Group
	}
	if src.optional {
		f.absent = func() error { return store.Replace(nil, "") }
	}
	return f, nil
}

// requester makes a source's request to list or watch; accept is used if it requests metadata only.
type requester func(client *clients, opts metav1.ListOptions, accept string) *rest.Request

// listWatch returns a source's requests. The follower notes their results; prepare is applied to the objects.
func listWatch(w *feed, name string, request requester, asked *versions, f *follower, prepare func(runtime.Object)) *cache.ListWatch {
	return &cache.ListWatch{
		ListWithContextFunc: func(ctx context.Context, opts metav1.ListOptions) (runtime.Object, error) {
			f.pace(ctx)
			list, err := inServed(ctx, asked, func(client *clients) (runtime.Object, error) {
				return request(client, opts, asPartialList).Do(ctx).Get()
			})
			f.note(ctx, err)
			prepare(list)
			return list, err
		},
		WatchFuncWithContext: func(ctx context.Context, opts metav1.ListOptions) (watch.Interface, error) {
			opts.Watch = true
			f.pace(ctx)
			in := f.in()
			events, err := inServed(ctx, asked, func(client *clients) (watch.Interface, error) {
				return request(client, opts, asPartial).Watch(ctx)
			})
			f.note(ctx, err)
			if err != nil {
				return nil, err
			}
			beginsWithList := opts.SendInitialEvents != nil && *opts.SendInitialEvents
			return w.streams.follow(name, in, events, beginsWithList, prepare), nil
		},
	}
}

func (src *source[T]) request(client *clients, opts metav1.ListOptions, accept string) *rest.Request {
	if src.object != "" {
		opts.FieldSelector = fields.OneTermEqualSelector("metadata.name", src.object).String()
	}
	opts.LabelSelector, opts.FieldSelector = cmp.Or(src.labels, opts.LabelSelector), cmp.Or(src.fields, opts.FieldSelector)
	r := client.get(src.namespace).VersionedParams(&opts, metav1.ParameterCodec)
	if src.partial {
		r.SetHeader("Accept", accept)
	}
	return r
}

// arrive returns a function that prepares received objects and lists, and notes them at the follower.
func (src *source[T]) arrive(f *follower) func(runtime.Object) {
	return func(obj runtime.Object) {
		switch o := obj.(type) {
		case *object[T]:
			f.delivered()
			src.prepare(f.in(), o)
		case *objectList[T]:
			f.delivered()
			for _, item := range o.Items {
				src.prepare(f.in(), item)
			}
		}
	}
}

// prepare reads an object in the form of its group, and drops unused fields, before the object is kept.
func (src *source[T]) prepare(in groups.Group, o *object[T]) {
	in.Read(any(&o.value).(api.Resource))
	if src.trim != nil && o.broken == nil && !o.ended {
		src.trim(&o.value)
	}
}

// run follows until ctx ends.
func (f *follower) run(ctx context.Context) {
	ctx = klog.NewContext(ctx, klog.Logger{}) // silences client-go's own log: note logs instead
	f.ctx = ctx
	f.findGroup(ctx)
	var since time.Time // since when the kind's definition is missing; zero: it is installed
	for ctx.Err() == nil {
		pause := wait.Jitter(minPause)
		switch err := f.whileInGroup(ctx); {
		case unknownVersions(err):
			since = time.Time{}
			pause = f.absence.Next()
		case f.absent == nil || !missing(err):
			since, f.without = time.Time{}, false
			f.absence.Reset()
		case ctx.Err() == nil:
			if since.IsZero() {
				since = time.Now()
			}
			pause = f.withoutDefinition(ctx, time.Since(since))
		}
		wait.Sleep(ctx, pause)
	}
}

// whileInGroup lists and watches until that ends, or the group of Calico's objects changes.
func (f *follower) whileInGroup(ctx context.Context) error {
	if f.group == nil {
		return f.listAndWatch(ctx)
	}
	ctx, cancel := f.group.While(ctx)
	defer cancel()
	return f.listAndWatch(ctx)
}

// in returns the group of the requests; empty if the kind is not Calico's.
func (f *follower) in() groups.Group {
	if f.group == nil {
		return ""
	}
	return f.group.Known()
}

// findGroup returns when the group of Calico's objects is known, or ctx has ended. If neither group has definitions,
// kinds that may be missing have no objects.
func (f *follower) findGroup(ctx context.Context) {
	pauses := wait.Backoff{First: minPause, Most: maxPause}
	for {
		_, err := f.group.Get(ctx)
		pause := pauses.Next()
		if f.absent != nil && errors.Is(err, datastore.ErrNotFound) {
			pause = f.withoutDefinition(ctx, absentDoubt)
		} else {
			f.note(ctx, err)
		}
		if err == nil || !wait.Sleep(ctx, pause) {
			return
		}
	}
}

// withoutDefinition handles the absence of the kind's definition for a time, and returns the pause before the next
// check. An API server that has just started may not know the definition yet, so known objects stay for absentDoubt.
func (f *follower) withoutDefinition(ctx context.Context, missing time.Duration) (pause time.Duration) {
	if f.full() && !f.without && missing < absentDoubt {
		return wait.Jitter(absentRetry)
	}
	if err := f.absent(); err == nil {
		f.note(ctx, nil)
		f.without = true
	}
	return f.absence.Next()
}

// pace waits before a request that follows requests without a result. Reflectors repeat some failed requests at once
// and for ever, for example after a revision that is too old.
func (f *follower) pace(ctx context.Context) {
	f.mu.Lock()
	if time.Since(f.asked) > quiet {
		f.tries = 0
	}
	f.tries++
	over := f.tries - atOnce
	f.mu.Unlock()
	if over > 0 {
		wait.Sleep(ctx, wait.Jitter(min(minPause<<min(over, 10), maxPause)))
	}
	f.mu.Lock()
	f.asked = time.Now()
	f.mu.Unlock()
}

// delivered notes that the API server has sent an object or a list.
func (f *follower) delivered() {
	f.mu.Lock()
	f.tries = 0
	f.mu.Unlock()
}

// note logs when the API server stops responding, and when it resumes.
func (f *follower) note(ctx context.Context, err error) {
	if ctx.Err() != nil || f.absent != nil && missing(err) {
		return
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if (err == nil) != (f.err == nil) && f.failed != nil {
		defer f.failed()
	}
	switch {
	case err != nil && f.err == nil:
		f.since = time.Now()
		f.log.Warn("watch of the API server interrupted; last known state stays in force", "kind", f.name, "err", err)
	case err == nil && f.err != nil:
		f.log.Info("watch of the API server resumed", "kind", f.name, "after", time.Since(f.since).Round(time.Second))
	}
	f.err = err
}

// failure returns why the API server does not respond, nil while it does.
func (f *follower) failure() error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.err == nil {
		return nil
	}
	return fmt.Errorf("%s: %w", f.name, f.err)
}
