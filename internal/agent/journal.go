package agent

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"time"

	"github.com/tortie-net/tortie/internal/api"
	"github.com/tortie-net/tortie/internal/api/names"
	"github.com/tortie-net/tortie/internal/app/progress"
	"github.com/tortie-net/tortie/internal/app/wait"
	"github.com/tortie-net/tortie/internal/cluster"
	"github.com/tortie-net/tortie/internal/datastore"
	"github.com/tortie-net/tortie/internal/datastore/kubernetes"
	"github.com/tortie-net/tortie/internal/datastore/podnote"
	"github.com/tortie-net/tortie/internal/ipam"
	"github.com/tortie-net/tortie/internal/plugin/journal"
)

const (
	// journalPause is the interval of looking for the plugins' entries, which costs one read of a directory.
	journalPause = 5 * time.Second
	// journalRetry bounds the pause after a try that left some. When the API server is back, the agents of a cluster
	// spread their entries over that time.
	journalRetry = 40 * time.Second
	// entryTime bounds the work on one entry.
	entryTime = 15 * time.Second
)

// datastoreType is the datastore of entries that the agent can finish.
const datastoreType = "kubernetes"

// journalWorker completes DELs of this node that failed because the API server was away.
type journalWorker struct {
	dir    journal.Dir
	node   string
	store  *kubernetes.Store
	ipam   *ipam.Client
	watch  *cluster.Watch
	status *Status
	log    *slog.Logger
}

// run works until ctx ends.
func (f *journalWorker) run(ctx context.Context) error {
	if err := f.watch.WaitForSync(ctx, slog.New(slog.DiscardHandler)); err != nil {
		return nil // ctx ended; the agent's loop logs the wait
	}
	var reported progress.Changes
	for backoff := (wait.Backoff{First: journalPause, Most: journalRetry}); ctx.Err() == nil; {
		err := f.pass(ctx)
		if err == nil {
			backoff.Reset()
		}
		pause := backoff.Next()
		if reported.New(err) && ctx.Err() == nil {
			f.log.Warn("cannot release addresses from the plugins' journal", "err", err, "pause", pause)
		}
		wait.Sleep(ctx, pause)
	}
	return nil
}

// pass tries every entry once.
func (f *journalWorker) pass(ctx context.Context) error {
	finished := 0
	err := f.dir.Each(ctx, func(e journal.Entry) error {
		ctx, cancel := context.WithTimeout(ctx, entryTime)
		defer cancel()
		if err := f.finish(ctx, e); err != nil {
			return err
		}
		finished++
		f.log.Info("released addresses from the plugins' journal", "handle", e.Handle, "pod", e.Namespace+"/"+e.Pod,
			"since", e.Time, "reason", e.Reason)
		return nil
	})
	left, lenErr := f.dir.Len()
	err = errors.Join(err, lenErr)
	f.status.SetJournal(left, finished, err)
	return err
}

// finish completes one DEL, in its order: while the pod's object names the address, no other pod gets it.
func (f *journalWorker) finish(ctx context.Context, e journal.Entry) error {
	if e.Datastore != datastoreType {
		return fmt.Errorf("%w: datastore %q", journal.ErrKeep, e.Datastore)
	}
	if !f.watch.DatastoreReady() {
		return fmt.Errorf("%w: spec.datastoreReady of ClusterInformation default is not true: the datastore is locked for a migration",
			journal.ErrStop)
	}
	err := f.clear(ctx, e)
	if err == nil {
		err = f.release(ctx, e)
	}
	for _, hopeless := range []error{datastore.ErrUnavailable, datastore.ErrUnauthorized, context.DeadlineExceeded, context.Canceled} {
		if errors.Is(err, hopeless) {
			return fmt.Errorf("%w: %w", journal.ErrStop, err)
		}
	}
	return err
}

// clear removes the addresses from the pod's annotations if they still belong to this container.
func (f *journalWorker) clear(ctx context.Context, e journal.Entry) error {
	if e.Pod == "" || e.IfName != podnote.Primary {
		return nil
	}
	pod := &api.Pod{Meta: api.Meta{Namespace: e.Namespace, Name: e.Pod}}
	err := podnote.Clear(ctx, f.store, pod, e.ContainerID)
	if errors.Is(err, datastore.ErrConflict) {
		return nil // the pod has a newer container, or none was noted
	}
	if err != nil {
		return fmt.Errorf("note on the pod that its address is released: %w", err)
	}
	return nil
}

// release frees the container's addresses; if there are none, the addresses of the handle that Calico 2 would have
// used.
func (f *journalWorker) release(ctx context.Context, e journal.Entry) error {
	pod := map[string]string{"pod": e.Pod, "namespace": e.Namespace}
	owner := ipam.Owner{Handle: e.Handle, Attrs: map[string]string{"node": f.node}}
	maps.Copy(owner.Attrs, pod)
	freed, err := f.ipam.ReleaseOwned(ctx, owner)
	if err != nil || len(freed) > 0 || e.Pod == "" {
		return err
	}
	_, err = f.ipam.ReleaseOwned(ctx, ipam.Owner{Handle: names.LegacyPodHandle(e.Namespace, e.Pod), Attrs: pod})
	return err
}
