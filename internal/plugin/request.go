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

// request holds the wanted properties of a container's network: the configuration's, or what arguments and annotations
// replace them with.
type request struct {
	v4, v6           bool
	poolsV4, poolsV6 []string
	// addresses are what IPAM must assign; without any it chooses.
	addresses []netip.Addr
	// earlier is the handle of the pod's previous sandbox, from the pod's annotation; empty unless there are addresses or
	// floating ones.
	earlier string
	// unmanaged are addresses that IPAM does not manage.
	unmanaged []netip.Addr
	// floating are addresses by which others reach the container too: see floats.
	floating []netip.Addr
	// sources are further addresses that the container may send from. The agent permits them.
	sources []netip.Prefix
	mac     net.HardwareAddr // nil: random
	// namespaceLabels decide which pools may serve.
	namespaceLabels map[string]string
}

// request returns what a workload asks for. Annotations of the pod, or else of its namespace, replace the
// configuration's values.
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

// earlierHandle returns the handle of the pod's previous sandbox; empty if there is none.
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

// configuredRequest returns the request to an executed calico-ipam, whose caller has read the annotations.
func (s *session) configuredRequest(namespaceLabels map[string]string) (request, error) {
	want := s.configured()
	want.namespaceLabels = namespaceLabels
	return want, s.decide(&want)
}

// decide sets the addresses and families. The address in CNI_ARGS counts unless annotations ask for others; explicit
// addresses exclude any other.
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
