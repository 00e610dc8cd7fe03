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

// endpoint is where the datastore keeps what Felix, garbage collection and people know of a container.
type endpoint interface {
	// read returns whom the container belongs to. If told, the pod is as the agent says (session.toldOfPod), and is not
	// read.
	read(ctx context.Context, told bool) (*workload, error)
	// note writes down what the container was given; of a workload's pod it replaces the metadata by those in the answer.
	note(ctx context.Context, w *workload, link podnet.Result, addrs []netip.Addr) error
	// clear takes the addresses back, unless the endpoint is gone or belongs to a newer container by now.
	clear(ctx context.Context) error
}

// workload is the pod and namespace of a container.
type workload struct {
	pod       api.Pod
	namespace api.Namespace
}

// endpoint returns where this container is noted.
func (s *session) endpoint() endpoint {
	if s.conf.DatastoreType == datastoreEtcd {
		return &objectEndpoint{s}
	}
	return &podEndpoint{s}
}

// podEndpoint is the annotations of a Pod.
type podEndpoint struct{ *session }

// read asks, at the same time, whether the datastore may be used, for the pod, and for its namespace, as far as the
// agent has not told.
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

// toldOfPod reports whether the agent has told that name and UID are all that ADD needs of the pod. The address that
// CNI_ARGS ask for may be an earlier sandbox's, whose ID is on the pod; and of another interface than the first nothing
// that was noted is cleared.
func (s *session) toldOfPod() bool {
	return s.facts != nil && s.facts.PlainPod(s.podUID) && !s.address.IsValid() && s.ifName == podnote.Primary
}

// name is the pod that the container belongs to, unread.
func (e *podEndpoint) name() *api.Pod {
	return &api.Pod{Meta: api.Meta{Name: e.pod, Namespace: e.session.namespace}}
}

// missing says what it means that a pod or its namespace does not exist.
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

// note writes the addresses in the form that Calico uses, unless another pod has that name by now.
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

// clearOther looks at a pod that does not carry this container's ID: it has a newer sandbox, whose addresses stay, or
// its ADD did not get so far, or was one of a Calico that did not write the ID.
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
