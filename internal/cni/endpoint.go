package cni

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"strings"
	"time"

	"github.com/containernetworking/cni/pkg/types"
	"golang.org/x/sync/errgroup"

	"github.com/tortie-net/tortie/internal/api"
	"github.com/tortie-net/tortie/internal/datastore"
	"github.com/tortie-net/tortie/internal/datastore/kubernetes"
	"github.com/tortie-net/tortie/internal/podnet"
)

// endpoint is where the datastore keeps what Felix, garbage collection and people know of a container.
type endpoint interface {
	// read returns whom the container belongs to.
	read(ctx context.Context) (*workload, error)
	// note writes down what the container was given.
	note(ctx context.Context, link podnet.Result, addrs []netip.Addr) error
	// clear takes the addresses back, unless the endpoint is gone or belongs to a newer container by now.
	clear(ctx context.Context) error
}

// workload is whom a container belongs to.
type workload struct {
	pod       api.Pod
	namespace api.Namespace
}

// endpoint returns where this container is noted.
func (s *session) endpoint() endpoint { return &podEndpoint{s} }

// podEndpoint is the annotations of a Pod.
type podEndpoint struct{ *session }

// read asks, at the same time, whether the datastore may be used, for the pod, and for its namespace.
func (e *podEndpoint) read(ctx context.Context) (*workload, error) {
	w := &workload{
		pod:       api.Pod{Meta: api.Meta{Name: e.pod, Namespace: e.session.namespace}},
		namespace: api.Namespace{Meta: api.Meta{Name: e.session.namespace}},
	}
	g, ctx := errgroup.WithContext(ctx)
	g.Go(func() error { return e.ready(ctx) })
	g.Go(func() error { return e.getOfPod(ctx, &w.pod) })
	g.Go(func() error { return e.getOfPod(ctx, &w.namespace) })
	return w, g.Wait()
}

func (s *session) getOfPod(ctx context.Context, obj api.Resource) error {
	err := s.kube.Get(ctx, obj)
	if errors.Is(err, datastore.ErrNotFound) {
		return failure(types.ErrUnknownContainer,
			fmt.Errorf("read the pod: %w: it was deleted meanwhile, or the plugins' kubeconfig is of another cluster than the kubelet's", err))
	}
	return err
}

// note writes the addresses in the form that Calico uses.
func (e *podEndpoint) note(ctx context.Context, _ podnet.Result, addrs []netip.Addr) error {
	texts := make([]string, len(addrs))
	for i, a := range addrs {
		texts[i] = netip.PrefixFrom(a, a.BitLen()).String()
	}
	all := strings.Join(texts, ",")
	patch := kubernetes.Patch{Metadata: kubernetes.PatchMeta{Annotations: map[string]*string{
		api.AnnotationPodIP:       &texts[0],
		api.AnnotationPodIPs:      &all,
		api.AnnotationContainerID: &e.containerID,
	}}}
	pod := &api.Pod{Meta: api.Meta{Name: e.pod, Namespace: e.session.namespace}}
	return e.kube.PatchStatus(ctx, pod, patch, false)
}

// delTries at delPause bound how often DEL clears a pod's annotations that somebody else is changing.
const (
	delTries = 6
	delPause = 20 * time.Millisecond
)

// clear empties the addresses on the pod.
func (e *podEndpoint) clear(ctx context.Context) error {
	empty := ""
	patch := kubernetes.Patch{Metadata: kubernetes.PatchMeta{Annotations: map[string]*string{
		api.AnnotationPodIP:  &empty,
		api.AnnotationPodIPs: &empty,
	}}}
	for try := 1; ; try++ {
		pod := &api.Pod{Meta: api.Meta{Name: e.pod, Namespace: e.session.namespace}}
		err := e.kube.Get(ctx, pod)
		if err == nil {
			if id := pod.Annotations[api.AnnotationContainerID]; id != "" && id != e.containerID {
				e.log.Info("the pod has another sandbox by now: its annotations stay", "sandbox", id)
				return nil
			}
			err = e.kube.PatchStatus(ctx, pod, patch, true)
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
