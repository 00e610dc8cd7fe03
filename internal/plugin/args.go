package plugin

import (
	"fmt"
	"net/netip"
	"regexp"
	"strings"

	"github.com/containernetworking/cni/pkg/types"
)

// podArgs holds the arguments that the kubelet's runtime passes in CNI_ARGS. Field names are the keys; docs/ is made
// from the tags.
type podArgs struct {
	types.CommonArgs
	K8S_POD_NAMESPACE          types.UnmarshallableString `help:"Namespace of the pod; calico with datastore kubernetes requires it."`
	K8S_POD_NAME               types.UnmarshallableString `help:"Name of the pod; both or neither. A container of neither is no pod's."`
	K8S_POD_INFRA_CONTAINER_ID types.UnmarshallableString `help:"Accepted: it is the container ID, which CNI_CONTAINERID says too."`
	K8S_POD_UID                types.UnmarshallableString `help:"UID of the pod: ADD refuses a sandbox of a pod that was deleted and created again."`
	IP                         types.UnmarshallableString `help:"calico-ipam: assign this address and no other. The annotation ipAddrs wins over it."`
}

// objectName matches the names that Kubernetes accepts for a pod. No other text may become part of a URL.
var objectName = regexp.MustCompile(`^[a-z0-9]([a-z0-9.-]*[a-z0-9])?$`)

// parseArgs reads CNI_ARGS. Arguments for other plugins are ignored.
func parseArgs(text string) (podArgs, error) {
	var args podArgs
	err := types.LoadArgs(ignoreUnknown(text), &args)
	return args, err
}

// ignoreUnknown makes the parser of CNI_ARGS ignore unknown keys: containerd and CRI-O set IgnoreUnknown, not every
// caller does.
func ignoreUnknown(args string) string { return strings.TrimSuffix("IgnoreUnknown=1;"+args, ";") }

// readArgs takes the pod and the address that CNI_ARGS names.
func (s *session) readArgs(text string) error {
	args, err := parseArgs(text)
	if err != nil {
		return err
	}
	s.namespace, s.pod, s.podUID = string(args.K8S_POD_NAMESPACE), string(args.K8S_POD_NAME), string(args.K8S_POD_UID)
	if err := s.checkPod(); err != nil {
		return err
	}
	if args.IP == "" {
		return nil
	}
	if s.address, err = netip.ParseAddr(string(args.IP)); err != nil || s.address.Zone() != "" {
		return fmt.Errorf("IP %q: use one address without a prefix length, such as 10.0.0.5", args.IP)
	}
	s.address = s.address.Unmap()
	return nil
}

func (s *session) checkPod() error {
	if s.namespace == "" && s.pod == "" {
		return nil
	}
	for _, arg := range [][2]string{{"K8S_POD_NAMESPACE", s.namespace}, {"K8S_POD_NAME", s.pod}} {
		key, value := arg[0], arg[1]
		if value == "" {
			return fmt.Errorf("%s is missing: a pod has both a namespace and a name", key)
		}
		if !objectName.MatchString(value) {
			return fmt.Errorf("%s %q is no name of a Kubernetes object", key, value)
		}
	}
	return nil
}
