package plugin

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"

	"github.com/containernetworking/cni/pkg/types"

	"github.com/tortie-net/tortie/internal/api"
	"github.com/tortie-net/tortie/internal/api/names"
)

// request has the wanted properties of a container's network: the configuration's, or those that arguments and
// annotations put in their place.
type request struct {
	v4, v6           bool
	poolsV4, poolsV6 []string
	// addresses are those that IPAM is to assign, and no others; none lets it choose.
	addresses []netip.Addr
	// earlier is the handle of the sandbox that the pod had before, as the pod says; empty unless there are such
	// addresses, or floating ones.
	earlier string
	// unmanaged are addresses that IPAM never hears of.
	unmanaged []netip.Addr
	// floating are addresses by which others reach the container too: see floats.
	floating []netip.Addr
	// sources are addresses that the container may send from, beside its own. The agent lets it.
	sources []netip.Prefix
	mac     net.HardwareAddr // nil: random
	// namespaceLabels decide which pools may serve.
	namespaceLabels map[string]string
}

// request reads what is wanted for a workload. What the pod or, if it says nothing, its namespace asks for replaces
// what the configuration says.
func (s *session) request(w *workload) (request, error) {
	want := s.configured()
	if s.conf.ofPods() {
		if err := readAnnotations(w, &want); err != nil {
			return request{}, failure(types.ErrInvalidNetworkConfig, err)
		}
	}
	want.namespaceLabels = w.namespace.Labels
	if err := s.possible(&want); err != nil {
		return request{}, failure(types.ErrInvalidNetworkConfig, err)
	}
	err := s.decide(&want)
	if want.addresses != nil || want.floating != nil {
		want.earlier = s.earlierHandle(w)
	}
	return want, err
}

// earlierHandle names what the pod's sandbox of before may hold.
func (s *session) earlierHandle(w *workload) string {
	id := w.pod.Annotations[api.AnnotationContainerID]
	if id == s.containerID || !networkName.MatchString(id) {
		return ""
	}
	return names.PodHandle(s.conf.Name, id)
}

// configured returns the request of the configuration.
func (s *session) configured() request {
	return request{v4: s.conf.wantsV4(), v6: s.conf.wantsV6(), poolsV4: s.conf.IPAM.IPv4Pools, poolsV6: s.conf.IPAM.IPv6Pools}
}

// configuredRequest is the request to an executed calico-ipam. The main plugin that executes it has read the
// annotations.
func (s *session) configuredRequest(namespaceLabels map[string]string) (request, error) {
	want := s.configured()
	want.namespaceLabels = namespaceLabels
	return want, s.decide(&want)
}

// decide settles which families are wanted. The address that CNI_ARGS asks for counts unless annotations ask for
// others, and with explicit addresses there are no others.
func (s *session) decide(want *request) error {
	if s.address.IsValid() && want.addresses == nil && want.unmanaged == nil {
		want.addresses = []netip.Addr{s.address}
	}
	if want.addresses != nil {
		want.v4, want.v6 = slices.ContainsFunc(want.addresses, netip.Addr.Is4), slices.ContainsFunc(want.addresses, netip.Addr.Is6)
	}
	if !want.v4 && !want.v6 && want.unmanaged == nil && s.conf.IPAM.Type == calicoIPAM {
		return failure(types.ErrInvalidNetworkConfig,
			errors.New(`network configuration: ipam.assign_ipv4 is "false" and ipam.assign_ipv6 is not "true": no address is wanted`))
	}
	return nil
}

// possible refuses annotations that the configuration does not allow, or that contradict each other.
func (s *session) possible(want *request) error {
	own := s.conf.IPAM.Type == calicoIPAM
	for _, rule := range []struct {
		broken bool
		key    string
		value  []netip.Addr
		remedy string
	}{
		{!own && want.addresses != nil, api.AnnotationIPAddrs, want.addresses,
			"only calico-ipam serves it, and ipam.type is " + s.conf.IPAM.Type + ": remove it"},
		{!own && want.unmanaged != nil, api.AnnotationIPAddrsNoIPAM, want.unmanaged,
			"it needs ipam.type calico-ipam, which is " + s.conf.IPAM.Type + ": remove it"},
		{want.unmanaged != nil && !s.conf.FeatureControl.IPAddrsNoIPAM, api.AnnotationIPAddrsNoIPAM, want.unmanaged,
			"it has to be allowed: set feature_control.ip_addrs_no_ipam in the network configuration, or remove it"},
		{want.unmanaged != nil && want.addresses != nil, api.AnnotationIPAddrsNoIPAM, want.unmanaged,
			"the pod has ipAddrs too: remove one of them"},
		{want.floating != nil && !s.conf.FeatureControl.FloatingIPs, api.AnnotationFloatingIPs, want.floating,
			"it has to be allowed: set feature_control.floating_ips in the network configuration, or remove it"},
	} {
		if rule.broken {
			return fmt.Errorf("annotation %s of pod %s/%s: %v: %s", rule.key, s.namespace, s.pod, rule.value, rule.remedy)
		}
	}
	return nil
}
