// Package podnote keeps, as annotations of a Pod, which addresses its container has: where Felix, calicoctl and
// Calico's garbage collection look for them. It owns these three annotations and touches nothing else.
package podnote

import (
	"context"
	"errors"
	"net/netip"
	"strings"

	"github.com/tortie-net/tortie/internal/api"
	"github.com/tortie-net/tortie/internal/datastore"
	"github.com/tortie-net/tortie/internal/datastore/kubernetes"
)

// Primary is the one interface whose addresses are noted.
const Primary = "eth0"

// Write notes what a container was given: one address or more, and fills in the pod's new metadata. The pod need not
// have been read. If it has a UID, and a pod of another one has its name by now, nothing is noted, and the error is
// datastore.ErrConflict.
func Write(ctx context.Context, store *kubernetes.Store, pod *api.Pod, containerID string, addrs []netip.Addr) error {
	texts := make([]string, len(addrs))
	for i, a := range addrs {
		texts[i] = netip.PrefixFrom(a, a.BitLen()).String()
	}
	all := strings.Join(texts, ",")
	patch := kubernetes.Patch{Metadata: kubernetes.PatchMeta{UID: pod.UID, Annotations: map[string]*string{
		api.AnnotationPodIP:       &texts[0],
		api.AnnotationPodIPs:      &all,
		api.AnnotationContainerID: &containerID,
	}}}
	return store.PatchStatus(ctx, pod, patch, false)
}

// Clear empties the addresses on a pod if they are those of the container, which the API server decides in the same
// step: the pod itself, with everything in it that this is not about, need not be read. The container's ID stays, as
// Calico leaves it. A pod that is gone is no error; one that names another container, or none, is
// datastore.ErrConflict.
func Clear(ctx context.Context, store *kubernetes.Store, pod *api.Pod, containerID string) error {
	err := store.PatchTested(ctx, pod, []kubernetes.Operation{
		{Op: "test", Path: kubernetes.AnnotationPath(api.AnnotationContainerID), Value: containerID},
		{Op: "add", Path: kubernetes.AnnotationPath(api.AnnotationPodIP), Value: ""},
		{Op: "add", Path: kubernetes.AnnotationPath(api.AnnotationPodIPs), Value: ""},
	})
	if errors.Is(err, datastore.ErrNotFound) {
		return nil
	}
	return err
}
