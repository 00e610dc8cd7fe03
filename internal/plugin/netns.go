package plugin

import (
	"fmt"

	"github.com/containernetworking/cni/pkg/types"

	"github.com/tortie-net/tortie/internal/kernel/netlinkx"
)

// checkNetns refuses, before anything is assigned, a path that is no pod's network namespace.
func checkNetns(path string) error {
	pod, err := netlinkx.OpenNamespace(path)
	if err != nil {
		return failure(types.ErrInvalidNetNS, fmt.Errorf("CNI_NETNS: %w: the sandbox has ended; the runtime makes a new one", err))
	}
	defer pod.Close()
	return checkNotOwn(pod, path)
}

// spareNode refuses the node's own namespace: DEL would remove the node's eth0. It accepts a namespace that is gone.
func spareNode(path string) error {
	pod, err := netlinkx.OpenNamespace(path)
	if err != nil {
		return nil
	}
	defer pod.Close()
	return checkNotOwn(pod, path)
}

func checkNotOwn(pod *netlinkx.Namespace, path string) error {
	own, err := netlinkx.CurrentNamespace()
	if err != nil {
		return err
	}
	defer own.Close()
	same, err := own.Same(pod)
	if err == nil && same {
		err = failure(types.ErrInvalidNetNS,
			fmt.Errorf("CNI_NETNS: %s is the node's own network namespace: a pod on the host's network has no link of its own", path))
	}
	return err
}
