package cni

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"time"

	"github.com/containernetworking/cni/pkg/skel"

	"github.com/tortie-net/tortie/internal/api"
	"github.com/tortie-net/tortie/internal/datastore"
	"github.com/tortie-net/tortie/internal/datastore/kubernetes"
	"github.com/tortie-net/tortie/internal/podnet"
)

// delTries at delPause bound how often DEL clears a pod's annotations that somebody else is changing.
const (
	delTries = 6
	delPause = 20 * time.Millisecond
)

// del takes away a pod's link and address. It succeeds if they are gone already: a runtime repeats DEL until it does.
func del(ctx context.Context, log *slog.Logger, args *skel.CmdArgs) error {
	r, err := parseRequest(args)
	if err != nil {
		return err
	}
	if err := spareNode(r.netns); err != nil {
		return err
	}
	store, err := openStore(&r.conf, plugin)
	if err != nil {
		return err
	}
	if err := checkReady(ctx, store); err != nil {
		return err
	}
	if err := clearAnnotations(ctx, log, store, r); err != nil {
		return fmt.Errorf("note on the pod that its address is released: %w", err)
	}
	if err := podnet.Teardown(ctx, r.netns, r.ifName, r.hostVeth()); err != nil {
		return fmt.Errorf("remove the pod's link: %w", err)
	}
	return delegateDel(ctx, r)
}

// clearAnnotations empties the addresses on the pod, which tells Felix and garbage collection that they are released. A pod
// that is gone, or that has a newer sandbox, is left alone.
func clearAnnotations(ctx context.Context, log *slog.Logger, store *kubernetes.Store, r *request) error {
	empty := ""
	patch := kubernetes.Patch{Metadata: kubernetes.PatchMeta{Annotations: map[string]*string{
		api.AnnotationPodIP:  &empty,
		api.AnnotationPodIPs: &empty,
	}}}
	for try := 1; ; try++ {
		pod := &api.Pod{Meta: api.Meta{Name: r.pod, Namespace: r.namespace}}
		err := store.Get(ctx, pod)
		if err == nil {
			if id := pod.Annotations[api.AnnotationContainerID]; id != "" && id != r.containerID {
				log.Info("the pod has another sandbox by now: its annotations stay", "sandbox", id)
				return nil
			}
			err = store.PatchStatus(ctx, pod, patch, true)
		}
		switch {
		case errors.Is(err, datastore.ErrNotFound):
			return nil
		case !datastore.Contended(err) || try == delTries:
			return err
		}
		select {
		case <-time.After(delPause/2 + rand.N(delPause)):
		case <-ctx.Done():
			return fmt.Errorf("%w (%w)", context.Cause(ctx), err)
		}
	}
}
