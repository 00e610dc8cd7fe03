package plugin

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/netip"
	"time"

	"github.com/containernetworking/cni/pkg/types"
	"golang.org/x/sync/errgroup"

	"github.com/tortie-net/tortie/internal/api"
	"github.com/tortie-net/tortie/internal/datastore"
	"github.com/tortie-net/tortie/internal/datastore/kubernetes"
	"github.com/tortie-net/tortie/internal/datastore/podnote"
	"github.com/tortie-net/tortie/internal/kernel/podnet"
)

// endpoint is the record of a container in the datastore, for Felix, garbage collection and people.
type endpoint interface {
	// read returns the container's pod and namespace. If told, the agent has seen the pod as plain (session.toldOfPod),
	// and it is not read.
	read(ctx context.Context, told bool) (*workload, error)
	// note writes the container's addresses. If it writes the pod, it sets the metadata of w's pod from the answer.
	note(ctx context.Context, w *workload, link podnet.Result, addrs []netip.Addr) error
	// clear removes the addresses, unless the endpoint is gone or belongs to a newer container.
	clear(ctx context.Context) error
}

// workload is the pod and namespace of a container.
type workload struct {
	pod       api.Pod
	namespace api.Namespace
}

// endpoint returns this container's endpoint.
func (s *session) endpoint() endpoint {
	if s.conf.DatastoreType == datastoreEtcd {
		return &objectEndpoint{s}
	}
	return &podEndpoint{s}
}

// podEndpoint is an endpoint in the annotations of a Pod.
type podEndpoint struct{ *session }

// read checks that the datastore is ready and reads the pod, unless told, and its namespace, unless the facts have it,
// in parallel.
func (e *podEndpoint) read(ctx context.Context, told bool) (*workload, error) {
	w := &workload{pod: *e.name(), namespace: api.Namespace{Meta: api.Meta{Name: e.session.namespace}}}
	g, ctx := errgroup.WithContext(ctx)
	g.Go(func() error { return e.ready(ctx) })
	if told {
		w.pod.UID = e.podUID
	} else {
		g.Go(func() error { return missing(e.kube.Get(ctx, &w.pod)) })
	}
	g.Go(func() error { return missing(e.getNamespace(ctx, &w.namespace)) })
	if err := g.Wait(); err != nil {
		return nil, err
	}
	return w, e.sameUID(&w.pod)
}

// toldOfPod reports whether the facts have the pod as plain, so that ADD needs only its name and UID. It is false if
// CNI_ARGS ask for an address: an earlier sandbox may hold it, whose ID is on the pod. It is false for interfaces other
// than the first: clear does not undo their note.
func (s *session) toldOfPod() bool {
	return s.facts != nil && s.facts.PlainPod(s.podUID) && !s.address.IsValid() && s.ifName == podnote.Primary
}

// name returns the container's pod, unread.
func (e *podEndpoint) name() *api.Pod {
	return &api.Pod{Meta: api.Meta{Name: e.pod, Namespace: e.session.namespace}}
}

// missing gives a pod or namespace that does not exist the code ErrUnknownContainer and the likely causes.
func missing(err error) error {
	if errors.Is(err, datastore.ErrNotFound) {
		return failure(types.ErrUnknownContainer,
			fmt.Errorf("%w: the pod was deleted meanwhile, or the plugins' kubeconfig is of another cluster than the kubelet's", err))
	}
	return err
}

// sameUID refuses a sandbox of a pod that was deleted and created again under its name: the address would be noted on
// the new pod, and Felix would apply the new pod's policy to the old one's sandbox. The kubelet ends that sandbox.
func (e *podEndpoint) sameUID(pod *api.Pod) error {
	_, static := pod.Annotations[api.AnnotationMirrorPod] // which the kubelet knows by another UID than the API server
	if e.podUID == "" || static || e.podUID == pod.UID {
		return nil
	}
	return failure(types.ErrTryAgainLater, fmt.Errorf(
		"CNI_ARGS: the sandbox is of pod %s/%s with K8S_POD_UID %s, and by now the pod of that name has UID %s: the kubelet makes a new sandbox",
		pod.Namespace, pod.Name, e.podUID, pod.UID))
}

// note writes the addresses in Calico's form, unless another pod has that name now.
func (e *podEndpoint) note(ctx context.Context, w *workload, _ podnet.Result, addrs []netip.Addr) error {
	err := podnote.Write(ctx, e.kube, &w.pod, e.containerID, addrs)
	if !errors.Is(err, datastore.ErrConflict) {
		return missing(err)
	}
	now := e.name()
	if err := missing(e.kube.Get(ctx, now)); err != nil {
		return err
	}
	return cmp.Or(e.sameUID(now), err)
}

// clear empties the addresses on the pod if they are this container's.
func (e *podEndpoint) clear(ctx context.Context) error {
	if e.ifName != podnote.Primary {
		return nil
	}
	err := podnote.Clear(ctx, e.kube, e.name(), e.containerID)
	if errors.Is(err, datastore.ErrConflict) {
		return e.clearOther(ctx)
	}
	return err
}

// clearOther handles a pod without this container's ID. It may have a newer sandbox, whose addresses stay. Or the
// container's ADD did not get so far, or was of a Calico that wrote no ID: the addresses are cleared.
func (e *podEndpoint) clearOther(ctx context.Context) error {
	empty := ""
	patch := kubernetes.Patch{Metadata: kubernetes.PatchMeta{Annotations: map[string]*string{
		api.AnnotationPodIP:  &empty,
		api.AnnotationPodIPs: &empty,
	}}}
	err := again(ctx, func() error {
		pod := e.name()
		if err := e.kube.Get(ctx, pod); err != nil {
			return err
		}
		if id := pod.Annotations[api.AnnotationContainerID]; id != "" && id != e.containerID {
			e.log.Info("annotations not cleared: the pod has a newer sandbox", "sandbox", id)
			return nil
		}
		if pod.Annotations[api.AnnotationPodIP] == "" && pod.Annotations[api.AnnotationPodIPs] == "" {
			return nil
		}
		return e.kube.PatchStatus(ctx, pod, patch, true)
	})
	if errors.Is(err, datastore.ErrNotFound) {
		return nil
	}
	return err
}

// tries at tryPause bound how often a write is repeated after a conflict.
const (
	tries    = 6
	tryPause = 20 * time.Millisecond
)

// again repeats a read and a write until no other writer has come in between.
func again(ctx context.Context, do func() error) error {
	return datastore.Retry(ctx, tries, tryPause, tryPause, do)
}
