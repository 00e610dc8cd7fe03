// Package podnote keeps the addresses of a container as annotations of its Pod, where Felix, calicoctl and Calico's
// garbage collection look for them. It owns these three annotations and touches nothing else.
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

// Primary is the only interface with noted addresses.
const Primary = "eth0"

// Write notes a container's addresses, one or more, and fills in the pod's new metadata. The pod need not have been
// read. If it has a UID, and its name now belongs to a pod with another UID, nothing is noted, and the error is
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

// Clear empties the addresses on a pod if its container ID is containerID. The API server checks that in the same step,
// so the pod need not be read. The container's ID stays, as Calico leaves it. A pod that is gone is no error; a pod
// with another container ID, or none, is datastore.ErrConflict.
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
