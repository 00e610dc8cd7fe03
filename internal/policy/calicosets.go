package policy

import (
	"fmt"

	"github.com/tortie-net/tortie/internal/api"
	"github.com/tortie-net/tortie/internal/api/names"
)

// FromCalicoNetworkSet converts a NetworkSet, with what is wrong with it: networks that cannot be read are left out.
func FromCalicoNetworkSet(s *api.CalicoNetworkSet) (NetworkSet, []string) {
	return networkSet(&s.Meta, s.Spec.Nets)
}

// FromCalicoGlobalNetworkSet is FromCalicoNetworkSet for a GlobalNetworkSet.
func FromCalicoGlobalNetworkSet(s *api.CalicoGlobalNetworkSet) (NetworkSet, []string) {
	return networkSet(&s.Meta, s.Spec.Nets)
}

func networkSet(m *api.Meta, texts []string) (NetworkSet, []string) {
	r := &reader{}
	nets, _ := r.nets("spec.nets", texts)
	return NetworkSet{Namespace: m.Namespace, Name: m.Name, Labels: names.Labels(m), Nets: nets}, r.problems
}

// FromCalicoHostEndpoint converts a HostEndpoint as a peer, with what is wrong with it: addresses and ports that cannot be read are left out.
func FromCalicoHostEndpoint(h *api.CalicoHostEndpoint) (HostEndpoint, []string) {
	r := &reader{}
	to := HostEndpoint{Name: h.Name, Labels: names.Labels(&h.Meta)}
	for i, text := range h.Spec.ExpectedIPs {
		field := fmt.Sprintf("spec.expectedIPs[%d]", i)
		if net, ok := r.net(field, text); ok && net.IsSingleIP() {
			to.Addresses = append(to.Addresses, net.Addr())
		} else if ok {
			r.problem(field, text, "is a range: give an address")
		}
	}
	for i, p := range h.Spec.Ports {
		if port, ok := r.endpointPort(fmt.Sprintf("spec.ports[%d]", i), p); ok {
			to.Ports = append(to.Ports, port)
		}
	}
	return to, r.problems
}

func (r *reader) endpointPort(field string, p api.CalicoEndpointPort) (NamedPort, bool) {
	protocol, _ := calicoProtocol(p.Protocol)
	switch {
	case protocol != TCP && protocol != UDP && protocol != SCTP:
		return NamedPort{}, r.problem(field+".protocol", p.Protocol, "has no ports: use TCP, UDP or SCTP")
	case p.Port < 0 || p.Port > lastPort:
		return NamedPort{}, r.problem(field+".port", p.Port, "is no port: give a number from 0 to 65535")
	}
	return NamedPort{Name: p.Name, Protocol: protocol, Port: uint16(p.Port)}, r.calicoName(field+".name", p.Name)
}
